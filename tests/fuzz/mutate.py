"""How inputs are spoilt: with the structure of the format in view, so that the fault lies deeper than the checksum."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Callable
from random import Random
from typing import Any

from offpath.bindings.wire.header import ABSENT, DTYPES, FIXED_BYTES, MAX_TENSORS, STRINGS, TENSOR_BYTES

Numbers = tuple[int, ...]
Mutation = Callable[[Random, bytes, Numbers], tuple[bytes, Numbers]]
_EDGES = (
    0,
    1,
    2,
    3,
    4,
    5,
    6,
    7,
    8,
    9,
    16,
    63,
    64,
    65,
    127,
    128,
    255,
    256,
    3071,
    3072,
    3073,
    4080,
    4096,
    65_535,
    65_536,
)
_TENSOR = struct.Struct("<BBHI6IQQ")


def edge(noise: Random, size: int) -> int:
    """An integer of ``size`` bytes, mostly near where rules change."""
    most = (1 << 8 * size) - 1
    drawn = noise.random()
    if drawn < 0.5:
        return noise.choice(_EDGES) & most
    if drawn < 0.7:
        return most - noise.choice((0, 1, 7, 63))
    if drawn < 0.85:
        return 1 << noise.randrange(8 * size)
    return noise.getrandbits(8 * size)


def spoil(noise: Random, data: bytes) -> bytes:
    """A blind change: bits, bytes, a piece less, a piece more, a piece twice."""
    copy = bytearray(data)
    kind = noise.randrange(6)
    at = noise.randrange(len(copy) + 1)
    if kind == 0 and copy:
        copy[at % len(copy)] ^= 1 << noise.randrange(8)
    elif kind == 1 and copy:
        copy[at % len(copy)] = noise.choice((0, 1, 9, 0x22, 0x5B, 0x7B, 0x7F, 0x80, 0xFF))
    elif kind == 2:
        del copy[at:]
    elif kind == 3:
        copy[at:at] = noise.randbytes(noise.choice((1, 2, 8, 64)))
    elif kind == 4:
        del copy[at : at + noise.choice((1, 4, 64))]
    else:
        copy[at:at] = copy[at : at + noise.choice((1, 8, 64))]
    return bytes(copy[:70_000])


def descriptor(noise: Random, room: int) -> bytes:
    """A tensor descriptor that is right, or wrong in one thing."""
    code = noise.choice(tuple(DTYPES))
    element = DTYPES[code][1]
    ndim = noise.randrange(7)
    dims = [noise.choice((0, 1, 1, 2, 3, 8)) for _ in range(ndim)] + [0] * (6 - ndim)
    nbytes = element
    for d in dims[:ndim]:
        nbytes *= d
    if code == STRINGS and nbytes:
        nbytes += noise.choice((0, 0, 1, 7))
    offset = noise.randrange(max(1, (room - nbytes) // element + 1)) * element if nbytes <= room else 0
    zero16 = zero32 = 0
    wrong = noise.randrange(12)
    if wrong == 0:
        code = noise.choice((0, 20, 254, 255))
    elif wrong == 1:
        ndim = noise.choice((7, 8, 255))
    elif wrong == 2:
        dims[5] = edge(noise, 4)
    elif wrong == 3:
        nbytes = edge(noise, 8)
    elif wrong == 4:
        offset = noise.choice((room - nbytes + element, room, (1 << 64) - nbytes, offset + 1)) % (1 << 64)
    elif wrong == 5:
        dims = [edge(noise, 4) for _ in dims]
    elif wrong == 6:
        zero16, zero32 = noise.choice(((1, 0), (0, 1), (0xFFFF, 0)))
    packed = _TENSOR.pack(code, ndim, zero16, zero32, *dims, offset, nbytes % (1 << 64))
    if wrong == 8:
        packed = bytes([ABSENT]) + bytes(TENSOR_BYTES - 1)
    return packed if wrong != 7 else packed[:-1] + b"\1"


def layout(fmt: str) -> tuple[tuple[int, int], ...]:
    """(offset, size) of each field of a little-endian struct without padding."""
    fields, at = [], 0
    for letter in fmt:
        size = struct.calcsize("<" + letter)
        fields.append((at, size))
        at += size
    return tuple(fields)


REQUEST = layout("IHHQIHBBIIQQ")
ANSWER = layout("IHHQBBHIIIQQQQQQQQI")
LAUNCH = layout("BBBBIQQIHHQ")
RESULT = layout("BBBBIQQQQQ")
PROCEED = layout("BBHIQQ")
REGION = layout("BBHIQQQQ")
# which field counts descriptors, which announces the bytes they lie in
_COUNT_AT = {REQUEST: 23, ANSWER: 17, LAUNCH: 2, RESULT: 2}
_ROOM_AT = {REQUEST: 32, ANSWER: 32, LAUNCH: 32, RESULT: 40}


def sealed(header: bytes, count: int) -> bytes:
    """With the checksum that its bytes and its first ``count`` descriptors need."""
    end = FIXED_BYTES + count * TENSOR_BYTES
    crc = zlib.crc32(header[FIXED_BYTES:end], zlib.crc32(header[: FIXED_BYTES - 4]))
    return header[: FIXED_BYTES - 4] + crc.to_bytes(4, "little") + header[FIXED_BYTES:]


def struct_mutation(fields: tuple[tuple[int, int], ...], size: int, *, has_crc: bool) -> Mutation:
    """Spoils one struct: its fields, its descriptors, what follows, and the limit it is held to."""

    def mutate(noise: Random, data: bytes, numbers: Numbers) -> tuple[bytes, Numbers]:
        if noise.random() < 0.15 or len(data) < size:
            return spoil(noise, data), numbers
        copy = bytearray(data)
        kind = noise.randrange(8)
        if kind < 3:
            at, width = noise.choice(fields)
            copy[at : at + width] = edge(noise, width).to_bytes(width, "little")
        elif kind < 6:
            _descriptors(noise, copy, fields, size)
        elif kind == 6:
            at = noise.randrange(size)
            copy[at] = noise.choice((0, 1, 255, noise.randrange(256)))
        elif numbers:
            room = int.from_bytes(copy[_ROOM_AT[fields] : _ROOM_AT[fields] + 8], "little")
            numbers = (noise.choice((room, max(0, room - 1), room + 1, edge(noise, 4), 1 << 40)),)
        data = bytes(copy)
        if has_crc and len(data) >= FIXED_BYTES and noise.random() < 0.9:
            data = sealed(data, data[_COUNT_AT[fields]])
        return data, numbers

    return mutate


def _descriptors(noise: Random, copy: bytearray, fields: tuple[tuple[int, int], ...], size: int) -> None:
    count_at, room_at = _COUNT_AT[fields], _ROOM_AT[fields]
    held = min(copy[count_at], MAX_TENSORS)
    if noise.random() < 0.3:
        copy[room_at : room_at + 8] = noise.choice((0, 8, 64, 3072, 4096, 1 << 30)).to_bytes(8, "little")
    room = int.from_bytes(copy[room_at : room_at + 8], "little")
    tail = bytes(copy[size + held * TENSOR_BYTES :])
    count = noise.choice((held, held, noise.randrange(9), noise.randrange(9), held + 1, MAX_TENSORS + 1))
    kept = copy[size : size + min(held, count) * TENSOR_BYTES]
    made = b"".join(descriptor(noise, room) for _ in range(count - len(kept) // TENSOR_BYTES))
    if len(kept) >= TENSOR_BYTES and noise.random() < 0.7:
        which = noise.randrange(len(kept) // TENSOR_BYTES) * TENSOR_BYTES
        kept[which : which + TENSOR_BYTES] = descriptor(noise, room)
    copy[count_at] = count
    copy[size:] = kept + made + tail[:4096]


def tensor_mutation(noise: Random, data: bytes, numbers: Numbers) -> tuple[bytes, Numbers]:
    """Spoils a row of descriptors."""
    if noise.random() < 0.1:
        return spoil(noise, data), numbers
    if noise.random() < 0.1:
        return data, (noise.choice((0, 1, 63, 64, 4096, 1 << 40, edge(noise, 8))),)
    whole = [data[at : at + TENSOR_BYTES] for at in range(0, len(data), TENSOR_BYTES)]
    fresh = descriptor(noise, numbers[0])
    if not whole or noise.random() < 0.3:
        whole.insert(noise.randrange(len(whole) + 1), fresh)
    elif noise.random() < 0.4:
        del whole[noise.randrange(len(whole))]
    else:
        whole[noise.randrange(len(whole))] = fresh
    return b"".join(whole[:10]), numbers


def stream_mutation(noise: Random, data: bytes, numbers: Numbers) -> tuple[bytes, Numbers]:
    """Spoils a stream of frames; ``numbers`` are the sizes of the chunks it comes in."""
    kind = noise.randrange(6)
    if kind == 0:
        data = spoil(noise, data)
    elif kind == 1:
        body = noise.randbytes(noise.choice((1, 2, 3, 100, 4096)))
        data += len(body).to_bytes(4, "little") + body
    elif kind == 2:
        length = noise.choice((0, 1, 65_535, 65_536, 65_537, 1 << 31, (1 << 32) - 1, edge(noise, 4)))
        data += length.to_bytes(4, "little") + noise.randbytes(noise.randrange(8))
    elif kind == 3:
        data += (len(data) or 1).to_bytes(4, "little") + (data or b"x")
    else:
        numbers = tuple(noise.choice((0, 1, 1, 2, 3, 4, 5, 100, 4096)) for _ in range(noise.randrange(8)))
    return data[:140_000], numbers


def ina_mutation(noise: Random, data: bytes, numbers: Numbers) -> tuple[bytes, Numbers]:
    """Spoils a stream of the INA fabric's frames in one field of one frame, whose length is then put right."""
    kind = noise.randrange(8)
    if kind == 0:
        return spoil(noise, data), numbers
    if kind == 1:
        return data, tuple(noise.choice((0, 1, 3, 4, 20, 28, 100, 4096)) for _ in range(noise.randrange(6)))
    found, at = [], 0
    while len(data) - at >= 20:
        length = min(int.from_bytes(data[at : at + 4], "little"), 70_000)
        found.append(bytearray(data[at + 4 : at + 4 + length]))
        at += 4 + length
    if not found:
        return data + b"\x10\0\0\0\2\1" + bytes(14), numbers
    which = noise.randrange(len(found))
    body = found[which]
    if kind == 2:
        found.insert(noise.randrange(len(found) + 1), bytearray(body))
    elif kind == 3:
        del found[which]
    elif kind == 4:
        body[0:1] = bytes([noise.choice((0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 255))])
    elif kind == 5:
        body[noise.choice((16, 24, len(body))) :] = noise.randbytes(noise.choice((0, 1, 8, 16, 24, 30)))
    else:  # head: kind, version, reserved, rank, index; then fields of eight bytes, or shorter ones
        begin, width = noise.choice(
            ((1, 1), (2, 2), (4, 4), (8, 8), (16, 8), (24, 8), (32, 1), (32, 4), (33, 1), (36, 2), (40, 1))
        )
        body[begin : begin + width] = edge(noise, width).to_bytes(width, "little")
    data = b"".join(len(each).to_bytes(4, "little") + each for each in found)
    return data[:140_000], numbers


