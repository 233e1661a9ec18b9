"""Compares the same jobs under another policy or on other GPUs: a journal's recording, two simulated runs, their
difference.

Pure: the caller provides the journal's entries or a trace's rows, and receives progress.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Final

from offpath.sched.errors import SchedError
from offpath.sched.gpu.geometry import GpuSpec
from offpath.sched.gpu.plugin import Advisor
from offpath.sched.gpu.registry import make_simulated
from offpath.sched.jobs import commands, events
from offpath.sched.jobs.book import JobBook
from offpath.sched.jobs.demands import demand_of
from offpath.sched.jobs.settings import BookSettings, TenantSpec
from offpath.sched.jobs.states import JobState
from offpath.sched.sim.accounting import GpuHours
from offpath.sched.sim.cluster import Cluster
from offpath.sched.sim.devices import DeviceModel
from offpath.sched.sim.workload import Stream, TraceJob

_HURT: Final = 0.05
"""A tenant counts as worse off if its p99 rises by more than this part, or fewer of its jobs complete."""
_PARTS: Final = 1_000


class NothingRecorded(SchedError):
    """No job of a recording ran to its end, or no helper was connected."""


@dataclass(slots=True)
class Source:
    """Inputs shared by both sides, and the current policy. ``recorded``: latencies in ns by row, of a journal's
    completed jobs."""

    stream: Stream
    gpus: list[GpuSpec]
    policy: str
    settings: BookSettings
    device: DeviceModel
    rights: dict[str, TenantSpec] = field(default_factory=dict)
    recorded: dict[int, int] = field(default_factory=dict)
    left_out: int = 0
    """Recorded jobs that never ran."""
    gangs: int = 0
    """Recorded jobs for several GPUs, which no side simulates."""


Place = tuple[int, str, int]
"""Index of the GPU in the fleet (GPU names may differ between the sides), profile, first memory slice."""


@dataclass(slots=True)
class Side:
    """One simulated run. ``placed``: the place of each row's lease, see `Place`."""

    hours: GpuHours
    placed: dict[int, Place]
    answers: dict[int, tuple[JobState, int]]
    plugin_faults: list[str]


class Recording:
    """One pass over a journal's events and commands: collects submissions, run times and instance times."""

    def __init__(self, book: JobBook) -> None:
        """``book``: its state at the first entry."""
        ledger = book.ledger
        self._policy = ledger.policy.name
        self._settings, self._kernels = ledger.settings, dict(ledger.kernels)
        self._gpus = {helper.name: helper.gpus for helper in ledger.helpers.connected}
        self._rights = {name: tenant.spec for name, tenant in ledger.tenants.items()}
        self._tenant = {number: session.tenant for number, session in ledger.sessions.items()}
        self._jobs: dict[int, TraceJob] = {}
        self._gangs = 0
        self._ran: dict[int, int] = {}
        self._followers: dict[int, tuple[int, ...]] = {}
        self._took: dict[int, int] = {}
        self._opened: dict[int, int] = {}
        self._closed: dict[int, int] = {}
        self._open_ns: list[int] = []
        self._close_ns: list[int] = []
        self.last_ns = 0
        """End of the recording."""

    def add(self, value: events.Event | commands.Command, now_ns: int) -> None:
        """Add an event that the book received at ``now_ns``, or a command that it returned."""
        self.last_ns = max(self.last_ns, now_ns)
        if isinstance(value, events.StackSubmitted | events.SequenceSubmitted):
            value = value.submitted
        if isinstance(value, events.JobSubmitted):
            kernel = self._kernels.get(value.kernel)
            tenant = self._tenant.get(value.session)
            if tenant is not None:
                rights = self._rights.get(tenant) or TenantSpec(tenant)
                need = demand_of(value.job, kernel, rights, self._settings, value.share, value.payload_bytes)
                memory = kernel.memory_bytes if kernel is not None else 0
                if 1 <= need.share <= 100:
                    self._jobs[value.job] = TraceJob(
                        now_ns, 0, tenant, need.share, models=need.models, memory_bytes=memory
                    )
                elif need.share > 100:
                    self._gangs += 1
        elif isinstance(value, events.ResultArrived | events.BatchResult):
            self._ran[value.job] = max(0, value.finished_ns - value.started_ns)
            for job in self._followers.pop(value.job, ()):  # a batch is one job of the trace, that of its leader
                self._jobs.pop(job, None)
        elif isinstance(value, commands.CopyBatch):
            self._followers[value.job] = tuple(job for job, _ in value.members[1:])
        elif isinstance(value, commands.Copy):
            self._followers.pop(value.job, None)
        elif isinstance(value, commands.Answer) and value.state is JobState.COMPLETED:
            self._took[value.job] = value.stages[-1]
        elif isinstance(value, events.SessionOpened):
            self._tenant[value.session] = value.tenant
        elif isinstance(value, events.HelperJoined):
            self._gpus[value.name] = value.gpus
            self._kernels.update((kernel.kernel, kernel) for kernel in value.kernels)
        elif isinstance(value, events.KernelsReloaded):
            self._kernels.update((kernel.kernel, kernel) for kernel in value.kernels)
        elif isinstance(value, commands.RenewLane):
            self._opened.pop(value.lease, None)  # its next lanes are ready after a reload, not after the opening
        elif isinstance(value, events.ConfigChanged):
            self._settings = value.settings
            self._rights |= {spec.name: spec for spec in value.tenants}
        elif isinstance(value, commands.OpenLease):
            self._opened[value.lease] = now_ns
        elif isinstance(value, events.LaneReady) and value.lease in self._opened:
            self._open_ns.append(now_ns - self._opened[value.lease])
        elif isinstance(value, commands.CloseLease):
            self._closed[value.lease] = now_ns
        elif isinstance(value, events.InstanceClosed) and value.lease in self._closed:
            self._close_ns.append(now_ns - self._closed.pop(value.lease))

    def source(self, name: str) -> Source:
        """Return the recording as rows of a trace. Raises: NothingRecorded."""
        ran = sorted((job, trace) for job, trace in self._jobs.items() if job in self._ran)
        gpus = [gpu for each in self._gpus.values() for gpu in each]
        if not ran or not gpus:
            raise NothingRecorded(f"{name}: no job in it ran to its end, or no helper was connected")
        rows = tuple(replace(trace, duration_ns=self._ran[job]) for job, trace in ran)
        stream = Stream(name, "journal", rows[0].submit_ns, max(self.last_ns, rows[0].submit_ns + 1), rows)
        device = DeviceModel(
            "as recorded",
            int(statistics.median(self._open_ns or [0])),
            0,
            0,
            int(statistics.median(self._close_ns or [0])),
        )
        return Source(
            stream, gpus, self._settings.policy or self._policy, self._settings, device, self._rights,
            {row: self._took[job] for row, (job, _) in enumerate(ran) if job in self._took},
            len(self._jobs) - len(ran), self._gangs,
        )  # fmt: skip


