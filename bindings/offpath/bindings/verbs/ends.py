"""The ends of the copy engine's queue pairs as plain data, in invitations and lane exports.

Another process writes both: each number is checked for type and range before it reaches a device.
"""

from __future__ import annotations

from ipaddress import IPv6Address
from typing import Final

from offpath.bindings.errors import RegionError
from offpath.bindings.memory.descriptors import Descriptor, number, span
from offpath.bindings.verbs.queue import PSN_MASK, Address

ENGINE: Final = "verbs"
READS: Final = 8
"""Reads that a lane may have in flight; both ends must reserve resources for them."""
_KEYS: Final = 1 << 32
_MTUS: Final = range(1, 6)


def describe(address: Address) -> dict[str, int | str]:
    """Encode a queue pair's end."""
    return {
        "engine": ENGINE, "qp_num": address.qp_num, "psn": address.psn, "gid": address.gid, "mtu": address.mtu
    }  # fmt: skip


def described(descriptor: Descriptor) -> Address:
    """Decode a queue pair's end. Raises: RegionError: it is invalid."""
    if descriptor.get("engine") != ENGINE:
        raise RegionError(f"an end of engine {descriptor.get('engine')!r:.40}, not {ENGINE}")
    gid = descriptor.get("gid")
    try:
        parsed = IPv6Address(gid) if isinstance(gid, str) else None
    except ValueError:
        parsed = None
    # RoCEv2 over IPv4 is the only kind that a connection can use; with a zone one GID would have many spellings.
    if parsed is None or parsed.ipv4_mapped is None or parsed.scope_id is not None:
        raise RegionError(f"{gid!r:.60} is not a GID of RoCEv2 over IPv4")
    return Address(
        qp_num=number(descriptor, "qp_num", range(1, PSN_MASK + 1)),
        psn=number(descriptor, "psn", range(PSN_MASK + 1)),
        gid=str(parsed),
        mtu=number(descriptor, "mtu", _MTUS),
    )


def describe_half(name: str, address: int, rkey: int, nbytes: int) -> dict[str, int | str]:
    """Encode a lane's landing buffer or result half."""
    return {name: address, f"{name}_rkey": rkey, f"{name}_bytes": nbytes}


def described_half(descriptor: Descriptor, name: str) -> tuple[int, int, int]:
    """Decode it: address, rkey, and length, which may be 0. Raises: RegionError."""
    address, nbytes = span(descriptor, name)
    return address, number(descriptor, f"{name}_rkey", range(_KEYS)), nbytes
