"""The cheapest places of many groups at once are those of a full sort."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from offpath.sched.inc import ranking
from offpath.sched.inc.ranking import Cheapest, Turns

DEAREST = 50


def compare(seed: int) -> None:
    """Few different costs, so that many are equal; nodes before and behind the columns; groups that share a row."""
    draw = Random(seed)
    width, most, before = draw.randint(1, 30), draw.randint(1, 12), draw.choice((0, 7))
    nodes = before + width + draw.choice((0, 5))
    dearest = draw.choice((3, 8, 60))
    costs = np.array([[draw.randint(0, dearest) for _ in range(width)] for _ in range(draw.randint(1, 4))], np.int16)
    rows = [draw.randrange(len(costs)) for _ in range(draw.randint(1, 6))]
    starts = [draw.randrange(nodes) for _ in rows]
    turns = Turns(np.array(rows, np.int64), np.array(starts, np.int32)[:, None])
    found = ranking.cheapest(costs, most, DEAREST).keys(turns, before, nodes).tolist()
    for keys, row, start in zip(found, rows, starts, strict=True):
        sorted_ = sorted(
            cost * nodes + (before + at - start) % nodes
            for at, cost in enumerate(costs[row].tolist())
            if cost < DEAREST
        )
        assert [each for each in keys if each < DEAREST * nodes] == sorted_[:most]
        assert len(keys) == min(most, width)


@given(st.integers(0, 10**9))
def test_the_cheapest_are_those_of_a_full_sort(seed: int) -> None:
    compare(seed)


# -- planted bugs --------------------------------------------------------------------------------------------------
def without_turns(keys: Any) -> Any:
    return lambda self, turns, first, nodes: keys(self, Turns(turns.rows, turns.starts * 0), first, nodes)


BUGS: dict[str, tuple[Any, str, Callable[[Any], Any]]] = {
    "equal costs are always counted from the first node": (Cheapest, "keys", without_turns),
    "one tie too few": (ranking, "cheapest", lambda found: lambda *words: found(*words)._replace(
        wanted=found(*words).wanted - 1)),
    "the ties of another row": (ranking, "cheapest", lambda found: lambda *words: found(*words)._replace(
        begins=found(*words).begins * 0)),
}  # fmt: skip


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    of, name, change = BUGS[bug]
    monkeypatch.setattr(of, name, change(getattr(of, name)))
    with pytest.raises((AssertionError, IndexError)):
        compare_all(60)


def compare_all(seeds: int) -> None:
    for seed in range(seeds):
        compare(seed)
