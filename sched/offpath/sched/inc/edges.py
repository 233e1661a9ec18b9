"""The edges of a task group into the trees (HIRE §5.3), and their cost term by term.

For most edges only the total is needed, so terms are worked out when they are read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np

from offpath.sched.inc.classes import Classes
from offpath.sched.inc.cost import ONE, EdgeCost
from offpath.sched.inc.cost_columns import EDGE_TERMS
from offpath.sched.inc.layers import Ints
from offpath.sched.inc.nearby import Near, Nearby
from offpath.sched.inc.poly import TaskGroup

TERMS: Final = len(EDGE_TERMS)


@dataclass(frozen=True, slots=True)
class Shortcut:
    """``node``: of the topology; ``is_subtree``: to N, so to any place below it, else to M."""

    node: int
    is_subtree: bool
    cost: EdgeCost


class Asked(NamedTuple):
    """A group whose edges are needed. ``priority``: 0 … 100. ``offset``: of equally cheap places the next one from here
    on comes first, so that groups do not all want the same. ``switches``: where tasks of its job run, if the reading
    counts how far a server is from them."""

    group: TaskGroup
    priority: int
    offset: int
    switches: frozenset[int] = frozenset()


class Menu(NamedTuple):
    """A group's edges to nodes, or those to subtrees. ``key``: equal if they lead to the same ends and their costs
    differ by one amount; ``least``: what the cheapest one costs, if there is one, without M → K."""

    key: bytes
    least: int


class Edges(Sequence[Shortcut]):
    """A group's edges: to nodes first, then to subtrees, each cheapest first. ``near``: what runs near the group.
    ``nodes`` and ``totals``: arrays, shape [edges]; the first ``places`` lead to M. ``menus``: those to M, and the
    others. The terms of an edge are worked out when it is read, from the state that is there then: read it before
    anything changes."""

    __slots__ = ("_of", "asked", "menus", "near", "nodes", "places", "totals")

    def __init__(
        self, of: EdgeTerms, asked: Asked, near: Near | None, nodes: Ints, totals: Ints, places: int,
        menus: tuple[Menu, Menu],
    ) -> None:  # fmt: skip
        self._of, self.asked, self.near = of, asked, near
        self.nodes, self.totals, self.places, self.menus = nodes, totals, places, menus

    @property
    def least(self) -> int:
        """What the cheapest edge costs, if there is one."""
        return min(self.menus[0].least, self.menus[1].least)

    def __len__(self) -> int:
        return len(self.nodes)

    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, slice):
            return [self[each] for each in range(*at.indices(len(self)))]
        node, is_subtree = int(self.nodes[at]), at % len(self) >= self.places
        return Shortcut(node, is_subtree, self._of.cost(self, node, is_subtree))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Edges) and list(self) == list(other)


class EdgeTerms:
    """What decides the cost of an edge: the class of its group, and what runs near."""

    def __init__(self, classes: Classes, nearby: Nearby) -> None:
        self._classes, self._nearby = classes, nearby

    def of(self, edges: Sequence[tuple[Edges, int, bool]]) -> Ints:
        """The terms of edges (`cost_columns.EDGE_TERMS`), shape [edges, 5]. Each: of which group, its node, and whether
        it leads to what is below it."""
        found = np.zeros((len(edges), TERMS), np.int64)
        kinds: dict[tuple[bool, bool], list[int]] = {}
        for at, (of, _, is_subtree) in enumerate(edges):
            kinds.setdefault((of.asked.group.is_inc, is_subtree), []).append(at)
        for (_, is_subtree), rows in kinds.items():
            groups, nodes = [edges[at][0].asked.group for at in rows], np.array([edges[at][1] for at in rows], np.int64)
            average, spread, interference = self._classes.terms(groups, nodes, is_subtree=is_subtree)
            found[rows, 0], found[rows, 1], found[rows, 3] = average, spread, interference
        loc, way = self._nearby.loc, self._nearby.way
        found[:, 2] = [ONE if of.near is None else loc(of.near, node) for of, node, _ in edges]
        found[:, 2] += [way(of.asked.switches, node) if of.asked.switches else 0 for of, node, _ in edges]
        found[:, 4] = [of.asked.priority for of, _, _ in edges]
        return found

    def cost(self, of: Edges, node: int, is_subtree: bool) -> EdgeCost:
        """One edge with its terms."""
        terms = self.of([(of, node, is_subtree)])[0].tolist()
        return EdgeCost(tuple(zip(EDGE_TERMS, terms, strict=True)))
