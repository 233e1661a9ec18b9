"""A near-maximum independent set by reducing and peeling (Chang, Li, Zhang, SIGMOD 2017), on bit sets.

A vertex whose neighbours all know each other is in some maximum independent set: it is taken (vertices of degree 0 and
1 are such). A vertex whose neighbours include all of an adjacent one's is in none that needs it: it goes. Where no
rule applies the vertex of the highest degree is peeled off, and put back in the end if nothing speaks against it.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from typing import Final

from offpath.sched.ina.conflicts import bits

_LOW: Final = 8
"""Up to this degree a vertex is tried for the first rule; trees of one job alone make 4 at k = 5."""


def independent_set(neighbours: Sequence[int], cliques: Iterable[range] = ()) -> list[int]:
    """Vertices of which no two are neighbours, and which none could be added to. Deterministic.

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
        """Of two in a clique the one that conflicts with all that the other does, and more or later."""
        for one in clique:
            closed = self._neighbours[one] | 1 << one
            for other in clique:
                if other != one and self._alive >> one & 1 and self._alive >> other & 1:
                    wide = self._neighbours[other] | 1 << other
                    if not closed & self._alive & ~wide and (wide != closed or other > one):
                        self._remove(1 << other)

    def _remove(self, gone: int) -> None:
        """Vertices, as a bit set, from the graph."""
        self._alive &= ~gone
        for vertex in bits(gone):
            for other in bits(self._neighbours[vertex] & self._alive):
                self._degree[other] -= 1
                if self._degree[other] <= _LOW:
                    heapq.heappush(self._low, other)

    def solved(self) -> list[int]:
        """Reduce, peel, reduce …; then put back."""
        peeled: list[int] = []
        highest = [(-degree, vertex) for vertex, degree in enumerate(self._degree)]
        heapq.heapify(highest)
        while self._alive:
            self._reduce()
            while highest:  # degrees only fall: what is stale is put back with what it is now
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
        """Take what the first rule allows, lowest degree and number first among what has become low."""
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