def simulate(
    source: Source, policy: str, gpus: list[GpuSpec], advisor: Advisor | None, progress: Callable[[float, int], None]
) -> Side:
    """Run one side to the end of its last job. ``advisor``: a started plug-in, for a plug-in policy. ``progress``
    receives the part of the time that has passed, and the number of unfinished jobs.

    Raises: SchedError: unknown policy.
    """
    placed: dict[int, Place] = {}
    ordinal = {gpu.gpu: n for n, gpu in enumerate(gpus)}

    def note(row: int, lease: commands.OpenLease) -> None:
        placed[row] = ordinal[lease.gpu], lease.profile, lease.start

    cluster = Cluster(
        source.stream, gpus, make_simulated(policy), device=source.device, settings=source.settings,
        rights=source.rights, advisor=advisor,
    )  # fmt: skip
    cluster.on_decision = note
    hours = _to_the_end(cluster, source, progress)
    return Side(hours, placed, cluster.answers, [decision.fault for decision in cluster.plugin_faults])


def _to_the_end(cluster: Cluster, source: Source, progress: Callable[[float, int], None]) -> GpuHours:
    """Run the window, and return its hours, then continue until the last job has ended."""
    begin_ns, end_ns = source.stream.begin_ns, source.stream.end_ns
    for part in range(1, _PARTS + 1):
        cluster.run(begin_ns + (end_ns - begin_ns) * part // _PARTS)
        progress(part / _PARTS, len(cluster.jobs))
    hours = cluster.meter.total(end_ns)
    longest = max(job.duration_ns for job in source.stream.jobs)
    until = source.stream.end_ns
    while cluster.jobs and until < source.stream.end_ns + 100 * longest + 10**12:
        until += max(longest, 10**9)
        cluster.run(until)
    return hours


def difference(source: Source, now: Side, then: Side) -> dict[str, Any]:
    """Decisions, latency, GPU-hours, and the tenants that are worse off."""
    rows = range(len(source.stream.jobs))
    moved = [row for row in rows if now.placed.get(row) != then.placed.get(row)]
    tenants: dict[str, dict[str, list[Any]]] = {
        name: {
            "p99_ms": [_quantile(_latencies(source, side, name), 0.99) for side in (now, then)],
            "completed": [len(_latencies(source, side, name)) for side in (now, then)],
        }
        for name in sorted({job.tenant for job in source.stream.jobs})
    }
    hurt = [
        name
        for name, each in tenants.items()
        if _is_hurt(*each["p99_ms"]) or each["completed"][1] < each["completed"][0]
    ]
    return {
        "jobs": len(rows), "left_out": source.left_out, "gangs_left_out": source.gangs,
        "decisions_that_differ": len(moved),
        "first_that_differ": [
            {"row": row, "tenant": source.stream.jobs[row].tenant, "now": now.placed.get(row), "then": place}
            for row in moved[:10]
            for place in [then.placed.get(row)]
        ],
        "completed": [len(_latencies(source, side)) for side in (now, then)],
        "p50_ms": [_quantile(_latencies(source, side), 0.5) for side in (now, then)],
        "p99_ms": [_quantile(_latencies(source, side), 0.99) for side in (now, then)],
        "recorded_p50_ms": _quantile(list(source.recorded.values()), 0.5),
        "recorded_p99_ms": _quantile(list(source.recorded.values()), 0.99),
        "active_gpu_hours": [now.hours.active, then.hours.active],
        "slice_hours": [now.hours.slices, then.hours.slices],
        "tenants": tenants, "tenants_hurt": hurt, "plugin_faults": [now.plugin_faults, then.plugin_faults],
    }  # fmt: skip


def _is_hurt(now_ms: float | None, then_ms: float | None) -> bool:
    """True if the p99 rose."""
    return now_ms is not None and then_ms is not None and then_ms > now_ms * (1 + _HURT)


def _latencies(source: Source, side: Side, tenant: str | None = None) -> list[int]:
    """Latencies of completed jobs, in ns."""
    rows = source.stream.jobs
    return [
        ns
        for row, (state, ns) in side.answers.items()
        if state is JobState.COMPLETED and tenant in (None, rows[row].tenant)
    ]


def _quantile(times_ns: list[int], q: float) -> float | None:
    ordered = sorted(times_ns)
    return round(ordered[min(len(ordered) - 1, int(q * len(ordered)))] / 1e6, 3) if ordered else None
