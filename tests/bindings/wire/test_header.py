"""Request and answer headers: what is packed comes back, what is spoilt is refused, and the bytes never drift."""

from __future__ import annotations

import contextlib
import math
import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offpath.bindings.errors import HeaderError
from offpath.bindings.wire.codes import Reason, Status
from offpath.bindings.wire.header import (
    ABSENT,
    DTYPE_CODES,
    DTYPES,
    FIXED_BYTES,
    FLAG_IDEMPOTENT,
    FLAG_MORE,
    FLAG_PARAMETERS,
    FLAG_PAYLOAD_CRC,
    HEADER_COPY_BYTES,
    HEADER_PART_BYTES,
    MAX_DIMS,
    MAX_TENSORS,
    STRINGS,
    TENSOR_BYTES,
    AnswerHeader,
    RequestHeader,
    Stages,
    Tensor,
    copied_answer,
    copied_request,
    pack_answer,
    pack_request,
    pack_tensors,
    parse_answer,
    parse_request,
    unpack_tensors,
)

ROOM = 1 << 40
u8, u16, u32, u64 = (st.integers(0, (1 << bits) - 1) for bits in (8, 16, 32, 64))


@st.composite
def tensors(draw: st.DrawFn) -> tuple[Tensor, ...]:
    made = []
    for _ in range(draw(st.one_of(st.integers(0, 8), st.just(MAX_TENSORS)))):
        code = draw(st.sampled_from(sorted(DTYPES)))
        dims = tuple(draw(st.lists(st.integers(0, 40), max_size=MAX_DIMS)))
        element = DTYPES[code][1]
        nbytes = math.prod(dims) * element
        if code == STRINGS and nbytes:
            nbytes += draw(st.integers(0, 1 << 30))
        made.append(Tensor(code, dims, draw(st.integers(0, 1 << 30)) * element, nbytes))
        if draw(st.booleans()):
            made[-1] = Tensor(ABSENT, (), 0, 0)
    return tuple(made)


@st.composite
def requests(draw: st.DrawFn) -> tuple[bytes, RequestHeader]:
    packed = pack_tensors(draw(tensors()))
    sequence_id = draw(st.one_of(st.just(0), st.integers(1, (1 << 64) - 1)))
    flags = draw(st.integers(0, 7)) | (draw(st.sampled_from((0, 8, 16, 24))) if sequence_id else 0)
    flags |= draw(st.sampled_from((0, FLAG_PARAMETERS))) if packed else 0
    header = RequestHeader(
        flags,
        draw(st.integers(1, (1 << 64) - 1)),
        draw(u32),
        draw(u16),
        draw(u8),
        draw(u32),
        draw(u32) if flags & FLAG_PAYLOAD_CRC else 0,
        draw(st.integers(1 << 39, ROOM)),
        len(packed) // TENSOR_BYTES,
        packed,
        sequence_id,
    )
    fields = {name: getattr(header, name) for name in RequestHeader._fields if name != "tensor_count"}
    return pack_request(**fields), header


@st.composite
def answers(draw: st.DrawFn) -> tuple[bytes, AnswerHeader]:
    described = draw(tensors())
    header = AnswerHeader(
        draw(u64),
        draw(st.sampled_from(Status)),
        draw(st.sampled_from(Reason)),
        draw(u32),
        draw(u32),
        draw(u32),
        draw(u64),
        draw(st.integers(1 << 39, ROOM)),
        Stages(*draw(st.tuples(u64, u64, u64, u64, u64, u64))),
        described,
        number=draw(u32),
        batch_rows=draw(u32),
        batch=draw(u64),
    )
    if header.status is Status.COMPLETED and header.number:
        header = header._replace(flags=draw(st.sampled_from((0, FLAG_MORE))))
    fields = {name: getattr(header, name) for name in AnswerHeader._fields}
    fields["stages"] = tuple(getattr(header.stages, name) for name in Stages._fields)
    fields["tensors"] = pack_tensors(described)
    return pack_answer(**fields), header


