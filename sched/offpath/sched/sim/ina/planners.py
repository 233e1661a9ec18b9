"""The simulator's planners of aggregation trees: MINA, the paper's baselines, and the planner behind its figures.

A planner runs when jobs start. It returns the tree of every running job, or None for a job without one. Jobs with
conflicting trees share them, whether planned or not: groups are the connected components.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from offpath.sched.ina.conflicts import Instance, Limit
from offpath.sched.ina.groups import plan
from offpath.sched.ina.linear_time import independent_set
from offpath.sched.ina.opportunistic import opportunistic
from offpath.sched.ina.patterns import Timed
from offpath.sched.ina.trees import Draws, Known, Tree, build, candidates, roots
from offpath.sched.topology.graph import Topology

Trees = dict[int, Tree | None]


@dataclass(frozen=True, slots=True)
class Placed:
    """A running job. ``gain``: ns that a step saves when the job has INA alone, per ns of a step; 0: nothing.
    ``pattern``: its current step."""

    job: int
    hosts: tuple[int, ...]
    gain: float
    pattern: Timed


@dataclass(frozen=True, slots=True)
class Moment:
    """The input of a planner. ``running``: all jobs, in order of start; ``begun``: those that have just started;
    ``trees``: the trees before; ``in_use``: those with an operation in flight."""

    topology: Topology
    running: Sequence[Placed]
    begun: Sequence[int]
    trees: Mapping[int, Tree | None]
    in_use: Sequence[Tree]


class Planner(Protocol):
    """A method of building trees."""

    name: str
    reads_traffic: bool
    """True if it reads ``in_use``."""

    def plan(self, moment: Moment) -> Trees:
        """A tree or None for each running job."""


class First:
    """The baseline: a job that starts gets the first tree, by root, without a conflict, and keeps it.

    Conflicts with ``among_assigned``: with the trees of other jobs, as in the paper's text (§V-A). Without: with trees
    that have an operation in flight at that moment, as for the paper's figures (its baseline jobs therefore do share
    trees, most of all those that start together).
    """

    def __init__(self, limit: Limit, *, among_assigned: bool) -> None:
        self.name = "first" if among_assigned else "first-in-transmission"
        self.reads_traffic = not among_assigned
        self._limit = limit

    def plan(self, moment: Moment) -> Trees:
        """See `Planner`."""
        planned = {each.job: moment.trees.get(each.job) for each in moment.running}
        begun = set(moment.begun)
        others = list(moment.in_use) if self.reads_traffic else [tree for tree in planned.values() if tree]
        for each in moment.running:
            if each.job in begun and len(each.hosts) > 1:
                for root in roots(moment.topology, each.hosts):  # lazily: most jobs take one of the first
                    tree = build(moment.topology, each.hosts, root)
                    if opportunistic((tree,), others, self._limit) is not None:
                        planned[each.job] = tree
                        if not self.reads_traffic:
                            others.append(tree)
                        break
        return planned


class Code:
    """The planner of the paper's figures: ``k`` candidates redrawn for all jobs each time, an independent set found in
    linear time (smaller than that of `ina.fast`, which `Mina` uses), and no second category: a job that is not in the
    set keeps its tree despite conflicts."""

    name = "mina-code"
    reads_traffic = False

    def __init__(self, limit: Limit, random: Draws, k: int) -> None:
        self._limit, self._random, self._k = limit, random, k
        self._known: Known | None = None

    def plan(self, moment: Moment) -> Trees:
        """See `Planner`."""
        if self._known is None:
            self._known = Known(moment.topology)
        known = self._known
        known.forget([each.job for each in moment.running])
        drawn = {each.job: known.candidates(each.job, each.hosts, self._k, self._random) for each in moment.running}
        instance = Instance(drawn, self._limit)
        planned = {job: moment.trees.get(job) for job in drawn}
        for number in independent_set(instance.neighbours()):
            vertex = instance.vertices[number]
            planned[vertex.job] = drawn[vertex.job][vertex.tree]
        return planned


class Mina:
    """§III-C as the paper describes it (`sched.ina.groups`): ``k`` candidates, drawn when a job starts.

    ``gainers``: only jobs that INA speeds up get trees; the others would only block them.
    """

    reads_traffic = False

    def __init__(self, limit: Limit, random: Draws, k: int, *, gainers: bool = False) -> None:
        self.name = "mina-gainers" if gainers else "mina"
        self._limit, self._random, self._k, self._gainers = limit, random, k, gainers
        self.drawn: dict[int, tuple[Tree, ...]] = {}
        """Candidates of the jobs of the last plan."""

    def plan(self, moment: Moment) -> Trees:
        """See `Planner`."""
        wanted = [each for each in moment.running if each.gain > 0 or not self._gainers]
        self.drawn = {
            each.job: self.drawn.get(each.job) or candidates(moment.topology, each.hosts, self._k, self._random)
            for each in wanted
        }
        former = {job: tree for job, tree in moment.trees.items() if tree is not None}
        found = plan(self.drawn, former, self._limit)
        return {each.job: found.trees.get(each.job) for each in moment.running}


class Drawn:
    """Every job gets a random one of its trees, and keeps it: shows how often unplanned trees conflict (figure 2)."""

    name = "drawn"
    reads_traffic = False

    def __init__(self, random: Draws) -> None:
        self._random = random

    def plan(self, moment: Moment) -> Trees:
        """See `Planner`."""
        begun = set(moment.begun)
        planned: Trees = {}
        for each in moment.running:
            drawn = candidates(moment.topology, each.hosts, 1, self._random) if each.job in begun else ()
            planned[each.job] = drawn[0] if drawn else moment.trees.get(each.job)
        return planned
