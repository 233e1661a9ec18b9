"""Connects the book of requests for servers and switches to the engine, the switches, the services and the file."""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from typing import Final

from offpath.bindings.engines.port import Engine, EngineJob, JobState, NodeInfo, NodeState
from offpath.bindings.errors import EngineJobUnknown, EngineRefused, JobEngineError, OffpathError, PlaceUnusable
from offpath.bindings.wire.admin import Fault
from offpath.dpu_daemon.manager.inc.collector import settled
from offpath.dpu_daemon.manager.inc.config import IncTable
from offpath.dpu_daemon.manager.inc.identities import Identities
from offpath.dpu_daemon.manager.inc.links import LinkAway, ServiceLinks, query_switch
from offpath.dpu_daemon.manager.inc.looks import Looks, Seen
from offpath.dpu_daemon.manager.inc.orders import process_order, switch_order
from offpath.dpu_daemon.manager.inc.services import Services
from offpath.dpu_daemon.manager.inc.switch_watch import SwitchWatch
from offpath.dpu_daemon.manager.inc.translation import request_of, row_of
from offpath.dpu_daemon.manager.inc.tree_jobs import TreeJobs
from offpath.dpu_daemon.manager.store import JobsFile
from offpath.dpu_daemon.switch.inc import messages
from offpath.sched.gpu.exact import SolverMissing
from offpath.sched.inc.live.book import Book
from offpath.sched.inc.live.live_hire import LiveHire
from offpath.sched.inc.live.records import (
    Command,
    Drop,
    Request,
    Save,
    Spec,
    StartTask,
    StopTask,
    Task,
    TaskState,
)
from offpath.sched.inc.live.tree_hire import TreeHire
from offpath.sched.inc.store import CompStore

logger = logging.getLogger(__name__)
MOST_AT_ONCE: Final = 16
STOP_AGAIN_MS: Final = 5_000
"""A stop that the engine has accepted is repeated after so long: the end takes seconds, and each call burdens it."""


