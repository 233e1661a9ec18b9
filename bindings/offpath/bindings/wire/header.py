"""Request and answer headers: fixed 128 bytes, then up to 80 tensor descriptors of 48 bytes.

A slot is a 4 096-byte header part, then the payload. The requester writes both one-sidedly. The daemon copies the fixed
bytes and the descriptors that this copy announces, each byte once, validates that private copy, and never reads the
header part again (TOCTOU, notes on threat A6). An answer has the same shape in the other direction. All integers are
little-endian.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NamedTuple

from offpath.bindings.errors import HeaderError
from offpath.bindings.wire.codes import Reason, Status

HEADER_PART_BYTES: Final = 4096
FIXED_BYTES: Final = 128
TENSOR_BYTES: Final = 48
MAX_TENSORS: Final = 80
"""As many as fit a header part, a launch and a result: a decoder of 32 layers has two key/value tensors for each."""
MAX_DIMS: Final = 6
HEADER_COPY_BYTES: Final = FIXED_BYTES + MAX_TENSORS * TENSOR_BYTES
"""The longest header."""
VERSION: Final = 2
REQUEST_MAGIC: Final = 0x5152464F  # b"OFRQ"
ANSWER_MAGIC: Final = 0x5341464F  # b"OFAS"

FLAG_IDEMPOTENT: Final = 1
FLAG_PAYLOAD_CRC: Final = 2
FLAG_STREAM: Final = 4
FLAG_SEQUENCE_START: Final = 8
FLAG_SEQUENCE_END: Final = 16
FLAG_PARAMETERS: Final = 32
"""The last tensor is the parameters of the request (`offpath.host_helper.parameters`)."""
SEQUENCE_FLAGS: Final = FLAG_SEQUENCE_START | FLAG_SEQUENCE_END
_KNOWN_FLAGS: Final = FLAG_IDEMPOTENT | FLAG_PAYLOAD_CRC | FLAG_STREAM | SEQUENCE_FLAGS | FLAG_PARAMETERS
FLAG_MORE: Final = 1
"""Of an answer: others of the same request follow."""

# dtype code -> (name, bytes per element). int4x2: two signed 4-bit integers per element, the first in the low bits.
DTYPES: Final[dict[int, tuple[str, int]]] = {
    1: ("uint8", 1),
    2: ("int8", 1),
    3: ("uint16", 2),
    4: ("int16", 2),
    5: ("uint32", 4),
    6: ("int32", 4),
    7: ("uint64", 8),
    8: ("int64", 8),
    9: ("float16", 2),
    10: ("float32", 4),
    11: ("float64", 8),
    12: ("bool", 1),
    13: ("bfloat16", 2),
    14: ("float8_e4m3fn", 1),
    15: ("float8_e5m2", 1),
    16: ("int4x2", 1),
    17: ("complex64", 8),
    18: ("complex128", 16),
    19: ("bytes", 4),
}
DTYPE_CODES: Final[dict[str, int]] = {name: code for code, (name, _) in DTYPES.items()}
STRINGS: Final = 19
"""The dtype ``bytes``: its elements are strings of bytes, each with its length before it, in 4 bytes. So 4 is the least
that an element takes, and the tensor's ``nbytes`` do not follow from its dims. It may start anywhere."""
ABSENT: Final = 255
"""In the place of a dtype: the tensor is absent, and has no dims and no bytes."""

# magic, version, flags, request id, kernel id, R, priority, tensor count, budget ms, payload crc, payload bytes,
# sequence id
_REQUEST = struct.Struct("<IHHQIHBBIIQQ76xI")
# magic, version, flags, request id, status, tensor count, reason, retry after ms, lease, gpu, result bytes,
# six stages in ns (queued, copy, launch, kernel, host, daemon total), attempt generation, number in a stream, rows of
# its batch, number of its batch
_ANSWER = struct.Struct("<IHHQBBHIIIQ6QQIIQ12xI")
_CRC = struct.Struct("<I")
_TENSOR = struct.Struct("<BBHI6IQQ")
FORMATS: Final = f"{_REQUEST.format} {_ANSWER.format} {_TENSOR.format}"
assert _REQUEST.size == FIXED_BYTES and _ANSWER.size == FIXED_BYTES and _TENSOR.size == TENSOR_BYTES
_CRC_AT: Final = FIXED_BYTES - 4
_REQUEST_COUNT_AT: Final = 23
_ANSWER_COUNT_AT: Final = 17
_REQUEST_ZEROS: Final = bytes(76)
_REQUEST_ZEROS_AT: Final = _REQUEST.size - 4 - 76
_ANSWER_ZEROS: Final = bytes(12)
_ANSWER_ZEROS_AT: Final = _ANSWER.size - 4 - 12
_STATUSES: Final = {int(status): status for status in Status}  # a look-up costs a tenth of Status(number)
_REASONS: Final = {int(reason): reason for reason in Reason}


