"""Which requests stack, and that scattering and splitting are each other's inverse."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from offpath.bindings.wire.header import (
    ABSENT,
    DTYPE_CODES,
    DTYPES,
    FLAG_PARAMETERS,
    FLAG_PAYLOAD_CRC,
    STRINGS,
    TENSOR_BYTES,
    RequestHeader,
    Tensor,
    pack_tensors,
    unpack_tensors,
)
from offpath.bindings.wire.host import MAX_MEMBERS, MAX_MESSAGE_BYTES, pack_launch, pack_rows, unpack_rows
from offpath.dpu_daemon.hosts.batches import lane_batch, parts_of
from offpath.dpu_daemon.requests import stacking
from offpath.dpu_daemon.requests.inflight import JobRef
from offpath.sched.jobs.batch_size import MOST_MEMBERS
from offpath.sched.jobs.batches import PADDING_BYTES

F32, U8 = DTYPE_CODES["float32"], DTYPE_CODES["uint8"]


PARAMETERS = Tensor(STRINGS, (1,), 64 * 73, 20)


def header(*tensors: Tensor, flags: int = 0, payload_bytes: int = 0) -> RequestHeader:
    nbytes = payload_bytes or stacking.end_of(tensors)
    return RequestHeader(flags, 1, 1, 0, 0, 0, 0, nbytes, len(tensors), pack_tensors(tensors))


def tensor(dtype: int, *dims: int, offset: int = 0) -> Tensor:
    return Tensor(dtype, dims, offset, DTYPES[dtype][1] * int(np.prod(dims)))


def test_requests_stack_that_differ_in_their_rows_and_offsets_only() -> None:
    first = header(tensor(F32, 2, 3), tensor(U8, 2, offset=24))
    second = header(tensor(F32, 5, 3, offset=64), tensor(U8, 5, offset=128))
    assert stacking.stack_of(first)[0] == 2
    assert stacking.stack_of(second)[0] == 5
    assert stacking.stack_of(first)[1] == stacking.stack_of(second)[1] != 0


@pytest.mark.parametrize(
    "other",
    [
        header(tensor(F32, 2, 4), tensor(U8, 2, offset=32)),
        header(tensor(F32, 2, 3)),
        header(tensor(U8, 2, 3), tensor(U8, 2, offset=24)),
        header(tensor(F32, 2, 3, 1), tensor(U8, 2, offset=24)),
    ],
)
def test_other_dtypes_and_other_dimensions_are_other_stacks(other: RequestHeader) -> None:
    known = header(tensor(F32, 2, 3), tensor(U8, 2, offset=24))
    assert stacking.stack_of(other)[1] not in (0, stacking.stack_of(known)[1])


@pytest.mark.parametrize(
    "alone",
    [
        header(),
        header(tensor(F32)),
        header(tensor(F32, 0, 3)),
        header(tensor(F32, 2, 3), tensor(U8, 3, offset=24)),
        header(tensor(F32, 4, 3), tensor(F32, 4, 3)),
        header(tensor(U8, 4, 3), tensor(U8, 4, 3, offset=11), payload_bytes=64),
        header(tensor(U8, 4, 3, offset=20), tensor(U8, 4, 0, offset=8), tensor(U8, 4, 6), payload_bytes=64),
        header(tensor(F32, 2, 3), flags=FLAG_PAYLOAD_CRC),
        header(Tensor(STRINGS, (2, 3), 0, 24)),
        header(tensor(F32, 2, 3), Tensor(ABSENT, (), 0, 0)),
        header(tensor(F32, 2, 3), tensor(U8, 2, offset=64), flags=FLAG_PARAMETERS),
        header(tensor(F32, 2, 3), Tensor(STRINGS, (2,), 64, 12), flags=FLAG_PARAMETERS),
        header(PARAMETERS, flags=FLAG_PARAMETERS),
        header(*[tensor(U8, 2, offset=64 * n) for n in range(17)]),
        header(*[tensor(U8, 2, offset=64 * n) for n in range(16)], PARAMETERS, flags=FLAG_PARAMETERS),
    ],
    ids=[
        "no tensors",
        "no dimensions",
        "no rows",
        "other rows",
        "one memory twice",
        "one byte in two",
        "last and first",
        "checksum",
        "strings",
        "absent",
        "parameters that are none",
        "parameters twice",
        "parameters alone",
        "too many",
        "too many beside parameters",
    ],
)
def test_what_does_not_stack(alone: RequestHeader) -> None:
    assert stacking.stack_of(alone) == (0, 0)


def test_tensors_that_touch_or_have_no_bytes_stack() -> None:
    touching = header(tensor(U8, 4, 3, offset=12), tensor(U8, 4, 3), tensor(U8, 4, 0, offset=5))
    assert stacking.stack_of(touching)[0] == 4


SHAPES = st.lists(
    st.tuples(st.sampled_from([U8, F32, DTYPE_CODES["float64"]]), st.lists(st.integers(0, 3), max_size=3).map(tuple)),
    min_size=1,
    max_size=8,
).map(tuple)


@given(shape=SHAPES, rows=st.lists(st.integers(1, 4), min_size=1, max_size=5), data=st.data())
def test_each_member_gets_the_rows_that_it_sent(shape: stacking.Shape, rows: list[int], data: st.DataObject) -> None:
    """A kernel that returns its arguments returns each member its payload."""
    batch = stacking.laid_out(shape, sum(rows))
    lane = bytearray(stacking.end_of(batch))
    sent, first_row = [], 0
    for own_rows in rows:
        own = stacking.laid_out(shape, own_rows)
        payload = data.draw(st.binary(min_size=stacking.end_of(own), max_size=stacking.end_of(own)))
        for part in stacking.scattered(own, batch, first_row):
            lane[part.target : part.target + part.nbytes] = payload[part.source : part.source + part.nbytes]
        sent.append((own, payload, first_row, own_rows))
        first_row += own_rows
    packed = pack_tensors(batch)
    assert unpack_tensors(packed, len(lane)) == batch
    tensors = stacking.result_tensors(packed, len(lane), sum(rows))
    assert tensors is not None
    for own, payload, row, own_rows in sent:
        share = stacking.share_of(tensors, row, own_rows)
        got = share.cut(bytes(lane))
        assert unpack_tensors(share.tensors, share.nbytes) == own
        for each in own:
            assert got[each.offset : each.offset + each.nbytes] == payload[each.offset : each.offset + each.nbytes]


@pytest.mark.parametrize("rows", [3, 5])
def test_a_result_with_other_rows_than_the_batch_is_not_split(rows: int) -> None:
    packed = pack_tensors([tensor(F32, rows, 3)])
    assert stacking.result_tensors(packed, rows * 12, 4) is None


def test_a_result_with_strings_is_not_split() -> None:
    assert stacking.result_tensors(pack_tensors([Tensor(STRINGS, (4,), 0, 40)]), 40, 4) is None


def test_requests_with_parameters_stack_with_each_other_only() -> None:
    plain, told = header(tensor(F32, 2, 3)), header(tensor(F32, 2, 3), PARAMETERS, flags=FLAG_PARAMETERS)
    other = header(tensor(F32, 5, 3), Tensor(STRINGS, (1,), 512, 30), flags=FLAG_PARAMETERS)
    assert stacking.stack_of(told)[0] == 2
    assert stacking.stack_of(told)[1] == stacking.stack_of(other)[1] != stacking.stack_of(plain)[1]


@pytest.mark.parametrize(("nbytes", "rows"), [(4, 0), (5, 0), (6, 2), (16_388, 2), (16_389, 0), (1 << 20, 0)])
def test_parameters_that_are_none_by_their_length_share_no_launch(nbytes: int, rows: int) -> None:
    """A worker refuses them, and with them the launch."""
    told = header(tensor(F32, 2, 3), Tensor(STRINGS, (1,), 64, nbytes), flags=FLAG_PARAMETERS, payload_bytes=2 << 20)
    assert stacking.stack_of(told)[0] == rows


def test_the_most_tensors_that_stack_have_room_in_the_lane_and_in_the_launch() -> None:
    most = [tensor(U8, 2, offset=64 * n) for n in range(stacking.MOST_TENSORS - 1)]
    assert stacking.stack_of(header(*most, PARAMETERS, flags=FLAG_PARAMETERS))[0] == 2
    assert stacking.MOST_TENSORS * stacking.ALIGN == PADDING_BYTES
    rows = pack_rows([1] * MOST_MEMBERS)
    launch = pack_launch(0, 0, 0, 0, 0, 0, 0, bytes(stacking.MOST_TENSORS * TENSOR_BYTES), rows=rows)
    assert len(launch) <= MAX_MESSAGE_BYTES
    assert MOST_MEMBERS == MAX_MEMBERS


class Slots:
    """A session's slots, of which the daemon knows the place only."""

    slots = "memory"

    def payload_offset(self, slot: int) -> int:
        return 10_000 * slot


