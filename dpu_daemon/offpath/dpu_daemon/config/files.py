"""Reads the files that a configuration names: tokens, TLS and CURVE keys. Their contents are never shown."""

from __future__ import annotations

import itertools
import os
import re
import ssl
import stat
from collections.abc import Iterator
from typing import Any, Final

from offpath.bindings.errors import HostChannelError, TokenRefused
from offpath.bindings.tokens import read_token_file
from offpath.bindings.zeromq.keys import read_allowed, read_public, read_secret
from offpath.dpu_daemon.config.faults import ConfigError, Fault
from offpath.dpu_daemon.config.tables import DaemonConfig, TlsTable

_CREDENTIAL: Final = re.compile(r"\$(?:CREDENTIALS_DIRECTORY|\{CREDENTIALS_DIRECTORY\})/(.*)", re.DOTALL)


_PATHS: Final = {
    "tls": ("ca_file", "cert_file", "key_file"),
    "zmq": ("key_file", "allowed"),
    "ina": ("server_key_file", "key_file"),
    "doca": ("path",),
    "tenant": ("token_file",),
}
"""Keys whose values name files."""


def place_paths(raw: dict[str, Any], file: str) -> None:
    """Make relative paths in ``raw``, the tables of ``file``, relative to the folder of ``file``, so that they do not
    depend on the working directory. Values of the wrong type stay: validation refuses them."""
    folder = os.path.dirname(os.path.abspath(file))
    for name, keys in _PATHS.items():
        found = raw.get(name)
        tables = [table for table in (found if isinstance(found, list) else [found]) if isinstance(table, dict)]
        for table, key in itertools.product(tables, keys):
            path = table.get(key)
            if isinstance(path, str) and path and _CREDENTIAL.fullmatch(path) is None:
                table[key] = os.path.join(folder, path)


def secret_path(path: str) -> str:
    """``path`` with a leading ``$CREDENTIALS_DIRECTORY/`` (or ``${…}/``) replaced by the service manager's folder.

    Raises: ConfigError: the variable is not set, or the rest is not a plain file name.
    """
    credential = _CREDENTIAL.fullmatch(path)
    if credential is None:
        return path
    folder, name = os.environ.get("CREDENTIALS_DIRECTORY", ""), credential[1]
    if not os.path.isabs(folder):
        raise ConfigError(f"{path}: no service manager has set CREDENTIALS_DIRECTORY (LoadCredential= in the unit)")
    if "/" in name or name in ("", ".", ".."):
        raise ConfigError(f"{path}: {name!r} is not a credential's name")
    return os.path.join(folder, name)


def read_token(given: str) -> str:
    """A tenant's token. Raises: ConfigError: unreadable, not a token, or readable by others."""
    path = secret_path(given)
    # A service manager may grant access to a credential by an ACL, which shows in the group's bits.
    try:
        return read_token_file(path, others=0o077 if path == given else 0o007)
    except TokenRefused as fault:
        raise ConfigError(str(fault)) from None


def server_context(tls: TlsTable) -> ssl.SSLContext:
    """TLS 1.3 with client certificates. Raises: ConfigError: a file is unusable."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED
    for name in (tls.ca_file, tls.cert_file, tls.key_file):  # on a pipe, OpenSSL would wait for a writer
        _check_regular(secret_path(name))
    try:
        context.load_verify_locations(secret_path(tls.ca_file))
    except (OSError, ValueError) as fault:  # ssl.SSLError is an OSError
        raise ConfigError(f"{tls.ca_file}: {fault}") from None
    _load_chain(context, tls.cert_file, tls.key_file)
    return context


def device_context(cert_file: str, key_file: str) -> ssl.SSLContext:
    """TLS 1.3 without client certificates, for peers that have tokens. Raises: ConfigError: a file is unusable."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    for name in (cert_file, key_file):
        _check_regular(secret_path(name))
    _load_chain(context, cert_file, key_file)
    return context


def _load_chain(context: ssl.SSLContext, cert_file: str, key_file: str) -> None:
    """Raises: ConfigError."""
    try:
        context.load_cert_chain(secret_path(cert_file), secret_path(key_file), password=_no_password)
    except (OSError, ValueError) as fault:
        raise ConfigError(f"{cert_file}, {key_file}: {fault}") from None


