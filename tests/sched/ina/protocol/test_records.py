"""What other processes say becomes a record or `RecordError`, whatever it is; records survive their way."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offpath.sched.ina.protocol.records import (
    EpochRecord,
    Grant,
    Permission,
    RankState,
    RecordError,
    Step,
    Wants,
    epoch_from_data,
    epoch_to_data,
    permission_from_data,
    permission_to_data,
    stamp,
    state_from_data,
    state_to_data,
)  # fmt: skip

names = st.text(st.characters(min_codepoint=33, max_codepoint=0x2FF, categories=("L", "N")), min_size=1, max_size=20)
numbers = st.integers(0, (1 << 63) - 1)
terms, counts = st.integers(0, (1 << 31) - 1), st.integers(0, (1 << 32) - 1)


@st.composite
def steps(draw: st.DrawFn) -> Step:
    many = draw(st.integers(1, 5))
    lists = [tuple(draw(st.lists(numbers, min_size=many, max_size=many))) for _ in range(3)]
    return Step(draw(numbers), *lists, draw(st.integers(0, 100)))


grants = st.builds(Grant, names, st.lists(names, min_size=1, max_size=4).map(tuple), names)
epochs = st.builds(
    EpochRecord, names, numbers, terms, counts, st.none() | grants, st.sampled_from(Wants), st.booleans(),
    st.none() | steps(), st.just("") | names,
)  # fmt: skip


@st.composite
def states(draw: st.DrawFn) -> RankState:
    held, ranks = draw(numbers), draw(st.integers(1, 100))
    rank, applied, lost = draw(st.integers(0, ranks - 1)), draw(st.integers(0, held)), draw(st.integers(0, held))
    return RankState(
        draw(names), draw(numbers), rank, ranks, held, applied, lost, draw(numbers), draw(st.booleans()),
        draw(st.just("") | names),
    )  # fmt: skip


@st.composite
def permissions(draw: st.DrawFn) -> Permission:
    ranks = draw(st.integers(1, 8))
    where = draw(st.lists(st.integers(0, 2), min_size=ranks, max_size=ranks))
    parts = [tuple(rank for rank in range(ranks) if where[rank] == n) for n in range(3)]
    below = tuple((f"s{n}", part) for n, part in enumerate(parts[1:]) if part)
    return Permission(
        draw(names), draw(numbers), draw(terms), draw(numbers), draw(names), ranks, draw(st.just("") | names),
        parts[0], below, draw(st.just("") | names),
    )  # fmt: skip


@given(epochs)
def test_an_epoch_survives_its_way(epoch: EpochRecord) -> None:
    assert epoch_from_data(json.loads(json.dumps(epoch_to_data(epoch)))) == epoch


@given(states())
def test_a_ranks_state_survives_its_way(state: RankState) -> None:
    assert state_from_data(json.loads(json.dumps(state_to_data(state)))) == state


@given(permissions())
def test_a_permission_survives_its_way(permission: Permission) -> None:
    assert permission_from_data(json.loads(json.dumps(permission_to_data(permission)))) == permission


@given(terms, counts, terms, counts)
def test_stamps_are_ordered_by_term_then_number(term: int, number: int, other: int, another: int) -> None:
    assert (stamp(term, number) < stamp(other, another)) == ((term, number) < (other, another))
    assert stamp(term, number) < 1 << 63


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda each: st.lists(each, max_size=4) | st.dictionaries(st.text(max_size=5), each, max_size=4),
    max_leaves=8,
)
READERS = {
    "epoch": (epoch_from_data, epochs.map(epoch_to_data)),
    "state": (state_from_data, states().map(state_to_data)),
    "permission": (permission_from_data, permissions().map(permission_to_data)),
}


@pytest.mark.parametrize("reader", READERS)
@given(st.data())
def test_anything_else_is_refused_with_a_record_error(reader: str, data: st.DataObject) -> None:
    """A good record with one part, at any depth, replaced by anything; or no record at all."""
    read, good = READERS[reader]
    hostile: Any = data.draw(plain)
    if data.draw(st.booleans()):
        record: Any = data.draw(good)
        part, depth = record, data.draw(st.integers(0, 2))
        key = data.draw(st.sampled_from(sorted(part)))
        while depth and isinstance(part[key], dict) and part[key]:
            part, depth = part[key], depth - 1
            key = data.draw(st.sampled_from(sorted(part)))
        part[key] = hostile
        hostile = record
    with contextlib.suppress(RecordError):
        read(hostile)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        ({"job": "j", "incarnation": 1, "rank": 2, "ranks": 2, "held": 0, "applied": 0, "lost": 0, "index": 0}, "rank"),
        (
            {"job": "j", "incarnation": 1, "rank": 0, "ranks": 2, "held": 1, "applied": 2, "lost": 0, "index": 0},
            "holds",
        ),
        (
            {"job": "j", "incarnation": 1, "rank": 0, "ranks": 2, "held": 1, "applied": 1, "lost": 2, "index": 0},
            "lost more",
        ),
    ],
)
def test_a_state_that_contradicts_itself_is_refused(data: dict[str, Any], why: str) -> None:
    with pytest.raises(RecordError, match=why):
        state_from_data(data)