@dataclass(frozen=True, slots=True)
class Tensor:
    """The position of one array in a payload or result.

    ``offset`` is in bytes from the start of the payload. ``dims`` has at most six entries; C order, no strides.
    ``dtype`` may be `ABSENT`.
    """

    dtype: int
    dims: tuple[int, ...]
    offset: int
    nbytes: int


class RequestHeader(NamedTuple):
    """A validated request header. ``tensors`` stays packed, because only the worker needs it unpacked. ``sequence_id``:
    0 for none."""

    flags: int
    request_id: int
    kernel_id: int
    demand: int
    priority: int
    budget_ms: int
    payload_crc: int
    payload_bytes: int
    tensor_count: int
    tensors: bytes
    sequence_id: int = 0


class Stages(NamedTuple):
    """The stages of an answered request's time, in ns, on the daemon's monotonic clock.

    ``queued``: accept → placed. ``copy``: placed → in the lane. ``launch``: in the lane → kernel started, including the
    wait for the lease's share. ``kernel``. ``back``: kernel end → result at the daemon. ``total``: accept → answer
    written.
    """

    queued: int = 0
    copy: int = 0
    launch: int = 0
    kernel: int = 0
    back: int = 0
    total: int = 0


class AnswerHeader(NamedTuple):
    """A validated answer header. ``tensors`` describe the result bytes that follow the header part. ``flags``:
    `FLAG_MORE` or 0. ``number``: of an answer of a stream, from 1; of the last answer, which ends the request, how many
    came before it. ``batch``: a number that the answers of all requests of one launch have; ``batch_rows``: the rows of
    that launch; 0: the request had one of its own."""

    request_id: int
    status: Status
    reason: Reason
    retry_after_ms: int
    lease: int
    gpu: int
    generation: int
    result_bytes: int
    stages: Stages
    tensors: tuple[Tensor, ...]
    flags: int = 0
    number: int = 0
    batch_rows: int = 0
    batch: int = 0

    @property
    def has_more(self) -> bool:
        """Whether other answers of the same request follow."""
        return bool(self.flags & FLAG_MORE)


def pack_tensors(tensors: tuple[Tensor, ...] | list[Tensor]) -> bytes:
    """Pack descriptors, 48 bytes each. Raises: HeaderError: more than 80, or more than six dims."""
    if len(tensors) > MAX_TENSORS:
        raise HeaderError("too_many_tensors", f"{len(tensors)} > {MAX_TENSORS}")
    parts = []
    for t in tensors:
        if len(t.dims) > MAX_DIMS:
            raise HeaderError("too_many_dims", f"{len(t.dims)} > {MAX_DIMS}")
        dims = t.dims + (0,) * (MAX_DIMS - len(t.dims))
        parts.append(_TENSOR.pack(t.dtype, len(t.dims), 0, 0, *dims, t.offset, t.nbytes))
    return b"".join(parts)


