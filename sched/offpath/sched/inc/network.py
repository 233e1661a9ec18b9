"""HIRE's flow network (§5.3): built for each round from parts that are kept between rounds.

Nodes: S (flavor selector), F and P of jobs, G of task groups, N^s and M^s of the servers' tree, N^n and M^n of its
shadow for switches, K (sink). No arc leads from one tree into the other, so no flow of a server task reaches a switch.
Every arc M → K carries one unit: one task per node and round, because what fits was tested for one task. Arcs of the
trees that no task can reach are left out (`trees`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np

from offpath.sched.inc import cost, cost_columns
from offpath.sched.inc.bounds import Bounds
from offpath.sched.inc.classes import lacks
from offpath.sched.inc.columns import taken
from offpath.sched.inc.cost import EdgeCost
from offpath.sched.inc.edges import Asked, Edges
from offpath.sched.inc.flow import Flow, FlowProblem
from offpath.sched.inc.layers import Ints, layers_of
from offpath.sched.inc.locality import Locality
from offpath.sched.inc.menus import EdgeArcs, Offer, add_edges
from offpath.sched.inc.pending import PendingJob
from offpath.sched.inc.poly import GroupId, TaskGroup
from offpath.sched.inc.readings import Reading
from offpath.sched.inc.reservations import Reservation
from offpath.sched.inc.resources import Resources
from offpath.sched.inc.scarcity import described
from offpath.sched.inc.shortcuts import MOST_SHORTCUTS, Shortcuts
from offpath.sched.inc.trees import trees_of

MOST_GROUPS: Final = 800
"""Task groups in the network; the jobs of the others wait in the order of their submission (§6.2)."""
MOST_FLAVORS: Final = 250
"""Flavor decisions in a round (§6.2)."""
_NOWHERE: Final[frozenset[int]] = frozenset()
_AT_P: Final = 200
_AT_S: Final = -200
_AT_F: Final = -100
_AT_OPEN_G: Final = -30
"""Potentials of P, S, F and of G without a flavor: of `HIRE` the solver sees costs up to 400 instead of 600."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Of a round."""

    groups: int = MOST_GROUPS
    flavors: int = MOST_FLAVORS
    shortcuts: int = MOST_SHORTCUTS


class GroupNode(NamedTuple):
    """A task group in the network. ``most``: units that may leave it. ``flavor``: the cost F → G, None if it is
    materialised."""

    job: PendingJob
    group: TaskGroup
    shortcuts: Edges
    most: int
    flavor: EdgeCost | None = None


@dataclass(slots=True)
class Round:
    """``groups``: by node of the problem. ``left_out``: jobs that wait for a place in the network. From the arc
    ``first_edge`` on follow groups' edges (``edges``), then the trees, from ``first_sink`` on M → K."""

    problem: FlowProblem
    groups: dict[int, GroupNode] = field(default_factory=dict)
    selectors: dict[int, PendingJob] = field(default_factory=dict)
    left_out: list[PendingJob] = field(default_factory=list)
    first_edge: int = 0
    first_sink: int = 0
    edges: EdgeArcs | None = None


@dataclass(slots=True)
class Prepared:
    """Of a round: the jobs in the network with their materialised and undecided groups, and those left out."""

    jobs: list[tuple[PendingJob, list[TaskGroup], list[TaskGroup]]]
    left_out: list[PendingJob]