@given(requests(), st.binary(max_size=HEADER_COPY_BYTES))
def test_a_request_comes_back_as_packed_whatever_lies_behind_it(made: tuple[bytes, RequestHeader], rest: bytes) -> None:
    packed, header = made
    assert parse_request(packed + rest, ROOM) == header


@given(answers(), st.binary(max_size=HEADER_COPY_BYTES))
def test_an_answer_comes_back_as_packed_whatever_lies_behind_it(made: tuple[bytes, AnswerHeader], rest: bytes) -> None:
    packed, header = made
    assert parse_answer(packed + rest, ROOM) == header


@given(tensors())
def test_tensors_come_back_as_packed(described: tuple[Tensor, ...]) -> None:
    assert unpack_tensors(pack_tensors(described), ROOM) == described


def flips(packed: bytes) -> list[bytes]:
    """``packed`` with each single bit flipped, as it would lie in a copied header part."""
    padded = packed.ljust(HEADER_COPY_BYTES, b"\0")
    whole = int.from_bytes(padded, "little")
    return [(whole ^ 1 << bit).to_bytes(len(padded), "little") for bit in range(8 * len(packed))]


SOME_TENSORS = pack_tensors([Tensor(10, (2, 3), 0, 24), Tensor(1, (), 24, 1)])


@pytest.mark.parametrize("described", [b"", SOME_TENSORS], ids=["no tensors", "two tensors"])
def test_a_request_with_any_one_bit_flipped_is_refused(described: bytes) -> None:
    packed = pack_request(request_id=7, kernel_id=3, payload_bytes=4096, tensors=described, flags=FLAG_IDEMPOTENT)
    parse_request(packed, 4096)
    for flipped in flips(packed):
        with pytest.raises(HeaderError):
            parse_request(flipped, ROOM)


@pytest.mark.parametrize("described", [b"", SOME_TENSORS], ids=["no tensors", "two tensors"])
def test_an_answer_with_any_one_bit_flipped_is_refused(described: bytes) -> None:
    packed = pack_answer(request_id=7, status=Status.COMPLETED, result_bytes=4096, tensors=described)
    parse_answer(packed, 4096)
    for flipped in flips(packed):
        with pytest.raises(HeaderError):
            parse_answer(flipped, ROOM)


def sealed(packed: bytes) -> bytes:
    """The same bytes with the checksum they should have: what a peer that means it can send."""
    tensor_bytes = packed[FIXED_BYTES:]
    crc = zlib.crc32(tensor_bytes, zlib.crc32(packed[: FIXED_BYTES - 4]))
    return packed[: FIXED_BYTES - 4] + struct.pack("<I", crc) + tensor_bytes


@given(st.binary(max_size=HEADER_COPY_BYTES))
def test_random_bytes_are_refused_with_header_errors_only(noise: bytes) -> None:
    for parse in (parse_request, parse_answer):
        with pytest.raises(HeaderError):
            parse(noise, ROOM)


@given(st.data())
def test_random_bytes_under_a_right_magic_and_checksum_raise_header_errors_only(data: st.DataObject) -> None:
    for parse, magic in ((parse_request, b"OFRQ"), (parse_answer, b"OFAS")):
        count = data.draw(st.integers(0, 9))
        body = bytearray(data.draw(st.binary(min_size=FIXED_BYTES, max_size=FIXED_BYTES)))
        body[:8] = magic + b"\2\0" + data.draw(st.sampled_from([b"\0\0", b"\3\0", b"\xff\xff"]))
        body[23 if parse is parse_request else 17] = count
        size = count * TENSOR_BYTES
        with contextlib.suppress(HeaderError):
            parse(sealed(bytes(body) + data.draw(st.binary(min_size=size, max_size=size))), ROOM)