def packet_mutation(noise: Random, data: bytes, numbers: Numbers) -> tuple[bytes, Numbers]:
    """Spoils a stream of packets of statistical INA in one field of one packet, whose length is then put right."""
    kind = noise.randrange(8)
    if kind == 0:
        return spoil(noise, data), numbers
    if kind == 1:
        return data, tuple(noise.choice((0, 1, 3, 4, 36, 40, 100, 4096)) for _ in range(noise.randrange(6)))
    found, at = [], 0
    while len(data) - at >= 36:
        length = min(int.from_bytes(data[at : at + 4], "little"), 9_000)
        found.append(bytearray(data[at + 4 : at + 4 + length]))
        at += 4 + length
    if not found:
        return data + (32).to_bytes(4, "little") + bytes([noise.randrange(9), 1, 0, 0, 1]) + bytes(27), numbers
    which = noise.randrange(len(found))
    body = found[which]
    if kind == 2:
        found.insert(noise.randrange(len(found) + 1), bytearray(body))
    elif kind == 3:
        body[32:] = noise.choice((b"", bytes(4), bytes(7), b"n1", b"\xff", b"\n", bytes(8192), bytes(8196), b"n" * 256))
    elif kind == 4:
        body[0:1] = bytes([noise.choice((0, 1, 2, 3, 4, 5, 6, 7, 8, 255))])
    else:  # kind, version, flags, workers, reserved, job, psn, bitmap, hash
        begin, width = noise.choice(((1, 1), (2, 2), (4, 2), (6, 2), (8, 8), (16, 8), (24, 4), (28, 4)))
        body[begin : begin + width] = edge(noise, width).to_bytes(width, "little")
    return b"".join(len(each).to_bytes(4, "little") + each for each in found)[:40_000], numbers


