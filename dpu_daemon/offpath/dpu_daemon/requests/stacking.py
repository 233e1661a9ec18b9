"""How requests' tensors lie in one lane: which of them stack, where the rows of each go, and whose rows a result has.

Pure functions over tensor descriptors. They never touch a payload.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from itertools import pairwise
from math import prod
from typing import Final

from offpath.bindings.errors import HeaderError
from offpath.bindings.wire.fields import MAX_PARAMETERS_BYTES
from offpath.bindings.wire.header import (
    ABSENT,
    DTYPES,
    FLAG_PARAMETERS,
    FLAG_PAYLOAD_CRC,
    FLAG_STREAM,
    STRINGS,
    RequestHeader,
    Tensor,
    pack_tensors,
    unpack_tensors,
)

ALIGN: Final = 64
"""Tensors of a batch, and of a member's result, start at multiples of this many bytes."""
NOT_STACKABLE: Final = (0, 0)
MOST_TENSORS: Final = 16
"""Of a request that stacks: the job book reserves room in the lane for aligning so many, and so many leave room in the
launch for the rows of each member."""
_NO_ROWS: Final = frozenset((STRINGS, ABSENT))
"""Dtypes of tensors whose rows have no place that follows from their number."""
Shape = tuple[tuple[int, tuple[int, ...]], ...]
"""Dtype and dimensions without the first of each tensor."""


@dataclass(frozen=True, slots=True)
class Part:
    """Bytes to copy: ``nbytes`` at ``source`` to ``target``."""

    source: int
    target: int
    nbytes: int


def stack_of(header: RequestHeader) -> tuple[int, int]:
    """The rows of a request and the number of its stack. Rows 0: it does not stack. It has no tensors, or one without
    dimensions, or they differ in the first; they overlap; one has strings, whose rows differ in length, or is absent;
    there are more than `MOST_TENSORS`; a checksum covers the payload as a whole; its parameters are none by their
    length; or it wants a stream. Requests with parameters stack with each other only."""
    if not 0 < header.tensor_count <= MOST_TENSORS or header.flags & (FLAG_PAYLOAD_CRC | FLAG_STREAM):
        return NOT_STACKABLE
    return _stack_of(header.tensors, header.payload_bytes, bool(header.flags & FLAG_PARAMETERS))


@lru_cache(maxsize=1024)  # callers repeat their shapes
def _stack_of(packed: bytes, payload_bytes: int, has_parameters: bool) -> tuple[int, int]:
    tensors = unpack_tensors(packed, payload_bytes)
    stacked = tensors[:-1] if has_parameters else tensors
    if has_parameters and not _may_be_parameters(tensors[-1]):
        return NOT_STACKABLE
    rows = {tensor.dims[0] if tensor.dims else 0 for tensor in stacked}
    if len(rows) != 1 or 0 in rows or not _NO_ROWS.isdisjoint(each.dtype for each in stacked) or _overlap(tensors):
        return NOT_STACKABLE
    digest = blake2b(repr((shape_of(stacked), has_parameters)).encode(), digest_size=8).digest()
    return rows.pop(), int.from_bytes(digest, "little") or 1


def _may_be_parameters(tensor: Tensor) -> bool:
    """False: the tensor shows that a worker will refuse it, which would fail the whole launch: it is no string, or one
    that is too short or too long for the JSON object."""
    return (tensor.dtype, tensor.dims) == (STRINGS, (1,)) and 2 <= tensor.nbytes - 4 <= MAX_PARAMETERS_BYTES


def tensors_of(header: RequestHeader) -> tuple[tuple[Tensor, ...], Tensor | None]:
    """The tensors that stack, and the one of the parameters. Of a request that stacks."""
    tensors = unpack_tensors(header.tensors, header.payload_bytes)
    return (tensors[:-1], tensors[-1]) if header.flags & FLAG_PARAMETERS else (tensors, None)


