"""Finds a near-maximum independent set by reducing and peeling (Chang, Li, Zhang, SIGMOD 2017), on bit sets.

First rule: a vertex whose neighbours are all adjacent to each other is in some maximum independent set, and is taken
(includes vertices of degree 0 and 1). Second rule: a vertex whose neighbours include all of an adjacent one's is not
needed by some maximum set, and is removed. If no rule applies, the vertex of the highest degree is peeled off, and put
back at the end if nothing conflicts with it.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from typing import Final

from offpath.sched.ina.conflicts import bits

_LOW: Final = 8
"""Up to this degree a vertex is tried for the first rule; the trees of one job alone give 4 at k = 5."""


def independent_set(neighbours: Sequence[int], cliques: Iterable[range] = ()) -> list[int]:
    """Vertices of which no two are neighbours, and to which none can be added. Deterministic.

    ``neighbours``: by vertex, a bit set. ``cliques``: vertices among which the second rule is tried first.
    """
    peeling = _Peeling(neighbours)
    for clique in cliques:
        peeling.drop_dominated(clique)
    return peeling.solved()


class _Peeling:
    def __init__(self, neighbours: Sequence[int]) -> None:
        self._neighbours = neighbours
        self._alive = (1 << len(neighbours)) - 1
        self._degree = [each.bit_count() for each in neighbours]
        self._low = [vertex for vertex, degree in enumerate(self._degree) if degree <= _LOW]
        heapq.heapify(self._low)
        self._chosen: list[int] = []

    def drop_dominated(self, clique: range) -> None:
        """Of two vertices in a clique, drop the one that has all conflicts of the other, and more or a higher
        number."""
        for one in clique:
            closed = self._neighbours[one] | 1 << one
            for other in clique:
                if other != one and self._alive >> one & 1 and self._alive >> other & 1:
                    wide = self._neighbours[other] | 1 << other
                    if not closed & self._alive & ~wide and (wide != closed or other > one):
                        self._remove(1 << other)

    def _remove(self, gone: int) -> None:
        """Remove vertices, as a bit set, from the graph."""
        self._alive &= ~gone
        for vertex in bits(gone):
            for other in bits(self._neighbours[vertex] & self._alive):
                self._degree[other] -= 1
                if self._degree[other] <= _LOW:
                    heapq.heappush(self._low, other)

    def solved(self) -> list[int]:
        """Alternate reducing and peeling, then put vertices back."""
        peeled: list[int] = []
        highest = [(-degree, vertex) for vertex, degree in enumerate(self._degree)]
        heapq.heapify(highest)
        while self._alive:
            self._reduce()
            while highest:  # degrees only fall: push a stale entry back with its current one
                degree, vertex = heapq.heappop(highest)
                if not self._alive >> vertex & 1:
                    continue
                if -degree != self._degree[vertex]:
                    heapq.heappush(highest, (-self._degree[vertex], vertex))
                    continue
                peeled.append(vertex)
                self._remove(1 << vertex)
                break
        mask = sum(1 << vertex for vertex in self._chosen)
        for vertex in reversed(peeled):
            if not self._neighbours[vertex] & mask:
                mask |= 1 << vertex
        return list(bits(mask))

    def _reduce(self) -> None:
        """Take what the first rule allows, lowest degree and number first among vertices of low degree."""
        while self._low:
            vertex = heapq.heappop(self._low)
            if self._alive >> vertex & 1 and self._is_simplicial(vertex):
                self._chosen.append(vertex)
                around = self._neighbours[vertex] & self._alive
                self._alive &= ~(1 << vertex)
                self._remove(around)

    def _is_simplicial(self, vertex: int) -> bool:
        around = self._neighbours[vertex] & self._alive
        return all(not around & ~(self._neighbours[other] | 1 << other) for other in bits(around))