DATAGRAM = ((0, 4), (4, 1), (5, 1), (6, 1), (7, 1), (8, 8), (16, 8), (44, 2), (46, 2))
"""Offset and size of the numbers in a packet's head: magic, kind, status, flags, 0, request, version, port, length."""


def datagram_mutation(noise: Random, data: bytes, numbers: Numbers) -> tuple[bytes, Numbers]:
    """Spoils a datagram of a key-value service in one field, in network order; a new length of the value is true."""
    kind = noise.randrange(8)
    if kind < 2 or len(data) < 24:
        return spoil(noise, data), numbers
    if kind == 2:
        value = noise.randbytes(noise.choice((0, 1, 127, 128, 129, 300)))
        return data[:46] + len(value).to_bytes(2, "big") + value, numbers
    if kind == 3:
        return data[:24] + noise.randbytes(noise.choice((0, 1, 32_767, 32_768, 32_769))), numbers
    at, width = noise.choice(DATAGRAM)
    changed = edge(noise, width) if width > 1 else noise.choice((0, 1, 2, 3, 4, 5, 6, 7, 255))
    return data[:at] + changed.to_bytes(width, "big") + data[at + width :], numbers


def proceed_mutation(noise: Random, data: bytes, numbers: Numbers) -> tuple[bytes, Numbers]:
    """Spoils a reply to an answer of a stream: one of its fields, or its length."""
    if noise.randrange(8) < 2 or not data:
        return spoil(noise, data), numbers
    at, width = noise.choice(PROCEED)
    return data[:at] + edge(noise, width).to_bytes(width, "little") + data[at + width :], numbers


