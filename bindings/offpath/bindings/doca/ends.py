"""A lane's export as plain data. Another process wrote it: all fields are validated before they reach DOCA.

DOCA's own blob in it is opaque; DOCA validates it.
"""

from __future__ import annotations

import base64
import binascii
from typing import Final, NamedTuple

from offpath.bindings.errors import RegionError
from offpath.bindings.memory.descriptors import Descriptor, span

ENGINE: Final = "doca"
MOST_EXPORT_BYTES: Final = 1024
"""Limit of one half's export: both must fit a host-channel message. NVIDIA's samples keep theirs below 512."""


class Half(NamedTuple):
    """A lane's landing buffer or result half: the exporter's address, and DOCA's export of it."""

    address: int
    nbytes: int
    export: bytes


def describe(landing: Half, result: Half) -> dict[str, int | str]:
    """Encode a lane's export."""
    sent: dict[str, int | str] = {"engine": ENGINE}
    for name, half in (("landing", landing), ("result", result)):
        text = base64.b64encode(half.export).decode("ascii")
        sent |= {name: half.address, f"{name}_bytes": half.nbytes, f"{name}_export": text}
    return sent


def described(descriptor: Descriptor) -> tuple[Half, Half]:
    """Decode landing buffer and result half; one may be empty. Raises: RegionError."""
    if descriptor.get("engine") != ENGINE:
        raise RegionError(f"an export of engine {descriptor.get('engine')!r:.40}, not {ENGINE}")
    landing, result = (_half(descriptor, name) for name in ("landing", "result"))
    if not landing.nbytes + result.nbytes:
        raise RegionError("an export of no bytes")
    return landing, result


def _half(descriptor: Descriptor, name: str) -> Half:
    address, nbytes = span(descriptor, name)
    text = descriptor.get(f"{name}_export")
    if not isinstance(text, str) or len(text) > 2 * MOST_EXPORT_BYTES:
        raise RegionError(f"{name}_export is {text!r:.40}, not a DOCA export in base64")
    try:
        export = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise RegionError(f"{name}_export is not base64") from None
    if len(export) > MOST_EXPORT_BYTES or bool(export) is not bool(nbytes):
        raise RegionError(f"{name}_export has {len(export)} bytes for {nbytes} bytes of memory")
    return Half(address, nbytes, export)