def parameters_behind(tensors: Sequence[Tensor], lengths: Sequence[int]) -> Tensor:
    """The tensor of the parameters of a batch's requests, which have so many bytes each: behind the others, because it
    is the last."""
    at = (end_of(tensors) + ALIGN - 1) // ALIGN * ALIGN
    return Tensor(STRINGS, (len(lengths),), at, sum(lengths))


def _overlap(tensors: Sequence[Tensor]) -> bool:
    """True if two tensors have a byte in common. In a batch each would have a copy of its own, so a kernel that writes
    to one would not change the other; and the tensors of a request might need more room than its payload."""
    spans = sorted((tensor.offset, tensor.offset + tensor.nbytes) for tensor in tensors if tensor.nbytes)
    return any(end > start for (_, end), (start, _) in pairwise(spans))


def shape_of(tensors: Sequence[Tensor]) -> Shape:
    """What tensors of requests that stack have in common."""
    return tuple((tensor.dtype, tensor.dims[1:]) for tensor in tensors)


def laid_out(shape: Shape, rows: int) -> tuple[Tensor, ...]:
    """Tensors of this shape with that many rows, one behind the other; those without bytes take no place."""
    tensors, at = [], 0
    for dtype, dims in shape:
        nbytes = rows * row_bytes(dtype, dims)
        tensors.append(Tensor(dtype, (rows, *dims), at if nbytes else 0, nbytes))
        at += (nbytes + ALIGN - 1) // ALIGN * ALIGN
    return tuple(tensors)


def row_bytes(dtype: int, dims: tuple[int, ...]) -> int:
    """Length of one row."""
    return DTYPES[dtype][1] * prod(dims)


def end_of(tensors: Sequence[Tensor]) -> int:
    """Length of a payload or result that ends with the last of these tensors."""
    return max((tensor.offset + tensor.nbytes for tensor in tensors), default=0)


def scattered(member: Sequence[Tensor], batch: Sequence[Tensor], first_row: int) -> Iterator[Part]:
    """Where a member's tensors lie in those of its batch, from the row ``first_row`` on."""
    for own, whole in zip(member, batch, strict=True):
        at = whole.offset + first_row * row_bytes(whole.dtype, whole.dims[1:])
        yield Part(own.offset, at, own.nbytes)


def result_tensors(packed: bytes, result_bytes: int, rows: int, *, is_least: bool = False) -> tuple[Tensor, ...] | None:
    """The tensors of a batch's result. None: not every one of them has ``rows`` rows, or one has strings, so the
    members' cannot be told apart; or they are more than `MOST_TENSORS`, each of which costs each member a copy.
    ``is_least``: some members are not known any more, so there may be more rows."""
    try:
        tensors = unpack_tensors(packed, result_bytes)
    except HeaderError:
        return None
    if is_least and tensors and tensors[0].dims:
        rows = max(rows, tensors[0].dims[0])
    if len(tensors) > MOST_TENSORS:
        return None
    has_rows = all(tensor.dims and tensor.dims[0] == rows and tensor.dtype not in _NO_ROWS for tensor in tensors)
    return tensors if has_rows and (tensors or not result_bytes) else None


@dataclass(frozen=True, slots=True)
class Share:
    """A member's part of a result: its packed descriptors, its length, and which bytes it has of the whole."""

    tensors: bytes
    nbytes: int
    parts: tuple[Part, ...]

    def cut(self, inline: bytes) -> bytes:
        """The member's result, out of the whole one."""
        own = bytearray(self.nbytes)
        for part in self.parts:
            own[part.target : part.target + part.nbytes] = inline[part.source : part.source + part.nbytes]
        return bytes(own)


@lru_cache(maxsize=1024)
def share_of(tensors: tuple[Tensor, ...], first_row: int, rows: int) -> Share:
    """The rows ``first_row`` to ``first_row + rows`` of each tensor of a result."""
    own = laid_out(shape_of(tensors), rows)
    parts = tuple(Part(part.target, part.source, part.nbytes) for part in scattered(own, tensors, first_row))
    return Share(pack_tensors(own), end_of(own), parts)