def region_mutation(noise: Random, data: bytes, numbers: Numbers) -> tuple[bytes, Numbers]:
    """Spoils a message of the copy engine `cuda`: one of its fields, its kind, or its length."""
    kind = noise.randrange(8)
    if kind < 2 or not data:
        return spoil(noise, data), numbers
    if kind == 2:
        return bytes([noise.randrange(8)]) + data[1:], numbers
    at, width = noise.choice(REGION)
    return data[:at] + edge(noise, width).to_bytes(width, "little") + data[at + width :], numbers


def piece_mutation(noise: Random, data: bytes, numbers: Numbers) -> tuple[bytes, Numbers]:
    """Spoils a short head with what follows; ``numbers``, if there are any, are the sizes of the pieces it comes in."""
    kind = noise.randrange(6)
    if kind == 0:
        data = spoil(noise, data)
    elif kind == 1 and data:
        at = noise.randrange(min(len(data), 16))
        data = data[:at] + bytes([noise.choice((0, 1, 2, 3, 4, 5, 6, 7, 255))]) + data[at + 1 :]
    elif kind == 2:
        data = data[: noise.choice((16, 1, 17))] + noise.randbytes(noise.choice((0, 1, 4079, 4080, 4081, 4096)))
    elif kind == 3:
        more = bytes([noise.choice((0, 0, 1, 2))]) + noise.randbytes(noise.choice((0, 1, 17, 100, 4079)))
        data, numbers = data + more, (*numbers, len(more)) if numbers else numbers
    elif kind == 4:
        data = data[:16] + bytes(noise.choice((0, 1, 4080, 4081)))
    elif numbers:
        numbers = tuple(noise.choice((1, 2, 3, 17, 18, 4080)) for _ in range(noise.randrange(1, 6)))
    return data[:20_000], numbers


def text_mutation(words: tuple[bytes, ...]) -> Mutation:
    """Spoils a text of which ``words`` are known."""

    def mutate(noise: Random, data: bytes, numbers: Numbers) -> tuple[bytes, Numbers]:
        at = noise.randrange(len(data) + 1)
        if noise.random() < 0.5:
            return spoil(noise, data)[:6000], numbers
        return (data[:at] + noise.choice(words) + data[at + noise.choice((0, 0, 1, 8)) :])[:6000], numbers

    return mutate