class IncShell:
    """``fatal`` is called when the file cannot be written. Every change of the book happens under one lock, because a
    round is computed in a thread."""

    def __init__(
        self, table: IncTable, engine: Engine, store: JobsFile, fatal: Callable[[PlaceUnusable], None]
    ) -> None:
        """Raises: PlaceUnusable: the file is damaged."""
        self.table, self._engine, self._store, self._fatal = table, engine, store, fatal
        self._identities = Identities(store)
        self._epochs = Identities(store)  # of its own: a round takes identities in a thread
        self.store = CompStore()
        trees = TreeHire(table.resources(), preempt_ms=table.preempt_ms) if table.controller else None
        scheduler = trees or LiveHire(table.resources(), preempt_ms=table.preempt_ms)
        self.book = Book(scheduler, self.store, table.quotas(), table.ports(), self._identities.next)
        self.counters: Counter[str] = Counter()
        self.round_fault = ""
        self._switches = {each.name: each for each in table.switch}
        self._lock = asyncio.Lock()
        self._secret = store.inc_secret()
        self._links = ServiceLinks(self._secret)
        self._services = Services(self.book, self._links, store, self._epoch)
        self._looks = Looks()
        self._watch = SwitchWatch(
            table.switch, self.book, self._looks, self._lock, self._carry, self.now_ms, self.counters
        )
        self.switch_faults = self._watch.faults
        self._trees = (
            TreeJobs(table.controller, self.book, trees, self._lock, self._carry, self.now_ms, self.counters)
            if trees is not None else None
        )  # fmt: skip
        self._listing = self._looks.begin()
        self._seen: Seen | None = None
        """The newest look at the engine that was not carried out yet."""
        self._has_seen = asyncio.Event()
        self._known: set[str] = set()
        self._stops: dict[str, int] = {}
        """Stops that the engine has accepted: from when on they are repeated, in ms."""
        self._call_faults: dict[str, str] = {}
        """The last fault of calls that are repeated, by identity; it is logged once."""
        self._calls = asyncio.Semaphore(MOST_AT_ONCE)
        self._tasks: set[asyncio.Task[None]] = set()
        self._wake = asyncio.Event()
        try:
            self.book.remember([request_of(row) for row in store.inc_rows()], self.now_ms())
        except ValueError as fault:
            raise PlaceUnusable(f"jobs file: {fault}") from None
        self._known = {each for request in self.book.requests.values() for each in request.tasks}
        for name in self.switch_faults:
            self.book.node_closed(name)

    async def run(self) -> None:
        """Without end. If the file cannot be written, ``fatal`` ends the job manager."""
        await self._links.open()
        try:
            with settled():
                await self._run_loops()
        except* PlaceUnusable as faults:
            self._fatal(PlaceUnusable(str(faults.exceptions[0])))
        await asyncio.Event().wait()

    async def _run_loops(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._rounds(), name="inc-rounds")
            tasks.create_task(self._repeat(), name="inc-repeat")
            tasks.create_task(self._see_engine(), name="inc-engine")
            for name in self.switch_faults:
                tasks.create_task(self._watch.run(name), name=f"inc-switch-{name}")
            if self._trees is not None:
                tasks.create_task(self._trees.run(), name="inc-trees")

    async def close(self) -> None:
        """Tasks go on."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._links.close()

    # -- users -----------------------------------------------------------------------------------------------------
    async def submit(self, spec: Spec) -> Request:
        """It is on the disk when this returns. Raises: IncRefused, PlaceUnusable."""
        async with self._lock:
            await self._carry(self.book.submit(spec, self.now_ms()))
            self._wake.set()
            return self.book.get(spec.name)

    async def cancel(self, name: str) -> Request:
        """Raises: RequestUnknown, PlaceUnusable."""
        async with self._lock:
            await self._carry(self.book.cancel(name))
            return self.book.get(name)

    # -- loops -----------------------------------------------------------------------------------------------------
    async def _rounds(self) -> None:
        while True:
            async with self._lock:
                now_ms = self.now_ms()
                self._identities.reserve(self.book.scheduler.most_new)
                await self._carry(await asyncio.to_thread(self.book.take_back, now_ms))
                await self._carry(await self._round(now_ms))
            self._wake.clear()
            try:
                async with asyncio.timeout(self.table.round_ms / 1e3):
                    await self._wake.wait()
            except TimeoutError:
                pass

    async def _round(self, now_ms: int) -> list[Command]:
        try:
            commands = await asyncio.to_thread(self.book.round, now_ms)
        except SolverMissing as fault:  # any other error leaves a round half decided: then only a restart helps
            if self.round_fault != str(fault):
                logger.warning("round failed: %s", fault, extra={"code": "inc_round_failed"})
            self.round_fault = str(fault)
            return []
        self.round_fault = ""
        return commands

    async def _repeat(self) -> None:
        """Calls that are not confirmed are repeated; services are configured anew after changes."""
        while True:
            async with self._lock:
                due = list(self.book.due())
                for command in due:
                    self._call(command)
            identities = {each.identity for each in due}
            self._call_faults = {each: why for each, why in self._call_faults.items() if each in identities}
            await self._services.converge()
            await asyncio.sleep(min(0.2, self.table.round_ms / 1e3))

    def _epoch(self) -> int:
        self._epochs.reserve(1)
        return self._epochs.number()

    @staticmethod
    def now_ms() -> int:
        """Monotonic."""
        return time.monotonic_ns() // 1_000_000

    # -- commands --------------------------------------------------------------------------------------------------
    async def _carry(self, commands: Iterable[Command]) -> None:
        """Write what is to be saved, then call engine and switches. Raises: PlaceUnusable: nothing was called."""
        commands = list(commands)
        dropped = [each.name for each in commands if isinstance(each, Drop)]
        names = {each.name for each in commands if isinstance(each, Save)}
        saved = {name: row_of(self.book.requests[name]) for name in names if name in self.book.requests}
        if saved or dropped:
            try:
                self._store.write_inc(saved, dropped)
            except PlaceUnusable as fault:
                self._fatal(fault)
                raise
        for each in commands:
            if isinstance(each, StartTask | StopTask):
                self._call(each)

    def _call(self, command: StartTask | StopTask) -> None:
        if command.identity in self._looks.busy or self._stops.get(command.identity, 0) > self.now_ms():
            return  # `_repeat` repeats it
        self._looks.call_began(command.identity)
        self._known.add(command.identity)
        task = asyncio.get_running_loop().create_task(self._carry_out(command))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _carry_out(self, command: StartTask | StopTask) -> None:
        request = self.book.requests.get(command.name)
        task = request.tasks.get(command.identity) if request is not None else None
        try:
            if request is not None and task is not None:
                async with self._calls:
                    if isinstance(command, StartTask):
                        await self._start(request, task)
                    else:
                        await self._stop(request, task)
        except (JobEngineError, LinkAway) as fault:
            self.counters["faults"] += 1
            if self._call_faults.get(command.identity) != str(fault):
                logger.info("job %s: %s", command.identity, fault, extra={"code": "engine_call_failed"})
            self._call_faults[command.identity] = str(fault)
        except PlaceUnusable:
            pass  # `_carry` has ended the job manager
        finally:
            self._looks.call_ended(command.identity)
            if task is not None and task.is_inc:
                self._known.discard(command.identity)  # the engine has no such job

    async def _start(self, request: Request, task: Task) -> None:
        """Raises: LinkAway, JobEngineError: the call is repeated."""
        if task.state is not TaskState.STARTING:
            return
        address = ""
        if self._trees is not None:
            self._trees.before_start(request, task)
        if not task.is_inc:
            refused = await self._start_process(request, task)
        elif control := self._switches[task.node].control:
            answer = await query_switch(control, self._order(request, task), messages.Started)
            refused = answer.detail if isinstance(answer, Fault) else ""
            address = "" if isinstance(answer, Fault) else answer.address
        else:
            refused = ""
        async with self._lock:
            if refused:
                self.counters["refused"] += 1
                await self._carry(self.book.refused(request.spec.name, task.identity, refused, self.now_ms()))
            elif task.is_inc:
                self.counters["started"] += 1
                await self._carry(self.book.started(request.spec.name, task.identity, address))

    def _order(self, request: Request, task: Task) -> messages.StartTask:
        job = self.book.scheduler.jobs[request.spec.name]
        return switch_order(request, task, job.request.by_id[(request.spec.name, task.group)], self._secret)

    async def _start_process(self, request: Request, task: Task) -> str:
        """Why the engine refuses it; empty: it does not. Raises: JobEngineError, LinkAway."""
        more = await self._trees.environment(request, task) if self._trees is not None else {}
        order = process_order(request, task, self.table.python or sys.executable, self._secret, more)
        try:
            job = await self._engine.start(order)
        except EngineRefused as fault:
            return fault.reason
        async with self._lock:
            await self._see(job)
        return ""

    async def _stop(self, request: Request, task: Task) -> None:
        """Raises: LinkAway, JobEngineError, PlaceUnusable."""
        if not self._is_lost(task.node):
            await self._services.before_stop(request, task)
        if self._trees is not None:
            await self._trees.before_stop(request, task)
        if task.is_inc:
            control = self._switches[task.node].control if task.node in self._switches else ""
            if control:
                await query_switch(control, messages.StopTask(identity=task.identity), messages.Stopped)
        else:
            try:
                await self._engine.cancel(task.identity)
                if task.identity in request.tasks:  # its end may have been seen meanwhile
                    self._stops[task.identity] = self.now_ms() + STOP_AGAIN_MS
                return  # the engine lists its end
            except EngineJobUnknown:
                pass
        async with self._lock:
            await self._over(request.spec.name, task.identity, "stopped")

    def _is_lost(self, node: str) -> bool:
        names = self.book.scheduler.resources.topology.names
        return node in names and self.book.scheduler.resources.is_lost(names.index(node))

    async def _over(self, name: str, identity: str, reason: str) -> None:
        self._stops.pop(identity, None)
        await self._carry(self.book.lost(name, identity, reason, self.now_ms()))

    # -- the engine ------------------------------------------------------------------------------------------------
    def owns(self, identity: str) -> bool:
        """The engine's job is a task of a request."""
        return identity in self._known

    def listing(self) -> None:
        """The engine begins to list its jobs."""
        self._looks.end(self._listing)
        self._listing = self._looks.begin()

    def see(self, nodes: Collection[NodeInfo], jobs: Collection[EngineJob]) -> None:
        """What the engine has reported since `listing`. While a round is computed it waits for its end; jobs on GPUs do
        not wait for it."""
        if self._seen is not None:
            self._looks.end(self._seen.look)
        self._seen = Seen(self._listing, nodes, {job.identity: job for job in jobs if job.identity in self._known})
        self._listing = self._looks.begin()
        self._has_seen.set()

    async def _see_engine(self) -> None:
        while True:
            await self._has_seen.wait()
            async with self._lock:
                seen, self._seen = self._seen, None
                self._has_seen.clear()
                if seen is not None:
                    await self._see_all(seen)
                    self._looks.end(seen.look)

    async def _see_all(self, seen: Seen) -> None:
        stale = seen.look.stale
        await self._see_nodes(seen.nodes)
        tasks = {each.identity: each for request in self.book.requests.values() for each in request.tasks.values()}
        for identity, job in seen.jobs.items():
            is_starting = identity in tasks and tasks[identity].state is TaskState.STARTING
            # An end stays true whatever was called meanwhile: without this, stops that are repeated could hide it.
            if identity not in stale or (job.state.is_final and not is_starting):
                await self._see(job)
        for name, request in list(self.book.requests.items()):
            for task in list(request.tasks.values()):
                is_there = task.identity in seen.jobs or task.identity in stale
                if not task.is_inc and task.state is TaskState.RUNNING and not is_there:
                    await self._over(name, task.identity, "the engine does not know it")

    async def _see(self, job: EngineJob) -> None:
        name = next((name for name, each in self.book.requests.items() if job.identity in each.tasks), None)
        if name is None:
            if job.state.is_final:
                await self._forget(job.identity)
            return
        match job.state:
            case JobState.RUNNING:
                await self._carry(self.book.started(name, job.identity))
            case JobState.PENDING:
                return
            case JobState.LOST:
                await self._over(name, job.identity, job.reason or "the engine lost it")
            case _:
                is_success = job.state is JobState.SUCCEEDED
                code = f"{job.state}, exit code {job.exit_code}" + (f": {job.reason}" if job.reason else "")
                await self._carry(self.book.ended(name, job.identity, is_success, code, self.now_ms()))
        if job.state.is_final:
            await self._forget(job.identity)

    async def _forget(self, identity: str) -> None:
        try:
            await self._engine.forget(identity)
            self._known.discard(identity)
            self._stops.pop(identity, None)
        except OffpathError:
            pass  # it is listed again

    async def _see_nodes(self, nodes: Collection[NodeInfo]) -> None:
        states = {node.name: node.state for node in nodes}
        for table in self.table.server:
            state = states.get(table.name, NodeState.DOWN)
            if state is NodeState.READY:
                self.book.node_back(table.name)
            elif state is NodeState.DRAINED:
                self.book.node_closed(table.name)
            else:
                await self._carry(self.book.node_lost(table.name, self.now_ms()))
