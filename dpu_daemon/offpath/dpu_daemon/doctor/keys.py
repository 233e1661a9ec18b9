"""Checks token files and certificates: present, readable only by the daemon's user, matching, not about to expire."""

from __future__ import annotations

import os
import ssl
import time
from collections.abc import Iterator
from typing import Any, Final

from offpath.dpu_daemon.config import ConfigError, DaemonConfig, TlsTable, read_token, secret_path
from offpath.dpu_daemon.doctor.findings import Finding, Severity, ok

_DAY_S: Final = 86_400
_SOON_DAYS: Final = 30
_EXPIRED: Final = (9, 10)  # X509_V_ERR_CERT_NOT_YET_VALID, X509_V_ERR_CERT_HAS_EXPIRED


def check_keys(config: DaemonConfig) -> Iterator[Finding]:
    """Checks every configured file that contains a secret or a certificate."""
    for tenant in config.tenant:
        if tenant.token_file is None:
            if config.tls is None:
                yield Finding(
                    "token", Severity.WARNING, f"tenant {tenant.name} has no token_file, and there is no [tls]",
                    "no requester can authenticate as this tenant: set its token_file",
                )  # fmt: skip
            continue
        try:
            read_token(tenant.token_file)
            yield ok("token", f"tenant {tenant.name}: {tenant.token_file}")
        except ConfigError as fault:
            fix = "openssl rand -hex 24 > FILE; chmod 600 FILE"
            yield Finding("token", Severity.ERROR, f"tenant {tenant.name}: {fault}", fix)
    if config.tls is not None:
        yield from _tls(config.tls)


def _tls(tls: TlsTable) -> Iterator[Finding]:
    try:
        ca, cert, key = secret_path(tls.ca_file), secret_path(tls.cert_file), secret_path(tls.key_file)
    except ConfigError as fault:
        yield Finding("tls-files", Severity.ERROR, str(fault), "run doctor where the unit's credentials are")
        return
    others = 0o077 if key == tls.key_file else 0o007  # a credential's ACL shows in the group's bits
    try:
        if os.stat(key).st_mode & others:
            yield Finding("tls-files", Severity.ERROR, f"{key} may be read by others", "chmod 600 it")
    except OSError as fault:
        yield Finding("tls-files", Severity.ERROR, f"{key}: {fault.strerror}", "name the key's file in tls.key_file")
        return
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        server.load_cert_chain(cert, key)
        yield ok("tls-files", f"{cert} and {key} match")
    except (ssl.SSLError, OSError) as fault:
        yield Finding("tls-files", Severity.ERROR, f"{cert} with {key}: {_reason(fault)}", "give a PEM pair of one key")
        return
    authority = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        authority.load_verify_locations(ca)
        authorities = authority.get_ca_certs()
    except (ssl.SSLError, OSError) as fault:
        yield Finding("tls-files", Severity.ERROR, f"{ca}: {_reason(fault)}", "give the clients' authority as PEM")
        return
    if not authorities:
        yield Finding(
            "tls-files", Severity.ERROR, f"{ca} contains no CA certificate", "give the clients' authority as PEM"
        )
    for found in authorities:
        yield _lifetime(ca, str(found["notAfter"]))
    try:
        yield _lifetime(cert, certificate_end(server, cert))
    except ssl.SSLCertVerificationError as fault:
        if fault.verify_code in _EXPIRED:
            yield Finding("tls-expiry", Severity.ERROR, f"{cert}: {fault.verify_message}", "issue a new one")
        else:
            yield Finding("tls-files", Severity.ERROR, f"{cert}: {fault.verify_message}", "issue one for a TLS server")
    except ssl.SSLError as fault:
        yield Finding("tls-files", Severity.ERROR, f"{cert}: {_reason(fault)}", "issue one for a TLS server")


def _reason(fault: OSError) -> str:
    return fault.strerror or str(fault)


def certificate_end(server: ssl.SSLContext, cert: str) -> str:
    """``notAfter`` of the certificate that ``server`` presents, from an in-memory handshake that trusts ``cert``.

    The standard library parses only certificates of a peer. Raises: ssl.SSLError: no client would accept it.
    """
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    client.load_verify_locations(cert)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = (client.wrap_bio(to_client, to_server), server.wrap_bio(to_server, to_client, server_side=True))
    for _ in range(8):  # two flights each way are enough for TLS 1.3
        for end in ends:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
        if shown := _shown(ends[0]):
            return str(shown["notAfter"])
    raise ssl.SSLError(0, "the in-memory handshake did not complete")


def _shown(client: ssl.SSLObject) -> dict[str, Any] | None:
    try:
        return client.getpeercert()
    except ValueError:  # the handshake is not complete yet
        return None


def _lifetime(path: str, not_after: str) -> Finding:
    days = int((ssl.cert_time_to_seconds(not_after) - time.time()) // _DAY_S)
    if days < 0:
        return Finding("tls-expiry", Severity.ERROR, f"{path} expired on {not_after}", "issue a new one")
    if days < _SOON_DAYS:
        return Finding(
            "tls-expiry", Severity.WARNING, f"{path} expires on {not_after}, in {days} days", "issue a new one"
        )
    return ok("tls-expiry", f"{path} is valid until {not_after}")