_ODD: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 1.0, 1.5, 1e300, 16, 64, 100, 101, 255, 256, 1024, 1025, 65_535, 65_536, 1 << 31,
    1 << 32, (1 << 63) - 1, 1 << 63, (1 << 64) - 1, 1 << 64, 10**400, "", "a", "1", "ada", "-", "a b", "a\n", "\0", "ä",
    "🦀", "x" * 64, "x" * 65, "t" * 16, "t" * 256, "t" * 257, "x" * 600, "../etc", [], {}, [[]], [1], ["a"], {"a": 1},
    {"": {}}, [None] * 40,
)  # fmt: skip


def json_mutation(kinds: tuple[str, ...], fields: tuple[str, ...]) -> Mutation:
    """Spoils a JSON value somewhere inside; ``kinds`` and ``fields`` are words the models know."""

    def mutate(noise: Random, data: bytes, numbers: Numbers) -> tuple[bytes, Numbers]:
        if noise.random() < 0.12:
            return spoil(noise, data)[:8000], numbers
        try:
            value = json.loads(data)
        except (ValueError, RecursionError):
            return spoil(noise, data)[:8000], numbers
        if isinstance(value, dict) and kinds and noise.random() < 0.1:
            value["kind"] = noise.choice(kinds)
        else:
            value = _inside(noise, value, fields)
        text = json.dumps(value, ensure_ascii=noise.random() < 0.5)
        return text.encode("utf-8", "surrogatepass")[:8000], numbers

    return mutate


def _inside(noise: Random, value: Any, fields: tuple[str, ...], depth: int = 0) -> Any:
    """The value with one place of it changed."""
    if isinstance(value, dict) and value and depth < 6:
        key = noise.choice(tuple(value))
        drawn = noise.random()
        if drawn < 0.12:
            del value[key]
        elif drawn < 0.24:
            value[noise.choice(fields)] = noise.choice(_ODD)
        elif drawn < 0.27:
            value.update({f"{n:x}": n for n in range(noise.choice((2, 70, 900)))})
        else:
            value[key] = _inside(noise, value[key], fields, depth + 1)
        return value
    if isinstance(value, list) and value and depth < 6:
        drawn = noise.random()
        at = noise.randrange(len(value))
        if drawn < 0.2:
            del value[at]
        elif drawn < 0.35:
            value.append(value[at])
        elif drawn < 0.4:
            value = (value * noise.choice((2, 17, 33)))[:300]
        else:
            value[at] = _inside(noise, value[at], fields, depth + 1)
        return value
    drawn = noise.random()
    if isinstance(value, int) and not isinstance(value, bool) and drawn < 0.4:
        return value + noise.choice((-1, 1)) if drawn < 0.2 else edge(noise, 8)
    if isinstance(value, str) and drawn < 0.3:
        at = noise.randrange(len(value) + 1)
        return value[:at] + noise.choice(("x", "\n", " ", "/", "é", "\ud800", "x" * 64)) + value[at:]
    return noise.choice(_ODD)


_PAGE_FIELDS = (
    "job", "incarnation", "rank", "ranks", "held", "applied", "lost", "index", "is_gone", "term", "number", "wants",
    "is_shared", "grant", "tree", "attach", "token", "step", "duration_ns", "starts_ns", "plain_ns", "ina_ns", "name",
    "duration", "allreduces", "start", "size",
)  # fmt: skip
_PAGE_MARK = struct.Struct("<QII")
_page_body = json_mutation((), _PAGE_FIELDS)


def page_mutation(noise: Random, data: bytes, numbers: Numbers) -> tuple[bytes, Numbers]:
    """A record of a rank's page: mostly another JSON under a mark that fits, else a spoilt mark."""
    drawn = noise.random()
    if drawn < 0.1:
        return spoil(noise, data)[:8000], numbers
    if drawn < 0.15:
        return data, (noise.randrange(3),)
    body, _ = _page_body(noise, data[_PAGE_MARK.size :], ())
    sequence, length, crc = 2, len(body), zlib.crc32(body)
    if drawn > 0.9:
        sequence, length = edge(noise, 8), edge(noise, 4)
    return _PAGE_MARK.pack(sequence, length, crc) + body, numbers
