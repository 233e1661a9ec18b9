"""The frequent host-channel messages, as structs: Launch and Proceed (daemon → worker), Result (worker → daemon).

The first byte distinguishes a struct from JSON ("{" = 0x7b). A message is at most 4 080 bytes, Comch's limit. Results
up to 3 KiB travel inside Result if its descriptors leave the room, larger ones lie in the lane's result half.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final, NamedTuple

from offpath.bindings.errors import HostMessageError
from offpath.bindings.wire.header import MAX_TENSORS, TENSOR_BYTES

MAX_MESSAGE_BYTES: Final = 4080
INLINE_RESULT_BYTES: Final = 3072
KIND_LAUNCH: Final = 1
KIND_RESULT: Final = 2
KIND_PROCEED: Final = 6
KIND_JSON: Final = ord("{")

RESULT_OK: Final = 0
RESULT_KERNEL_RAISED: Final = 1
RESULT_TOO_LARGE: Final = 2
RESULT_CHECKSUM: Final = 3
RESULT_STALE: Final = 4
RESULT_MORE: Final = 5
"""An answer of a stream; the kernel still runs, and waits for a `Proceed`."""
RESULT_STREAM_MISMATCH: Final = 6
RESULT_STOPPED: Final = 7
"""A stream was closed by a `Proceed` with the flag to stop; the daemon knows why, unless it was restarted since."""
LAST_RESULT: Final = RESULT_STOPPED
"""The greatest status."""

# kind, flags, tensor count, what is added, kernel id, job, lease generation, payload crc, R, zero, payload bytes
_LAUNCH = struct.Struct("<BBBBIQQIHHQ")
# kind, status, tensor count, inline flag, number, started ns, finished ns, job, generation, result bytes
_RESULT = struct.Struct("<BBBBIQQQQQ")
_OF_SEQUENCE: Final = 1
_OF_BATCH: Final = 2
"""What a launch adds: its sequence, before the descriptors; or behind them the rows of each request of its batch."""
MAX_MEMBERS: Final = 256
"""Requests of a batch whose launch has their rows."""
_ROWS = struct.Struct("<H")
# number, client's id
_SEQUENCE = struct.Struct("<QQ")
# kind, stop, zero, number, job, lease generation
_PROCEED = struct.Struct("<BBHIQQ")
LAUNCH_BYTES: Final = _LAUNCH.size
SEQUENCE_BYTES: Final = _SEQUENCE.size
RESULT_BYTES: Final = _RESULT.size
FORMATS: Final = f"{_LAUNCH.format} {_SEQUENCE.format} {_RESULT.format}"


class Launch(NamedTuple):
    """Run ``kernel_id`` on the first ``payload_bytes`` of the lane; ``tensors`` packed as in the request. ``sequence``:
    the daemon's number of the request's sequence, 0 for none; ``sequence_id``: its id in the request. ``rows``: of each
    request of a batch that has parameters, packed by `pack_rows`."""

    job: int
    generation: int
    kernel_id: int
    demand: int
    flags: int
    payload_crc: int
    payload_bytes: int
    tensors: bytes
    sequence: int = 0
    sequence_id: int = 0
    rows: bytes = b""


class Result(NamedTuple):
    """The outcome of a launch, or with `RESULT_MORE` one answer of it. Times are CLOCK_MONOTONIC ns of the shared host.
    On failure ``inline`` is UTF-8 text. ``number``: of an answer of a stream, from 1; else how many came before."""

    job: int
    generation: int
    status: int
    started_ns: int
    finished_ns: int
    result_bytes: int
    is_inline: bool
    tensors: bytes
    inline: bytes
    number: int = 0


class Proceed(NamedTuple):
    """The daemon's reply to answer ``number`` of a stream: the lane's result half is free, and the kernel goes on.
    ``is_stop``: nobody wants further answers, and the kernel is closed."""

    job: int
    generation: int
    number: int
    is_stop: bool


def pack_rows(rows: Iterable[int]) -> bytes:
    """The rows of a batch's requests in order, each 1 to 4096, for a launch."""
    return b"".join(map(_ROWS.pack, rows))


def unpack_rows(packed: bytes) -> tuple[int, ...]:
    """See `pack_rows`."""
    return tuple(rows for (rows,) in _ROWS.iter_unpack(packed))


def pack_launch(
    job: int, generation: int, kernel_id: int, demand: int, flags: int, payload_crc: int, payload_bytes: int,
    tensors: bytes, sequence: int = 0, sequence_id: int = 0, rows: bytes = b"",
) -> bytes:  # fmt: skip
    """A launch message; ``tensors`` is at most 80 packed descriptors. With a sequence there are no ``rows``."""
    adds = _OF_SEQUENCE if sequence else _OF_BATCH if rows else 0
    return (
        _LAUNCH.pack(
            KIND_LAUNCH, flags, len(tensors) // TENSOR_BYTES, adds, kernel_id, job, generation, payload_crc,
            demand, 0, payload_bytes,
        )
        + (_SEQUENCE.pack(sequence, sequence_id) if sequence else b"")
        + tensors
        + rows
    )  # fmt: skip