def _check_regular(path: str) -> None:
    """Raises: ConfigError: not a regular file."""
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError) as fault:
        raise ConfigError(f"{path}: {getattr(fault, 'strerror', None) or 'cannot be read'}") from None
    if not stat.S_ISREG(mode):
        raise ConfigError(f"{path} is not a regular file")


def _no_password() -> str:
    """Refuses encrypted keys. Without this callback OpenSSL would prompt for a password on the terminal and block."""
    raise ValueError("the key is encrypted; give one without a password")


def read_text(path: str, most: int) -> str:
    """Read a regular file of at most ``most`` bytes of UTF-8; never waits for a writer. Raises: ConfigError."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError as fault:
        raise ConfigError(f"{path}: {fault.strerror}") from None
    except ValueError:
        raise ConfigError("the path of the configuration contains NUL") from None
    try:
        mode = os.fstat(fd).st_mode
        if stat.S_ISDIR(mode):
            raise ConfigError(f"{path}: is a directory")
        if not stat.S_ISREG(mode):
            raise ConfigError(f"{path} is not a regular file")
        with open(fd, "rb", closefd=False) as file:
            data = file.read(most + 1)
    except OSError as fault:
        raise ConfigError(f"{path}: {fault.strerror}") from None
    finally:
        os.close(fd)
    if len(data) > most:
        raise ConfigError(f"{path}: larger than {most >> 20} MiB")
    try:
        return data.decode()
    except UnicodeDecodeError as fault:
        raise ConfigError(f"{path}: not UTF-8 at byte {fault.start}") from None


def zmq_secret(given: str) -> bytes:
    """The daemon's secret key. Raises: ConfigError, KeyFileRefused."""
    path = secret_path(given)
    return read_secret(path, others=0o077 if path == given else 0o007)  # as in `read_token`


def _zmq_faults(config: DaemonConfig) -> Iterator[Fault]:
    if config.datapath.host_channel != "zmq":
        return
    for key, read in (("key_file", zmq_secret), ("allowed", read_allowed)):
        try:
            read(getattr(config.zmq, key))
        except (ConfigError, HostChannelError) as fault:
            yield Fault(f"zmq.{key}", str(fault))


def agent_keys(config: DaemonConfig) -> tuple[bytes, bytes]:
    """The controller's public key and the agent's secret key. Raises: ConfigError, KeyFileRefused."""
    return read_public(secret_path(config.ina.server_key_file)), zmq_secret(config.ina.key_file)


def _ina_faults(config: DaemonConfig) -> Iterator[Fault]:
    if config.ina.controller:
        try:
            agent_keys(config)
        except (ConfigError, HostChannelError) as fault:
            yield Fault("ina", str(fault))


def token_faults(config: DaemonConfig) -> Iterator[tuple[int, int | None, str]]:
    """Yields (tenant, the tenant it conflicts with or None, fault) for each token that cannot be used."""
    claimed: dict[str, dict[int, int]] = {}  # token → uid → the first tenant that it would authenticate
    for at, tenant in enumerate(config.tenant):
        if tenant.token_file is None:
            continue
        try:
            token = read_token(tenant.token_file)
        except ConfigError as fault:
            yield at, None, str(fault)
            continue
        first = claimed.setdefault(token, {})
        uids = tenant.uids or [os.getuid()]
        if (other := next((first[uid] for uid in uids if uid in first), None)) is not None:
            name = config.tenant[other].name
            yield at, other, f"same token and uid as {name}: the tenants cannot be told apart"
        for uid in uids:
            first.setdefault(uid, at)


def file_faults(config: DaemonConfig) -> Iterator[Fault]:
    """Files that cannot be used, and tenants that authentication cannot distinguish."""
    for at, _, text in token_faults(config):
        yield Fault(f"tenant.{at}.token_file", text)
    if config.tls is not None:
        try:
            server_context(config.tls)
        except ConfigError as fault:
            yield Fault("tls", str(fault))
    yield from _zmq_faults(config)
    yield from _ina_faults(config)
