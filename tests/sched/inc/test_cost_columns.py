"""Costs of many nodes at once are the same whole numbers as `cost` works out one by one."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from offpath.sched.inc import cost, cost_columns
from offpath.sched.inc.columns import Columns
from offpath.sched.inc.cost_columns import UNFIT
from offpath.sched.inc.errors import PlacementInvalid
from offpath.sched.inc.readings import READINGS, Reading
from offpath.sched.inc.resources import Resources, ServerSpec, SwitchSpec
from offpath.sched.inc.units import MOST_DEMAND
from offpath.sched.topology.fattree import leaf_spine

from .worlds import cluster, random_groups

readings = st.sampled_from(list(READINGS.values()))
MOST = st.sampled_from([3, 12, 1_000, MOST_DEMAND])


def amounts(draw: Random, count: int, size: int, least: int, most: int) -> list[tuple[int, ...]]:
    """Many zeros and small ones, and some that are near each other."""
    base = draw.randint(0, most)
    return [
        tuple(draw.choice((0, draw.randint(least, most), draw.randint(least, 3), min(most, base + draw.randint(0, 1))))
              for _ in range(size))
        for _ in range(count)
    ]  # fmt: skip


@given(st.integers(0, 10**9), MOST, readings)
def test_parts_of_what_servers_have_left(seed: int, most: int, reading: Reading) -> None:
    """Amounts up to 2^40, where a rounded quotient would be wrong first."""
    draw = Random(seed)
    demands, free = amounts(draw, 9, 2, 0, most), amounts(draw, 9, 2, 0, most)
    free.append((-1, -1))  # a lost server
    found = cost_columns.server_fits(np.array(demands), np.array(free), reading)
    for row, demand in zip(found.tolist(), demands, strict=True):
        for value, rest in zip(row, free, strict=True):
            fits = all(need <= left for need, left in zip(demand, rest, strict=True))
            assert value == (sum(cost.fit(demand, rest, reading)) if fits else UNFIT), (demand, rest)


@given(st.integers(0, 10**9), MOST, readings)
def test_parts_of_what_switches_have_left(seed: int, most: int, reading: Reading) -> None:
    draw = Random(seed)
    needed, rest = amounts(draw, 9, 3, 0, most), amounts(draw, 9, 3, 0, most)
    found = cost_columns.switch_fits(np.array(needed)[:, None], np.array(rest), reading)
    for row, demand in zip(found.tolist(), needed, strict=True):
        for value, left in zip(row, rest, strict=True):
            fits = all(a <= b for a, b in zip(demand, left, strict=True))
            assert value == (sum(cost.fit(demand, left, reading)) if fits else UNFIT), (demand, left)


@given(st.integers(0, 10**9), readings)
def test_all_sinks_of_a_loaded_cluster(seed: int, reading: Reading) -> None:
    draw = Random(seed)
    resources = cluster(leaf_spine(3, 2, 2), seed=seed)
    for group in random_groups(draw, 20):
        node = draw.randrange(resources.topology.nodes)
        if resources.fits(group, node):
            resources.start(group, node)
    hosts, top = resources.topology.hosts, max(resources.topology.level)
    columns = Columns(resources)
    columns.refresh(range(resources.topology.nodes))
    terms, totals = cost_columns.sinks(columns, top, reading)
    for node in range(resources.topology.nodes):
        used, capacity = resources.used(node), resources.capacity(node)
        if node < hosts:
            edge = cost.server_sink(used, capacity, reading)
        else:
            level, most = resources.topology.level[node], resources.switches[node - hosts].most_services
            edge = cost.switch_sink(used, capacity, level, top, len(resources.active(node)), most, reading)
        assert totals[node] == edge.total
        assert terms[node, : len(edge.terms)].tolist() == [value for _, value in edge.terms]


@given(st.booleans(), st.integers(0, 3), st.integers(0, 3))
def test_phi_new_of_switches(is_active: bool, active: int, most: int) -> None:
    found = cost_columns.new(np.array([is_active]), np.array([active]), np.array([most]))
    assert found.tolist() == [cost.new(is_active, active, most)]


def test_a_node_beyond_the_exact_range_is_refused() -> None:
    topology = leaf_spine(1, 1, 1)
    resources = Resources(topology, [ServerSpec((MOST_DEMAND + 1, 1))], [SwitchSpec()] * 2)
    with pytest.raises(PlacementInvalid, match="more than"):
        Columns(resources)


def rounded(quotient: Any) -> Any:
    return lambda need, left: np.rint(quotient(need, left))


BUGS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "a quotient is rounded to the nearest": ("_quotient", rounded),
    "what is left out counts": ("_leave_out", lambda _: lambda found, other, without_need, nothing_left: None),
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, change = BUGS[bug]
    monkeypatch.setattr(cost_columns, name, change(getattr(cost_columns, name)))
    with pytest.raises((AssertionError, ExceptionGroup)):
        test_parts_of_what_servers_have_left()