def parse_launch(message: bytes) -> Launch:
    """Raises: HostMessageError: wrong kind, length or reserved bytes."""
    if len(message) < _LAUNCH.size:
        raise HostMessageError("short", str(len(message)))
    kind, flags, count, adds, kernel_id, job, generation, crc, demand, zero, payload = _LAUNCH.unpack_from(message)
    if kind != KIND_LAUNCH or adds > _OF_BATCH or zero:
        raise HostMessageError("launch", f"kind {kind}")
    is_in_sequence = adds == _OF_SEQUENCE
    at = _LAUNCH.size + _SEQUENCE.size * is_in_sequence
    end = at + count * TENSOR_BYTES
    if count > MAX_TENSORS or not _is_rest(len(message) - end, adds):
        raise HostMessageError("length", str(len(message)))
    sequence, sequence_id = _SEQUENCE.unpack_from(message, _LAUNCH.size) if is_in_sequence else (0, 0)
    if is_in_sequence and not (sequence and sequence_id):
        raise HostMessageError("launch", f"sequence {sequence}, id {sequence_id}")
    return Launch(
        job, generation, kernel_id, demand, flags, crc, payload, message[at:end], sequence, sequence_id, message[end:]
    )


def _is_rest(nbytes: int, adds: int) -> bool:
    """Whether so many bytes may follow the descriptors of a launch."""
    if adds != _OF_BATCH:
        return nbytes == 0
    return nbytes % _ROWS.size == 0 and 0 < nbytes <= MAX_MEMBERS * _ROWS.size


def inline_room(tensors: bytes) -> int:
    """Bytes of a result that may travel inside its message, beside these packed descriptors."""
    return min(INLINE_RESULT_BYTES, MAX_MESSAGE_BYTES - _RESULT.size - len(tensors))


def pack_result(
    job: int, generation: int, status: int, started_ns: int, finished_ns: int, result_bytes: int, is_inline: bool,
    tensors: bytes, inline: bytes, number: int = 0,
) -> bytes:  # fmt: skip
    """A result message. Raises: HostMessageError: it exceeds the channel's limit."""
    if len(inline) > inline_room(tensors):
        raise HostMessageError("inline_length", str(len(inline)))
    return (
        _RESULT.pack(
            KIND_RESULT, status, len(tensors) // TENSOR_BYTES, is_inline, number, started_ns, finished_ns, job,
            generation, result_bytes,
        )
        + tensors
        + inline
    )  # fmt: skip


def parse_result(message: bytes) -> Result:
    """Raises: HostMessageError: wrong kind, status or length, or an inline part that contradicts ``result_bytes``."""
    if len(message) < _RESULT.size:
        raise HostMessageError("short", str(len(message)))
    kind, status, count, inline_flag, number, started, finished, job, generation, nbytes = _RESULT.unpack_from(message)
    if kind != KIND_RESULT or status > LAST_RESULT or inline_flag > 1 or (status == RESULT_MORE and not number):
        raise HostMessageError("result", f"kind {kind} status {status}")
    at = _RESULT.size + count * TENSOR_BYTES
    if count > MAX_TENSORS or len(message) < at:
        raise HostMessageError("length", str(len(message)))
    inline = message[at:]
    if inline_flag and (len(inline) != nbytes or nbytes > INLINE_RESULT_BYTES):
        raise HostMessageError("inline_length", f"{len(inline)} for {nbytes}")
    if not inline_flag and inline:
        raise HostMessageError("inline_length", "bytes after a result that is not inline")
    return Result(
        job, generation, status, started, finished, nbytes, bool(inline_flag), message[_RESULT.size : at], inline,
        number,
    )  # fmt: skip


def pack_proceed(job: int, generation: int, number: int, is_stop: bool) -> bytes:
    """The reply to an answer of a stream."""
    return _PROCEED.pack(KIND_PROCEED, is_stop, 0, number, job, generation)


def parse_proceed(message: bytes) -> Proceed:
    """Raises: HostMessageError: wrong kind or length, an unknown flag, or reserved bytes set."""
    if len(message) != _PROCEED.size:
        raise HostMessageError("length", str(len(message)))
    kind, stop, zero, number, job, generation = _PROCEED.unpack(message)
    if kind != KIND_PROCEED or stop > 1 or zero or not number:
        raise HostMessageError("proceed", f"kind {kind}, stop {stop}, number {number}")
    return Proceed(job, generation, number, bool(stop))
