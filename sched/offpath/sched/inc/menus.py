"""The groups' edges as arcs of the flow network (HIRE §5.3). Groups with equal edges share them.

If the edges of several groups lead to the same ends, and their costs differ by one amount for all ends, each group gets
an arc with that amount to a node that has the edges. Every group may use all ends of that node, at its own cost, so the
cheapest flow costs the same, with a third to a half of the arcs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from offpath.sched.inc.columns import Flags
from offpath.sched.inc.edges import Edges
from offpath.sched.inc.flow import MOST_CAPACITY, FlowProblem
from offpath.sched.inc.layers import Ints
from offpath.sched.inc.trees import Trees


class Offer(NamedTuple):
    """A group's edges, and how many units may leave it."""

    edges: Edges
    most: int


class EdgeArcs(NamedTuple):
    """The arcs of all edges, from ``first`` on. ``heads``: of the problem. ``ends``: the topology's nodes.
    ``is_subtree``: the arc leads to what is below."""

    first: int
    heads: Ints
    ends: Ints
    is_subtree: Flags


def add_edges(problem: FlowProblem, offers: Mapping[int, Offer], trees: Trees) -> EdgeArcs:
    """Append the edges of each group. ``offers``: by node of the problem, at least one."""
    menus: dict[tuple[bool, bool, bytes], list[int]] = {}
    for node, (edges, _) in offers.items():
        for is_subtree in (False, True):
            menus.setdefault((edges.asked.group.is_inc, is_subtree, edges.menus[is_subtree].key), []).append(node)
    rows, ends, totals = [], [], []
    for (is_inc, is_subtree, _), users in menus.items():
        edges = offers[users[0]].edges
        part = slice(edges.places, None) if is_subtree else slice(edges.places)
        size, least = len(edges.nodes[part]), edges.menus[is_subtree].least
        for tail, most, own in _tails(problem, offers, users, is_subtree, size):
            rows.append((size, tail, most if is_subtree else 1, own - least, is_subtree, is_inc))
            ends.append(edges.nodes[part])
            totals.append(edges.totals[part])
    sizes, *columns = np.array(rows, np.int64).T
    tails_, capacities, more_, below, inc = (np.repeat(each, sizes) for each in columns)
    first, at, is_below = len(problem.tails), np.concatenate(ends), below > 0
    tops = np.where(is_below, at - len(trees.places) + len(trees.over_servers), 0)
    over = np.where(inc > 0, trees.over_switches[tops], trees.over_servers[tops])
    heads = np.where(is_below, over, trees.places[at])
    problem.add_all(tails_, heads, capacities, np.concatenate(totals) + more_)
    return EdgeArcs(first, heads, at, is_below)


def _tails(
    problem: FlowProblem, offers: Mapping[int, Offer], users: Sequence[int], is_subtree: bool, size: int
) -> list[tuple[int, int, int]]:
    """Where arcs of these groups' edges, ``size`` for each, begin: the node, units, and what the cheapest costs."""
    own = [(user, offers[user].most, offers[user].edges.menus[is_subtree].least) for user in users]
    if len(users) * size <= len(users) + size:  # sharing would save nothing
        return own
    shared = problem.add_node(0)
    for user, most, least in own:
        problem.add(user, shared, most, least)
    return [(shared, MOST_CAPACITY, 0)]
