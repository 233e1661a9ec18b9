"""Conflicts between trees: they compete for switches (HDR: one active INA job each) or links (NDR: one per port), C
each.

MINA §III-C: with C = 1, trees that share a switch, or a link, conflict; the conflict graph's vertices are trees.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from offpath.sched.ina.trees import Tree

Candidates = Mapping[int, Sequence[Tree]]
"""Candidate trees, by job."""


class Per(Enum):
    """The resource that the capacity applies to."""

    SWITCH = "switch"
    LINK = "link"


@dataclass(frozen=True, slots=True)
class Limit:
    """Number of jobs that may aggregate at once on one switch, or over one link."""

    per: Per
    capacity: int = 1

    def __post_init__(self) -> None:
        if self.capacity < 1:
            raise ValueError("the capacity must be 1 or more")

    def needs(self, tree: Tree) -> tuple[int, ...]:
        """The switches or links of which a tree takes one unit each."""
        return tree.switches if self.per is Per.SWITCH else tree.links


HDR: Final = Limit(Per.SWITCH)
NDR: Final = Limit(Per.LINK)


def share(one: Tree, other: Tree, limit: Limit) -> bool:
    """True if the trees compete for a switch or a link."""
    return not set(limit.needs(one)).isdisjoint(limit.needs(other))


def components(trees: Mapping[int, Tree], limit: Limit) -> tuple[frozenset[int], ...]:
    """Jobs with trees that compete, directly or transitively: the groups that the authors' simulator forms from trees
    assigned without a plan."""
    group: dict[int, int] = {job: job for job in trees}

    def find(job: int) -> int:
        while group[job] != job:
            group[job] = job = group[group[job]]
        return job

    holder: dict[int, int] = {}
    for job, tree in trees.items():
        for need in limit.needs(tree):
            group[find(job)] = find(holder.setdefault(need, job))
    found: dict[int, set[int]] = {}
    for job in trees:
        found.setdefault(find(job), set()).add(job)
    return tuple(sorted(map(frozenset, found.values()), key=min))


@dataclass(frozen=True, slots=True)
class Vertex:
    """Tree ``tree`` of job ``job``, and the resources it ``needs``."""

    job: int
    tree: int
    needs: tuple[int, ...]


class Instance:
    """The vertices in the order of jobs and trees, and the vertices on each resource. ``by_job``: a job's vertices, if
    any."""

    def __init__(self, candidates: Candidates, limit: Limit) -> None:
        self.limit = limit
        self.vertices: list[Vertex] = []
        self.by_job: dict[int, range] = {}
        self.on: dict[int, int] = {}  # need: bit set of vertices
        for job, trees in candidates.items():
            if not trees:
                continue
            first = len(self.vertices)
            for n, tree in enumerate(trees):
                bit = 1 << len(self.vertices)
                vertex = Vertex(job, n, limit.needs(tree))
                self.vertices.append(vertex)
                for need in vertex.needs:
                    self.on[need] = self.on.get(need, 0) | bit
            self.by_job[job] = range(first, len(self.vertices))

    def neighbours(self) -> list[int]:
        """For C = 1, by vertex: bit set of the vertices that exclude it, including the other trees of its job."""
        found = []
        for number, vertex in enumerate(self.vertices):
            own = self.by_job[vertex.job]
            mask = ((1 << len(own)) - 1) << own.start
            for need in vertex.needs:
                mask |= self.on[need]
            found.append(mask & ~(1 << number))
        return found


def bits(mask: int) -> Iterator[int]:
    """The positions of the ones, lowest first."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low
