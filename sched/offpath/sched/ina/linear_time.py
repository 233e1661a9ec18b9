"""Finds a near-maximum independent set in linear time by reducing and peeling: the method of MINA's first simulator.

Chang, Li, Zhang, SIGMOD 2017, algorithm LinearTime. A vertex of degree 1 is in some maximum set, so its neighbour is
deleted. Vertices of degree 2 form paths, which are shortened, and rings. When neither is left, the vertex of the
highest degree is peeled off. Unlike `ina.peeling` it has no rule for cliques, so it misses jobs if one of their five
candidate trees conflicts with no other job's. `ina.fast` therefore uses `ina.peeling`; this module is for the variant
that reproduces the paper's figures.

The result depends on the order of ties, which follows the published program: waiting vertices are stacks, first filled
in ascending order, and so are the vertices of one degree, from which the next is peeled.
"""

from __future__ import annotations

from collections.abc import Sequence

from offpath.sched.ina.conflicts import bits


def independent_set(neighbours: Sequence[int]) -> list[int]:
    """Vertices of which no two are neighbours, ascending. ``neighbours``: by vertex, a bit set. Deterministic."""
    return _Graph(neighbours).solved()


class _Graph:
    def __init__(self, neighbours: Sequence[int]) -> None:
        self._near = [list(bits(each)) for each in neighbours]
        """Neighbours by vertex, in the order in which they are visited; `_live` removes deleted ones."""
        self._degree = [len(each) for each in self._near]
        self._alive = [True] * len(self._near)
        self._ones = [vertex for vertex, degree in enumerate(self._degree) if degree == 1]
        self._twos = [vertex for vertex, degree in enumerate(self._degree) if degree == 2]
        self._piles: list[list[int]] = [[] for _ in range(max(self._degree, default=0) + 1)]
        for vertex, degree in enumerate(self._degree):
            self._piles[degree].append(vertex)
        self._undone: list[tuple[int, int | None]] = []
        """Vertices decided at the end, last first: a vertex and the one that excludes it; None: it was peeled."""

    def solved(self) -> list[int]:
        """Reduce and peel until nothing is left, then decide the deferred vertices."""
        while True:
            self._reduce()
            if not self._peel():
                break
        taken = self._alive
        for vertex, against in reversed(self._undone):
            if against is None:
                taken[vertex] = not any(taken[other] for other in self._near[vertex])
            else:
                taken[vertex] = not taken[against]
        return [vertex for vertex, each in enumerate(taken) if each]

    def _reduce(self) -> None:
        while self._ones or self._twos:
            if self._ones:
                vertex = self._ones.pop()
                if self._alive[vertex] and self._degree[vertex] == 1:
                    (other,) = self._live(vertex)
                    self._delete(other)
            else:
                vertex = self._twos.pop()
                if self._alive[vertex] and self._degree[vertex] == 2:
                    self._shorten(vertex)

    def _peel(self) -> bool:
        """Delete a vertex of the highest degree, 3 or more; False if none exists."""
        while len(self._piles) > 3:
            pile = self._piles[-1]
            degree = len(self._piles) - 1
            while pile:
                vertex = pile.pop()
                if not self._alive[vertex] or not self._degree[vertex]:
                    continue
                if self._degree[vertex] < degree:  # its degree fell: retry among its equals
                    self._piles[self._degree[vertex]].append(vertex)
                    continue
                self._undone.append((vertex, None))
                self._delete(vertex)
                return True
            self._piles.pop()
        return False

    def _delete(self, vertex: int) -> None:
        self._alive[vertex] = False
        degrees = self._degree
        for other in self._near[vertex]:
            if self._alive[other]:
                degrees[other] = degree = degrees[other] - 1
                if degree == 1:
                    self._ones.append(other)
                elif degree == 2:
                    self._twos.append(other)

    def _live(self, vertex: int) -> list[int]:
        """Its live neighbours: the last live one replaces each deleted one."""
        near, alive = self._near[vertex], self._alive
        place = 0
        while True:
            while place < len(near) and alive[near[place]]:
                place += 1
            while place < len(near) and not alive[near[-1]]:
                near.pop()
            if place >= len(near):
                return near
            near[place] = near.pop()

    def _shorten(self, vertex: int) -> None:
        """Shorten the longest path of vertices of degree 2 around ``vertex``, or the ring it is on."""
        first, second = self._live(vertex)
        one, back = self._walk(vertex, first)
        if one == vertex:  # a ring
            self._delete(vertex)
            return
        other, forth = self._walk(vertex, second)
        if one == other:
            self._delete(one)
            return
        self._live(one)
        path = [*reversed(forth), vertex, *back]  # from ``other`` to ``one``
        self._live(other)
        adjacent = other in self._near[one]
        if len(path) % 2 and adjacent:
            self._delete(one)
            self._delete(other)
        elif len(path) % 2:
            if len(path) > 1:
                kept, *gone = path
                self._set_aside(gone, one)
                self._rewire(kept, gone[0], one)
                self._rewire(one, gone[-1], kept)
        else:
            self._set_aside(path, one)
            if not adjacent:
                self._rewire(one, path[-1], other)
                self._rewire(other, path[0], one)
                return
            for end in (one, other):
                self._degree[end] -= 1
                if self._degree[end] == 2:
                    self._twos.append(end)

    def _walk(self, begin: int, vertex: int) -> tuple[int, list[int]]:
        """Walk from ``begin`` over ``vertex`` along vertices of degree 2: returns the first of another degree, or
        ``begin``, and the vertices passed."""
        passed: list[int] = []
        before = begin
        while vertex != begin and self._degree[vertex] == 2:
            passed.append(vertex)
            one, other = self._live(vertex)
            before, vertex = vertex, other if one == before else one
        return vertex, passed

    def _set_aside(self, path: Sequence[int], end: int) -> None:
        """Defer each against the next, the last against ``end``."""
        for vertex, against in zip(path, [*path[1:], end], strict=True):
            self._alive[vertex] = False
            self._undone.append((vertex, against))

    def _rewire(self, vertex: int, gone: int, new: int) -> None:
        near = self._near[vertex]
        near[near.index(gone)] = new
