"""Keeps a job at the INA controller for each tree of switches that the book has booked for SHArP.

The job is restricted to the booked switches, and is changed when they are. Its ranks start when the controller has it,
because their environment names it. A switch's task stops when the controller does not use the switch for the job any
more: so what the emulated switch books stays booked while the tree lives. The controller is queried all the time; one
that does not answer makes no new trees, and those that there are stay.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Final, TypeVar

from pydantic import BaseModel

from offpath.bindings.runtime import CONTROLLER_SOCKET, local_socket
from offpath.bindings.wire import ina_admin
from offpath.bindings.wire.admin import Fault
from offpath.dpu_daemon.manager.inc.links import LinkAway, query_controller
from offpath.sched.inc.live import tree_events
from offpath.sched.inc.live.book import Book
from offpath.sched.inc.live.records import Command, Request, Task, TaskState, TreeJob
from offpath.sched.inc.live.tree_hire import TREE_SERVICE, TreeHire

logger = logging.getLogger(__name__)
LOOK_S: Final = 0.25
"""Between two queries of the controller."""
MISSES: Final = 4
"""The controller is away after so many queries in a row without a reply."""
DOWN_LOOKS: Final = 20
"""A switch in use is down after so many replies in a row that say so: a new controller has to reach its switches
first."""
_R = TypeVar("_R", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class _Job:
    """As the controller has it. ``switches``: None: it may use any."""

    hosts: tuple[str, ...]
    ranks_per_host: int
    switches: tuple[str, ...] | None


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
        self._nodes = {topology.names[node]: node for node in range(topology.hosts, topology.nodes)}
        self._there: dict[str, _Job] = {}
        """The jobs that the controller has, by name, without those that were cancelled."""
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
        while True:
            page = await self._query(ina_admin.JobsRequest(after=after), ina_admin.InaJobs)
            for line in page.jobs:
                if line.state != "cancelled":
                    switches = None if line.switches is None else tuple(line.switches)
                    there[line.job] = _Job(tuple(line.hosts), line.ranks_per_host, switches)
            after = page.next
            if not after:
                break
        async with self._lock:
            self._there = there
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
            if not self._scheduler.fault:
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
        """First the job is cancelled, then its switches' tasks stop, then it is forgotten."""
        if tree.name in self._there:
            reply = await query_controller(self._path, ina_admin.CancelRequest(job=tree.name), ina_admin.InaJob)
            if not isinstance(reply, Fault) or reply.code == "unknown_job":
                del self._there[tree.name]
        else:
            async with self._lock:
                if not any(task.is_inc and task.composite == composite for task in request.tasks.values()):
                    await self._carry(tree_events.released(self._book, request.spec.name, composite))

    async def _keep(self, request: Request, composite: str, tree: TreeJob) -> None:
        async with self._lock:  # a round changes tasks in a thread
            wanted = self._wanted(request, composite, tree)
        if wanted is None or (wanted == self._there.get(tree.name) and tree.environment):
            return
        reply = await query_controller(self._path, ina_admin.SubmitRequest(
            job=tree.name, on=list(wanted.hosts), ranks_per_host=wanted.ranks_per_host,
            switches=list(wanted.switches or ()),
        ), ina_admin.InaJob)  # fmt: skip
        async with self._lock:
            if isinstance(reply, Fault):
                self._counters["trees_refused"] += 1
                why = f"the INA controller refuses it: {reply.code}: {reply.detail}"[:400]
                if self._refusals.get(tree.name) != why:
                    logger.info("request %s: %s", request.spec.name, why, extra={"code": "inc_tree_refused"})
                self._refusals[tree.name] = why
                await self._carry(tree_events.refused(self._book, request.spec.name, composite, why, self._now_ms()))
            else:
                self._there[tree.name] = wanted
                self._refusals.pop(tree.name, None)
                await self._carry(
                    tree_events.confirmed(self._book, request.spec.name, composite, reply.job.environment)
                )

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
        if len(ranks) == sum(each.tasks for each in groups) and switches:
            counts = Counter(each.node for each in ranks)
            return _Job(tuple(counts), max(counts.values()), switches)
        return _Job(there.hosts, there.ranks_per_host, switches) if there is not None and there.hosts else None

    # -- tasks ---------------------------------------------------------------------------------------------------------
    async def environment(self, request: Request, task: Task) -> dict[str, str]:
        """What a task on a server needs to use trees: empty if it is no rank. Raises: LinkAway: the controller does not
        have its job yet."""
        async with self._lock:
            return self._environment(request, task)

    def _environment(self, request: Request, task: Task) -> dict[str, str]:
        found: dict[str, str] = {}
        for composite, tree in request.trees.items():
            if all(task.group != each.id[1] for each in self._scheduler.ranks(request.spec.name, composite)):
                continue
            wanted = self._wanted(request, composite, tree)
            is_current = wanted is None or self._there.get(tree.name) == wanted
            if tree.environment and (is_current or self._scheduler.fault):  # a rank waits for no controller
                found |= tree.environment
            elif tree.environment or request.chosen.get(composite) == TREE_SERVICE:
                raise LinkAway(f"job {tree.name} is not at the INA controller yet")
        return found

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
        if job is not None and (job.switches is None or task.node in job.switches):
            raise LinkAway(f"job {tree.name} may still use {task.node}")
        if await self._holds(tree.name, task.node):
            raise LinkAway(f"job {tree.name} still has a place at {task.node}")

    async def _holds(self, job: str, switch: str) -> bool:
        """The job has a place at the switch, by the controller's ledger. Raises: LinkAway."""
        after = 0
        while True:
            page = await self._query(ina_admin.HoldsRequest(after=after), ina_admin.Holds)
            if any((each.job, each.switch) == (job, switch) for each in page.holds):
                return True
            after = page.next
            if not after:
                return False


def _is_of_tree(task: Task) -> bool:
    return task.is_inc and task.implementation == TREE_SERVICE


def _is_replaced(request: Request, task: Task) -> bool:
    """Another task of the tree has the switch, so the job goes on there."""
    return any(
        each.identity != task.identity and each.node == task.node and each.composite == task.composite and each.is_inc
        and each.state is not TaskState.STOPPING
        for each in request.tasks.values()
    )  # fmt: skip
