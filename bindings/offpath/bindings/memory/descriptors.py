"""Validates memory descriptors from other processes: the type and range of each value."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from offpath.bindings.errors import RegionError

_MOST_BYTES: Final = 1 << 62
_ADDRESSES: Final = 1 << 63

Descriptor = Mapping[str, int | str]


def number(descriptor: Descriptor, name: str, allowed: range) -> int:
    """An integer of the descriptor. Raises: RegionError: missing, not an integer, or out of range."""
    value = descriptor.get(name)
    if type(value) is not int or value not in allowed:  # excludes bool
        raise RegionError(f"{name} is {value!r:.40}, not in [{allowed.start}, {allowed.stop})")
    return value


def span(descriptor: Descriptor, name: str) -> tuple[int, int]:
    """Address ``name`` and length ``name``_bytes, which may be 0. Raises: RegionError: it leaves the address space."""
    nbytes = number(descriptor, f"{name}_bytes", range(_MOST_BYTES))
    address = number(descriptor, name, range(_ADDRESSES))
    if address + nbytes > _ADDRESSES:
        raise RegionError(f"{name} of {nbytes} bytes at {address:#x} leaves the address space")
    return address, nbytes
