"""The arrays have the state of the nodes that were read, whatever their order."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offpath.sched.inc import columns
from offpath.sched.inc.columns import LOST, Columns
from offpath.sched.inc.resources import Resources
from offpath.sched.topology.fattree import leaf_spine

from .worlds import cluster, random_groups

ORDERS: dict[str, Callable[[Random, list[int]], list[int]]] = {
    "all, shuffled": lambda draw, nodes: draw.sample(nodes, len(nodes)),
    "backwards": lambda draw, nodes: nodes[::-1],
    "some, several times": lambda draw, nodes: draw.choices(nodes, k=len(nodes)),
    "a few": lambda draw, nodes: draw.sample(nodes, 4),
}


def changed(draw: Random, resources: Resources) -> None:
    for group in random_groups(draw, 20):
        node = draw.randrange(resources.topology.nodes)
        if resources.fits(group, node):
            resources.start(group, node)
    for node in draw.sample(range(resources.topology.nodes), 2):
        resources.lose(node)


@pytest.mark.parametrize("order", ORDERS)
@given(seed=st.integers(0, 10**9))
def test_nodes_may_be_read_in_any_order(order: str, seed: int) -> None:
    draw = Random(seed)
    resources = cluster(leaf_spine(3, 2, 2), seed=seed)
    made = Columns(resources)
    before = rows_of(made)
    changed(draw, resources)
    read = ORDERS[order](draw, list(range(resources.topology.nodes)))
    made.refresh(read)
    hosts, found = resources.topology.hosts, rows_of(made)
    for node in range(resources.topology.nodes):
        if node not in read:
            assert found[node] == before[node]
            continue
        used, capacity = list(resources.used(node)), resources.capacity(node)
        free = [LOST] * len(used) if resources.is_lost(node) else [a - b for a, b in zip(capacity, used, strict=True)]
        assert found[node][:2] == (used, free)
        if node >= hosts:
            active = len(resources.active(node))
            slots = 0 if resources.is_lost(node) else resources.switches[node - hosts].most_services - active
            assert found[node][2:] == (active, slots)


def rows_of(made: Columns) -> list[tuple[object, ...]]:
    """By node."""
    servers = zip(made.server_used.tolist(), made.server_free.tolist(), strict=True)
    switches = zip(
        made.switch_used.tolist(), made.switch_free.tolist(), made.active.tolist(), made.slots.tolist(), strict=True
    )
    return [*servers, *switches]


def test_a_planted_bug_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Values of all rows are put at once, in whichever order they came."""
    put = columns._put

    def at_once(of: columns.Ints, rows: columns.Ints, values: columns.Ints) -> None:
        if len(rows) == len(of):
            of[:] = values
        else:
            put(of, rows, values)

    monkeypatch.setattr(columns, "_put", at_once)
    with pytest.raises((AssertionError, ExceptionGroup)):
        test_nodes_may_be_read_in_any_order("all, shuffled")