@lru_cache(maxsize=1024)  # callers repeat their shapes: a hit costs 0.2 µs instead of 3
def unpack_tensors(packed: bytes, total_bytes: int) -> tuple[Tensor, ...]:
    """Validate descriptors against their payload or result.

    Args:
        packed: n x 48 bytes.
        total_bytes: length of the payload; every tensor must lie inside it, aligned to its element size.
    Raises: HeaderError: unknown dtype, bad dims, product of dims x element size is not ``nbytes`` (of strings: more
        than ``nbytes``), out of bounds, misaligned, reserved bytes set.
    """
    if len(packed) % TENSOR_BYTES or len(packed) > MAX_TENSORS * TENSOR_BYTES:
        raise HeaderError("descriptor_length", str(len(packed)))
    tensors = []
    for at in range(0, len(packed), TENSOR_BYTES):
        code, ndim, zero16, zero32, *rest = _TENSOR.unpack_from(packed, at)
        dims, offset, nbytes = rest[:MAX_DIMS], rest[MAX_DIMS], rest[MAX_DIMS + 1]
        known = DTYPES.get(code)
        if known is None:
            if code != ABSENT:
                raise HeaderError("dtype", str(code))
            if any(packed[at + 1 : at + TENSOR_BYTES]):
                raise HeaderError("reserved", "descriptor of an absent tensor")
            tensors.append(Tensor(ABSENT, (), 0, 0))
            continue
        if ndim > MAX_DIMS or any(dims[ndim:]):
            raise HeaderError("dims", f"ndim {ndim}, dims {dims}")
        if zero16 or zero32:
            raise HeaderError("reserved", "descriptor")
        want = known[1]
        for d in dims[:ndim]:
            want *= d
        if want != nbytes and not (code == STRINGS and 0 < want < nbytes):
            raise HeaderError("tensor_bytes", f"dims give {want}, descriptor has {nbytes}")
        if offset + nbytes > total_bytes:
            raise HeaderError("tensor_bounds", f"{offset}+{nbytes} > {total_bytes}")
        if code != STRINGS and offset % known[1]:
            raise HeaderError("tensor_alignment", f"offset {offset} for {known[0]}")
        tensors.append(Tensor(code, tuple(dims[:ndim]), offset, nbytes))
    return tuple(tensors)


def copied_request(memory: memoryview, at: int) -> bytes:
    """A private copy of the request's header at offset ``at``: its fixed part and the descriptors that this announces.
    Another process may write there at any time, so each byte is read once."""
    return _copied(memory, at, _REQUEST_COUNT_AT)


def copied_answer(memory: memoryview, at: int) -> bytes:
    """As `copied_request`, of an answer's header."""
    return _copied(memory, at, _ANSWER_COUNT_AT)


def _copied(memory: memoryview, at: int, count_at: int) -> bytes:
    fixed = bytes(memory[at : at + FIXED_BYTES])
    count = fixed[count_at] if len(fixed) == FIXED_BYTES else 0
    if not count:
        return fixed
    start = at + FIXED_BYTES
    return fixed + bytes(memory[start : start + min(count, MAX_TENSORS) * TENSOR_BYTES])


def pack_request(
    request_id: int,
    kernel_id: int,
    payload_bytes: int,
    tensors: bytes = b"",
    flags: int = 0,
    demand: int = 0,
    priority: int = 0,
    budget_ms: int = 0,
    payload_crc: int = 0,
    sequence_id: int = 0,
) -> bytes:
    """A request header with its CRC. ``tensors``: already packed. ``demand`` 0: the kernel's own. ``budget_ms`` 0: no
    deadline. ``sequence_id`` 0: none."""
    count = len(tensors) // TENSOR_BYTES
    fixed = _REQUEST.pack(
        REQUEST_MAGIC, VERSION, flags, request_id, kernel_id, demand, priority, count, budget_ms, payload_crc,
        payload_bytes, sequence_id, 0,
    )  # fmt: skip
    crc = zlib.crc32(tensors, zlib.crc32(fixed[:_CRC_AT]))
    return fixed[:_CRC_AT] + _CRC.pack(crc) + tensors


def parse_request(copied: bytes, max_payload_bytes: int) -> RequestHeader:
    """Validate a private copy of a slot's first bytes.

    Args:
        copied: at least ``FIXED_BYTES`` and the descriptors it announces, as `copied_request` gives them.
        max_payload_bytes: capacity behind the header part.
    Raises: HeaderError: one code per rule, see docs/protocol.md.
    """
    if len(copied) < FIXED_BYTES:
        raise HeaderError("short", str(len(copied)))
    (magic, version, flags, request_id, kernel_id, demand, priority, count, budget_ms, payload_crc, payload_bytes,
     sequence_id, crc) = _REQUEST.unpack_from(copied)  # fmt: skip
    if magic != REQUEST_MAGIC:
        raise HeaderError("magic", hex(magic))
    if version != VERSION:
        raise HeaderError("version", str(version))
    end = FIXED_BYTES + count * TENSOR_BYTES
    if count > MAX_TENSORS or end > len(copied):
        raise HeaderError("too_many_tensors", str(count))
    tensors = copied[FIXED_BYTES:end]
    if zlib.crc32(tensors, zlib.crc32(copied[:_CRC_AT])) != crc:
        raise HeaderError("crc", "header checksum does not match")
    if flags & ~_KNOWN_FLAGS:
        raise HeaderError("flags", hex(flags))
    if copied[_REQUEST_ZEROS_AT : _REQUEST_ZEROS_AT + 76] != _REQUEST_ZEROS:
        raise HeaderError("reserved", "fixed part")
    if payload_bytes > max_payload_bytes:
        raise HeaderError("payload_bytes", f"{payload_bytes} > {max_payload_bytes}")
    if not flags & FLAG_PAYLOAD_CRC and payload_crc:
        raise HeaderError("reserved", "payload checksum without its flag")
    if request_id == 0:
        raise HeaderError("request_id", "0 is not an id")
    if flags & SEQUENCE_FLAGS and not sequence_id:
        raise HeaderError("sequence_id", "0 with the flags of a sequence")
    if flags & FLAG_PARAMETERS and not count:
        raise HeaderError("parameters", "no tensor has them")
    if count:
        unpack_tensors(tensors, payload_bytes)
    return RequestHeader(
        flags, request_id, kernel_id, demand, priority, budget_ms, payload_crc, payload_bytes, count, tensors,
        sequence_id,
    )  # fmt: skip


