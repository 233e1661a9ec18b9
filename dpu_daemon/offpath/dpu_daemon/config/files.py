"""The files that a configuration names: tokens, TLS and CURVE keys. What is in them is never shown."""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Iterator
from typing import Final

from offpath.bindings.errors import HostChannelError
from offpath.bindings.zeromq.keys import read_allowed, read_public, read_secret
from offpath.dpu_daemon.config.faults import ConfigError, Fault
from offpath.dpu_daemon.config.tables import DaemonConfig, TlsTable

_TOKEN: Final = re.compile(r"[A-Za-z0-9_-]{16,256}")
_CREDENTIAL: Final = re.compile(r"\$(?:CREDENTIALS_DIRECTORY|\{CREDENTIALS_DIRECTORY\})/(.*)", re.DOTALL)


def secret_path(path: str) -> str:
    """``path`` with a leading ``$CREDENTIALS_DIRECTORY/`` (or ``${…}/``) replaced by where the service manager put it.

    Raises: ConfigError: there is no such folder, or the rest is more than a file's name.
    """
    credential = _CREDENTIAL.fullmatch(path)
    if credential is None:
        return path
    folder, name = os.environ.get("CREDENTIALS_DIRECTORY", ""), credential[1]
    if not os.path.isabs(folder):
        raise ConfigError(f"{path}: no service manager has set CREDENTIALS_DIRECTORY (LoadCredential= in the unit)")
    if "/" in name or name in ("", ".", ".."):
        raise ConfigError(f"{path}: {name!r} is no credential's name")
    return os.path.join(folder, name)


def read_token(given: str) -> str:
    """A tenant's token. Raises: ConfigError: unreadable, too short, or readable by others."""
    path = secret_path(given)
    # A manager may let us read a credential by an access list, which shows in the group's bits.
    others = 0o077 if path == given else 0o007
    try:
        with open(path, encoding="ascii") as file:
            if os.fstat(file.fileno()).st_mode & others:
                raise ConfigError(f"{path} may be read by others; chmod 600 it")
            token = file.read(4096).strip()
    except (OSError, ValueError) as fault:
        raise ConfigError(f"{path}: {fault}") from None
    if not _TOKEN.fullmatch(token):
        raise ConfigError(f"{path}: a token is 16 to 256 letters, digits, - and _ (`openssl rand -hex 24` makes one)")
    return token


def server_context(tls: TlsTable) -> ssl.SSLContext:
    """TLS 1.3 with client certificates. Raises: ConfigError: a file is unusable."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED
    try:
        context.load_verify_locations(secret_path(tls.ca_file))
    except (OSError, ValueError) as fault:  # ssl.SSLError is an OSError
        raise ConfigError(f"{tls.ca_file}: {fault}") from None
    try:
        context.load_cert_chain(secret_path(tls.cert_file), secret_path(tls.key_file))
    except (OSError, ValueError) as fault:
        raise ConfigError(f"{tls.cert_file}, {tls.key_file}: {fault}") from None
    return context


def zmq_secret(given: str) -> bytes:
    """The daemon's own key. Raises: ConfigError, KeyFileRefused."""
    path = secret_path(given)
    return read_secret(path, others=0o077 if path == given else 0o007)  # as of a token


def _zmq_faults(config: DaemonConfig) -> Iterator[Fault]:
    if config.datapath.host_channel != "zmq":
        return
    for key, read in (("key_file", zmq_secret), ("allowed", read_allowed)):
        try:
            read(getattr(config.zmq, key))
        except (ConfigError, HostChannelError) as fault:
            yield Fault(f"zmq.{key}", str(fault))


def agent_keys(config: DaemonConfig) -> tuple[bytes, bytes]:
    """The controller's public key and the agent's own secret. Raises: ConfigError, KeyFileRefused."""
    return read_public(secret_path(config.ina.server_key_file)), zmq_secret(config.ina.key_file)


def _ina_faults(config: DaemonConfig) -> Iterator[Fault]:
    if config.ina.controller:
        try:
            agent_keys(config)
        except (ConfigError, HostChannelError) as fault:
            yield Fault("ina", str(fault))


def file_faults(config: DaemonConfig) -> Iterator[Fault]:
    """Files that cannot be used, and tenants whom nobody could tell apart."""
    by_token: dict[str, list[int]] = {}
    for at, tenant in enumerate(config.tenant):
        if tenant.token_file is None:
            continue
        try:
            token = read_token(tenant.token_file)
        except ConfigError as fault:
            yield Fault(f"tenant.{at}.token_file", str(fault))
            continue
        for other in by_token.get(token, ()):
            if set(tenant.uids or [os.getuid()]) & set(config.tenant[other].uids or [os.getuid()]):
                first = config.tenant[other].name
                yield Fault(f"tenant.{at}.token_file", f"same token and uid as {first}: each could pass for both")
        by_token.setdefault(token, []).append(at)
    if config.tls is not None:
        try:
            server_context(config.tls)
        except ConfigError as fault:
            yield Fault("tls", str(fault))
    yield from _zmq_faults(config)
    yield from _ina_faults(config)
