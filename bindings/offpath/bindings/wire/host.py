"""The two frequent host-channel messages, as structs: Launch (daemon → worker) and Result (worker → daemon).

The first byte distinguishes a struct (0x01, 0x02) from JSON ("{" = 0x7b). A message is at most 4 080 bytes, Comch's
limit. Results up to 3 KiB travel inside Result, larger ones lie in the lane's result half.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from offpath.bindings.errors import HostMessageError
from offpath.bindings.wire.header import MAX_TENSORS, TENSOR_BYTES

MAX_MESSAGE_BYTES: Final = 4080
INLINE_RESULT_BYTES: Final = 3072
KIND_LAUNCH: Final = 1
KIND_RESULT: Final = 2
KIND_JSON: Final = ord("{")

RESULT_OK: Final = 0
RESULT_KERNEL_RAISED: Final = 1
RESULT_TOO_LARGE: Final = 2
RESULT_CHECKSUM: Final = 3
RESULT_STALE: Final = 4

# kind, flags, tensor count, is in a sequence, kernel id, job, lease generation, payload crc, R, zero, payload bytes
_LAUNCH = struct.Struct("<BBBBIQQIHHQ")
# kind, status, tensor count, inline flag, zero, started ns, finished ns, job, generation, result bytes
_RESULT = struct.Struct("<BBBBIQQQQQ")
# number, client's id
_SEQUENCE = struct.Struct("<QQ")
LAUNCH_BYTES: Final = _LAUNCH.size
SEQUENCE_BYTES: Final = _SEQUENCE.size
RESULT_BYTES: Final = _RESULT.size
FORMATS: Final = f"{_LAUNCH.format} {_SEQUENCE.format} {_RESULT.format}"


class Launch(NamedTuple):
    """Run ``kernel_id`` on the first ``payload_bytes`` of the lane; ``tensors`` packed as in the request. ``sequence``:
    the daemon's number of the request's sequence, 0 for none; ``sequence_id``: its id in the request."""

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


class Result(NamedTuple):
    """The outcome of a launch. Times are CLOCK_MONOTONIC ns of the shared host. On failure ``inline`` is UTF-8 text."""

    job: int
    generation: int
    status: int
    started_ns: int
    finished_ns: int
    result_bytes: int
    is_inline: bool
    tensors: bytes
    inline: bytes


def pack_launch(
    job: int, generation: int, kernel_id: int, demand: int, flags: int, payload_crc: int, payload_bytes: int,
    tensors: bytes, sequence: int = 0, sequence_id: int = 0,
) -> bytes:  # fmt: skip
    """A launch message; ``tensors`` is at most eight packed descriptors."""
    return (
        _LAUNCH.pack(
            KIND_LAUNCH, flags, len(tensors) // TENSOR_BYTES, sequence > 0, kernel_id, job, generation, payload_crc,
            demand, 0, payload_bytes,
        )
        + (_SEQUENCE.pack(sequence, sequence_id) if sequence else b"")
        + tensors
    )  # fmt: skip


def parse_launch(message: bytes) -> Launch:
    """Raises: HostMessageError: wrong kind, length or reserved bytes."""
    if len(message) < _LAUNCH.size:
        raise HostMessageError("short", str(len(message)))
    kind, flags, count, more, kernel_id, job, generation, crc, demand, zero, payload = _LAUNCH.unpack_from(message)
    if kind != KIND_LAUNCH or more > 1 or zero:
        raise HostMessageError("launch", f"kind {kind}")
    at = _LAUNCH.size + _SEQUENCE.size * more
    if count > MAX_TENSORS or len(message) != at + count * TENSOR_BYTES:
        raise HostMessageError("length", str(len(message)))
    sequence, sequence_id = _SEQUENCE.unpack_from(message, _LAUNCH.size) if more else (0, 0)
    if more and not (sequence and sequence_id):
        raise HostMessageError("launch", f"sequence {sequence}, id {sequence_id}")
    return Launch(job, generation, kernel_id, demand, flags, crc, payload, message[at:], sequence, sequence_id)


def pack_result(
    job: int, generation: int, status: int, started_ns: int, finished_ns: int, result_bytes: int, is_inline: bool,
    tensors: bytes, inline: bytes,
) -> bytes:  # fmt: skip
    """A result message. Raises: HostMessageError: it exceeds the channel's limit."""
    if len(inline) > INLINE_RESULT_BYTES:
        raise HostMessageError("inline_length", str(len(inline)))
    return (
        _RESULT.pack(
            KIND_RESULT, status, len(tensors) // TENSOR_BYTES, is_inline, 0, started_ns, finished_ns, job, generation,
            result_bytes,
        )
        + tensors
        + inline
    )  # fmt: skip


def parse_result(message: bytes) -> Result:
    """Raises: HostMessageError: wrong kind, status or length, or an inline part that contradicts ``result_bytes``."""
    if len(message) < _RESULT.size:
        raise HostMessageError("short", str(len(message)))
    kind, status, count, inline_flag, zero, started, finished, job, generation, nbytes = _RESULT.unpack_from(message)
    if kind != KIND_RESULT or status > RESULT_STALE or inline_flag > 1 or zero:
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
        job, generation, status, started, finished, nbytes, bool(inline_flag), message[_RESULT.size : at], inline
    )
