"""HIRE's flow network (§5.3): built for each round from parts that are kept between rounds.

Nodes: S (flavor selector), F and P of jobs, G of task groups, N^s and M^s of the servers' tree, N^n and M^n of its
shadow for switches, K (sink). No arc leads from one tree into the other, so no flow of a server task reaches a switch.
Every arc M → K carries one unit: one task per node and round, because what fits was tested for one task.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

import numpy as np

from offpath.sched.inc import cost, cost_columns
from offpath.sched.inc.bounds import Bounds
from offpath.sched.inc.classes import key as class_key
from offpath.sched.inc.classes import lacks
from offpath.sched.inc.cost import EdgeCost
from offpath.sched.inc.flow import Flow, FlowProblem
from offpath.sched.inc.layers import Ints, layers_of
from offpath.sched.inc.locality import Locality
from offpath.sched.inc.pending import PendingJob
from offpath.sched.inc.poly import GroupId, TaskGroup
from offpath.sched.inc.readings import Reading
from offpath.sched.inc.resources import Resources
from offpath.sched.inc.scarcity import described
from offpath.sched.inc.shortcuts import MOST_SHORTCUTS, Asked, Edges, Shortcuts
from offpath.sched.topology.graph import Topology

MOST_GROUPS: Final = 800
"""Task groups in the network; the jobs of the others wait in the order of their submission (§6.2)."""
MOST_FLAVORS: Final = 250
"""Flavor decisions in a round (§6.2)."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Of a round."""

    groups: int = MOST_GROUPS
    flavors: int = MOST_FLAVORS
    shortcuts: int = MOST_SHORTCUTS


@dataclass(frozen=True, slots=True)
class GroupNode:
    """A task group in the network. ``flavor``: the cost F → G, None if it is materialised."""

    job: PendingJob
    group: TaskGroup
    shortcuts: Edges
    postpone: EdgeCost
    flavor: EdgeCost | None = None


@dataclass(slots=True)
class Round:
    """``groups``: by node of the problem. ``left_out``: jobs that wait for a place in the network."""

    problem: FlowProblem
    groups: dict[int, GroupNode] = field(default_factory=dict)
    selectors: dict[int, PendingJob] = field(default_factory=dict)
    left_out: list[PendingJob] = field(default_factory=list)


@dataclass(slots=True)
class Prepared:
    """Of a round: the jobs in the network with their materialised and undecided groups, and those left out."""

    jobs: list[tuple[PendingJob, list[TaskGroup], list[TaskGroup]]]
    left_out: list[PendingJob]


@dataclass(frozen=True, slots=True)
class Picked:
    """One unit of flow: a task of the group goes to the node. It left its group by the edge to ``end``, which is the
    node or the top of a subtree. ``is_further``: its group or flavor has its
    first place elsewhere in this network. ``rule``: why it goes there although another place may be cheaper."""

    of: GroupNode
    node: int
    end: int
    is_subtree: bool
    is_further: bool = False
    rule: str = ""