@given(st.binary(max_size=MAX_TENSORS * TENSOR_BYTES + 65), u64)
def test_random_descriptors_raise_header_errors_only(noise: bytes, total: int) -> None:
    with contextlib.suppress(HeaderError):
        unpack_tensors(noise, total)


def changed(offset: int, value: bytes, *, packed: bytes | None = None) -> bytes:
    """A good request (or ``packed``) with ``value`` at ``offset`` and the right checksum."""
    spoilt = bytearray(packed or pack_request(request_id=1, kernel_id=1, payload_bytes=100, tensors=SOME_TENSORS))
    spoilt[offset : offset + len(value)] = value
    return sealed(bytes(spoilt))


@pytest.mark.parametrize(
    ("offset", "value", "code"),
    [
        (0, b"X", "magic"),
        (4, b"\1", "version"),
        (6, b"\100", "flags"),
        (7, b"\1", "flags"),
        (6, b"\10", "sequence_id"),
        (6, b"\20", "sequence_id"),
        (8, b"\0", "request_id"),
        (23, b"\121", "too_many_tensors"),
        (28, b"\1", "reserved"),
        (32, b"\x01\x02", "payload_bytes"),
        *[(at, b"\1", "reserved") for at in (48, 64, 123)],
        (128, b"\0", "dtype"),
        (128, b"\24", "dtype"),
        (128, b"\377", "reserved"),
        (129, b"\7", "dims"),
        (129, b"\1", "dims"),
        (130, b"\1", "reserved"),
        (132, b"\1", "reserved"),
        (136, b"\3", "tensor_bytes"),
        (152, b"\1", "dims"),
        (160, b"\2", "tensor_alignment"),
        (160, b"\x50", "tensor_bounds"),
        (167, b"\xff", "tensor_bounds"),
    ],
)
def test_each_broken_rule_of_a_request_has_its_code(offset: int, value: bytes, code: str) -> None:
    with pytest.raises(HeaderError) as refused:
        parse_request(changed(offset, value), 100)
    assert refused.value.code == code


@pytest.mark.parametrize(
    ("offset", "value", "code"),
    [
        (0, b"X", "magic"),
        (4, b"\0", "version"),
        (6, b"\2", "flags"),
        (6, b"\1", "number"),
        (16, b"\0", "status"),
        (16, b"\10", "status"),
        (17, b"\121", "too_many_tensors"),
        (18, b"\11", "status"),
        (32, b"\x65", "result_bytes"),
        *[(at, b"\1", "reserved") for at in (112, 118, 123)],
        (128, b"\77", "dtype"),
    ],
)
def test_each_broken_rule_of_an_answer_has_its_code(offset: int, value: bytes, code: str) -> None:
    good = pack_answer(request_id=1, status=1, result_bytes=100, tensors=SOME_TENSORS)
    with pytest.raises(HeaderError) as refused:
        parse_answer(changed(offset, value, packed=good), 100)
    assert refused.value.code == code


@pytest.mark.parametrize("nbytes", [0, 1, FIXED_BYTES - 1])
def test_a_header_cut_short_is_refused(nbytes: int) -> None:
    request = pack_request(request_id=1, kernel_id=1, payload_bytes=0)
    answer = pack_answer(request_id=1, status=1)
    for parse, packed in ((parse_request, request), (parse_answer, answer)):
        with pytest.raises(HeaderError, match="short"):
            parse(packed[:nbytes], 0)


def test_announced_descriptors_must_have_been_copied() -> None:
    packed = pack_request(request_id=1, kernel_id=1, payload_bytes=100, tensors=SOME_TENSORS)
    with pytest.raises(HeaderError, match="too_many_tensors"):
        parse_request(packed[:-1], 100)


def test_a_payload_may_fill_its_room_and_not_a_byte_more() -> None:
    packed = pack_request(request_id=1, kernel_id=1, payload_bytes=100)
    assert parse_request(packed, 100).payload_bytes == 100
    with pytest.raises(HeaderError, match="payload_bytes"):
        parse_request(packed, 99)


