"""The two structs of the host channel: round trips, refusals, and bytes that never drift."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offpath.bindings.errors import HostMessageError
from offpath.bindings.wire.header import MAX_TENSORS, TENSOR_BYTES, Tensor, pack_tensors
from offpath.bindings.wire.host import (
    INLINE_RESULT_BYTES,
    KIND_JSON,
    KIND_LAUNCH,
    KIND_RESULT,
    LAST_RESULT,
    LAUNCH_BYTES,
    MAX_MEMBERS,
    MAX_MESSAGE_BYTES,
    RESULT_BYTES,
    RESULT_KERNEL_RAISED,
    RESULT_MORE,
    SEQUENCE_BYTES,
    Launch,
    Proceed,
    Result,
    inline_room,
    pack_launch,
    pack_proceed,
    pack_result,
    pack_rows,
    parse_launch,
    parse_proceed,
    parse_result,
    unpack_rows,
)

u8, u16, u32, u64 = (st.integers(0, (1 << bits) - 1) for bits in (8, 16, 32, 64))
descriptors = st.one_of(st.integers(0, 8), st.just(MAX_TENSORS)).flatmap(
    lambda n: st.binary(min_size=n * TENSOR_BYTES, max_size=n * TENSOR_BYTES)
)
u64s = st.integers(1, (1 << 64) - 1)
sequences = st.one_of(st.just((0, 0)), st.tuples(u64s, u64s))
rows = st.lists(st.integers(1, 4096), min_size=1, max_size=MAX_MEMBERS)
launches = st.builds(
    lambda launch, sequence, rows: launch._replace(
        sequence=sequence[0], sequence_id=sequence[1], rows=b"" if sequence[0] else pack_rows(rows)
    ),
    st.builds(Launch, u64, u64, u32, u16, u8, u32, u64, descriptors), sequences, st.one_of(st.just([]), rows),
)  # fmt: skip


def packed_launch(launch: Launch) -> bytes:
    return pack_launch(
        launch.job,
        launch.generation,
        launch.kernel_id,
        launch.demand,
        launch.flags,
        launch.payload_crc,
        launch.payload_bytes,
        launch.tensors,
        launch.sequence,
        launch.sequence_id,
        launch.rows,
    )


@st.composite
def results(draw: st.DrawFn) -> Result:
    is_inline = draw(st.booleans())
    tensors = draw(descriptors)
    inline = draw(st.binary(max_size=inline_room(tensors))) if is_inline else b""
    nbytes = len(inline) if is_inline else draw(u64)
    status = draw(st.integers(0, LAST_RESULT))
    return Result(
        draw(u64), draw(u64), status, draw(u64), draw(u64), nbytes, is_inline, tensors, inline,
        draw(st.integers(status == RESULT_MORE, (1 << 32) - 1)),
    )  # fmt: skip


def packed_result(result: Result) -> bytes:
    return pack_result(
        result.job,
        result.generation,
        result.status,
        result.started_ns,
        result.finished_ns,
        result.result_bytes,
        result.is_inline,
        result.tensors,
        result.inline,
        result.number,
    )


@given(launches)
def test_a_launch_comes_back_as_packed(launch: Launch) -> None:
    assert parse_launch(packed_launch(launch)) == launch


@given(results())
def test_a_result_comes_back_as_packed(result: Result) -> None:
    assert parse_result(packed_result(result)) == result


@given(st.binary(max_size=MAX_MESSAGE_BYTES), st.sampled_from([KIND_LAUNCH, KIND_RESULT, KIND_JSON]))
def test_random_bytes_raise_host_message_errors_only(noise: bytes, kind: int) -> None:
    for parse in (parse_launch, parse_result, parse_proceed):
        for message in (noise, bytes([kind]) + noise, bytes([kind, 0, 0, 0]) + bytes(4) + noise):
            with contextlib.suppress(HostMessageError):
                parse(message)


GOOD_LAUNCH = packed_launch(Launch(1, 2, 3, 4, 0, 0, 100, bytes(TENSOR_BYTES)))
GOOD_RESULT = packed_result(Result(1, 2, 0, 3, 4, 6, True, bytes(TENSOR_BYTES), b"result"))


@pytest.mark.parametrize(
    ("offset", "value", "code"),
    [
        (0, 0, "launch"),
        (0, KIND_RESULT, "launch"),
        (0, KIND_JSON, "launch"),
        (2, 0, "length"),
        (2, 2, "length"),
        (2, MAX_TENSORS + 1, "length"),
        (3, 1, "length"),
        (3, 2, "length"),
        (3, 3, "launch"),
        (30, 1, "launch"),
        (31, 1, "launch"),
    ],
)
def test_each_broken_rule_of_a_launch_has_its_code(offset: int, value: int, code: str) -> None:
    spoilt = bytearray(GOOD_LAUNCH)
    spoilt[offset] = value
    with pytest.raises(HostMessageError) as refused:
        parse_launch(bytes(spoilt))
    assert refused.value.code == code


@pytest.mark.parametrize("zero", [0, 8])
def test_a_launch_of_a_sequence_has_its_number_and_its_id(zero: int) -> None:
    packed = bytearray(pack_launch(1, 2, 3, 4, 0, 0, 100, b"", 5, 6))
    assert len(packed) == LAUNCH_BYTES + SEQUENCE_BYTES
    packed[LAUNCH_BYTES + zero] = 0
    with pytest.raises(HostMessageError, match="sequence"):
        parse_launch(bytes(packed))


@pytest.mark.parametrize(
    ("offset", "value", "code"),
    [
        (0, KIND_LAUNCH, "result"),
        (1, LAST_RESULT + 1, "result"),
        (1, RESULT_MORE, "result"),
        (2, 0, "inline_length"),
        (2, 2, "length"),
        (2, 255, "length"),
        (3, 0, "inline_length"),
        (3, 2, "result"),
        (40, 7, "inline_length"),
        (47, 1, "inline_length"),
    ],
)
def test_each_broken_rule_of_a_result_has_its_code(offset: int, value: int, code: str) -> None:
    spoilt = bytearray(GOOD_RESULT)
    spoilt[offset] = value
    with pytest.raises(HostMessageError) as refused:
        parse_result(bytes(spoilt))
    assert refused.value.code == code


GOOD_PROCEED = pack_proceed(1, 2, 3, True)


@given(u64, u64, st.integers(1, (1 << 32) - 1), st.booleans())
def test_a_reply_to_an_answer_comes_back_as_packed(job: int, generation: int, number: int, is_stop: bool) -> None:
    assert parse_proceed(pack_proceed(job, generation, number, is_stop)) == Proceed(job, generation, number, is_stop)


@pytest.mark.parametrize(("offset", "value"), [(0, KIND_LAUNCH), (1, 2), (2, 1), (3, 1), (4, 0)])
def test_each_broken_rule_of_a_reply_has_its_code(offset: int, value: int) -> None:
    spoilt = bytearray(GOOD_PROCEED)
    spoilt[offset] = value
    with pytest.raises(HostMessageError) as refused:
        parse_proceed(bytes(spoilt))
    assert refused.value.code == "proceed"


def test_messages_cut_short_are_refused() -> None:
    for parse, good in ((parse_launch, GOOD_LAUNCH), (parse_result, GOOD_RESULT), (parse_proceed, GOOD_PROCEED)):
        for nbytes in range(len(good)):
            with pytest.raises(HostMessageError):
                parse(good[:nbytes])
        with pytest.raises(HostMessageError):
            parse(good + b"\0")


def test_an_inline_result_has_a_limit_on_both_sides() -> None:
    most = Result(1, 1, 0, 0, 0, INLINE_RESULT_BYTES, True, b"", bytes(INLINE_RESULT_BYTES))
    assert parse_result(packed_result(most)) == most
    over = INLINE_RESULT_BYTES + 1
    with pytest.raises(HostMessageError, match="inline_length"):
        pack_result(1, 1, 0, 0, 0, over, True, b"", bytes(over))
    spoilt = bytearray(packed_result(most)) + b"\0"
    spoilt[40:48] = over.to_bytes(8, "little")
    with pytest.raises(HostMessageError, match="inline_length"):
        parse_result(bytes(spoilt))


def test_the_largest_messages_fit_the_channel() -> None:
    assert LAUNCH_BYTES + MAX_TENSORS * TENSOR_BYTES <= MAX_MESSAGE_BYTES
    assert LAUNCH_BYTES + SEQUENCE_BYTES + MAX_TENSORS * TENSOR_BYTES <= MAX_MESSAGE_BYTES
    for count in (0, 20, 21, MAX_TENSORS):
        most = Result(1, 1, 0, 0, 0, 0, True, bytes(count * TENSOR_BYTES), b"")
        room = inline_room(most.tensors)
        assert room == min(INLINE_RESULT_BYTES, MAX_MESSAGE_BYTES - RESULT_BYTES - count * TENSOR_BYTES) > 0
        packed = packed_result(most._replace(result_bytes=room, inline=bytes(room)))
        assert len(packed) <= MAX_MESSAGE_BYTES
        assert len(parse_result(packed).inline) == room
        with pytest.raises(HostMessageError, match="inline_length"):
            packed_result(most._replace(result_bytes=room + 1, inline=bytes(room + 1)))


def test_a_launch_of_a_batch_has_the_rows_of_its_requests_behind_its_tensors() -> None:
    packed = pack_launch(1, 2, 3, 4, 0, 0, 100, bytes(TENSOR_BYTES), rows=pack_rows([3, 4096, 1]))
    assert unpack_rows(parse_launch(packed).rows) == (3, 4096, 1)
    assert parse_launch(packed).tensors == bytes(TENSOR_BYTES)
    for spoilt in (packed[:-1], packed[:-6], packed + bytes(2 * MAX_MEMBERS)):
        with pytest.raises(HostMessageError, match="length"):
            parse_launch(spoilt)


# -- known answers: a change of one of these changes the protocol's version too ------------------------------------
KNOWN_TENSOR = pack_tensors([Tensor(10, (2, 3), 8, 24)])  # its own bytes are held by test_header
KNOWN_LAUNCH = bytes.fromhex(
    "01 03 01 00 24232221"  # launch, flags, one tensor, reserved, kernel id
    "0807060504030201 1817161514131211"  # job, generation
    "44434241 3231 0000 0010000000000000"  # payload checksum, R, reserved, payload bytes
)
KNOWN_RESULT = bytes.fromhex(
    "02 01 01 01 00000000"  # result, kernel raised, one tensor, inline, reserved
    "2827262524232221 3837363534333231"  # started, finished
    "0807060504030201 1817161514131211 0300000000000000"  # job, generation, result bytes
)


def test_the_bytes_of_a_launch_never_drift() -> None:
    launch = Launch(
        job=0x0102030405060708,
        generation=0x1112131415161718,
        kernel_id=0x21222324,
        demand=0x3132,
        flags=3,
        payload_crc=0x41424344,
        payload_bytes=4096,
        tensors=KNOWN_TENSOR,
    )
    assert packed_launch(launch) == KNOWN_LAUNCH + KNOWN_TENSOR


def test_the_bytes_of_a_result_never_drift() -> None:
    result = Result(
        job=0x0102030405060708,
        generation=0x1112131415161718,
        status=RESULT_KERNEL_RAISED,
        started_ns=0x2122232425262728,
        finished_ns=0x3132333435363738,
        result_bytes=3,
        is_inline=True,
        tensors=KNOWN_TENSOR,
        inline=b"bad",
    )
    assert packed_result(result) == KNOWN_RESULT + KNOWN_TENSOR + b"bad"
