"""The tenant that a client's certificate names: one rule for the daemon's TLS, and the gateway's over HTTP and gRPC."""

from __future__ import annotations

import ssl
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any, Final

PREFIX: Final = "offpath://tenant/"
_OID, _EXTENSIONS, _URI = 0x06, 0xA3, 0x86
"""Tags of DER (X.690), of the extensions of a certificate (RFC 5280 §4.1) and of a URI among names (§4.2.1.6)."""
_SUBJECT_ALT_NAME: Final = bytes((0x55, 0x1D, 0x11))
"""The object identifier 2.5.29.17."""


def tenant_of(certificate: Mapping[str, Any] | None) -> str | None:
    """NAME of the only ``offpath://tenant/NAME`` among the URI names of a certificate as `ssl` shows it; None: there is
    none, or several."""
    names = (certificate or {}).get("subjectAltName", ())
    return tenant_among(value for kind, value in names if kind == "URI")


def tenant_among(uris: Iterable[str]) -> str | None:
    """As `tenant_of`, of the names alone."""
    tenants = [uri[len(PREFIX) :] for uri in uris if uri.startswith(PREFIX)]
    return tenants[0] if len(tenants) == 1 else None


@lru_cache(1024)
def tenant_of_pem(certificate: bytes) -> str | None:
    """As `tenant_of`, of a certificate in PEM's form that was verified. Names are read whole, with a NUL where one is.
    None also for what is no certificate."""
    try:
        der = ssl.PEM_cert_to_DER_cert(certificate.decode("ascii"))
        return tenant_among(name.decode("utf-8", "replace") for name in _uris(der))
    except (ValueError, IndexError):
        return None


def _uris(der: bytes) -> Iterator[bytes]:
    """The URI names of a certificate. Raises: ValueError, IndexError: it is none."""
    ((_, whole),) = _parts(der)
    (_, signed), *_ = _parts(whole)
    for tag, value in _parts(signed):
        if tag != _EXTENSIONS:
            continue
        ((_, extensions),) = _parts(value)
        for _, extension in _parts(extensions):
            (kind, identifier), *_, (_, inner) = _parts(extension)
            if (kind, identifier) == (_OID, _SUBJECT_ALT_NAME):
                ((_, names),) = _parts(inner)
                yield from (name for tag, name in _parts(names) if tag == _URI)


def _parts(data: bytes) -> list[tuple[int, bytes]]:
    """Tag and value of each element. Raises: ValueError, IndexError: they do not fill the bytes."""
    parts, at = [], 0
    while at < len(data):
        tag, length, at = data[at], data[at + 1], at + 2
        if length & 0x80:
            count = length & 0x7F
            length, at = int.from_bytes(data[at : at + count]), at + count
        if at + length > len(data):
            raise ValueError("an element is longer than what it is in")
        parts.append((tag, data[at : at + length]))
        at += length
    return parts
