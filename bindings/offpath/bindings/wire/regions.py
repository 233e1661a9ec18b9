"""Messages of the copy engine `cuda`, daemon → worker: a requester's memory, its end, and a copy out of it.

They are structs like `Launch`, on the same channel and in one order with it. The first byte distinguishes them.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from offpath.bindings.errors import HostMessageError

KIND_COPY: Final = 3
KIND_REGION: Final = 4
KIND_DROP: Final = 5
KINDS: Final = frozenset({KIND_COPY, KIND_REGION, KIND_DROP})

MOST_REGIONS: Final = 64
"""Regions that a worker holds at once."""
MOST_PINNED_BYTES: Final = 1 << 30
"""Bytes of regions that a worker holds pinned at once."""
MOST_REGION_BYTES: Final = 1 << 40
"""A session's slots are smaller by far: beyond it a length is an error."""

READ_SLOTS: Final = "read"
WRITE_SLOTS: Final = "write"
"""How a worker must map requesters' memory to pin it, as its lane's export says."""

# kind, zero, zero, zero, region, offset in the region, offset in the landing buffer, bytes
_COPY = struct.Struct("<BBHIQQQQ")
# kind, is writable, zero, zero, region, bytes
_REGION = struct.Struct("<BBHIQQ")
# kind, zero, zero, zero, region
_DROP = struct.Struct("<BBHIQ")


class RegionCopy(NamedTuple):
    """Copy ``nbytes`` at ``offset`` of a region to ``at`` in the lane, before what the worker does next."""

    region: int
    offset: int
    at: int
    nbytes: int


class RegionOffer(NamedTuple):
    """Memory of a requester, whose descriptor travels beside the message. ``is_writable``: the descriptor permits
    writing, because the worker's driver pins no memory that is mapped read-only."""

    region: int
    nbytes: int
    is_writable: bool


class RegionDrop(NamedTuple):
    """The region is not copied from any more: unmap it."""

    region: int


_FORMS: Final = {KIND_COPY: _COPY, KIND_REGION: _REGION, KIND_DROP: _DROP}


def pack_copy(region: int, offset: int, at: int, nbytes: int) -> bytes:
    """See `RegionCopy`."""
    return _COPY.pack(KIND_COPY, 0, 0, 0, region, offset, at, nbytes)


def pack_region(region: int, nbytes: int, is_writable: bool) -> bytes:
    """See `RegionOffer`."""
    return _REGION.pack(KIND_REGION, is_writable, 0, 0, region, nbytes)


def pack_drop(region: int) -> bytes:
    """See `RegionDrop`."""
    return _DROP.pack(KIND_DROP, 0, 0, 0, region)


def split(message: bytes) -> tuple[bytes, bytes]:
    """The message of this kind at the start of ``message``, which another one may follow, and what follows it."""
    size = _FORMS[message[0]].size
    return message[:size], message[size:]


def parse(message: bytes) -> RegionCopy | RegionOffer | RegionDrop:
    """Raises: HostMessageError: wrong kind, length or reserved bytes, or a length that no region has."""
    form = _FORMS.get(message[0] if message else 0)
    if form is None or len(message) != form.size:
        raise HostMessageError("region_message", f"kind {message[0] if message else None}, {len(message)} bytes")
    kind, flag, zero, zero2, region, *numbers = form.unpack(message)
    if zero or zero2 or flag > (kind == KIND_REGION):
        raise HostMessageError("region_message", "reserved bytes")
    if kind == KIND_DROP:
        return RegionDrop(region)
    if not 0 < numbers[-1] <= MOST_REGION_BYTES:
        raise HostMessageError("region_bytes", str(numbers[-1]))
    if kind == KIND_REGION:
        return RegionOffer(region, numbers[0], bool(flag))
    return RegionCopy(region, *numbers)
