"""The tenant that a client's certificate names: one rule for the daemon's TLS, and the gateway's over HTTP and gRPC."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

PREFIX: Final = "offpath://tenant/"


def tenant_of(certificate: Mapping[str, Any] | None) -> str | None:
    """NAME of the only ``offpath://tenant/NAME`` among the URI names of a certificate as `ssl` shows it; None: there is
    none, or several."""
    names = (certificate or {}).get("subjectAltName", ())
    return tenant_among(value for kind, value in names if kind == "URI")


def tenant_among(uris: Iterable[str]) -> str | None:
    """As `tenant_of`, of the names alone."""
    tenants = [uri[len(PREFIX) :] for uri in uris if uri.startswith(PREFIX)]
    return tenants[0] if len(tenants) == 1 else None
