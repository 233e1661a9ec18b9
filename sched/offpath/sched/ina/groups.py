"""Plans trees for all running jobs and the groups that share them (MINA §III-C), with few changes between plans.

Category 1: the jobs of the largest set without conflicts; each starts a sharing group. Category 2: jobs with a tree
that conflicts with one group only; they join it. Category 3: the rest, which get no tree. With C > 1 a tree conflicts
where C groups are already, and joins a group that is at every such place, so that never more than C groups meet.

Moving a tree costs the job its INA, but not its progress, for 559 ms (§V-D).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from offpath.sched.ina import fast
from offpath.sched.ina.conflicts import Candidates, Limit
from offpath.sched.ina.trees import Tree

Choose = Callable[[Candidates, Limit, Mapping[int, int]], Mapping[int, int]]
"""Finds a largest set without conflicts: candidates, limit, former trees by index; returns the chosen ones by index."""


@dataclass(frozen=True, slots=True)
class Downtime:
    """Time of a job without INA, ms: to release its tree, to get another, and the time between (§V-D)."""

    release_ms: float = 125.0
    reallocate_ms: float = 294.0
    rest_ms: float = 140.0

    @property
    def migration_ms(self) -> float:
        """The paper's mean of 500 migrations: 559 ms."""
        return self.release_ms + self.reallocate_ms + self.rest_ms


MEASURED: Final = Downtime()


@dataclass(frozen=True, slots=True)
class Plan:
    """``category``: 1 to 3 by job, of jobs with candidates. ``migrated``: had a tree and have another; ``granted``: had
    none; ``revoked``: have none now."""

    trees: Mapping[int, Tree] = field(default_factory=dict)
    groups: tuple[frozenset[int], ...] = ()
    category: Mapping[int, int] = field(default_factory=dict)
    migrated: frozenset[int] = frozenset()
    granted: frozenset[int] = frozenset()
    revoked: frozenset[int] = frozenset()

    @property
    def migrations(self) -> int:
        """Number of trees that move."""
        return len(self.migrated)

    def downtime_ms(self, downtime: Downtime = MEASURED) -> float:
        """Sum over all jobs that migrate."""
        return self.migrations * downtime.migration_ms


def plan(
    candidates: Candidates, former: Mapping[int, Tree], limit: Limit, *, choose: Choose = fast.solve, merge: bool = True
) -> Plan:
    """Plan trees and groups for the jobs in ``candidates``; other jobs of ``former`` have ended.

    A former tree that is not among the redrawn candidates may still be kept. ``choose``: `fast.solve`, or an exact
    solver. ``merge``: category 2 joins groups; without it, it gets no tree, as in the authors' first simulator.
    """
    known = {job: tree for job, tree in former.items() if job in candidates}
    offered: dict[int, Sequence[Tree]] = {
        job: trees if job not in known or known[job] in trees else (*trees, known[job])
        for job, trees in candidates.items()
        if trees
    }
    was = {job: tuple(offered[job]).index(tree) for job, tree in known.items() if job in offered}
    chosen = choose(offered, limit, was)
    sharing = _Sharing(limit)
    trees = {job: offered[job][place] for job, place in chosen.items()}
    category = dict.fromkeys(offered, 3)
    for job, tree in trees.items():
        sharing.begin(job, tree)
        category[job] = 1
    for job in offered if merge else ():
        if category[job] == 3:
            joined = sharing.join(job, offered[job], known.get(job))
            if joined is not None:
                trees[job] = joined
                category[job] = 2
    return Plan(
        trees, tuple(map(frozenset, sharing.groups)), category,
        frozenset(job for job in trees if job in known and known[job] != trees[job]),
        frozenset(trees.keys() - known.keys()), frozenset(known.keys() - trees.keys()),
    )  # fmt: skip


class _Sharing:
    """Groups, and the groups on each resource."""

    def __init__(self, limit: Limit) -> None:
        self._limit = limit
        self.groups: list[set[int]] = []
        self._at: dict[int, int] = {}  # need: bit set of groups

    def begin(self, job: int, tree: Tree) -> None:
        """Start a new group with the job."""
        self.groups.append({job})
        self._spread(len(self.groups) - 1, tree)

    def _spread(self, group: int, tree: Tree) -> None:
        for need in self._limit.needs(tree):
            self._at[need] = self._at.get(need, 0) | 1 << group

    def join(self, job: int, trees: Sequence[Tree], former: Tree | None) -> Tree | None:
        """Add the job to the smallest group that is the only conflict of one of its trees; prefer its former tree.
        None: every tree conflicts with several groups."""
        best: tuple[tuple[bool, int, int, int], int, Tree] | None = None
        for n, tree in enumerate(trees):
            common = -1
            for need in self._limit.needs(tree):
                there = self._at.get(need, 0)
                if there.bit_count() >= self._limit.capacity:
                    common &= there
            if common == -1:  # the choice left room: a group of its own
                self.begin(job, tree)
                return tree
            for group, members in enumerate(self.groups):
                if common >> group & 1:
                    rank = (tree != former, len(members), n, group)
                    if best is None or rank < best[0]:
                        best = rank, group, tree
        if best is None:
            return None
        self.groups[best[1]].add(job)
        self._spread(best[1], best[2])
        return best[2]