class FlowNetwork:
    """The kept parts, and the problem of a round. `changed` after each start, stop, loss and return."""

    def __init__(self, resources: Resources, reading: Reading, limits: Limits = Limits()) -> None:
        topology = resources.topology
        self.resources, self.reading, self.limits = resources, reading, limits
        self._hosts, self._switches = topology.hosts, topology.switches
        self._top = max(topology.level, default=1)
        self.sink = topology.nodes + 2 * self._switches
        self._selector = self.sink + 1
        layers = layers_of(topology)
        self._locality = Locality(topology, layers=layers)
        self._recount: dict[GroupId, int] = {}
        """Groups on servers whose Υ is out of date, with |G|."""
        self._bounds = Bounds(resources, layers=layers)
        self._sink_terms, totals = cost_columns.sinks(self._bounds.columns, self._top, reading)
        self._sinks = totals.astype(np.int16)
        self._shortcuts = Shortcuts(
            resources, self._bounds, self._locality, layers, self._sinks, reading, limits.shortcuts
        )
        self._dirty: set[int] = set()
        """Nodes that changed since the last round."""
        self._unread: set[int] = set()
        """Of these, what the columns do not show yet."""
        self._scarce: dict[object, str] = {}
        self._tree = trees(topology)

    @classmethod
    def rebuilt(cls, resources: Resources, reading: Reading, limits: Limits, jobs: Sequence[PendingJob]) -> FlowNetwork:
        """From the state alone; equal to one that saw every change."""
        network = cls(resources, reading, limits)
        for group in (each for job in jobs for each in job.request.groups):
            for node, tasks in resources.nodes_of(group.id).items():
                for _ in range(tasks if group.is_inc else 1):
                    network.changed(node, group, 1)
        return network

    # -- numbers of nodes: M^s and N^s as in the topology, then N^n, M^n, K, S; then what changes --------------------
    def _place(self, node: int) -> int:
        """M of a node."""
        return node if node < self._hosts else node + 2 * self._switches

    # -- changes ---------------------------------------------------------------------------------------------------
    def changed(self, node: int, group: TaskGroup | None = None, sign: int = 0) -> None:
        """The node's state changed; if by a task of ``group``, ``sign`` is 1 for a start and −1 for a stop."""
        self._dirty.add(node)
        self._unread.add(node)
        if group is None:
            return
        if group.is_inc:
            self._locality.propagate(group.id, node, sign)
        else:
            self._recount[group.id] = group.tasks
        self._shortcuts.moved(group.id)

    def forget(self, job: PendingJob) -> None:
        """The job is gone."""
        self._shortcuts.forget(each.id for each in job.request.groups)

    @property
    def locality(self) -> Locality:
        """Γ and Υ, up to date."""
        for group, tasks in self._recount.items():
            self._locality.count(group, tasks, self.resources.nodes_of(group))
        self._recount.clear()
        return self._locality

    def _refresh(self) -> None:
        """Bring up to date what depends on changed nodes."""
        if not self._dirty:
            return
        dirty, self._dirty = sorted(self._dirty), set()
        self._unread.clear()
        self._scarce.clear()
        changed = self._bounds.update(dirty)
        self._sink_terms, sinks = cost_columns.sinks(self._bounds.columns, self._top, self.reading)
        sink_changed = np.nonzero(self._sinks != sinks)[0]
        self._sinks[:] = sinks
        self._shortcuts.update(np.array(dirty, np.int64), changed, sink_changed)

    def sink_terms(self, nodes: Ints) -> Ints:
        """The terms of M → K as of the last round (`cost_columns.SINK_TERMS`), shape [nodes, 4]."""
        return self._sink_terms[nodes]

    def sink_totals(self, nodes: Ints) -> Ints:
        """What M → K costs as of the last round."""
        return self._sinks[nodes].astype(np.int64)

    def edge_terms(self, edges: Sequence[tuple[Edges, int, bool]]) -> Ints:
        """The terms of edges into the trees (`cost_columns.EDGE_TERMS`), shape [edges, 5]. Each is given by the edges
        of its group, its node, and whether it leads to a subtree. Ask before anything changes."""
        return self._shortcuts.terms([(each.asked, node, is_subtree) for each, node, is_subtree in edges])

    def scarcity(self, group: TaskGroup) -> str:
        """Why no node fits a task of the group now (`scarcity.scarcity`)."""
        if self._unread:
            self._bounds.columns.refresh(sorted(self._unread))
            self._unread.clear()
            self._scarce.clear()
        key = class_key(group), bool(group.is_inc and self.resources.tasks_of(group.id))
        if key[1] or key not in self._scarce:
            self._scarce[key] = described(group, lacks(self._bounds.columns, group))
        return self._scarce[key]

    @property
    def computed(self) -> int:
        """Groups whose shortcuts were computed so far, not kept."""
        return self._shortcuts.computed

    # -- a round ---------------------------------------------------------------------------------------------------
    def prepare(self, jobs: Sequence[PendingJob], held: Collection[int] = ()) -> Prepared:
        """Which of these jobs, in the order of their submission, are in the network, and all their groups' edges. Jobs
        with these numbers are there with their undecided groups only."""
        prepared = Prepared([], [])
        groups = 0
        for job in jobs:
            wanted, undecided = [] if job.number in held else job.materialized(), job.undecided()
            if not wanted and not undecided:
                continue
            if prepared.left_out or groups + len(wanted) + len(undecided) > self.limits.groups:
                prepared.left_out.append(job)  # and all behind it: nobody overtakes
                continue
            groups += len(wanted) + len(undecided)
            prepared.jobs.append((job, wanted, undecided))
        self._choose((job, group) for job, wanted, undecided in prepared.jobs for group in (*wanted, *undecided))
        return prepared

    def _choose(self, groups: Iterable[tuple[PendingJob, TaskGroup]]) -> None:
        self._refresh()
        _ = self.locality
        self._shortcuts.choose(
            [
                Asked(group, job.request.priority, self.limits.shortcuts * job.number, self._switches_of(job, group))
                for job, group in groups
            ]
        )

    def _switches_of(self, job: PendingJob, group: TaskGroup) -> frozenset[int]:
        """Where the job's tasks run, if that matters to the group."""
        if group.is_inc or not self.reading.reach:
            return frozenset()
        nodes_of = self.resources.nodes_of
        return frozenset(node for each in job.request.groups if each.is_inc for node in nodes_of(each.id))

    def round(self, jobs: Sequence[PendingJob], now_ms: int) -> Round:
        """The problem for these jobs, in the order of their submission."""
        return self.built(self.prepare(jobs), jobs, now_ms)

    def built(self, prepared: Prepared, jobs: Sequence[PendingJob], now_ms: int) -> Round:
        """The problem for the jobs that were prepared."""
        tree = self._tree
        costs = tree.costs[:]
        places = self.resources.topology.nodes
        costs[len(costs) - places :] = array("q", self._sinks.astype(np.int64).tobytes())
        problem = FlowProblem(tree.supply[:], tree.tails[:], tree.heads[:], tree.capacities[:], costs)
        built = Round(problem, left_out=prepared.left_out)
        longest = max((each.wait_ms(now_ms) for each in jobs), default=0)
        for job, wanted, undecided in prepared.jobs:
            self._add_job(built, job, wanted, undecided, now_ms, longest)
        problem.supply[self._selector] = supply = min(len(built.selectors), self.limits.flavors)
        problem.supply[self.sink] = -supply - sum(problem.supply[self._selector + 1 :])
        return built

    def _add_job(
        self, built: Round, job: PendingJob, wanted: list[TaskGroup], undecided: list[TaskGroup], now_ms: int,
        longest_ms: int,
    ) -> None:  # fmt: skip
        problem = built.problem
        postponing = problem.add_node(0)
        wait = job.wait_ms(now_ms)
        tasks = 0
        for group in wanted:
            tasks += job.waiting(group)
            delay = self._postpone(job, group, wait, longest_ms)
            self._add_group(built, job, group, postponing, job.waiting(group), delay)
        if undecided:
            tasks += 1
            selector = problem.add_node(0)
            built.selectors[selector] = job
            problem.add(self._selector, selector, 1, cost.SELECTOR)
            problem.add(selector, postponing, 1, cost.flavor_postpone(wait, self.reading).total)
            for group, edge in self._offered(job, undecided, wait):
                delay = self._postpone(job, group, wait, longest_ms)
                node = self._add_group(built, job, group, postponing, 0, delay, edge)
                problem.add(selector, node, 1, edge.total)
        problem.add(postponing, self.sink, tasks, 0)

    def _postpone(self, job: PendingJob, group: TaskGroup, wait: int, longest: int) -> EdgeCost:
        return cost.postpone(wait, longest, group.tasks - job.waiting(group), group.tasks, self.reading)

    def _add_group(
        self, built: Round, job: PendingJob, group: TaskGroup, postponing: int, tasks: int, delay: EdgeCost,
        flavor: EdgeCost | None = None,
    ) -> int:  # fmt: skip
        problem = built.problem
        node = problem.add_node(tasks)
        edges = self._shortcuts.of(group)
        built.groups[node] = GroupNode(job, group, edges, delay, flavor)
        most = tasks or 1
        problem.add(node, postponing, most, delay.total)
        heads = edges.nodes
        if group.is_inc:
            heads = heads + self._switches
            heads[: edges.places] += self._switches
        capacities = array("q", (1,)) * edges.places + array("q", (most,)) * (len(heads) - edges.places)
        problem.add_all(node, heads, capacities, edges.totals)
        return node

    def shortcuts(self, job: PendingJob, group: TaskGroup) -> Edges:
        """The group's edges into the trees."""
        self._choose([(job, group)])
        return self._shortcuts.of(group)

    def _offered(self, job: PendingJob, undecided: Sequence[TaskGroup], wait: int) -> list[tuple[TaskGroup, EdgeCost]]:
        """Groups whose flavor may be chosen, each with its cost F → G. A flavor is offered only if each of its groups
        has an edge into the trees; if the reading needs room, places for all its tasks."""
        flavors: dict[tuple[str, str], list[TaskGroup]] = {}
        for group in undecided:
            flavors.setdefault((group.composite, group.implementation), []).append(group)
        estimates: dict[tuple[str, str], int] = {}
        for flavor, groups in flavors.items():
            edges = [self._shortcuts.of(each) for each in groups]
            has_room = not self.reading.needs_room or all(
                self._shortcuts.has_room(each, job.waiting(each)) for each in groups
            )
            if all(edges) and has_room:
                estimates[flavor] = sum(
                    int(each.totals.min()) * job.waiting(group) for each, group in zip(edges, groups, strict=True)
                )
        least, most = min(estimates.values(), default=0), max(estimates.values(), default=0)
        found = []
        for flavor, estimate in estimates.items():
            is_inc = any(each.is_inc for each in flavors[flavor])
            edge = cost.flavor(estimate, least, most, wait, is_inc, self.reading)
            found += [(each, edge) for each in flavors[flavor]]
        return found

    # -- the result ------------------------------------------------------------------------------------------------
    def picked(self, built: Round, flow: Flow) -> list[Picked]:
        """Which task goes where, sorted by node. Flow into a subtree reaches places that all fit the groups that sent
        it there, so any way of taking it apart is valid; this one follows the order of the arcs."""
        into: dict[int, list[list[int]]] = {}
        problem = built.problem
        for arc in flow.used:
            if problem.heads[arc] != self.sink:
                into.setdefault(problem.heads[arc], []).append([problem.tails[arc], flow.flows[arc]])
        found = []
        for node in range(self.resources.topology.nodes):
            at, before = self._place(node), -1
            if not into.get(at):
                continue
            while at not in built.groups:
                entry = into[at][0]
                entry[1] -= 1
                if not entry[1]:
                    into[at].pop(0)
                at, before = entry[0], at
            is_subtree, end = self._edge(built.groups[at], before)
            found.append(Picked(built.groups[at], node, end, is_subtree))
        return found

    def _edge(self, of: GroupNode, head: int) -> tuple[bool, int]:
        """Of the group's edge to this node of the problem: whether it leads to a subtree, and the topology's node."""
        if not of.group.is_inc:
            return head >= self._hosts, head
        is_subtree = head < self._hosts + 2 * self._switches
        return is_subtree, head - (1 if is_subtree else 2) * self._switches


@lru_cache(maxsize=4)
def trees(topology: Topology) -> FlowProblem:
    """Both trees, and at last M → K of each node, whose costs the round fills in. Never changed; those of the last few
    topologies are kept."""
    hosts, switches, most = topology.hosts, topology.switches, topology.nodes
    below = layers_of(topology).children
    sink = most + 2 * switches
    tails, heads, capacities = array("q"), array("q"), array("q")
    for node in range(hosts, most):
        for child in below[node]:
            tails.append(node)
            heads.append(child)
            capacities.append(1 if child < hosts else most)
            if child >= hosts:
                tails.append(node + switches)
                heads.append(child + switches)
                capacities.append(most)
        tails.append(node + switches)
        heads.append(node + 2 * switches)
        capacities.append(1)
    tails.extend(node if node < hosts else node + 2 * switches for node in range(most))
    heads.extend(array("q", (sink,)) * most)
    capacities.extend(array("q", (1,)) * most)
    supply, costs = array("q", bytes(8 * (sink + 2))), array("q", bytes(8 * len(tails)))
    return FlowProblem(supply, tails, heads, capacities, costs)
