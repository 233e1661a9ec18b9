"""Frames between ranks and switches, and between switches: u32 little-endian length, then a head and a body.

Sans-IO. A connection carries one job's use of one tree: only ATTACH carries (job, incarnation, stamp). Sums are never
verified: a rank that sends wrong numbers harms only its own job.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final

from offpath.bindings.errors import InaFrameError

VERSION: Final = 1
CHUNK_BYTES: Final = 64 * 1024
"""Bytes of an operation in one frame. Only its last chunk is shorter."""
MOST_RANKS: Final = 65_536
MOST_OPERATION_BYTES: Final = 1 << 40
"""Limit of the frame format; switches accept less."""
DTYPES: Final[dict[str, tuple[int, int]]] = {"fp32": (1, 4), "fp16": (2, 2), "bf16": (3, 2), "int32": (4, 4)}
"""Name → (code on the wire, bytes of an element)."""
_DTYPE_NAMES: Final = {code: (name, size) for name, (code, size) in DTYPES.items()}
_MOST_INTEGER: Final = (1 << 63) - 1
_LONGEST_NAME: Final = 255
_LENGTH = struct.Struct("<I")
_HEAD = struct.Struct("<BBHIQ")
_ATTACH = struct.Struct("<QQIHH")
_OPERATION = struct.Struct("<QQBB6x")
_OFFSET = struct.Struct("<Q")
_ABORT = struct.Struct("<QB7x")
HEAD_BYTES: Final = _LENGTH.size + _HEAD.size
_LEAST: Final = _HEAD.size
MOST_FRAME_BYTES: Final = _HEAD.size + _OFFSET.size + CHUNK_BYTES
"""Without the length prefix."""
DATA_HEAD_BYTES: Final = HEAD_BYTES + _OFFSET.size
"""In front of a chunk."""


class Kind(IntEnum):
    """The kind of a frame. Up: towards the root. Down: towards the ranks."""

    ATTACH = 1
    """Up: a rank joins the tree."""
    ATTACHED = 2
    """Down: the root has registered the rank."""
    ATTACH_REFUSED = 3
    """Down: the rank may not join."""
    OPERATION = 4
    """Up: an all-reduce begins; its chunks follow at once."""
    DATA = 5
    """Up: a chunk of an operation."""
    REFUSED = 6
    """Down: the operation runs without the tree. It may arrive before its rank has issued it."""
    RESULT = 7
    """Down: a chunk of the sum. The first one confirms that the operation was admitted."""
    DELIVERED = 8
    """Up: a rank has the whole sum."""
    ABORT = 9
    """Both ways: the tree is lost for the stamp."""


class Reason(IntEnum):
    """Why an ATTACH was refused, or a tree lost."""

    UNKNOWN = 1
    """No permission for this job, stamp and rank, or another token. A restarted switch has no permissions."""
    FENCED = 2
    TAKEN = 3
    """The rank's place is in use."""
    UNREACHABLE = 4
    """The switch above is unreachable."""
    LOST = 5
    """A rank or a switch of the tree is gone."""
    MISMATCH = 6
    """Ranks used one index for different operations."""
    RULES = 7
    """A member broke this protocol."""
    LIMITS = 8
    """A member kept a switch waiting too long, or exceeded its buffers."""
    SLOW = 9
    """A member did not read."""
    ENDING = 10
    """The switch shuts down."""


@dataclass(frozen=True, slots=True)
class Attach:
    """``ranks``: of the whole job."""

    rank: int
    ranks: int
    job: str
    incarnation: int
    stamp: int
    token: str


@dataclass(frozen=True, slots=True)
class Attached:
    """See `Kind.ATTACHED`."""

    rank: int


@dataclass(frozen=True, slots=True)
class AttachRefused:
    """See `Kind.ATTACH_REFUSED`."""

    rank: int
    reason: Reason


@dataclass(frozen=True, slots=True)
class Operation:
    """``rank``: the requesting rank; above a leaf, the first rank of that part. ``is_last``: of its step, as far as
    planned."""

    rank: int
    index: int
    stamp: int
    nbytes: int
    dtype: str
    is_last: bool = False


@dataclass(frozen=True, slots=True)
class Data:
    """A chunk of ``rank``, or of the sum of a part of the tree. ``offset``: in bytes, a multiple of `CHUNK_BYTES`."""

    rank: int
    index: int
    offset: int
    payload: bytes


@dataclass(frozen=True, slots=True)
class Refused:
    """See `Kind.REFUSED`."""

    index: int


@dataclass(frozen=True, slots=True)
class Result:
    """See `Data`."""

    index: int
    offset: int
    payload: bytes


@dataclass(frozen=True, slots=True)
class Delivered:
    """See `Kind.DELIVERED`."""

    rank: int
    index: int


