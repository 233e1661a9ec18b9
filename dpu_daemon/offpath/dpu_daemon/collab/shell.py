"""Connects the book of federated jobs, which decides, to the clock and the file.

Nobody learns of a change before it is on the disk: an answer waits for the next write. While one write runs, all
further changes gather for the next one, so that many answers share one fsync.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import ThreadPoolExecutor
from random import SystemRandom
from typing import Any, Final

from offpath.bindings.errors import PlaceUnusable
from offpath.dpu_daemon.collab.config import CollabConfig
from offpath.dpu_daemon.collab.counts import Counts
from offpath.dpu_daemon.collab.store import Changes, StateFile, profile_row, row_of
from offpath.dpu_daemon.steady import SteadyClock
from offpath.sched.collab.book import Book
from offpath.sched.collab.errors import CollabRefused, TooManyRequirements
from offpath.sched.collab.policies import make
from offpath.sched.collab.records import Device, Event, Job, JobSpec, Lease, Released, RoundEnd
from offpath.sched.collab.requirements import Properties

logger = logging.getLogger(__name__)
TICK_S: Final = 0.1
"""How late a lease or a round ends when nothing else happens."""
GATHER_S: Final = 0.001
"""Before a write, for more changes to share it: a write costs as much as dozens of them."""
_NS: Final = 10**9
_draw: Final = SystemRandom().randrange


class CollabShell:
    """One controller. `run` works until it is cancelled; all else is called in its event loop."""

    def __init__(
        self, config: CollabConfig, store: StateFile, *, clock: Callable[[int], SteadyClock] = SteadyClock,
        draw: Callable[[int], int] = _draw,
    ) -> None:  # fmt: skip
        """``clock``: makes the clock; it gets the last time of the former process. Raises: PlaceUnusable: the file is
        damaged."""
        self.config, self.store = config, store
        self._period_ns = config.policy.period_s * _NS
        found = store.read(self._period_ns)
        self.now_ns = clock(found.last_ns)
        """Leases, rounds and days are counted in this time: a day must not come twice."""
        self.started_ns = self.now_ns()
        policy = config.policy
        self._draw = draw
        self.book = Book(make(policy.name, draw, policy.epsilon), draw, policy.lease_s * _NS, self._period_ns)
        try:
            self.book.resume(found.kept)
        except (CollabRefused, TooManyRequirements) as fault:
            raise PlaceUnusable(f"state file {config.operation.state}: {fault}") from None
        self.last_ends = found.last_ends
        self.refused: Counter[str] = Counter()
        """Of devices' messages, by code."""
        self.counts = Counts()
        self.commits = 0
        self._newest = found.kept.following - 1
        """The number of the last lease that is issued."""
        self._changes = Changes()
        self._dirty: set[str] = set()
        self._learnt: set[str] = set()
        self._waiting: list[Callable[[], None]] = []
        self._kick = asyncio.Event()
        self._writer = ThreadPoolExecutor(1, "collab-file")
        self._is_writing = False

    # -- time -----------------------------------------------------------------------------------------------------
    def advance(self) -> int:
        """Now, after all that is due by then."""
        now_ns = self.now_ns()
        due_ns = self.book.next_ns()
        if due_ns is not None and due_ns <= now_ns:
            self._take(self.book.tick(now_ns))
        return now_ns

    # -- another configuration ------------------------------------------------------------------------------------
    def reload(self, config: CollabConfig) -> None:
        """``config`` is in force from here on. What `config.NEEDS_RESTART` names is the same in it."""
        before, after = self.config.policy, config.policy
        self.config = config
        self.book.lease_for(after.lease_s * _NS)
        if (before.name, before.epsilon) != (after.name, after.epsilon):
            self.book.adopt(make(after.name, self._draw, after.epsilon))

    # -- jobs -----------------------------------------------------------------------------------------------------
    def open(self, spec: JobSpec) -> Job:
        """Raises: CollabRefused, TooManyRequirements."""
        self.book.open(spec, self.advance())
        self._changed(spec.name)
        return self.book.jobs[spec.name]

    def request(self, name: str, number: int, demand: int, deadline_s: float) -> Job:
        """Raises: CollabRefused."""
        now_ns = self.advance()
        self.book.request(name, number, demand, now_ns + round(deadline_s * _NS), now_ns)
        self._changed(name)
        return self.book.jobs[name]

    def close_job(self, name: str) -> None:
        """Raises: CollabRefused."""
        now_ns = self.advance()
        job = self.book.jobs.get(name)
        has_round = job is not None and job.request is not None
        self._take(self.book.close(name, now_ns))
        if job is not None and has_round:
            self.counts.ended(job.spec.tenant, RoundEnd.CLOSED)
        self.last_ends.pop(name, None)
        self._dirty.discard(name)
        self._learnt.discard(name)
        self._changes.closed.append(name)
        self._kick.set()

    # -- devices --------------------------------------------------------------------------------------------------
    def check_in(self, device: Device, properties: Properties, now_ns: int) -> Lease | None:
        """The device's lease, or none; ``now_ns``: of `advance`. Answer with one only through `when_durable`."""
        lease = self.book.check_in(device, properties, now_ns)
        if lease is not None and lease.number > self._newest:
            self._newest = lease.number
            self._changes.leases.append(lease)
            self._kick.set()
            request = self.book.jobs[lease.job].request
            if request is not None and request.remaining == 0:  # else the job's row says nothing new: leases count
                self._dirty.add(lease.job)
        return lease

    def result(self, device: Device, number: int, is_good: bool, now_ns: int) -> None:
        """``now_ns``: of `advance`. Raises: CollabRefused: the device has no such lease."""
        self._take(self.book.result(device, number, is_good, now_ns))

    def _take(self, events: Iterable[Event]) -> None:
        for event in events:
            if isinstance(event, Released):
                self.counts.answered += event.answered
                self.counts.unanswered += not event.answered
                self._changes.ended.append(event.lease.number)
                self._changed(event.lease.job)
            else:
                self.last_ends[event.job] = str(event.end)
                if (job := self.book.jobs.get(event.job)) is not None:
                    self.counts.ended(job.spec.tenant, event.end)
                self._changed(event.job)
                self._learnt.add(event.job)
                logger.info(
                    "job %s: round %d has ended: %s, %d of %d devices answered", event.job, event.round, event.end,
                    event.done, event.demand, extra={"code": "collab_round_ended"},
                )  # fmt: skip

    def _changed(self, name: str) -> None:
        self._dirty.add(name)
        self._kick.set()

    # -- the disk -------------------------------------------------------------------------------------------------
    def when_durable(self, answer: Callable[[], None]) -> None:
        """Call ``answer`` when all changes so far are on the disk; at once if they are. It is never called if the file
        cannot be written."""
        if not self._is_writing and not self._kick.is_set():
            answer()
            return
        self._waiting.append(answer)
        self._kick.set()

    async def durable(self) -> None:
        """Wait until all changes so far are on the disk."""
        done = asyncio.Event()
        self.when_durable(done.set)
        await done.wait()

    async def run(self, *beside: Coroutine[Any, Any, None]) -> None:
        """Write changes and end what is due, without end; ``beside``: what runs as long. Raises: PlaceUnusable: the
        file cannot be written."""
        fault: BaseException | None = None
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._tick(), name="collab-tick")
                tasks.create_task(self._write(), name="collab-file")
                for work in beside:
                    tasks.create_task(work, name="collab-beside")
        except* PlaceUnusable as group:
            fault = group.exceptions[0]
        if fault is not None:
            raise fault

    async def _tick(self) -> None:
        while True:
            self.advance()
            await asyncio.sleep(TICK_S)

    async def _write(self) -> None:
        while True:
            await self._kick.wait()
            await asyncio.sleep(GATHER_S)
            self._is_writing = True
            changes, waiting = self._gathered()
            written = asyncio.wrap_future(self._writer.submit(self.store.write, changes))
            await asyncio.shield(written)  # else a write that has not begun would be left out, and later ones made
            self.commits += 1
            self._is_writing = False
            for answer in waiting:
                answer()

    def _gathered(self) -> tuple[Changes, list[Callable[[], None]]]:
        """All changes so far, of which the book is the sum, and who waits for them."""
        changes, waiting = self._changes, self._waiting
        self._changes, self._waiting = Changes(purge_before_ns=self.now_ns() // self._period_ns * self._period_ns), []
        for name in self._dirty:
            if (job := self.book.jobs.get(name)) is not None:
                changes.jobs[name] = row_of(job, self.last_ends.get(name, ""))
                if name in self._learnt:
                    changes.profiles[name] = profile_row(job)
        self._dirty.clear()
        self._learnt.clear()
        self._kick.clear()
        return changes, waiting

    def close(self) -> None:
        """Write what is left, and close the file. Raises: PlaceUnusable: it cannot be written."""
        try:
            self._writer.shutdown()
            changes, _ = self._gathered()
            self.store.write(changes)
        finally:
            self.store.close()
