"""Bounds that configuration, flags and registrations share: what is a number but cannot be meant."""

from __future__ import annotations

from typing import Final

LEAST_MEMORY: Final = 1 << 20
"""Bytes of a GPU's memory that a kernel can need at least. CUDA's context alone is larger: a smaller number lacks its
unit."""
LEAST_QUOTA: Final = 4096
"""Bytes of a limit of memory at least: a page."""
MOST_PORT: Final = 65_535


def port_fault(address: str) -> str:
    """Why the port at the end of ``HOST:PORT`` cannot be used; empty: it can, or the text ends in none."""
    port = address.rpartition(":")[2]
    if port.isascii() and port.isdecimal() and (len(port) > 5 or int(port) > MOST_PORT):
        return f"a port must be at most {MOST_PORT}"
    return ""


def with_port(address: str) -> str:
    """The address, for pydantic's AfterValidator. Raises: ValueError: see `port_fault`."""
    if fault := port_fault(address):
        raise ValueError(fault)
    return address