@dataclass(frozen=True, slots=True)
class Abort:
    """See `Kind.ABORT`."""

    stamp: int
    reason: Reason


Frame = Attach | Attached | AttachRefused | Operation | Data | Refused | Result | Delivered | Abort


# -- writing --------------------------------------------------------------------------------------------------------
def _frame(kind: Kind, rank: int, index: int, body: bytes = b"") -> bytes:
    return _LENGTH.pack(_HEAD.size + len(body)) + _HEAD.pack(kind, VERSION, 0, rank, index) + body


def chunk_head(kind: Kind, rank: int, index: int, offset: int, nbytes: int) -> bytes:
    """The bytes in front of a chunk of ``nbytes``, for a caller that does not copy the chunk. DATA or RESULT."""
    length = _HEAD.size + _OFFSET.size + nbytes
    return _LENGTH.pack(length) + _HEAD.pack(kind, VERSION, 0, rank, index) + _OFFSET.pack(offset)


def pack(frame: Frame) -> bytes:
    """Encode a frame with its length. The caller must not pass a frame that `parse` refuses."""
    match frame:
        case Data():
            return chunk_head(Kind.DATA, frame.rank, frame.index, frame.offset, len(frame.payload)) + frame.payload
        case Result():
            return chunk_head(Kind.RESULT, 0, frame.index, frame.offset, len(frame.payload)) + frame.payload
        case Operation():
            code = DTYPES[frame.dtype][0]
            body = _OPERATION.pack(frame.stamp, frame.nbytes, code, frame.is_last)
            return _frame(Kind.OPERATION, frame.rank, frame.index, body)
        case Refused():
            return _frame(Kind.REFUSED, 0, frame.index)
        case Delivered():
            return _frame(Kind.DELIVERED, frame.rank, frame.index)
        case Attach():
            job, token = frame.job.encode(), frame.token.encode()
            body = _ATTACH.pack(frame.incarnation, frame.stamp, frame.ranks, len(job), len(token)) + job + token
            return _frame(Kind.ATTACH, frame.rank, 0, body)
        case Attached():
            return _frame(Kind.ATTACHED, frame.rank, 0)
        case AttachRefused():
            return _frame(Kind.ATTACH_REFUSED, frame.rank, 0, _ABORT.pack(0, frame.reason))
        case Abort():
            return _frame(Kind.ABORT, 0, 0, _ABORT.pack(frame.stamp, frame.reason))


# -- reading --------------------------------------------------------------------------------------------------------
def parse(raw: bytes | bytearray | memoryview) -> Frame:
    """One frame without its length. Raises: InaFrameError: it is no frame of this version."""
    if not _LEAST <= len(raw) <= MOST_FRAME_BYTES:
        raise InaFrameError("frame_length", str(len(raw)))
    kind, version, zero, rank, index = _HEAD.unpack_from(raw)
    if version != VERSION or zero:
        raise InaFrameError("version", str(version))
    reader = _READERS.get(kind)
    if reader is None:
        raise InaFrameError("kind", str(kind))
    if rank >= MOST_RANKS:
        raise InaFrameError("rank", str(rank))
    if index > _MOST_INTEGER:
        raise InaFrameError("index", str(index))
    has_rank, has_index, read = reader
    if (rank and not has_rank) or (index and not has_index):
        raise InaFrameError("reserved", f"kind {kind} with rank {rank} and index {index}")
    found: Frame = read(rank, index, raw[_HEAD.size :])
    return found


def _fixed(body: Any, size: int) -> Any:
    if len(body) != size:
        raise InaFrameError("body_length", f"{len(body)} bytes, not {size}")
    return body


def _attach(rank: int, _: int, body: Any) -> Attach:
    if len(body) < _ATTACH.size:
        raise InaFrameError("body_length", f"{len(body)} bytes of an ATTACH")
    incarnation, stamp, ranks, job_bytes, token_bytes = _ATTACH.unpack_from(body)
    _fixed(body, _ATTACH.size + job_bytes + token_bytes)
    if rank >= ranks or ranks > MOST_RANKS:
        raise InaFrameError("rank", f"{rank} of {ranks}")
    names = bytes(body[_ATTACH.size :])
    job, token = _name(names[:job_bytes]), _name(names[job_bytes:])
    return Attach(rank, ranks, job, _integer(incarnation), _integer(stamp), token)


def _name(raw: bytes) -> str:
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        raise InaFrameError("name", "it is not UTF-8") from None
    if not 0 < len(text) <= _LONGEST_NAME or not text.isprintable():
        raise InaFrameError("name", f"{text!r:.80}, not 1 to {_LONGEST_NAME} printable characters")
    return text


def _integer(value: int) -> int:
    if value > _MOST_INTEGER:
        raise InaFrameError("integer", str(value))
    return value


