"""Keeps a job at the INA controller for each tree of switches that the book has booked for SHArP.

The job is restricted to the booked switches, and is changed when they are. Its ranks start when the controller has it,
because their environment names it. A switch's task stops when the controller does not use the switch for the job any
more: so what the emulated switch books stays booked while the tree lives. The controller is queried all the time; one
that does not answer makes no new trees, and those that there are stay.

A query may still reach the controller after its time is over. So a switch counts as used from before the query that
names it until the controller has listed its jobs.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Final, TypeVar

from pydantic import BaseModel

from offpath.bindings.runtime import CONTROLLER_SOCKET, local_socket
from offpath.bindings.wire import ina_admin
from offpath.bindings.wire.admin import Fault
from offpath.dpu_daemon.manager.inc.links import LinkAway, query_controller
from offpath.sched.inc.live import tree_events
from offpath.sched.inc.live.book import MOST_TASKS, Book
from offpath.sched.inc.live.records import Command, Request, Task, TaskState, TreeJob
from offpath.sched.inc.live.tree_hire import NO_ANSWER_YET, TREE_SERVICE, TreeHire

logger = logging.getLogger(__name__)
LOOK_S: Final = 0.25
"""Between two queries of the controller."""
MISSES: Final = 4
"""The controller is away after so many queries in a row without a reply."""
DOWN_LOOKS: Final = 20
"""A switch in use is down after so many replies in a row that report it: a new controller has to reach its switches
first."""
MOST_PAGES: Final = 65_536
"""Of one listing."""
_R = TypeVar("_R", bound=BaseModel)
_C = TypeVar("_C", str, int)


@dataclass(frozen=True, slots=True)
class _Job:
    """As the controller has it. ``switches``: None: it may use any. ``is_cancelled``: by an operator, or by us: it gets
    no tree before its ranks start again."""

    hosts: tuple[str, ...]
    ranks_per_host: int
    switches: tuple[str, ...] | None
    is_cancelled: bool = field(default=False, compare=False)

    def may_use(self, switch: str) -> bool:
        """Its tree may."""
        return not self.is_cancelled and (self.switches is None or switch in self.switches)


class TreeJobs:
    """``directory``: the controller's runtime directory. ``lock``: of the book. ``carry``: carries commands out; it
    raises PlaceUnusable."""

    def __init__(
        self, directory: str, book: Book, scheduler: TreeHire, lock: asyncio.Lock,
        carry: Callable[[Iterable[Command]], Awaitable[None]], now_ms: Callable[[], int], counters: Counter[str],
    ) -> None:  # fmt: skip
        self._path = local_socket(CONTROLLER_SOCKET, directory)
        self._book, self._scheduler, self._lock, self._carry = book, scheduler, lock, carry
        self._now_ms, self._counters = now_ms, counters
        topology = scheduler.resources.topology
        self._servers = topology.host_numbers.keys()
        self._nodes = {topology.names[node]: node for node in range(topology.hosts, topology.nodes)}
        self._there: dict[str, _Job] = {}
        """The jobs that the controller has, by name."""
        self._sent: dict[str, tuple[str, ...]] = {}
        """Switches of submissions whose end is not known, by job."""
        self._down: Counter[str] = Counter()
        self._misses = 0
        self._refusals: dict[str, str] = {}
        """The last refusal of each job, which is logged once."""

    async def run(self) -> None:
        """Without end. Raises: PlaceUnusable."""
        while True:
            await self.step()
            await asyncio.sleep(LOOK_S)

    async def step(self) -> None:
        """Query the controller once, and make its jobs what the book wants. Raises: PlaceUnusable."""
        try:
            await self._look()
            self._misses = 0
            await self._converge()
        except LinkAway as fault:
            self._misses += 1
            if self._misses >= MISSES:
                await self._away(str(fault))

    # -- looks ---------------------------------------------------------------------------------------------------------
    async def _look(self) -> None:
        """Raises: LinkAway."""
        status = await self._query(ina_admin.StatusRequest(), ina_admin.ControllerStatus)
        there: dict[str, _Job] = {}
        after = ""
        for _ in range(MOST_PAGES):
            page = await self._query(ina_admin.JobsRequest(after=after), ina_admin.InaJobs)
            there |= {line.job: _job(line) for line in page.jobs}
            if not page.next:
                break
            after = _further(after, page.next)
        async with self._lock:
            self._there = there
            self._sent.clear()
            self._scheduler.usable = self._usable(status)
            if self._scheduler.fault:
                logger.info("INA controller answers, term %d", status.term, extra={"code": "inc_controller_there"})
            self._scheduler.fault = ""

    def _usable(self, status: ina_admin.ControllerStatus) -> frozenset[int]:
        found = set()
        for name, node in self._nodes.items():
            self._down[name] = 0 if status.switches.get(name) else self._down[name] + 1
            is_used = node in self._scheduler.usable or TREE_SERVICE in self._scheduler.resources.active(node)
            limit = DOWN_LOOKS if is_used else 1
            if self._down[name] < limit:
                found.add(node)
        return frozenset(found)

    async def _away(self, why: str) -> None:
        """Trees that the controller has never confirmed are given back, because their ranks wait for it."""
        async with self._lock:
            if self._scheduler.fault in ("", NO_ANSWER_YET):
                logger.warning("INA controller does not answer: %s", why, extra={"code": "inc_controller_away"})
            self._scheduler.fault = why[:400]
            for request in list(self._book.requests.values()):
                for composite, tree in list(request.trees.items()):
                    if not tree.environment:
                        await self._carry(
                            tree_events.refused(self._book, request.spec.name, composite, why[:400], self._now_ms())
                        )

    async def _query(self, request: ina_admin.Request, wanted: type[_R]) -> _R:
        """Raises: LinkAway: also if the controller refuses the request."""
        reply = await query_controller(self._path, request, wanted)
        if isinstance(reply, Fault):
            raise LinkAway(f"INA controller: {reply.code}: {reply.detail}"[:400])
        return reply

    # -- jobs ----------------------------------------------------------------------------------------------------------
    async def _converge(self) -> None:
        """Make the controller's jobs what the book wants. Raises: LinkAway, PlaceUnusable."""
        for request in list(self._book.requests.values()):
            for composite, tree in list(request.trees.items()):
                if request.state.is_final:
                    await self._end(request, composite, tree)
                else:
                    await self._keep(request, composite, tree)

    async def _end(self, request: Request, composite: str, tree: TreeJob) -> None:
        """First the job is cancelled, then its tasks stop, then it is forgotten. Ranks that still run may register the
        job anew: it is cancelled as often."""
        job = self._there.get(tree.name)
        if job is not None and _is_mine(job, tree) and (job.switches or not job.is_cancelled):
            reply = await query_controller(self._path, ina_admin.CancelRequest(job=tree.name), ina_admin.InaJob)
            if not isinstance(reply, Fault):
                self._there[tree.name] = _job(reply.job)
            elif reply.code == "unknown_job":
                del self._there[tree.name]
        else:
            async with self._lock:
                if not request.tasks:
                    await self._carry(tree_events.released(self._book, request.spec.name, composite))

    async def _keep(self, request: Request, composite: str, tree: TreeJob) -> None:
        async with self._lock:  # a round changes tasks in a thread
            wanted = self._wanted(request, composite, tree)
            if wanted is None or (wanted == self._there.get(tree.name) and tree.environment):
                return
            self._sent[tree.name] = wanted.switches or ()
        reply = await query_controller(self._path, ina_admin.SubmitRequest(
            job=tree.name, on=list(wanted.hosts), ranks_per_host=wanted.ranks_per_host,
            switches=list(wanted.switches or ()),
        ), ina_admin.InaJob)  # fmt: skip
        async with self._lock:
            del self._sent[tree.name]
            if isinstance(reply, Fault):
                await self._refused(request, composite, tree, wanted, f"{reply.code}: {reply.detail}")
            else:
                self._there[tree.name] = _job(reply.job)
                self._refusals.pop(tree.name, None)
                await self._carry(
                    tree_events.confirmed(self._book, request.spec.name, composite, reply.job.environment)
                )

    async def _refused(self, request: Request, composite: str, tree: TreeJob, job: _Job, reason: str) -> None:
        """Raises: PlaceUnusable."""
        self._counters["trees_refused"] += 1
        why = f"the INA controller refuses it: {reason}"[:400]
        if self._refusals.get(tree.name) != why:
            logger.info("request %s: %s", request.spec.name, why, extra={"code": "inc_tree_refused"})
        self._refusals[tree.name] = why
        if self._wanted(request, composite, tree) == job:  # else another tree is booked by now, which is not refused
            await self._carry(tree_events.refused(self._book, request.spec.name, composite, why, self._now_ms()))

    def _wanted(self, request: Request, composite: str, tree: TreeJob) -> _Job | None:
        """The job as it should be; None: it need not be there. While not every rank has a place, or once one has ended,
        the hosts are the last ones."""
        groups = self._scheduler.ranks(request.spec.name, composite)
        names = {each.id[1] for each in groups}
        held = [each for each in request.tasks.values() if each.state is not TaskState.STOPPING]
        ranks = sorted((each for each in held if each.group in names), key=lambda each: (each.group, each.slot))
        switches = tuple(sorted(each.node for each in held if each.composite == composite and _is_of_tree(each)))
        if not self._scheduler.is_whole(request.spec.name, composite):
            switches = ()  # it is given back in the next round
        there = self._there.get(tree.name)
        is_known = there is not None and _is_mine(there, tree)
        if ranks and len(ranks) == sum(each.tasks for each in groups) and (switches or is_known):
            counts = Counter(each.node for each in ranks)
            return _Job(tuple(counts), max(counts.values()), switches)
        if there is None or not is_known or not self._can_be_sent(there):
            return None
        return _Job(there.hosts, there.ranks_per_host, switches)

    def _can_be_sent(self, job: _Job) -> bool:
        """Its hosts are servers of requests, as those of each job that was submitted here."""
        is_small = 0 < len(job.hosts) <= MOST_TASKS and 0 < job.ranks_per_host <= MOST_TASKS
        return is_small and self._servers >= set(job.hosts)

    # -- tasks ---------------------------------------------------------------------------------------------------------
    async def environment(self, request: Request, task: Task) -> dict[str, str]:
        """What a task on a server needs to use trees: empty if it is no rank. Raises: LinkAway: the controller does not
        have its job yet."""
        async with self._lock:
            return self._environment(request, task)

    def _environment(self, request: Request, task: Task) -> dict[str, str]:
        found: dict[str, str] = {}
        name = request.spec.name
        for composite, tree in request.trees.items():
            if all(task.group != each.id[1] for each in self._scheduler.ranks(name, composite)):
                continue
            if tree.environment and (self._scheduler.fault or self._is_current(request, composite, tree)):
                found |= tree.environment  # a rank waits for no controller that is away
            elif tree.environment or self._may_learn(request, composite):
                raise LinkAway(f"job {tree.name} is not at the INA controller yet")
        return found

    def _is_current(self, request: Request, composite: str, tree: TreeJob) -> bool:
        """The controller has the job as it should be, or refuses to have it with these hosts: then the ranks run
        without a tree."""
        wanted = self._wanted(request, composite, tree)
        if wanted is None or self._there.get(tree.name) == wanted:
            return True
        return tree.name in self._refusals and not wanted.switches

    def _may_learn(self, request: Request, composite: str) -> bool:
        """A tree is booked, or none of its composite's other implementations is chosen yet."""
        name = request.spec.name
        chosen = request.chosen.get(composite, TREE_SERVICE)
        return chosen == TREE_SERVICE and not self._scheduler.has_begun_without(name, composite)

    def before_start(self, request: Request, task: Task) -> None:
        """Raises: LinkAway: the task whose switch it gets is still there, and the switch could refuse both."""
        if _is_of_tree(task) and any(
            each.state is TaskState.STOPPING and (each.node, each.composite) == (task.node, task.composite)
            for each in request.tasks.values()
        ):
            raise LinkAway(f"the task before it on {task.node} is being stopped")

    async def before_stop(self, request: Request, task: Task) -> None:
        """Raises: LinkAway: the controller may still use the switch for the task's tree."""
        tree = request.trees.get(task.composite)
        async with self._lock:
            is_replaced = _is_replaced(request, task)
        if tree is None or not _is_of_tree(task) or is_replaced:
            return
        if self._scheduler.fault:
            raise LinkAway(self._scheduler.fault)
        job = self._there.get(tree.name)
        is_mine = job is None or _is_mine(job, tree)
        if task.node in self._sent.get(tree.name, ()) or (job is not None and is_mine and job.may_use(task.node)):
            raise LinkAway(f"job {tree.name} may still use {task.node}")
        if is_mine and await self._holds(tree.name, task.node):
            raise LinkAway(f"job {tree.name} still has a place at {task.node}")

    async def _holds(self, job: str, switch: str) -> bool:
        """The job has a place at the switch, by the controller's ledger. Raises: LinkAway."""
        after = 0
        for _ in range(MOST_PAGES):
            page = await self._query(ina_admin.HoldsRequest(after=after), ina_admin.Holds)
            if any((each.job, each.switch) == (job, switch) for each in page.holds):
                return True
            if not page.next:
                break
            after = _further(after, page.next)
        return False


def _job(line: ina_admin.InaJobLine) -> _Job:
    switches = None if line.switches is None else tuple(line.switches)
    return _Job(tuple(line.hosts), line.ranks_per_host, switches, line.state == "cancelled")


def _further(after: _C, following: _C) -> _C:
    """Raises: LinkAway: the pages do not advance."""
    if following <= after:
        raise LinkAway(f"INA controller: after {after!r:.80} it lists {following!r:.80} again")
    return following


def _is_mine(job: _Job, tree: TreeJob) -> bool:
    """A job of this name without a restriction that the controller never confirmed is another submitter's."""
    return job.switches is not None or bool(tree.environment)


def _is_of_tree(task: Task) -> bool:
    return task.is_inc and task.implementation == TREE_SERVICE


def _is_replaced(request: Request, task: Task) -> bool:
    """Another task of the tree has the switch, so the job continues there."""
    return any(
        each.identity != task.identity and each.node == task.node and each.composite == task.composite and each.is_inc
        and each.state is not TaskState.STOPPING
        for each in request.tasks.values()
    )  # fmt: skip