def pack_answer(
    request_id: int,
    status: int,
    reason: int = 0,
    retry_after_ms: int = 0,
    lease: int = 0,
    gpu: int = 0,
    generation: int = 0,
    result_bytes: int = 0,
    stages: tuple[int, int, int, int, int, int] = (0, 0, 0, 0, 0, 0),
    tensors: bytes = b"",
    flags: int = 0,
    number: int = 0,
    batch_rows: int = 0,
    batch: int = 0,
) -> bytes:
    """An answer header with its CRC. ``tensors``: already packed and validated. ``stages``: in the order of
    `Stages`. The others are as in `AnswerHeader`."""
    fixed = _ANSWER.pack(
        ANSWER_MAGIC, VERSION, flags, request_id, status, len(tensors) // TENSOR_BYTES, reason, retry_after_ms, lease,
        gpu, result_bytes, *stages, generation, number, batch_rows, batch, 0,
    )  # fmt: skip
    crc = zlib.crc32(tensors, zlib.crc32(fixed[:_CRC_AT]))
    return fixed[:_CRC_AT] + _CRC.pack(crc) + tensors


def parse_answer(copied: bytes, max_result_bytes: int) -> AnswerHeader:
    """Validate a private copy of an answer's header part; the requester's counterpart of `parse_request`.

    Raises: HeaderError: a rule is broken.
    """
    if len(copied) < FIXED_BYTES:
        raise HeaderError("short", str(len(copied)))
    (magic, version, flags, request_id, status, count, reason, retry_after_ms, lease, gpu, result_bytes,
     queued, copy, launch, kernel, back, total, generation, number, batch_rows, batch,
     crc) = _ANSWER.unpack_from(copied)  # fmt: skip
    if magic != ANSWER_MAGIC:
        raise HeaderError("magic", hex(magic))
    if version != VERSION:
        raise HeaderError("version", str(version))
    end = FIXED_BYTES + count * TENSOR_BYTES
    if count > MAX_TENSORS or end > len(copied):
        raise HeaderError("too_many_tensors", str(count))
    tensors = copied[FIXED_BYTES:end]
    if zlib.crc32(tensors, zlib.crc32(copied[:_CRC_AT])) != crc:
        raise HeaderError("crc", "header checksum does not match")
    if flags & ~FLAG_MORE:
        raise HeaderError("flags", hex(flags))
    if copied[_ANSWER_ZEROS_AT : _ANSWER_ZEROS_AT + 12] != _ANSWER_ZEROS:
        raise HeaderError("reserved", "fixed part")
    if result_bytes > max_result_bytes:
        raise HeaderError("result_bytes", f"{result_bytes} > {max_result_bytes}")
    known_status, known_reason = _STATUSES.get(status), _REASONS.get(reason)
    if known_status is None or known_reason is None:
        raise HeaderError("status", f"{status}, reason {reason}")
    if flags and (known_status is not Status.COMPLETED or not number):
        raise HeaderError("number", f"{number}, status {status}, and more follow")
    return AnswerHeader(
        request_id, known_status, known_reason, retry_after_ms, lease, gpu, generation, result_bytes,
        Stages(queued, copy, launch, kernel, back, total), unpack_tensors(tensors, result_bytes) if count else (),
        flags, number, batch_rows, batch,
    )  # fmt: skip
