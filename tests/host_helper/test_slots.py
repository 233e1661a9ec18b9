"""Which slot is whose, how arrays become a slot, and how an answer becomes a result."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from offpath.bindings.errors import HeaderError
from offpath.bindings.ports import next_of
from offpath.bindings.wire.codes import Reason, Status
from offpath.bindings.wire.header import (
    DTYPE_CODES,
    DTYPES,
    FLAG_IDEMPOTENT,
    FLAG_MORE,
    FLAG_PAYLOAD_CRC,
    FLAG_STREAM,
    HEADER_COPY_BYTES,
    HEADER_PART_BYTES,
    STRINGS,
    Tensor,
    pack_answer,
    pack_tensors,
    parse_request,
    unpack_tensors,
)
from offpath.host_helper.dtypes import numpy_dtype
from offpath.host_helper.errors import PayloadTooLarge, RequestFailed
from offpath.host_helper.slots import DEFAULT_OPTIONS, Options, Result, SlotTable


class Session:
    """The requester's end of a fabric, in this process's own memory; the test plays the daemon."""

    def __init__(self, slot_count: int = 4, payload_bytes: int = 65_536, result_bytes: int = 65_536) -> None:
        self.slot_count = slot_count
        self.payload_bytes = payload_bytes
        self.result_bytes = result_bytes
        self._slots = [bytearray(HEADER_PART_BYTES + payload_bytes) for _ in range(slot_count)]
        self._answers = [bytearray(HEADER_PART_BYTES + result_bytes) for _ in range(slot_count)]

    def payload_view(self, slot: int) -> memoryview:
        return memoryview(self._slots[slot])[HEADER_PART_BYTES:]

    def write_header(self, slot: int, header: bytes, nbytes: int) -> None:
        self._slots[slot][: len(header)] = header

    def answer_header(self, slot: int) -> bytes:
        return bytes(self._answers[slot][:HEADER_COPY_BYTES])

    def result_view(self, slot: int, nbytes: int) -> memoryview:
        return memoryview(self._answers[slot])[HEADER_PART_BYTES : HEADER_PART_BYTES + nbytes]

    # -- the daemon's side
    def request(self, slot: int) -> tuple[Any, list[np.ndarray[Any, Any]]]:
        """The header in the slot, and its arrays."""
        header = parse_request(bytes(self._slots[slot][:HEADER_COPY_BYTES]), self.payload_bytes)
        body = bytes(self.payload_view(slot)[: header.payload_bytes])
        described = unpack_tensors(header.tensors, header.payload_bytes)
        return header, [np.ndarray(t.dims, numpy_dtype(t.dtype), body, t.offset) for t in described]

    def answer(self, slot: int, body: bytes = b"", tensors: list[Tensor] | None = None, **fields: Any) -> None:
        fields = {"request_id": 1, "status": Status.COMPLETED, "result_bytes": len(body), **fields}
        header = pack_answer(tensors=pack_tensors(tensors or []), **fields)
        self._answers[slot][HEADER_PART_BYTES : HEADER_PART_BYTES + len(body)] = body
        self._answers[slot][: len(header)] = header


Table = SlotTable[str]


@pytest.fixture
def session() -> Session:
    return Session()


@pytest.fixture
def table(session: Session) -> Iterator[Table]:
    made: Table = SlotTable(session)  # type: ignore[arg-type]
    yield made
    assert len(made._free) + len(made.waiters) == session.slot_count


def test_arrays_lie_one_after_the_other_each_aligned_to_64_bytes(session: Session, table: Table) -> None:
    arrays = [np.arange(3, dtype=np.uint8), np.ones((2, 2), np.float64), np.zeros(65, np.int8), np.array(True)]
    slot = table.fill(7, arrays, DEFAULT_OPTIONS, "me")
    header, received = session.request(slot)
    assert [t.offset for t in unpack_tensors(header.tensors, header.payload_bytes)] == [0, 64, 128, 256]
    assert (header.kernel_id, header.payload_bytes, header.request_id) == (7, 257, 1)
    assert all(np.array_equal(r, a) and r.dtype == a.dtype for r, a in zip(received, arrays, strict=True))


def test_a_request_without_arrays_is_an_empty_payload(session: Session, table: Table) -> None:
    header, arrays = session.request(table.fill(1, [], DEFAULT_OPTIONS, "me"))
    assert (header.payload_bytes, header.tensor_count, arrays) == (0, 0, [])


def test_options_reach_the_header(session: Session, table: Table) -> None:
    options = Options(demand=42, priority=3, budget_ms=500, is_idempotent=True, with_checksum=True)
    header, _ = session.request(table.fill(1, [np.arange(4, dtype=np.uint8)], options, "me"))
    assert (header.demand, header.priority, header.budget_ms) == (42, 3, 500)
    assert header.flags == FLAG_IDEMPOTENT | FLAG_PAYLOAD_CRC
    assert header.payload_crc == zlib.crc32(bytes(range(4)))


@pytest.mark.parametrize("view", ["every other", "transposed", "reversed", "broadcast", "Fortran", "inner"])
def test_arrays_that_are_not_contiguous_are_laid_out_as_they_look(session: Session, table: Table, view: str) -> None:
    base = np.arange(60, dtype=np.int32).reshape(3, 4, 5)
    array = {
        "every other": base[:, ::2],
        "transposed": base.T,
        "reversed": base[::-1, :, ::-1],
        "broadcast": np.broadcast_to(base[0], (2, 4, 5)),
        "Fortran": np.asfortranarray(base),
        "inner": base[:, 1:3, 2],
    }[view]
    for arrays in ([array], [np.zeros(1), array]):
        slot = table.fill(1, arrays, DEFAULT_OPTIONS, "me")
        assert np.array_equal(session.request(slot)[1][-1], array)


def test_read_only_and_empty_arrays_are_no_trouble(session: Session, table: Table) -> None:
    frozen = np.arange(5)
    frozen.flags.writeable = False
    empty = np.zeros((0, 3), np.float32)
    _, received = session.request(table.fill(1, [frozen, empty, frozen], DEFAULT_OPTIONS, "me"))
    assert [r.shape for r in received] == [(5,), (0, 3), (5,)]


@pytest.mark.parametrize(
    ("arrays", "error"),
    [
        ([np.zeros(65_537, np.uint8)], PayloadTooLarge),
        ([np.zeros(1)] * 81, HeaderError),
        ([np.zeros((1,) * 7)], HeaderError),
        ([np.zeros(2, np.clongdouble)], TypeError),
        ([np.array(["text"])], TypeError),
        ([np.array([None])], TypeError),
        ([np.zeros(2, "datetime64[s]")], TypeError),
        ([np.zeros(2, [("a", np.int8)])], TypeError),
        ([np.zeros(2, np.dtype(np.int32).newbyteorder())], TypeError),
    ],
    ids=["too much", "too many", "too many dims", "long complex", "text", "objects", "dates", "records", "byte order"],
)
def test_what_cannot_travel_takes_no_slot(session: Session, table: Table, arrays: list[Any], error: type) -> None:
    for _ in range(session.slot_count + 1):
        with pytest.raises(error):
            table.fill(1, arrays, DEFAULT_OPTIONS, "me")
    assert table.has_room()


def test_a_layout_that_was_seen_before_does_not_let_another_byte_order_through(session: Session, table: Table) -> None:
    table.fill(1, [np.arange(3, dtype="<u2")], DEFAULT_OPTIONS, "me")
    with pytest.raises(TypeError, match="native order"):
        table.fill(1, [np.arange(3, dtype=">u2")], DEFAULT_OPTIONS, "me")


def test_many_layouts_do_not_fill_memory(session: Session, table: Table) -> None:
    for n in range(1000):
        slot = table.fill(1, [np.zeros(n, np.uint8)], DEFAULT_OPTIONS, "me")
        session.answer(slot)
        table.take(slot)
    assert len(table._layouts) <= 256


# -- answers -------------------------------------------------------------------------------------------------------
def test_an_answer_becomes_arrays_of_ones_own(session: Session, table: Table) -> None:
    slot = table.fill(1, [], DEFAULT_OPTIONS, "me")
    body = np.arange(3, dtype=np.float32).tobytes().ljust(64) + b"\x01\x00"
    described = [Tensor(DTYPE_CODES["float32"], (3,), 0, 12), Tensor(DTYPE_CODES["bool"], (2, 1), 64, 2)]
    session.answer(slot, body, described, lease=4, generation=5, stages=(1, 2, 3, 4, 5, 15))
    waiter, outcome = table.take(slot)
    assert waiter == "me"
    assert isinstance(outcome, Result)
    session._answers[slot][:] = bytes(len(session._answers[slot]))
    assert [a.tolist() for a in outcome.arrays] == [[0, 1, 2], [[True], [False]]]
    assert (outcome.lease, outcome.generation, outcome.stages.total) == (4, 5, 15)


@pytest.mark.parametrize("status", [status for status in Status if status is not Status.COMPLETED])
def test_any_other_end_is_a_failure_with_its_words(session: Session, table: Table, status: Status) -> None:
    slot = table.fill(1, [], DEFAULT_OPTIONS, "me")
    session.answer(slot, "größer".encode(), status=status, reason=Reason.TENANT_QUEUE_FULL, retry_after_ms=7)
    _, outcome = table.take(slot)
    assert isinstance(outcome, RequestFailed)
    assert str(outcome) == f"{status.name}: tenant_queue_full (try again in 7 ms): größer"
    assert (outcome.status, outcome.reason, outcome.retry_after_ms) == (status, Reason.TENANT_QUEUE_FULL, 7)


def test_an_answer_that_makes_no_sense_leaves_the_outcome_unknown_and_gives_the_slot_back(
    session: Session, table: Table
) -> None:
    slot = table.fill(1, [], DEFAULT_OPTIONS, "me")
    session._answers[slot][:4] = b"junk"
    waiter, outcome = table.take(slot)
    assert (waiter, table.has_room()) == ("me", True)
    assert isinstance(outcome, RequestFailed)
    assert outcome.status is Status.OUTCOME_UNKNOWN


@pytest.mark.parametrize("dtype", [1, STRINGS])
@pytest.mark.parametrize("dims", [((1 << 32) - 1,) * 5 + (0,), ((1 << 32) - 1, (1 << 32) - 1, 0)])
def test_dims_that_no_array_has_leave_the_outcome_unknown(
    session: Session, table: Table, dtype: int, dims: tuple[int, ...]
) -> None:
    slot = table.fill(1, [], DEFAULT_OPTIONS, "me")
    session.answer(slot, b"", [Tensor(dtype, dims, 0, 0)])
    waiter, outcome = table.take(slot)
    assert (waiter, table.has_room()) == ("me", True)
    assert isinstance(outcome, RequestFailed)
    assert outcome.status is Status.OUTCOME_UNKNOWN
    assert "an invalid answer: dims: (4294967295, 4294967295, " in str(outcome)


def test_an_answer_that_nobody_waits_for_is_an_error(table: Table) -> None:
    with pytest.raises(HeaderError, match="has no request"):
        table.take(0)


def test_a_result_with_one_array_has_it_by_name() -> None:
    one = np.zeros(1)
    from offpath.bindings.wire.header import Stages

    assert Result((one,), Stages(), 0, 0).array is one
    with pytest.raises(ValueError, match="2 arrays"):
        _ = Result((one, one), Stages(), 0, 0).array


# -- properties ----------------------------------------------------------------------------------------------------
arrays = st.builds(
    lambda dtype, shape, flip: np.resize(np.arange(7), shape).astype(np.uint8).astype(dtype)[::flip],
    st.sampled_from([numpy_dtype(code) for code in DTYPES if code != STRINGS]),
    st.lists(st.integers(0, 6), min_size=1, max_size=4).map(tuple),
    st.sampled_from([1, -1, 2]),
)


@given(st.lists(arrays, max_size=8))
def test_whatever_is_filled_in_is_what_the_daemon_reads(given_arrays: list[Any]) -> None:
    session = Session(1)
    slot = SlotTable(session).fill(1, given_arrays, DEFAULT_OPTIONS, "me")  # type: ignore[arg-type]
    _, received = session.request(slot)
    assert [(r.dtype, r.shape) for r in received] == [(a.dtype, a.shape) for a in given_arrays]
    assert all(r.tobytes() == a.tobytes() for r, a in zip(received, given_arrays, strict=True))


class SlotsAtWork(RuleBasedStateMachine):
    """Any order of filling, failing to fill and answering: each slot has one request, each answer its own waiter."""

    def __init__(self) -> None:
        super().__init__()
        self.session = Session(3, 256, 256)
        self.table: Table = SlotTable(self.session)  # type: ignore[arg-type]
        self.flying: dict[int, str] = {}
        self.sent = 0

    @precondition(lambda self: self.table.has_room())
    @rule(values=st.binary(max_size=256))
    def fill(self, values: bytes) -> None:
        self.sent += 1
        slot = self.table.fill(1, [np.frombuffer(values, np.uint8)], DEFAULT_OPTIONS, name := f"r{self.sent}")
        assert slot not in self.flying
        self.flying[slot] = name
        header, (received,) = self.session.request(slot)
        assert (header.request_id, received.tobytes()) == (self.sent, values)

    @precondition(lambda self: self.table.has_room())
    @rule(wrong=st.sampled_from([np.zeros(257, np.uint8), np.zeros(1, np.clongdouble), np.zeros((1,) * 7)]))
    def fail_to_fill(self, wrong: Any) -> None:
        with pytest.raises((PayloadTooLarge, TypeError, HeaderError)):
            self.table.fill(1, [wrong], DEFAULT_OPTIONS, "nobody")

    @precondition(lambda self: self.flying)
    @rule(data=st.data(), status=st.sampled_from(list(Status)), is_junk=st.booleans())
    def answer(self, data: Any, status: Status, is_junk: bool) -> None:
        slot = data.draw(st.sampled_from(sorted(self.flying)))
        self.session.answer(slot, b"text", status=status)
        if is_junk:
            self.session._answers[slot][0] ^= 1
        waiter, outcome = self.table.take(slot)
        assert waiter == self.flying.pop(slot)
        assert isinstance(outcome, Result) == (status is Status.COMPLETED and not is_junk)

    @rule(slot=st.integers(0, 2))
    def answer_out_of_turn(self, slot: int) -> None:
        if slot not in self.flying:
            with pytest.raises(HeaderError):
                self.table.take(slot)

    @invariant()
    def slots_are_conserved(self) -> None:
        assert self.table.waiters == self.flying
        assert sorted([*self.table._free, *self.flying]) == [0, 1, 2]
        assert self.table.has_room() == (len(self.flying) < 3)


TestSlotsAtWork = SlotsAtWork.TestCase


def test_numpys_scalars_are_arrays_without_dimensions(session: Session, table: Table) -> None:
    _, received = session.request(table.fill(1, [np.float32(1.5), np.int64(7)], DEFAULT_OPTIONS, "me"))  # type: ignore[list-item]
    assert [(each.shape, each.item()) for each in received] == [((), 1.5), ((), 7)]


class Elsewhere:
    """A source: numbers that are written where they are wanted."""

    dtype = np.dtype(np.int32)
    shape = (2, 2)
    nbytes = 16

    def __init__(self, is_broken: bool = False) -> None:
        self.is_broken = is_broken

    def read_into(self, room: memoryview) -> None:
        assert room.nbytes == self.nbytes
        if self.is_broken:
            raise ValueError("it was truncated")
        room[:] = np.arange(4, dtype=np.int32).tobytes()


def test_a_source_is_read_into_the_slot(session: Session, table: Table) -> None:
    slot = table.fill(1, [np.zeros(1, np.uint8), Elsewhere()], Options(with_checksum=True), "me")
    header, arrays = session.request(slot)
    assert arrays[1].tolist() == [[0, 1], [2, 3]]
    assert header.payload_crc == zlib.crc32(bytes(session.payload_view(slot)[: header.payload_bytes]))


def test_a_source_that_fails_takes_no_slot(session: Session, table: Table) -> None:
    with pytest.raises(ValueError, match="truncated"):
        table.fill(1, [Elsewhere(is_broken=True)], DEFAULT_OPTIONS, "me")
    assert not table.waiters


def test_a_taker_gets_the_result_where_it_lies(session: Session, table: Table) -> None:
    taken = []
    slot = table.fill(1, [], DEFAULT_OPTIONS, "me", lambda tensors, view: taken.append((tensors, bytes(view))))
    described = [Tensor(DTYPE_CODES["uint8"], (3,), 0, 3)]
    session.answer(slot, b"abc", described)
    waiter, outcome = table.take(slot)
    assert taken == [(tuple(described), b"abc")]
    assert waiter == "me"
    assert isinstance(outcome, Result)
    assert outcome.arrays == ()
    session.answer(table.fill(1, [], DEFAULT_OPTIONS, "me"), b"abc", described)
    assert len(table.take(slot)[1].arrays) == 1, "the slot's next request has no taker"  # type: ignore[union-attr]


def test_a_taker_that_fails_ends_its_request(session: Session, table: Table) -> None:
    def refuse(tensors: tuple[Tensor, ...], view: memoryview) -> None:
        raise PayloadTooLarge("no room")

    slot = table.fill(1, [], DEFAULT_OPTIONS, "me", refuse)
    session.answer(slot)
    outcome = table.take(slot)[1]
    assert isinstance(outcome, PayloadTooLarge)
    assert table.has_room()


def test_a_taker_is_not_called_once_nobody_waits(session: Session, table: Table) -> None:
    slot = table.fill(1, [], DEFAULT_OPTIONS, "me", lambda tensors, view: pytest.fail("called"))
    table.abandon(slot)
    session.answer(slot, b"abc", [Tensor(DTYPE_CODES["uint8"], (3,), 0, 3)])
    waiter, outcome = table.take(slot)
    assert waiter == "me"
    assert isinstance(outcome, Result)
    assert table.has_room()


def test_a_taker_gets_no_failure(session: Session, table: Table) -> None:
    slot = table.fill(1, [], DEFAULT_OPTIONS, "me", lambda tensors, view: pytest.fail("called"))
    session.answer(slot, b"why", status=Status.FAILED, reason=Reason.KERNEL_RAISED)
    assert isinstance(table.take(slot)[1], RequestFailed)


# -- streams ------------------------------------------------------------------------------------------------------
ONE = [Tensor(DTYPE_CODES["uint8"], (1,), 0, 1)]


def streamed(session: Session, slot: int, number: int, **fields: Any) -> None:
    """The daemon writes an answer of a stream, whose only byte is its number."""
    session.answer(slot, bytes((number,)), ONE, **{"flags": FLAG_MORE, "number": number, **fields})


def test_a_stream_keeps_its_slot_until_its_last_answer(session: Session, table: Table) -> None:
    slot = table.fill(1, [], DEFAULT_OPTIONS, "me", is_stream=True)
    assert session.request(slot)[0].flags == FLAG_STREAM
    for number in (1, 2, 3):
        streamed(session, slot, number)
        waiter, outcome = table.take(slot)
        assert isinstance(outcome, Result)
        assert (waiter, outcome.array.tolist(), table.is_stream(slot)) == ("me", [number], True)
        assert table.next_of(slot) == next_of(slot, number)
        assert table.unanswered() == [(1, number)]
    session.answer(slot, number=3)
    _, outcome = table.take(slot)
    assert isinstance(outcome, Result)
    assert (outcome.arrays, table.is_stream(slot), table.waiters) == ((), False, {})


@pytest.mark.parametrize(
    "fields",
    [
        {"number": 1},
        {"number": 3},
        {"number": 2, "request_id": 9},
        {"number": 2, "flags": 0},
        {"number": 0, "flags": 0},
    ],
    ids=["twice", "a gap", "of another", "an end too late", "an end too early"],
)
def test_an_answer_that_is_not_the_next_one_ends_a_stream(
    session: Session, table: Table, fields: dict[str, Any]
) -> None:
    slot = table.fill(1, [], DEFAULT_OPTIONS, "me", is_stream=True)
    streamed(session, slot, 1)
    table.take(slot)
    streamed(session, slot, **fields)
    _, outcome = table.take(slot)
    assert isinstance(outcome, RequestFailed)
    assert outcome.status is Status.OUTCOME_UNKNOWN


def test_a_stream_that_has_begun_cannot_be_safe_to_retry(session: Session, table: Table) -> None:
    slot = table.fill(1, [], DEFAULT_OPTIONS, "me", is_stream=True)
    streamed(session, slot, 1)
    table.take(slot)
    session.answer(slot, number=1, status=Status.RETRY_SAFE, reason=Reason.HELPER_LOST)
    _, outcome = table.take(slot)
    assert isinstance(outcome, RequestFailed)
    assert outcome.status is Status.OUTCOME_UNKNOWN, "or the requester would repeat the request, and yield 1 again"


def test_an_end_that_is_no_success_may_come_after_any_answer(session: Session, table: Table) -> None:
    slot = table.fill(1, [], DEFAULT_OPTIONS, "me", is_stream=True)
    session.answer(slot, request_id=0, status=Status.REJECTED, reason=Reason.BAD_HEADER)
    _, outcome = table.take(slot)
    assert isinstance(outcome, RequestFailed)
    assert outcome.status is Status.REJECTED


def test_a_request_that_wants_one_answer_gets_no_stream(session: Session, table: Table) -> None:
    slot = table.fill(1, [], DEFAULT_OPTIONS, "me")
    streamed(session, slot, 1)
    _, outcome = table.take(slot)
    assert isinstance(outcome, RequestFailed)
    assert outcome.status is Status.OUTCOME_UNKNOWN


def test_a_taker_gets_each_answer_of_a_stream_and_not_its_end(session: Session, table: Table) -> None:
    got: list[int] = []
    slot = table.fill(
        1, [], DEFAULT_OPTIONS, "me", lambda tensors, view: got.append(view[tensors[0].offset]), is_stream=True
    )
    for number in (1, 2):
        streamed(session, slot, number)
        table.take(slot)
    session.answer(slot, number=2)
    table.take(slot)
    assert got == [1, 2]
