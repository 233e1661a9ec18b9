"""Runs the job book in virtual time: the same object as in the daemon, in a shell with simulated GPUs.

A trace row is one job of the row's length (a gang of n whole GPUs is n jobs that arrive together; none waits for the
others). The shell executes commands as the daemon does, each with the duration from the device model, and returns the
events that helper and workers would send.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from offpath.sched.gpu.consolidate import consolidate
from offpath.sched.gpu.exact import LiveJob, Place
from offpath.sched.gpu.geometry import GpuSpec
from offpath.sched.gpu.migrating import Migrating
from offpath.sched.gpu.plugin import Advisor, PluginDecision, gateway_of
from offpath.sched.gpu.policy import ModelShares, Policy
from offpath.sched.jobs import commands, events
from offpath.sched.jobs.book import JobBook
from offpath.sched.jobs.settings import BookSettings, TenantSpec
from offpath.sched.jobs.states import EndReason, JobState
from offpath.sched.sim.accounting import Meter
from offpath.sched.sim.core import EventCore
from offpath.sched.sim.devices import PAPER, DeviceModel
from offpath.sched.sim.workload import Stream, TraceJob, tenants_of

_HELPER: Final = 1
_FOREVER: Final = 1 << 62


def paper_settings(lanes: int) -> BookSettings:
    """No operation takes time, no lease is kept warm, no lease is reclaimed: Conspirator §4.2."""
    return BookSettings(
        lanes=lanes, landing_bytes=0, result_bytes=0, max_jobs=1 << 40, keep_warm_ns=0, grow_after_ns=0,
        reclaim_after_ns=_FOREVER, min_hold_ns=_FOREVER,
    )  # fmt: skip


@dataclass(slots=True)
class Running:
    """A piece of a row in the book, with its lease once it has a lane."""

    row: int
    share: int
    duration_ns: int
    tenant: str
    model: str
    lease: int = 0
    end_ns: int = 0
    has_moved: bool = False


class Cluster:
    """One run. ``gpus`` form one pool, as in the paper; ``on_decision`` receives each job's lease when the job gets
    it."""

    def __init__(
        self,
        stream: Stream,
        gpus: Sequence[GpuSpec],
        policy: Policy,
        *,
        device: DeviceModel = PAPER,
        settings: BookSettings | None = None,
        rights: Mapping[str, TenantSpec] | None = None,
        advisor: Advisor | None = None,
    ) -> None:
        """``rights``: of tenants with limited rights. With a `Migrating` policy jobs may move, once each at most: they
        are stopped, and the rest is submitted again. ``advisor``: the plug-in, if the policy is one."""
        self.stream = stream
        self.core = EventCore()
        self.meter = Meter(stream.begin_ns, stream.end_ns)
        self.jobs: dict[int, Running] = {}
        self.ended: Counter[JobState] = Counter()
        self.waited_ns: list[int] = []
        self.answers: dict[int, tuple[JobState, int]] = {}
        """By row: the state in which its (last) piece ended, and the time since the row was submitted, in ns."""
        self.migrations = 0
        self.plugin_faults: list[PluginDecision] = []
        self.on_decision: Callable[[int, commands.OpenLease], None] | None = None
        self._device = device
        self._migrating = policy if isinstance(policy, Migrating) else None
        self._changed = False
        self._is_consolidating = False
        self._specs = {gpu.gpu: gpu for gpu in gpus}
        lanes = max(1, 100 // min((job.share for job in stream.jobs), default=100))
        tenants = tenants_of(stream.jobs)
        rights = rights or {}
        specs = tuple(rights.get(t) or TenantSpec(t, max_jobs=1 << 40, max_share=1 << 40) for t in tenants)
        self.book = JobBook(specs, policy, settings or paper_settings(lanes))
        self._sessions = {name: number for number, name in enumerate(tenants, start=1)}
        self._requests = dict.fromkeys(self._sessions.values(), 0)
        needs = dict.fromkeys(_kernel_of(job) for job in stream.jobs)
        self._kernels = {need: n for n, need in enumerate(needs, start=1)}
        self._leases: dict[int, commands.OpenLease] = {}
        self._events: deque[events.Event] = deque()
        self._is_busy = False
        self._tick_ns = _FOREVER
        self._next_job = 1
        self._carry: dict[type, Callable[[Any], None]] = {
            commands.Copy: self._copy,
            commands.Launch: self._launch,
            commands.Answer: self._answer,
            commands.OpenLease: self._open,
            commands.ScrubLane: self._scrub,
            commands.CloseLease: self._close,
            PluginDecision: self._decision,
        }
        gateway_of(self.book.ledger.decisions).arriving = advisor
        for name, number in self._sessions.items():
            self._apply(events.SessionOpened(number, name, 1 << 40))
        kernels = tuple(
            events.Kernel(n, 100, f"kernel-{n}", models, memory) for (models, memory), n in self._kernels.items()
        )
        self._apply(events.HelperJoined(_HELPER, tuple(gpus), kernels))
        if advisor is not None:
            self._apply(events.PluginStarted())
        for row, job in enumerate(stream.jobs):
            self.core.at(job.submit_ns, partial(self._arrives, row, job))

    def run(self, until_ns: int | None = None) -> None:
        """Run to the end of the stream's window, or to ``until_ns``."""
        self.core.run(self.stream.end_ns if until_ns is None else until_ns)

    def live(self) -> list[LiveJob]:
        """Jobs that hold a lane now, with their places, for the exact solver."""
        found = []
        for job, running in self.jobs.items():
            lease = self._leases.get(running.lease)
            if lease is not None:
                place = lease.gpu, lease.profile, lease.start
                memory = self.stream.jobs[running.row].memory_bytes
                found.append(LiveJob(job, running.tenant, running.share, running.model, memory, place=place))
        return found

    # -- events ---------------------------------------------------------------------------------------------------
    def _arrives(self, row: int, trace: TraceJob) -> None:
        share = min(trace.share, 100)
        for _ in range(max(1, trace.share // 100)):
            self._submit(Running(row, share, trace.duration_ns, trace.tenant, trace.model))

    def _submit(self, running: Running, place: Place | None = None) -> None:
        job = self._next_job
        self._next_job += 1
        self.jobs[job] = running
        if place is not None and self._migrating is not None:
            self._migrating.direct(job, place)
        session = self._sessions[running.tenant]
        self._requests[session] += 1
        row = self.stream.jobs[running.row]
        kernel = self._kernels[_kernel_of(row)]
        share = 0 if row.models else running.share  # else the job's R replaces those of the models
        self._apply(events.JobSubmitted(job, session, self._requests[session], kernel, share, 0, 0, 0, False))

    def _consolidate(self) -> None:
        jobs = self.live()
        used = {job.place[0] for job in jobs if job.place is not None}
        movable = {
            job.job
            for job in jobs
            if not (self.jobs[job.job].has_moved or self.stream.jobs[self.jobs[job.job].row].models)
        }
        for job, place in consolidate([self._specs[gpu] for gpu in sorted(used)], jobs, movable).items():
            running = self.jobs[job]
            left_ns = running.end_ns - self.core.now_ns
            generation = self._leases[running.lease].generation
            self._apply(events.CancelRequested(job))
            self._apply(events.ResultArrived(job, generation, EndReason.NONE, 0, self.core.now_ns))
            self.ended[JobState.CANCELLED] -= 1
            self.migrations += 1
            again = replace(running, duration_ns=left_ns, lease=0, end_ns=0, has_moved=True)
            self._submit(again, place)

    def _apply(self, event: events.Event) -> None:
        self._events.append(event)
        if self._is_busy:
            return
        self._is_busy = True
        book, core, carry = self.book, self.core, self._carry
        while self._events or self._is_due():
            event = self._events.popleft() if self._events else events.Tick()
            if type(event) is events.InstanceClosed:
                lease = self._leases.pop(event.lease)
                self.meter.freed(core.now_ns, lease.gpu, self._alpha(lease))
            for command in book.handle(event, core.now_ns):
                carry[type(command)](command)
        self._is_busy = False
        next_ns = book.next_deadline_ns()
        if next_ns is not None and next_ns < self._tick_ns:
            self._tick_ns = next_ns
            core.at(next_ns, self._tick)
        if self._changed and self._migrating is not None and not self._is_consolidating:
            self._is_consolidating = True
            self._consolidate()
            self._is_consolidating = self._changed = False

    def _is_due(self) -> bool:
        next_ns = self.book.next_deadline_ns()
        return next_ns is not None and next_ns <= self.core.now_ns

    def _tick(self) -> None:
        if self.core.now_ns >= self._tick_ns:
            self._tick_ns = _FOREVER
        self._apply(events.Tick())

    def _later(self, wait_ns: int, event: events.Event) -> None:
        if wait_ns:
            self.core.after(wait_ns, partial(self._apply, event))
        else:
            self._events.append(event)

    def _decision(self, decision: PluginDecision) -> None:
        if decision.fault:
            self.plugin_faults.append(decision)

    # -- commands -------------------------------------------------------------------------------------------------
    def _copy(self, command: commands.Copy) -> None:
        running = self.jobs[command.job]
        running.lease = command.lease
        self.meter.placed(self.core.now_ns, running.share)
        if self.on_decision is not None:
            self.on_decision(running.row, self._leases[command.lease])
        self._events.append(events.CopyDone(command.job, command.attempt))

    def _launch(self, command: commands.Launch) -> None:
        running = self.jobs[command.job]
        if not running.has_moved:
            self.waited_ns.append(self.core.now_ns - self.stream.jobs[running.row].submit_ns)
        begin_ns = self.core.now_ns
        end_ns = running.end_ns = begin_ns + running.duration_ns
        result = events.ResultArrived(command.job, command.generation, EndReason.NONE, begin_ns, end_ns)
        self.core.at(end_ns, partial(self._apply, result))

    def _answer(self, command: commands.Answer) -> None:
        self.ended[command.state] += 1
        running = self.jobs.pop(command.job)
        self._changed = True
        row = self.stream.jobs[running.row]
        self.answers[running.row] = command.state, self.core.now_ns - row.submit_ns
        if running.lease:
            self.meter.placed(self.core.now_ns, -running.share)
        self._events.append(events.CreditReturned(command.job))

    def _open(self, command: commands.OpenLease) -> None:
        self._leases[command.lease] = command
        self.meter.held(self.core.now_ns, command.gpu, self._alpha(command))
        wait_ns = self._device.create_ns + self._device.warm_ns
        for lane in range(command.lanes):
            self._later(wait_ns, events.LaneReady(command.lease, lane, command.generation))

    def _scrub(self, command: commands.ScrubLane) -> None:
        lease = self._leases[command.lease]
        nbytes = lease.landing_bytes + lease.result_bytes
        wait_ns = self._device.scrub_ns_per_gib * nbytes >> 30
        self._later(wait_ns, events.LaneScrubbed(command.lease, command.lane, command.generation))

    def _close(self, command: commands.CloseLease) -> None:
        self._later(self._device.destroy_ns, events.InstanceClosed(command.lease, command.generation))

    def _alpha(self, lease: commands.OpenLease) -> int:
        spec = self._specs[lease.gpu]
        profile = spec.profile(lease.profile)
        assert profile is not None
        return spec.alpha(profile)


def _kernel_of(row: TraceJob) -> tuple[ModelShares, int]:
    """The models and memory of the row's kernel. With a single model the row's own R holds."""
    return row.models or (((row.model, 100),) if row.model else ()), row.memory_bytes
