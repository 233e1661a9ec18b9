"""SHArP as a tree of switches over the racks of the tasks that sum (its *ranks*), for a running cluster.

The flow network cannot place it: which switches form a tree, and how many, follows from where the ranks are. So these
groups stay out of the network. When all ranks of a job have places, the tree with the fewest switches with room
is booked, whole or not at all. If there is none, the network gets the composite's other implementations. A tree that
has lost a switch, or that no longer joins its ranks' racks, is given back whole and booked anew.

The ranks are the tasks of connected composites that can run on servers only. They use one tree: of two composites with
the same ranks one gets it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from offpath.sched.ina.trees import Tree, within
from offpath.sched.inc import flavors
from offpath.sched.inc.decisions import (
    Decision,
    FlavorChosen,
    Placed,
    Postponed,
    Preempted,
    Reason,
    Why,
)
from offpath.sched.inc.errors import FlavorsContradict, RanksMissing
from offpath.sched.inc.flavors import Status
from offpath.sched.inc.live.live_hire import LiveHire
from offpath.sched.inc.live.records import Request, TaskState
from offpath.sched.inc.pending import Decided, PendingJob
from offpath.sched.inc.poly import GroupId, PolyReq, TaskGroup
from offpath.sched.inc.resources import Resources
from offpath.sched.inc.scarcity import scarcity
from offpath.sched.inc.templates import MOST_SWITCHES

TREE_SERVICE: Final = "sharp"
"""The service whose data plane is an aggregation tree of the INA controller."""
NO_ANSWER_YET: Final = "the INA controller has not answered yet"
"""A fault during which a composite with a tree waits, instead of falling back."""
_BEGAN_WITHOUT: Final = "its ranks have begun without a tree"
_TAKEN_BACK: Final = "it was taken back"
_RANKS_WAIT: Final = "not all its ranks have a place yet"
_RANKS_END: Final = "one of its ranks has ended already"


class TreeHire(LiveHire):
    """See the module. ``usable``: the switches that the INA controller can use now. ``fault``: why it makes no trees
    now; empty: it does. The caller keeps both up to date; while there is a fault, trees stay as they are."""

    def __init__(self, resources: Resources, *, preempt_ms: int) -> None:
        super().__init__(resources, preempt_ms=preempt_ms)
        self.usable: frozenset[int] = frozenset()
        self.fault = NO_ANSWER_YET
        self._without: dict[GroupId, str] = {}
        """Why the last search found no tree; its composite's other implementations are in the network."""
        self._settled: set[GroupId] = set()
        """Trees of jobs that run without them: their ranks do not know of a tree."""

    # -- jobs --------------------------------------------------------------------------------------------------------
    def prepared(self, request: PolyReq) -> PolyReq:
        """With the most switches that the trees could need: quotas count these. Raises: RanksMissing,
        FlavorsContradict: two composites can only run as trees of the same ranks."""
        alone = [each for each in request.groups if each.service == TREE_SERVICE and "1" not in each.flavor]
        for at, tree in enumerate(alone):
            if rival := next((each for each in alone[:at] if _share_ranks(request, each, tree)), None):
                raise FlavorsContradict(f"{rival.id[1]} and {tree.id[1]} need a tree each over the same tasks")
        groups = (self._prepared(request, each) if each.service == TREE_SERVICE else each for each in request.groups)
        return replace(request, groups=tuple(groups))

    def _prepared(self, request: PolyReq, tree: TaskGroup) -> TaskGroup:
        ranks = sum(each.tasks for each in _ranks(request, tree))
        if ranks < 2 and "1" not in tree.flavor:
            raise RanksMissing(f"{tree.id[1]} needs 2 or more tasks that can run on servers only: it has {ranks}")
        return replace(tree, tasks=self._most_switches(tree, ranks))

    def _most_switches(self, group: TaskGroup, ranks: int) -> int:
        """On each level a switch for each rank, if there are so many."""
        topology = self.resources.topology
        by_level: dict[int, int] = {}
        for node in range(topology.hosts, topology.nodes):
            if self.resources.could_host(group, node):
                by_level[topology.level[node]] = by_level.get(topology.level[node], 0) + 1
        return min(MOST_SWITCHES, max(1, sum(min(ranks, count) for count in by_level.values())))

    def submit(self, request: PolyReq, now_ms: int) -> None:
        """See `Scheduler`."""
        super().submit(request, now_ms)
        self._set_aside(self.jobs[request.job])

    def forgotten(self, job: PendingJob) -> None:
        """See `Hire`."""
        super().forgotten(job)
        for group in job.request.groups:
            self._without.pop(group.id, None)
            self._settled.discard(group.id)

    def expect(self, request: Request) -> None:
        """See `LiveHire`. A tree has as many switches as it had."""
        held = Counter(each.group for each in request.tasks.values() if each.state is not TaskState.STOPPING)
        job = self.jobs[request.spec.name]
        job.sizes |= {each.id: held[each.id[1]] for each in _trees(job) if held[each.id[1]]}

    def has_tree(self, name: str) -> bool:
        """See `LiveHire`."""
        job = self.jobs.get(name)
        return job is not None and any(True for _ in _trees(job))

    def is_tree(self, group_id: GroupId) -> bool:
        """See `LiveHire`."""
        job = self.jobs.get(group_id[0])
        group = job.request.by_id.get(group_id) if job is not None else None
        return group is not None and group.service == TREE_SERVICE

    def recall(self, request: Request) -> None:
        """See `LiveHire`."""

    def begun(self, request: Request) -> None:
        """See `LiveHire`."""
        job = self.jobs[request.spec.name]
        for tree in _trees(job):
            known = request.trees.get(tree.composite)
            if known is not None and known.environment:
                continue
            names = {each.id[1] for each in _ranks(job.request, tree)}
            is_without = request.chosen.get(tree.composite, tree.implementation) != tree.implementation
            begun = (TaskState.RUNNING, TaskState.STARTING) if is_without else (TaskState.RUNNING,)
            if any(task.group in names and task.state in begun for task in request.tasks.values()):
                self._settled.add(tree.id)

    def is_over(self, name: str) -> bool:
        """See `LiveHire`."""
        job = self.jobs.get(name)
        if job is None:
            return False
        trees = [each for each in _trees(job) if _status(job, each) is not Status.REMOVED]
        with_tree = {each.composite for each in trees if _ranks(job.request, each)}
        return bool(with_tree) and all(
            _status(job, each) is Status.REMOVED
            or each in trees
            or (_status(job, each) is Status.UNDECIDED and each.composite in with_tree)
            or (_status(job, each) is Status.SELECTED and job.ended.get(each.id, 0) == job.size(each))
            for each in job.request.groups
        )

    def ranks(self, name: str, composite: str) -> list[TaskGroup]:
        """The groups of the ranks of a composite with a tree; empty: the job has ended, or there is no tree."""
        found = self._found(name, composite)
        return _ranks(found[0].request, found[1]) if found is not None else []

    def is_whole(self, name: str, composite: str) -> bool:
        """The tree of the composite has all its switches."""
        found = self._found(name, composite)
        return found is not None and len(self.resources.places(found[1].id)) == found[0].size(found[1])

    def has_begun_without(self, name: str, composite: str) -> bool:
        """The ranks of the composite run, and do not know of a tree."""
        found = self._found(name, composite)
        return found is not None and found[1].id in self._settled

    def _found(self, name: str, composite: str) -> tuple[PendingJob, TaskGroup] | None:
        """The job, and the composite's tree."""
        job = self.jobs.get(name)
        trees = [each for each in _trees(job) if each.composite == composite] if job is not None else []
        return (job, trees[0]) if job is not None and trees else None

    @property
    def most_new(self) -> int:
        """See `LiveHire`. A tree is booked twice at most: at first, and when ranks have got places in other racks."""
        trees = sum(1 for job in self.jobs.values() for _ in _trees(job))
        return super().most_new + 2 * trees * (self.resources.topology.switches + 1)

    # -- a round -----------------------------------------------------------------------------------------------------
    def take_back(self, now_ms: int) -> list[Decision]:
        """See `Hire`. Broken trees are given back first, and trees are booked for ranks that have places. It needs no
        solver."""
        decisions = [*self._broken(now_ms), *super().take_back(now_ms), *self._grow(now_ms)]
        for job in self.jobs.values():
            self._set_aside(job)
        return decisions

    def round(self, now_ms: int) -> list[Decision]:
        """See `Hire`."""
        decisions = [self._explained(each) for each in super().round(now_ms)]
        decisions += [*self._broken(now_ms), *self._grow(now_ms)]  # ranks may have got places in other racks
        for job in self.jobs.values():
            self._set_aside(job)
            decisions += self._open(job)
        return decisions

    def _set_aside(self, job: PendingJob) -> None:
        """Groups of composites with a tree that are not in the network: until a search has failed all, then the tree's
        implementation only."""
        aside: set[GroupId] = set()
        for tree in _trees(job):
            status = _status(job, tree)
            if status is Status.SELECTED:
                aside.add(tree.id)
            elif status is Status.UNDECIDED:
                aside.update(
                    each.id
                    for each in job.request.groups
                    if each.composite == tree.composite
                    and (tree.id not in self._without or each.implementation == tree.implementation)
                )
            elif not job.is_open:
                self._settled.add(tree.id)
        if job.aside != aside:
            job.aside = frozenset(aside)

    def _explained(self, decision: Decision) -> Decision:
        """A choice of another implementation, with the reason why there is no tree."""
        if isinstance(decision, FlavorChosen):
            for tree in _trees(self.jobs[decision.job]):
                if tree.composite == decision.composite and (why := self._without.get(tree.id)):
                    text = f"{decision.reason.text}; no {tree.implementation}: {why}"
                    return replace(decision, reason=replace(decision.reason, text=text))
        return decision

    def _open(self, job: PendingJob) -> Iterator[Postponed]:
        """Trees that wait."""
        for tree in _trees(job):
            if _status(job, tree) is not Status.REMOVED and job.waiting(tree):
                otherwise = _RANKS_END if _has_ended(job, tree) else self.fault or _RANKS_WAIT
                why = self._without.get(tree.id, otherwise)
                yield Postponed(tree.id, job.waiting(tree), Reason(Why.NO_ROOM, why))

    # -- booking -----------------------------------------------------------------------------------------------------
    def _grow(self, now_ms: int) -> Iterator[Decision]:
        """Book the trees of jobs whose ranks all have places."""
        for job in self.jobs.values():
            if job.not_before_ms > now_ms:
                continue
            for tree in _trees(job):
                if _status(job, tree) is Status.REMOVED or self.resources.is_running(tree.id):
                    continue
                if self._must_wait(job, tree):
                    self._without.pop(tree.id, None)
                    continue
                found = self._search(job, tree)
                if isinstance(found, str):
                    self._without[tree.id] = found
                else:
                    self._without.pop(tree.id, None)
                    yield from self._book(job, tree, found, now_ms)

    def _must_wait(self, job: PendingJob, tree: TaskGroup) -> bool:
        """Neither a tree nor another implementation is chosen now. Ranks that end continue without a tree."""
        is_late = tree.id not in self._settled and _has_ended(job, tree)
        is_waiting = any(job.waiting(each) for each in _ranks(job.request, tree))
        return self.fault == NO_ANSWER_YET or is_late or is_waiting

    def _search(self, job: PendingJob, tree: TaskGroup) -> Tree | str:
        """The cheapest tree with the fewest switches, or why there is none."""
        if tree.id in self._settled:
            return _BEGAN_WITHOUT
        if rival := self._rival(job, tree):
            return f"its ranks use the tree of {rival}"
        if job.is_shunned(tree):
            return self._without.get(tree.id, _TAKEN_BACK)
        if self.fault:
            return self.fault
        if not _ranks(job.request, tree):
            return "no composite that can run on servers only is connected to it"
        hosts = self._hosts(job, tree)
        if len(hosts) < 2:
            return "its ranks are on one server: there is nothing to sum in the network"
        able = [node for node in sorted(self.usable) if self.resources.fits(tree, node)]
        found = within(self.resources.topology, hosts, able)
        if not found:
            return self._why_none(tree, hosts)
        sink = self.network.sink_total
        return min(found, key=lambda each: (len(each.switches), sum(map(sink, each.switches)), each.root))

    def _rival(self, job: PendingJob, tree: TaskGroup) -> str:
        """Another composite whose tree the ranks use; empty: there is none."""
        trees = list(_trees(job))
        at, is_open = trees.index(tree), _status(job, tree) is Status.UNDECIDED
        for number, other in enumerate(trees):
            is_first = is_open or number < at or self.resources.is_running(other.id)
            is_chosen = number != at and _status(job, other) is Status.SELECTED
            if is_first and is_chosen and _share_ranks(job.request, tree, other):
                return other.composite
        return ""

    def _why_none(self, tree: TaskGroup, hosts: list[int]) -> str:
        able = [node for node in self._switches() if self.resources.could_host(tree, node)]
        away = [self._name(node) for node in able if node not in self.usable]
        lacks = [scarcity(self.resources, tree)] if any(not self.resources.fits(tree, node) for node in able) else []
        if away:
            lacks.append(f"the INA controller does not reach {', '.join(away[:8])}")
        names = ", ".join(map(self._name, hosts[:8]))
        return "; ".join([f"no tree of switches with room joins {names}", *lacks])

    def _switches(self) -> range:
        return range(self.resources.topology.hosts, self.resources.topology.nodes)

    def _hosts(self, job: PendingJob, tree: TaskGroup) -> list[int]:
        """Where its ranks are."""
        return sorted({node for each in _ranks(job.request, tree) for node in self.resources.places(each.id)})

    def _book(self, job: PendingJob, group: TaskGroup, tree: Tree, now_ms: int) -> Iterator[Decision]:
        hosts = ", ".join(map(self._name, self._hosts(job, group)))
        reason = Reason(Why.RULE, f"the smallest tree with room over {hosts}, with the root {self._name(tree.root)}")
        if _status(job, group) is Status.UNDECIDED:
            job.choose(group, now_ms)
        job.sizes[group.id] = len(tree.switches)
        yield FlavorChosen(job.request.job, group.composite, group.implementation, reason)
        for node in tree.switches:
            self._start(job, group, node)
            yield Placed(group.id, node, 1, reason)

    # -- giving back -------------------------------------------------------------------------------------------------
    def _broken(self, now_ms: int) -> Iterator[Decision]:
        for job in self.jobs.values():
            for tree in _trees(job):
                if tree.id not in job.sizes:
                    continue
                if _status(job, tree) is not Status.SELECTED:
                    del job.sizes[tree.id]  # `Hire` has taken the choice back
                elif why := self._fault_of(job, tree):
                    yield from self._give_back(job, tree, Reason(Why.NODE_LOST, why), now_ms)
                    job.shunned.pop(tree.composite, None)  # another tree may do

    def _fault_of(self, job: PendingJob, tree: TaskGroup) -> str:
        """Why the tree cannot stay; empty: it can. While a rank has no place, or has ended, hosts are not judged."""
        places = set(self.resources.places(tree.id))
        if len(places) < job.size(tree):
            return "a switch of its tree was lost"
        if not self.fault and (away := sorted(places - self.usable)):
            return f"the INA controller does not reach {self._name(away[0])}"
        if _has_ended(job, tree) or any(job.waiting(each) for each in _ranks(job.request, tree)):
            return ""
        hosts = self._hosts(job, tree)
        if any(places == set(each.switches) for each in within(self.resources.topology, hosts, places)):
            return ""
        return "it does not fit the places of its ranks any more"

    def refuse(self, group_id: GroupId, why: str, now_ms: int) -> list[Decision]:
        """See `LiveHire`. For `preempt_ms` no other tree is booked for it."""
        job, tree = self._known(group_id)
        if not self.resources.is_running(group_id):
            return []
        decisions = list(self._give_back(job, tree, Reason(Why.NO_ROOM, why), now_ms))
        job.shunned[tree.composite] = Decided(tree.implementation, now_ms)
        self._without[group_id] = why
        self._set_aside(job)
        return decisions

    def _give_back(self, job: PendingJob, tree: TaskGroup, reason: Reason, now_ms: int) -> Iterator[Decision]:
        """All tasks of its implementation stop, and the choice for its composite is open again."""
        groups = job.request.implementation(tree.composite, tree.implementation)
        yield from self._stop_all(groups, reason)
        if tree.composite in job.decided and "1" in tree.flavor:
            job.take_back(tree.composite, now_ms)
        job.sizes.pop(tree.id, None)
        for each in groups:
            job.started.pop(each.id, None)
            job.ended.pop(each.id, None)
        yield Preempted(job.request.job, tree.composite, tree.implementation, reason)


def _trees(job: PendingJob) -> Iterator[TaskGroup]:
    return (each for each in job.request.groups if each.service == TREE_SERVICE)


def _status(job: PendingJob, group: TaskGroup) -> Status:
    return flavors.status(group.flavor, job.active)


def _ranks(request: PolyReq, tree: TaskGroup) -> list[TaskGroup]:
    """Groups of connected composites that can run on servers only."""
    on_switches = {each.composite for each in request.groups if each.is_inc}
    found = [request.by_id.get(each) for each in tree.connected]
    return [
        each for each in found if each is not None and each.composite not in on_switches and set(each.flavor) <= {"x"}
    ]


def _share_ranks(request: PolyReq, one: TaskGroup, other: TaskGroup) -> bool:
    names = {each.id for each in _ranks(request, one)}
    return any(each.id in names for each in _ranks(request, other))


def _has_ended(job: PendingJob, tree: TaskGroup) -> bool:
    """One of its ranks has."""
    return any(job.ended.get(each.id) for each in _ranks(job.request, tree))