def ref(job: int, rows: int, nbytes: int, *, is_spoilt: bool = False) -> JobRef:
    session: Any = SimpleNamespace(fabric=Slots(), is_closed=False)
    made = JobRef(job, session, job, header(tensor(U8, rows, 10), Tensor(STRINGS, (1,), 64, nbytes),
                                            flags=FLAG_PARAMETERS))  # fmt: skip
    made.is_spoilt = is_spoilt
    return made


def test_the_parameters_of_a_batch_lie_behind_its_rows_one_after_the_other() -> None:
    refs = {1: ref(1, 3, 30), 2: ref(2, 5, 20), 3: ref(3, 1, 7)}
    batch = lane_batch([(1, 0), (2, 3), (3, 8)], 9, refs)
    assert batch is not None
    assert batch.tensors == (Tensor(U8, (9, 10), 0, 90), Tensor(STRINGS, (3,), 128, 57))
    assert (unpack_rows(batch.rows_of), batch.payload_bytes, batch.can_launch) == ((3, 5, 1), 185, True)
    assert [part for _, part in parts_of(batch)] == [
        stacking.Part(10_000, 0, 30), stacking.Part(20_000, 30, 50), stacking.Part(30_000, 80, 10),
        stacking.Part(10_064, 128, 30), stacking.Part(20_064, 158, 20), stacking.Part(30_064, 178, 7),
    ]  # fmt: skip


@pytest.mark.parametrize("second", [None, ref(2, 5, 20, is_spoilt=True)], ids=["answered", "its header is lost"])
def test_without_the_header_of_each_member_no_launch_can_be_made_of_parameters(second: JobRef | None) -> None:
    refs = {1: ref(1, 3, 30), 3: ref(3, 1, 7)} | ({2: second} if second is not None else {})
    batch = lane_batch([(1, 0), (2, 3), (3, 8)], 9, refs)
    assert batch is not None
    assert not batch.can_launch


def test_a_result_without_rows_is_not_split_and_no_result_is() -> None:
    assert stacking.result_tensors(pack_tensors([tensor(F32)]), 4, 4) is None
    assert stacking.result_tensors(b"", 4, 4) is None
    alike = [Tensor(F32, (4,), 64 * n, 16) for n in range(17)]
    assert stacking.result_tensors(pack_tensors(alike[:16]), 64 * 16, 4) is not None
    assert stacking.result_tensors(pack_tensors(alike), 64 * 17, 4) is None, "each costs each member a copy"
    assert stacking.result_tensors(b"", 0, 4) == ()
