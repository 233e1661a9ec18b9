"""Who gets which aggregation tree: the simulator's planners, the paper's baselines and what its figures were made with.

A planner is asked when jobs begin. It answers with the tree of every running job, or None for one without. Jobs whose
trees conflict share them, whoever planned that: groups are what hangs together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Protocol

from offpath.sched.ina.trees import Tree, build, candidates, roots
from offpath.sched.sim.ina.independent import independent
from offpath.sched.topology.graph import Topology

Trees = dict[int, Tree | None]


@dataclass(frozen=True, slots=True)
class Placed:
    """A running job. ``gain``: what a step of it saves when it has INA alone, per ns of a step; 0: nothing."""

    job: int
    hosts: tuple[int, ...]
    gain: float


@dataclass(frozen=True, slots=True)
class Moment:
    """What a planner may look at. ``running``: all jobs, in the order in which they began; ``begun``: those of them that
    have just; ``trees``: as they were; ``in_use``: those on which an operation is in flight."""

    topology: Topology
    running: Sequence[Placed]
    begun: Sequence[int]
    trees: Mapping[int, Tree | None]
    in_use: Sequence[Tree]


class Planner(Protocol):
    """A way to build trees."""

    name: str
    reads_traffic: bool
    """It looks at ``in_use``."""

    def plan(self, moment: Moment) -> Trees:
        """A tree or None for each running job."""


def resources(tree: Tree, *, per_switch: bool = False) -> tuple[int, ...]:
    """What a tree takes: its links (NDR: one job per port), or its switches (HDR: one job per switch)."""
    return tree.switches if per_switch else tree.links


class First:
    """The baseline: a job that begins gets the first tree, by root, without a conflict, and keeps it.

    With what: ``among_assigned`` with the trees of other jobs, as the paper says (§V-A); else with those on which an
    operation is in flight at that moment, as it was when the paper's figures were made (its baseline jobs therefore do
    share trees).
    """

    def __init__(self, *, among_assigned: bool, per_switch: bool = False) -> None:
        self.name = "first" if among_assigned else "first-in-transmission"
        self.reads_traffic = not among_assigned
        self._among_assigned = among_assigned
        self._per_switch = per_switch

    def plan(self, moment: Moment) -> Trees:
        """See `Planner`."""
        planned = {each.job: moment.trees.get(each.job) for each in moment.running}
        others = planned.values() if self._among_assigned else moment.in_use
        taken = {what for tree in others if tree for what in resources(tree, per_switch=self._per_switch)}
        begun = set(moment.begun)
        for each in moment.running:
            if each.job not in begun or len(each.hosts) < 2:
                continue
            for root in roots(moment.topology, each.hosts):
                tree = build(moment.topology, each.hosts, root)
                wanted = resources(tree, per_switch=self._per_switch)
                if taken.isdisjoint(wanted):
                    planned[each.job] = tree
                    if self._among_assigned:
                        taken.update(wanted)
                    break
        return planned


class Independent:
    """The largest set of jobs whose trees do not conflict, by `independent`; what the others get is ``rest``:

    - ``"share"``: a tree that conflicts with one sharing group only, that one's (§III-C, category 2); none otherwise;
    - ``"keep"``: the tree they had, whatever it conflicts with. So it was when the paper's figures were made, and all
      candidates were drawn anew each time (``redraws``).

    ``by_gain``: jobs are worth what a step of theirs saves with INA. One that saves nothing gets no tree: it would only
    stand in the way.
    """

    reads_traffic = False

    def __init__(
        self, name: str, k: int, random: Random, *, rest: str = "share", redraws: bool = False,
        by_gain: bool = False, per_switch: bool = False,
    ) -> None:  # fmt: skip
        self.name = name
        self._k, self._random = k, random
        self._rest, self._redraws, self._by_gain, self._per_switch = rest, redraws, by_gain, per_switch
        self._candidates: dict[int, tuple[Tree, ...]] = {}

    def plan(self, moment: Moment) -> Trees:
        """See `Planner`."""
        old = {} if self._redraws else self._candidates
        self._candidates = {
            each.job: old.get(each.job) or candidates(moment.topology, each.hosts, self._k, self._random)
            for each in moment.running
        }
        planned: Trees = dict.fromkeys(self._candidates)
        vertices: list[tuple[int, Tree]] = []
        weights: list[int] = []
        for each in moment.running:
            worth = round(each.gain * 1e6) if self._by_gain else 1
            if worth:
                for tree in self._candidates[each.job]:
                    if not resources(tree, per_switch=self._per_switch):  # in one switch: in nobody's way
                        planned[each.job] = tree
                        break
                    vertices.append((each.job, tree))
                    weights.append(worth)
        conflicts = self._conflicts(vertices)
        chosen = independent(conflicts, weights if self._by_gain else None)
        for v in chosen:
            planned[vertices[v][0]] = vertices[v][1]
        if self._rest == "keep":
            for job, tree in moment.trees.items():
                if planned.get(job, tree) is None:
                    planned[job] = tree
        else:
            self._share(vertices, conflicts, chosen, planned)
        return planned

    def _conflicts(self, vertices: Sequence[tuple[int, Tree]]) -> list[int]:
        on: dict[int, int] = {}
        of: dict[int, int] = {}
        for v, (job, tree) in enumerate(vertices):
            of[job] = of.get(job, 0) | 1 << v
            for what in resources(tree, per_switch=self._per_switch):
                on[what] = on.get(what, 0) | 1 << v
        found = []
        for v, (job, tree) in enumerate(vertices):
            mask = of[job]
            for what in resources(tree, per_switch=self._per_switch):
                mask |= on[what]
            found.append(mask & ~(1 << v))
        return found

    def _share(
        self, vertices: Sequence[tuple[int, Tree]], conflicts: Sequence[int], chosen: Sequence[int], planned: Trees
    ) -> None:
        groups = {v: 1 << v for v in chosen}
        """By its first tree: the trees of a sharing group."""
        for v, (job, tree) in enumerate(vertices):
            if planned[job] is None:
                against = [first for first, members in groups.items() if conflicts[v] & members]
                if len(against) == 1:
                    groups[against[0]] |= 1 << v
                    planned[job] = tree
