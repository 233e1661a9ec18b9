"""Which requests stack, and that scattering and splitting are each other's inverse."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from offpath.bindings.wire.header import (
    DTYPE_CODES,
    DTYPES,
    FLAG_PAYLOAD_CRC,
    RequestHeader,
    Tensor,
    pack_tensors,
    unpack_tensors,
)
from offpath.dpu_daemon.requests import stacking

F32, U8 = DTYPE_CODES["float32"], DTYPE_CODES["uint8"]


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


def test_a_result_without_rows_is_not_split_and_no_result_is() -> None:
    assert stacking.result_tensors(pack_tensors([tensor(F32)]), 4, 4) is None
    assert stacking.result_tensors(b"", 4, 4) is None
    assert stacking.result_tensors(b"", 0, 4) == ()