def test_a_tensor_may_end_with_its_payload_and_not_a_byte_later() -> None:
    packed = pack_tensors([Tensor(DTYPE_CODES["float64"], (2,), 16, 16)])
    assert len(unpack_tensors(packed, 32)) == 1
    with pytest.raises(HeaderError, match="tensor_bounds"):
        unpack_tensors(packed, 31)


def test_eighty_tensors_of_six_dims_are_the_most() -> None:
    full = [Tensor(1, (1, 1, 1, 1, 1, 1), 0, 1)] * MAX_TENSORS
    assert unpack_tensors(pack_tensors(full), 1) == tuple(full)
    with pytest.raises(HeaderError, match="too_many_tensors"):
        pack_tensors([*full, full[0]])
    with pytest.raises(HeaderError, match="too_many_dims"):
        pack_tensors([Tensor(1, (1,) * 7, 0, 1)])
    for nbytes in (TENSOR_BYTES - 1, TENSOR_BYTES + 1, (MAX_TENSORS + 1) * TENSOR_BYTES):
        with pytest.raises(HeaderError, match="descriptor_length"):
            unpack_tensors(bytes(nbytes), 1)


def test_dims_whose_product_overflows_any_integer_are_refused() -> None:
    huge = struct.pack("<BBHI6IQQ", 11, 6, 0, 0, *[0xFFFF_FFFF] * 6, 0, 0)
    with pytest.raises(HeaderError, match="tensor_bytes"):
        unpack_tensors(huge, ROOM)
    wrapping = struct.pack("<BBHI6IQQ", 1, 1, 0, 0, 8, 0, 0, 0, 0, 0, (1 << 64) - 8, 8)
    with pytest.raises(HeaderError, match="tensor_bounds"):
        unpack_tensors(wrapping, ROOM)


@pytest.mark.parametrize(
    ("dims", "nbytes", "is_right"),
    [((2,), 8, True), ((2,), 9, True), ((2,), 7, False), ((0, 5), 0, True), ((0, 5), 1, False), ((), 4, True),
     ((), 3, False)],
)  # fmt: skip
def test_strings_take_four_bytes_each_or_more(dims: tuple[int, ...], nbytes: int, is_right: bool) -> None:
    packed = pack_tensors([Tensor(STRINGS, dims, 3, nbytes)])
    if is_right:
        assert unpack_tensors(packed, 100) == (Tensor(STRINGS, dims, 3, nbytes),)
    else:
        with pytest.raises(HeaderError, match="tensor_bytes"):
            unpack_tensors(packed, 100)


def test_the_dims_of_strings_overflow_no_integer() -> None:
    with pytest.raises(HeaderError, match="tensor_bytes"):
        unpack_tensors(pack_tensors([Tensor(STRINGS, (1 << 31, 1 << 31, 1 << 31), 0, (1 << 64) - 1)]), ROOM)
    with pytest.raises(HeaderError, match="tensor_bounds"):
        unpack_tensors(pack_tensors([Tensor(STRINGS, (1,), 8, (1 << 64) - 1)]), ROOM)


def test_an_absent_tensor_has_nothing() -> None:
    assert unpack_tensors(pack_tensors([Tensor(ABSENT, (), 0, 0)]), 0) == (Tensor(ABSENT, (), 0, 0),)
    for other in (Tensor(ABSENT, (1,), 0, 0), Tensor(ABSENT, (), 1, 0), Tensor(ABSENT, (), 0, 1)):
        with pytest.raises(HeaderError, match="reserved"):
            unpack_tensors(pack_tensors([other]), 100)


def test_parameters_are_one_of_the_tensors() -> None:
    with pytest.raises(HeaderError, match="parameters"):
        parse_request(pack_request(request_id=1, kernel_id=1, payload_bytes=0, flags=FLAG_PARAMETERS), 0)