class Picked(NamedTuple):
    """One unit of flow: a task of the group goes to the node. It left its group by the edge to ``end``, which is the
    node or the top of a subtree. ``is_further``: its group or flavor has its first place elsewhere in this network.
    ``rule``: why it goes there although another place may be cheaper."""

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
        layers = layers_of(topology)
        self.level, self.top = layers.level, max(topology.level, default=1)
        """By node, and the highest."""
        self.trees = trees_of(layers)
        self.sink = self.trees.sink
        self._selector = self.sink + 1
        self._locality = Locality(topology, layers=layers)
        self._recount: dict[GroupId, int] = {}
        """Groups on servers whose Υ is out of date, with |G|."""
        self._bounds = Bounds(resources, layers=layers)
        self._sink_terms, totals = cost_columns.sinks(self._bounds.columns, self.top, reading)
        self._sinks = totals.astype(np.int16)
        self._shortcuts = Shortcuts(
            resources, self._bounds, self._locality, layers, self._sinks, reading, limits.shortcuts
        )
        self._dirty: set[int] = set()
        """Nodes that changed since the last round."""
        self._unread: set[int] = set()
        """Of these, what the columns do not show yet."""
        self._scarce: dict[object, str] = {}
        self._reservation: Reservation | None = None
        self._delays: dict[tuple[int, int, int, int], int] = {}
        """G → P of this round, by what it depends on."""

    @classmethod
    def rebuilt(cls, resources: Resources, reading: Reading, limits: Limits, jobs: Sequence[PendingJob]) -> FlowNetwork:
        """From the state alone; equal to one that saw every change."""
        network = cls(resources, reading, limits)
        for group in (each for job in jobs for each in job.request.groups):
            if resources.tasks_of(group.id):
                for node, tasks in resources.nodes_of(group.id).items():
                    network._moved(node, group, tasks if group.is_inc else 1)
        return network

    # -- changes ---------------------------------------------------------------------------------------------------
    def changed(self, node: int, group: TaskGroup | None = None, sign: int = 0) -> None:
        """The node's state changed; if by a task of ``group``, ``sign`` is 1 for a start and −1 for a stop."""
        self._dirty.add(node)
        self._unread.add(node)
        if group is not None:
            self._moved(node, group, sign)

    def _moved(self, node: int, group: TaskGroup, sign: int) -> None:
        """The locality of the group, and of those that are connected to it, is another one."""
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

    def reserve(self, reservation: Reservation | None) -> None:
        """Other jobs get no edges to these switches; None: to all."""
        if reservation != self._reservation:
            self._reservation = reservation
            self._shortcuts.reserve(reservation)
            self._scarce.clear()

    def _refresh(self) -> None:
        """Bring up to date what depends on changed nodes."""
        if not self._dirty:
            return
        dirty, self._dirty = sorted(self._dirty), set()
        self._unread.clear()
        self._scarce.clear()
        changed = self._bounds.update(dirty)
        self._sink_terms, sinks = cost_columns.sinks(self._bounds.columns, self.top, self.reading)
        sink_changed = np.nonzero(self._sinks != sinks)[0]
        self._sinks[:] = sinks
        self._shortcuts.update(np.array(dirty, np.int64), changed, sink_changed)

    def sink_terms(self, nodes: Ints) -> Ints:
        """The terms of M → K as of the last round (`cost_columns.SINK_TERMS`), shape [nodes, 4]."""
        return taken(self._sink_terms, nodes)

    def sink_totals(self, nodes: Ints) -> Ints:
        """What M → K costs as of the last round."""
        return self._sinks[nodes].astype(np.int64)

    def sink_total(self, node: int) -> int:
        """The same of one node."""
        return int(self._sinks[node])

    def edge_terms(self, edges: Sequence[tuple[Edges, int, bool]]) -> Ints:
        """The terms of edges into the trees (`cost_columns.EDGE_TERMS`), shape [edges, 5]. Each is given by the edges
        of its group, its node, and whether it leads to a subtree. Ask before anything changes."""
        return self._shortcuts.terms.of(edges)

    def scarcity(self, group: TaskGroup) -> str:
        """Why no node fits a task of the group now (`scarcity.scarcity`)."""
        if self._unread:
            self._bounds.columns.refresh(sorted(self._unread))
            self._unread.clear()
            self._scarce.clear()
        key = group.kind, bool(group.is_inc and self.resources.tasks_of(group.id))
        kept = self._shortcuts.kept_from(group)
        if key[1] or (key, kept) not in self._scarce:
            self._scarce[key, kept] = described(group, lacks(self._bounds.columns, group, kept))
        return self._scarce[key, kept]

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
        self._choose([(job, (*wanted, *undecided)) for job, wanted, undecided in prepared.jobs])
        return prepared

    def _choose(self, jobs: Sequence[tuple[PendingJob, Sequence[TaskGroup]]]) -> None:
        """Of these groups of each job."""
        self._refresh()
        _ = self.locality
        asked = []
        for job, groups in jobs:
            common, switches = (job.request.priority, self.limits.shortcuts * job.number), self._switches_of(job)
            asked += [Asked(each, *common, _NOWHERE if each.is_inc else switches) for each in groups]
        self._shortcuts.choose(asked)

    def _switches_of(self, job: PendingJob) -> frozenset[int]:
        """Where the job's tasks on switches run, if that matters to those on servers."""
        if not self.reading.reach:
            return _NOWHERE
        places = self.resources.places
        return _NOWHERE.union(*[places(each.id) for each in job.request.groups if each.is_inc])

    def round(self, jobs: Sequence[PendingJob], now_ms: int) -> Round:
        """The problem for these jobs, in the order of their submission."""
        return self.built(self.prepare(jobs), jobs, now_ms)

    def built(self, prepared: Prepared, jobs: Sequence[PendingJob], now_ms: int) -> Round:
        """The problem for the jobs that were prepared. ``jobs``: all of the round; Φ_delay compares with the one that
        has waited longest."""
        problem = FlowProblem.of_nodes(self._selector + 1)
        built = Round(problem, left_out=prepared.left_out)
        longest = max((each.wait_ms(now_ms) for each in jobs), default=0)
        self._delays.clear()
        for job, wanted, undecided in prepared.jobs:
            self._add_job(built, job, wanted, undecided, now_ms, longest)
        self._add_edges(built)
        problem.potentials[self._selector] = _AT_S
        problem.supply[self._selector] = supply = min(len(built.selectors), self.limits.flavors)
        problem.supply[self.sink] = -supply - sum(problem.supply[self._selector + 1 :])
        return built

    def _add_job(
        self, built: Round, job: PendingJob, wanted: list[TaskGroup], undecided: list[TaskGroup], now_ms: int,
        longest_ms: int,
    ) -> None:  # fmt: skip
        problem = built.problem
        postponing = problem.add_node(0, _AT_P)
        wait = job.wait_ms(now_ms)
        tasks = 0
        for group in wanted:
            waiting = job.waiting(group)
            tasks += waiting
            node = problem.add_node(waiting)
            built.groups[node] = GroupNode(job, group, self._shortcuts.of(group), waiting)
            problem.add(node, postponing, waiting, self._postpone(job, group, wait, longest_ms))
        if undecided:
            tasks += 1
            selector = problem.add_node(0, _AT_F)
            built.selectors[selector] = job
            problem.add(self._selector, selector, 1, cost.SELECTOR)
            problem.add(selector, postponing, 1, cost.flavor_postpone(wait, self.reading).total)
            for group, edge in self._offered(job, undecided, wait):
                node = problem.add_node(0, _AT_OPEN_G)
                built.groups[node] = GroupNode(job, group, self._shortcuts.of(group), 1, edge)
                problem.add(node, postponing, 1, self._postpone(job, group, wait, longest_ms))
                problem.add(selector, node, 1, edge.total)
        problem.add(postponing, self.sink, tasks, 0)

    def _postpone(self, job: PendingJob, group: TaskGroup, wait: int, longest: int) -> int:
        key = wait, longest, job.started.get(group.id, 0), group.tasks
        known = self._delays.get(key)
        if known is None:
            known = self._delays[key] = cost.postpone(*key, self.reading).total
        return known

    def _add_edges(self, built: Round) -> None:
        """All groups' edges, of the trees what can be reached from there, and M → K of the places that can be."""
        problem, trees = built.problem, self.trees
        built.first_edge = built.first_sink = len(problem.tails)
        if not built.groups:
            return
        offers = {node: Offer(each.shortcuts, each.most) for node, each in built.groups.items()}
        built.edges = add_edges(problem, offers, trees)
        stages, places = trees.reached(built.edges.heads)
        for each in stages:
            problem.add_all(each.tails, each.heads, each.capacities, np.zeros(len(each.tails), np.int64))
        built.first_sink = len(problem.tails)
        problem.add_all(
            trees.places[places], np.full(len(places), self.sink), np.ones(len(places), np.int64),
            self._sinks[places].astype(np.int64),
        )  # fmt: skip

    def shortcuts(self, job: PendingJob, group: TaskGroup) -> Edges:
        """The group's edges into the trees."""
        self._choose([(job, [group])])
        return self._shortcuts.of(group)

    def _offered(self, job: PendingJob, undecided: Sequence[TaskGroup], wait: int) -> list[tuple[TaskGroup, EdgeCost]]:
        """Groups whose flavor may be chosen, each with its cost F → G. A flavor is offered only if each of its groups
        has an edge into the trees; if the reading needs room, places for all its tasks."""
        flavors: dict[tuple[str, str], list[TaskGroup]] = {}
        for group in undecided:
            flavors.setdefault((group.composite, group.implementation), []).append(group)
        estimates: dict[tuple[str, str], int] = {}
        for flavor, groups in flavors.items():
            estimate = self._estimate(job, groups)
            if estimate is not None:
                estimates[flavor] = estimate
        least, most = min(estimates.values(), default=0), max(estimates.values(), default=0)
        found = []
        for flavor, estimate in estimates.items():
            is_inc = any(each.is_inc for each in flavors[flavor])
            edge = cost.flavor(estimate, least, most, wait, is_inc, self.reading)
            found += [(each, edge) for each in flavors[flavor]]
        return found

    def _estimate(self, job: PendingJob, groups: Sequence[TaskGroup]) -> int | None:
        """What the tasks of a flavor cost at least. None: it is not offered."""
        total = 0
        for each in groups:
            edges, waiting = self._shortcuts.of(each), job.waiting(each)
            if not edges or (self.reading.needs_room and not self._shortcuts.has_room(each, waiting)):
                return None
            total += edges.least * waiting
        return total

    # -- the result ------------------------------------------------------------------------------------------------
    def picked(self, built: Round, flow: Flow) -> list[Picked]:
        """Which task goes where, sorted by node. Flow into a subtree reaches places that all fit the groups that sent
        it there, so any way of taking it apart is valid; this one follows the order of the arcs."""
        edges = built.edges
        if edges is None:
            return []
        ways = _ways(built, np.array(flow.flows, np.int64), edges.first)
        chosen = [edge for _, _, edge in ways]
        ends, are_subtrees = edges.ends[chosen].tolist(), edges.is_subtree[chosen].tolist()
        return [
            Picked(built.groups[group], place if place < self._hosts else place - 2 * self._switches, end, is_subtree)
            for (place, group, _), end, is_subtree in zip(ways, ends, are_subtrees, strict=True)
        ]


def _ways(built: Round, flows: Ints, first_edge: int) -> list[tuple[int, int, int]]:
    """Of each unit that reaches a place: the place and its group, as nodes of the problem, and the edge between."""
    tails, heads = np.frombuffer(built.problem.tails, np.int64), np.frombuffer(built.problem.heads, np.int64)
    units = np.repeat(np.arange(built.first_sink), flows[: built.first_sink])
    units = units[np.argsort(heads[units], kind="stable")]
    nodes, starts = np.unique(heads[units], return_index=True)
    following = dict(zip(nodes.tolist(), starts.tolist(), strict=True))  # by node, its next unit
    begins, edges = tails[units].tolist(), (units - first_edge).tolist()
    found = []
    for place in tails[built.first_sink :][flows[built.first_sink :] > 0].tolist():
        at, edge = place, -1
        while at not in built.groups:
            unit = following[at]
            following[at] = unit + 1
            at = begins[unit]
            if edges[unit] >= 0:  # else it leads from a group to what groups share
                edge = edges[unit]
        found.append((place, at, edge))
    return found