def _operation(rank: int, index: int, body: Any) -> Operation:
    stamp, nbytes, code, is_last = _OPERATION.unpack(_fixed(body, _OPERATION.size))
    _zero(body[18:])
    if code not in _DTYPE_NAMES:
        raise InaFrameError("dtype", str(code))
    if is_last > 1:
        raise InaFrameError("flag", str(is_last))
    name, size = _DTYPE_NAMES[code]
    if not 0 < nbytes <= MOST_OPERATION_BYTES or nbytes % size:
        raise InaFrameError("operation_bytes", f"{nbytes} of {name}")
    return Operation(rank, index, _integer(stamp), nbytes, name, bool(is_last))


def _chunk(body: Any) -> tuple[int, bytes]:
    if len(body) <= _OFFSET.size:
        raise InaFrameError("body_length", "an empty chunk")
    (offset,) = _OFFSET.unpack_from(body)
    if offset % CHUNK_BYTES or offset >= MOST_OPERATION_BYTES:
        raise InaFrameError("offset", str(offset))
    return offset, bytes(body[_OFFSET.size :])


def _data(rank: int, index: int, body: Any) -> Data:
    return Data(rank, index, *_chunk(body))


def _result(_: int, index: int, body: Any) -> Result:
    return Result(index, *_chunk(body))


def _why(body: Any) -> tuple[int, Reason]:
    stamp, code = _ABORT.unpack(_fixed(body, _ABORT.size))
    _zero(body[9:])
    try:
        return _integer(stamp), Reason(code)
    except ValueError:
        raise InaFrameError("reason", str(code)) from None


def _zero(rest: Any) -> None:
    if any(rest):
        raise InaFrameError("reserved", "a reserved byte is set")


def _abort(_: int, __: int, body: Any) -> Abort:
    return Abort(*_why(body))


def _attach_refused(rank: int, _: int, body: Any) -> AttachRefused:
    stamp, reason = _why(body)
    if stamp:
        raise InaFrameError("reserved", "a refusal with a stamp")
    return AttachRefused(rank, reason)


def _attached(rank: int, _: int, body: Any) -> Attached:
    _fixed(body, 0)
    return Attached(rank)


def _refused(_: int, index: int, body: Any) -> Refused:
    _fixed(body, 0)
    return Refused(index)


def _delivered(rank: int, index: int, body: Any) -> Delivered:
    _fixed(body, 0)
    return Delivered(rank, index)


# kind → (has a rank, has an index, reader of the body)
_READERS: Final[dict[int, tuple[bool, bool, Any]]] = {
    Kind.ATTACH: (True, False, _attach),
    Kind.ATTACHED: (True, False, _attached),
    Kind.ATTACH_REFUSED: (True, False, _attach_refused),
    Kind.OPERATION: (True, True, _operation),
    Kind.DATA: (True, True, _data),
    Kind.REFUSED: (False, True, _refused),
    Kind.RESULT: (False, True, _result),
    Kind.DELIVERED: (True, True, _delivered),
    Kind.ABORT: (False, False, _abort),
}


class Reader:
    """Splits a byte stream into frames. Bytes are received directly into `room`; holds less than one frame between
    calls."""

    def __init__(self) -> None:
        self._buffer = bytearray(2 * (_LENGTH.size + MOST_FRAME_BYTES))
        self._view = memoryview(self._buffer)
        self._start = self._end = 0

    def room(self, most: int = 1 << 30) -> memoryview:
        """The buffer for the next receive: at least one byte, at most ``most``."""
        if self._start:
            held = self._end - self._start
            self._buffer[:held] = self._buffer[self._start : self._end]
            self._start, self._end = 0, held
        return self._view[self._end : self._end + most]

    def received(self, nbytes: int) -> list[Frame]:
        """``nbytes`` were written into `room`; returns the frames that are now complete.

        Raises: InaFrameError: the stream is then unusable.
        """
        self._end += nbytes
        found = []
        while self._end - self._start >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer, self._start)
            if not _LEAST <= length <= MOST_FRAME_BYTES:
                raise InaFrameError("frame_length", str(length))
            begin = self._start + _LENGTH.size
            if self._end - begin < length:
                break
            found.append(parse(self._view[begin : begin + length]))
            self._start = begin + length
        return found

    def feed(self, data: bytes) -> list[Frame]:
        """`room` and `received` in one call, for bytes in another buffer. Raises: InaFrameError."""
        found, at = [], 0
        while at < len(data):
            room = self.room()
            part = data[at : at + len(room)]
            room[: len(part)] = part
            found += self.received(len(part))
            at += len(part)
        return found

    @property
    def held(self) -> int:
        """Bytes of an incomplete frame."""
        return self._end - self._start