def test_a_copy_has_the_descriptors_that_it_announces_and_no_byte_more() -> None:
    request = pack_request(request_id=1, kernel_id=1, payload_bytes=100, tensors=SOME_TENSORS)
    answer = pack_answer(request_id=1, status=1, result_bytes=100, tensors=SOME_TENSORS)
    for copied, packed, count_at in ((copied_request, request, 23), (copied_answer, answer, 17)):
        memory = memoryview(bytes(64) + packed + b"\1" * HEADER_PART_BYTES)
        assert copied(memory, 64) == packed
        bare = bytearray(memory)
        bare[64 + count_at] = 0
        assert copied(memoryview(bare), 64) == bytes(bare[64 : 64 + FIXED_BYTES])
        bare[64 + count_at] = 255
        assert len(copied(memoryview(bare), 64)) == HEADER_COPY_BYTES


def test_a_header_and_its_descriptors_fit_the_header_part() -> None:
    assert FIXED_BYTES + MAX_TENSORS * TENSOR_BYTES == HEADER_COPY_BYTES <= HEADER_PART_BYTES


# -- known answers: a change of one of these changes the protocol's version too ------------------------------------
TENSOR = Tensor(DTYPE_CODES["float32"], (2, 3), 8, 24)
KNOWN_TENSOR = bytes.fromhex(
    "0a 02 0000 00000000"  # dtype float32, ndim, reserved
    "02000000 03000000"
    + "00000000" * 4  # dims
    + "0800000000000000 1800000000000000"  # offset, bytes
)
KNOWN_REQUEST = bytes.fromhex(
    "4f465251 0200 0300"  # b"OFRQ", version 2, idempotent | payload checksum
    "0807060504030201"  # request id
    "14131211 2221 33 01"  # kernel id, R, priority, one tensor
    "47464544 58575655 0010000000000000"  # budget in ms, payload checksum, payload bytes
    + "00" * 84
    + "37aa8ebd"  # CRC-32
)
KNOWN_ANSWER = bytes.fromhex(
    "4f464153 0200 0000"  # b"OFAS", version 2, no flags
    "0807060504030201"  # request id
    "02 01 3c00"  # FAILED, one tensor, KERNEL_RAISED
    "14131211 24232221 34333231 0010000000000000"  # retry after ms, lease, gpu, result bytes
    "0100000000000000 0200000000000000 0300000000000000"  # queued, copy, launch
    "0400000000000000 0500000000000000 0600000000000000"  # kernel, back, total
    "4847464544434241" + "00" * 28 + "b2b938ce"  # generation  # CRC-32
)


def test_the_bytes_of_a_request_never_drift() -> None:
    packed = pack_request(
        request_id=0x0102030405060708,
        kernel_id=0x11121314,
        payload_bytes=4096,
        tensors=pack_tensors([TENSOR]),
        flags=FLAG_IDEMPOTENT | FLAG_PAYLOAD_CRC,
        demand=0x2122,
        priority=0x33,
        budget_ms=0x44454647,
        payload_crc=0x55565758,
    )
    assert packed == KNOWN_REQUEST + KNOWN_TENSOR
    assert parse_request(packed, 4096) == RequestHeader(
        3, 0x0102030405060708, 0x11121314, 0x2122, 0x33, 0x44454647, 0x55565758, 4096, 1, KNOWN_TENSOR
    )
    assert zlib.crc32(packed[:124] + packed[128:]) == 0xBD8EAA37


def test_the_bytes_of_an_answer_never_drift() -> None:
    packed = pack_answer(
        request_id=0x0102030405060708,
        status=Status.FAILED,
        reason=Reason.KERNEL_RAISED,
        retry_after_ms=0x11121314,
        lease=0x21222324,
        gpu=0x31323334,
        generation=0x4142434445464748,
        result_bytes=4096,
        stages=(1, 2, 3, 4, 5, 6),
        tensors=pack_tensors([TENSOR]),
    )
    assert packed == KNOWN_ANSWER + KNOWN_TENSOR
    assert parse_answer(packed, 4096).tensors == (TENSOR,)
