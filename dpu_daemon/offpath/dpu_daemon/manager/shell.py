"""Connects the workload, which makes all decisions about jobs, to the engine, the placement policy and the file."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from offpath.bindings.engines.port import Engine, NodeInfo
from offpath.bindings.errors import EngineJobUnknown, EngineRefused, JobEngineError, PlaceUnusable
from offpath.dpu_daemon.manager.config import ManagerConfig
from offpath.dpu_daemon.manager.inc.shell import IncShell
from offpath.dpu_daemon.manager.store import JobsFile
from offpath.dpu_daemon.manager.translation import held_of, node_of, places_of, seen_of, start_of
from offpath.dpu_daemon.manager.unaccounted import LOOKS, Unaccounted
from offpath.dpu_daemon.steady import SteadyClock
from offpath.sched.placement.batch_port import BatchPlacement
from offpath.sched.workload.information import Estimate, Information, Proposal
from offpath.sched.workload.records import Batch, Command, Drop, End, Forget, Release, Save, Spec, Start, Work
from offpath.sched.workload.workload import Workload, WorkRefused

logger = logging.getLogger(__name__)
MOST_AT_ONCE: Final = 16
"""Calls of the engine that start, release or end jobs at the same time."""


class ManagerShell:
    """One job manager. `run` works until it is cancelled; all else is called in its event loop."""

    def __init__(
        self, config: ManagerConfig, engine: Engine, policy: BatchPlacement, store: JobsFile, *,
        now_ns: Callable[[], int] | None = None,
    ) -> None:  # fmt: skip
        """Raises: PlaceUnusable: the file is damaged."""
        self.config, self.engine, self.store = config, engine, store
        self.now_ns = now_ns or SteadyClock()
        self.started_ns = self.now_ns()
        self.workload = Workload(config.models)
        self.workload.remember(store.works())
        self.information = Information(config.network.links(), policy, config.models)
        self.counters: Counter[str] = Counter()
        self.engine_fault = "not asked yet"
        """Why the engine does not answer; empty: it does."""
        self._deciding = asyncio.Lock()
        self._calls = asyncio.Semaphore(MOST_AT_ONCE)
        self._waiting: dict[str, deque[Command]] = {}
        """Commands for the engine by job; those of one job are carried out one after the other."""
        self._asked: set[str] = set()
        """Jobs of which the engine was asked something since it began to list them."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._fatal: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.inc = IncShell(config.inc, engine, store, self._fail) if config.inc is not None else None
        """Requests for servers and switches, if the configuration has them."""
        self._is_adopted = False
        self.unaccounted = Unaccounted()
        self.remedies: dict[str, str] = {}
        """Of each node with unaccounted GPUs: the command that gives them back."""

    async def run(self) -> None:
        """Read the engine and decide batches, without end. Raises: PlaceUnusable: the file cannot be written; no job
        may be started then."""
        work = [self._read_engine(), self._decide_batches(), *([self.inc.run()] if self.inc is not None else [])]
        loops = [asyncio.ensure_future(each) for each in (*work, self._fatal)]
        try:
            done, _ = await asyncio.wait(loops, return_when=asyncio.FIRST_EXCEPTION)
            for each in done:
                each.result()
        finally:
            for each in loops:
                each.cancel()
            await asyncio.gather(*loops, return_exceptions=True)

    async def close(self) -> None:
        """Leave the engine; jobs continue, and what is not carried out is repeated by the next job manager."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self.inc is not None:
            await self.inc.close()
        await self.engine.close()
        self.store.close()

    def _fail(self, fault: PlaceUnusable) -> None:
        """The file cannot be written: `run` ends."""
        if not self._fatal.done():
            self._fatal.set_exception(fault)

    # -- users ----------------------------------------------------------------------------------------------------
    def submit(self, spec: Spec) -> Work:
        """Accept a job; it is on the disk when this returns. Raises: WorkRefused, PlaceUnusable."""
        identity = self.store.identity(spec.name)
        self.carry(self.workload.submit(spec, identity, self.now_ns()))
        self.counters["submitted"] += 1
        return self.workload.works[identity]

    def cancel(self, name: str) -> Work:
        """End a job. Raises: WorkRefused."""
        work = self.workload.get(name)
        self.carry(self.workload.cancel(name, self.now_ns()))
        return work

    async def estimates(self) -> dict[str, Estimate]:
        """Of the running jobs, by identity."""
        async with self._deciding:
            return await asyncio.to_thread(self.information.estimates, self.workload.nodes, self.workload.active)

    async def propose(self, spec: Spec) -> Proposal:
        """Where a job would go now. Raises: WorkRefused: no cluster could run it, or the engine did not answer yet."""
        self.workload.check(spec)
        if not self.workload.nodes:
            raise WorkRefused(
                "engine", f"no node is known; engine {self.engine.name}: {self.engine_fault or 'has none'}"
            )
        batch = Batch(0, (), self.workload.active, self.workload.nodes, self.workload.free())
        async with self._deciding:
            return await asyncio.to_thread(self.information.propose, batch, spec)

    # -- the engine -----------------------------------------------------------------------------------------------
    async def _read_engine(self) -> None:
        while True:
            try:
                await self._read()
                if self.engine_fault:
                    logger.info("engine %s answers", self.engine.name, extra={"code": "engine_back"})
                self.engine_fault = ""
            except JobEngineError as fault:
                self._is_adopted = False
                self.counters["engine_faults"] += 1
                if not self.engine_fault or self.engine_fault == "not asked yet":
                    logger.warning(
                        "engine %s does not answer: %s", self.engine.name, fault, extra={"code": "engine_away"}
                    )
                self.engine_fault = str(fault)[:1000] or type(fault).__name__
            await asyncio.sleep(self.config.engine.poll_ms / 1e3)

    async def _read(self) -> None:
        if not self._is_adopted:
            await self.engine.adopt()
            self._is_adopted = True
        inventory = await self.engine.inventory()
        self._account(inventory)
        nodes = [node_of(info) for info in inventory]
        self._asked = set(self._waiting)
        if self.inc is not None:
            self.inc.listing()
        listed = await self.engine.jobs()
        if self.inc is not None:
            self.inc.see(inventory, [job for job in listed if self.inc.owns(job.identity)])
            listed = tuple(job for job in listed if not self.inc.owns(job.identity))
        jobs = [seen_of(job) for job in listed]
        held = [held_of(job) for job in await self.engine.pending()]
        busy = frozenset(self._asked | set(self._waiting))
        now_ns = self.now_ns()
        self.workload.see_nodes(nodes)
        self.carry(self.workload.see_jobs(jobs, now_ns, is_all=True, busy=busy))
        self.carry(self.workload.see_held(held, now_ns, busy=busy))

    def _account(self, inventory: Sequence[NodeInfo]) -> None:
        """Log GPUs that the engine counts as given and that no job has."""
        self.remedies = {node.name: node.remedy for node in inventory if node.unaccounted}
        for name, count in self.unaccounted.see(inventory).items():
            if count:
                logger.warning(
                    "node %s: engine %s counts %d GPUs as given that no job has, in %d looks in a row; fix: %s",
                    name, self.engine.name, count, LOOKS, self.remedies[name], extra={"code": "gpus_unaccounted"},
                )  # fmt: skip
            else:
                logger.info(
                    "node %s: engine %s accounts for all GPUs again", name, self.engine.name,
                    extra={"code": "gpus_accounted"},
                )  # fmt: skip

    async def _decide_batches(self) -> None:
        while True:
            await asyncio.sleep(self.config.policy.batch_ms / 1e3)
            batch = self.workload.batch() if not self.engine_fault else None
            if batch is not None:
                await self._decide(batch)

    async def _decide(self, batch: Batch) -> None:
        try:
            async with self._deciding:
                decisions = await asyncio.to_thread(self.information.decide, batch)
        except Exception as fault:  # boundary to a policy, which may be a plug-in's
            self.counters["batches_failed"] += 1
            is_first = self.counters["batches_failed"] == 1  # each batch may fail alike: one traceback is enough
            logger.warning(
                "batch %d: policy %s failed: %r", batch.number, self.config.policy.name, fault,
                exc_info=fault if is_first else None, extra={"code": "batch_failed"},
            )  # fmt: skip
            return
        self.counters["batches"] += 1
        self.carry(self.workload.decide(decisions))

    # -- commands -------------------------------------------------------------------------------------------------
    def carry(self, commands: Iterable[Command]) -> None:
        """Write what is to be saved, then have the engine asked. Raises: PlaceUnusable: nothing was asked."""
        commands = list(commands)
        saved = {command.work.identity: command.work for command in commands if isinstance(command, Save)}
        dropped = [command.identity for command in commands if isinstance(command, Drop)]
        if saved or dropped:
            try:
                self.store.write(list(saved.values()), dropped)
            except PlaceUnusable as fault:
                self._fail(fault)
                raise
        for command in commands:
            if not isinstance(command, Save | Drop):
                self._ask(command)

    def _ask(self, command: Start | Release | End | Forget) -> None:
        identity = command.identity
        self._asked.add(identity)
        if identity in self._waiting:
            if command not in self._waiting[identity]:
                self._waiting[identity].append(command)
            return
        self._waiting[identity] = deque([command])
        task = asyncio.get_running_loop().create_task(self._carry_all(identity))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _carry_all(self, identity: str) -> None:
        """The commands of one job, in order. A failed one is dropped: the next look at the engine shows what is to be
        repeated."""
        waiting = self._waiting[identity]
        try:
            while waiting:
                command = waiting[0]
                async with self._calls:
                    if self.workload.is_due(command):
                        await self._carry_out(command)
                waiting.popleft()
        except JobEngineError as fault:
            self.counters["engine_faults"] += 1
            if isinstance(waiting[0], Start) and fault.may_have_begun:
                self.workload.unanswered(identity)
            logger.info("job %s: %s", identity, fault, extra={"code": "engine_call_failed"})
        except PlaceUnusable:
            pass  # `carry` has ended the job manager
        finally:
            self._asked.add(identity)
            del self._waiting[identity]

    async def _carry_out(self, command: Command) -> None:
        """Raises: JobEngineError: the engine does not answer, or not understandably."""
        works = self.workload.works
        match command:
            case Start(identity):
                work = works[identity]
                order = start_of(work, self.engine, self.config.network.switches, self.workload.nodes)
                try:
                    job = await self.engine.start(order)
                except EngineRefused as fault:
                    self._refused(identity, fault.reason)
                    return
                self.counters["started"] += 1
                self.carry(self.workload.answered(seen_of(job), self.now_ns()))
            case Release(identity):
                try:
                    job = await self.engine.release(identity, places_of(works[identity], self.engine))
                except EngineJobUnknown:
                    self.carry(self.workload.unknown(identity, self.now_ns()))
                    return
                except EngineRefused as fault:
                    self._refused(identity, fault.reason)
                    return
                self.carry(self.workload.answered(seen_of(job), self.now_ns()))
            case End(identity):
                try:
                    await self.engine.cancel(identity)
                except EngineJobUnknown:
                    self.carry(self.workload.unknown(identity, self.now_ns()))
            case Forget(identity):
                with contextlib.suppress(EngineRefused):  # asked again when the engine lists it again
                    await self.engine.forget(identity)

    def _refused(self, identity: str, reason: str) -> None:
        self.counters["refused"] += 1
        logger.info("job %s: the engine refuses it: %s", identity, reason, extra={"code": "job_refused"})
        self.carry(self.workload.refused(identity, reason, self.now_ns()))
