"""`offpath whatif JOURNAL|TRACE`: the same jobs under another policy or on other GPUs, by the same job book.

A journal gives arrivals, run times, tenants and their rights, settings, GPUs and how long instances took to open and
close; a trace file gives rows. Both sides are simulated, so that they differ in the policy and the GPUs alone; what the
journal says really happened stands beside them.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import sys
import time
from dataclasses import dataclass, field, replace
from typing import Any, Final

from offpath.bindings.errors import OffpathError
from offpath.cli.gpus import gpu_spec
from offpath.cli.traces import TraceError, openb, whole_gpus
from offpath.dpu_daemon.journal import codec
from offpath.dpu_daemon.journal.log import our_schema, replay
from offpath.dpu_daemon.journal.ring import JournalForeign, ReadOnlyFile, Ring
from offpath.dpu_daemon.plugins import DEADLINE_S, PluginProcess
from offpath.sched.errors import SchedError
from offpath.sched.gpu.geometry import GpuSpec
from offpath.sched.gpu.plugin import PREFIX
from offpath.sched.gpu.registry import SIMULATED, make_simulated
from offpath.sched.jobs import commands, events
from offpath.sched.jobs.records import BookSettings, TenantSpec
from offpath.sched.jobs.states import JobState
from offpath.sched.sim.accounting import GpuHours
from offpath.sched.sim.cluster import Cluster, paper_settings
from offpath.sched.sim.devices import PAPER, DeviceModel
from offpath.sched.sim.workload import Stream, TraceJob

_HURT: Final = 0.05
"""A tenant whose p99 rises by more than this part is told of; and one of which fewer jobs complete."""
_MOST_GPUS: Final = 100_000
_PARTS: Final = 1_000
_PROGRESS_S: Final = 2.0


class WhatIfError(OffpathError):
    """The question cannot be asked of this file."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's flags."""
    parser.add_argument("source", metavar="JOURNAL|TRACE", help="a daemon's journal, or a CSV of jobs (may be gzipped)")
    names = ", ".join(sorted(SIMULATED))
    parser.add_argument("--policy", metavar="NAME", help=f"decide by {names} or {PREFIX}NAME (default: as it is)")
    parser.add_argument(
        "--plugin-ms", type=int, default=5, metavar="MS", help="what a plug-in's answer may take (default 5)"
    )
    parser.add_argument("--gpus", metavar="N[:MODEL]", help="on N GPUs, for example 4:A100-40GB (default: as they are)")
    parser.add_argument("--tenant", metavar="COLUMN", default="vc", help="a trace's column of tenants (default vc)")
    parser.add_argument("--json", action="store_true", help="one JSON object")


@dataclass(slots=True)
class Source:
    """What both sides share, and how it is now. ``recorded``: latencies in ns by row, of a journal's completed jobs."""

    stream: Stream
    gpus: list[GpuSpec]
    policy: str
    settings: BookSettings
    device: DeviceModel
    rights: dict[str, TenantSpec] = field(default_factory=dict)
    recorded: dict[int, int] = field(default_factory=dict)
    left_out: int = 0


Place = tuple[int, str, int]
"""GPU by its place in the fleet (the two sides may spell its name differently), profile, first memory slice."""


@dataclass(slots=True)
class Side:
    """One simulated run. ``placed``: where each row's lease was opened, see `Place`."""

    hours: GpuHours
    placed: dict[int, Place]
    answers: dict[int, tuple[JobState, int]]
    plugin_faults: list[str]


def main(arguments: argparse.Namespace) -> int:
    """Simulate both sides, print what differs."""
    if arguments.policy is None and arguments.gpus is None:
        raise WhatIfError("nothing would be different: give --policy, --gpus or both")
    is_trace = arguments.source.removesuffix(".gz").endswith(".csv")
    source = of_trace(arguments.source, arguments.tenant) if is_trace else of_journal(arguments.source)
    gpus = fleet(arguments.gpus) if arguments.gpus else source.gpus
    policy = arguments.policy or source.policy
    plugin_s = arguments.plugin_ms / 1e3
    now = simulate(source, source.policy, source.gpus, plugin_s)
    then = simulate(source, policy, gpus, plugin_s)
    data = difference(source, now, then)
    data |= {"policy": [source.policy, policy], "gpus": [len(source.gpus), len(gpus)], "source": arguments.source}
    print(json.dumps(data) if arguments.json else text(data))
    return 0


def fleet(asked: str) -> list[GpuSpec]:
    """``N[:MODEL]`` as GPUs. Raises: WhatIfError; DeviceError: no such model."""
    count, _, name = asked.partition(":")
    if not count.isdecimal() or not 1 <= int(count) <= _MOST_GPUS:
        raise WhatIfError(f"--gpus {asked}: N[:MODEL] with N from 1 to {_MOST_GPUS}")
    return [gpu_spec(f"gpu-{n}", name or "A100-40GB") for n in range(int(count))]


def of_trace(path: str, tenant: str) -> Source:
    """Rows of fractions (Alibaba 2023's columns) or of whole GPUs; GPUs are A100s, as many as are ever needed.

    Raises: TraceError."""
    try:
        stream = openb(path, hours=None)
    except TraceError as fault:
        if "gpu_request_fraction" not in str(fault):
            raise
        stream = whole_gpus(path, tenant=tenant, name=path, hours=None)
    lanes = max(1, 100 // min(job.share for job in stream.jobs))
    gpus = fleet(str(max(1, stream.peak_gpus())))
    # Where GPUs are short, a need is looked at every second, not every millisecond of days.
    settings = replace(paper_settings(lanes), grow_after_ns=10**9)
    return Source(stream, gpus, "conspirator-paper", settings, PAPER)


def of_journal(path: str) -> Source:
    """What the journal holds, from its oldest checkpoint on.

    Raises: JournalError: it is none, or another build's. WhatIfError: no job in it ran to its end."""
    ring = Ring.opened(ReadOnlyFile(path))
    if ring.identity.schema != our_schema():
        raise JournalForeign(f"{path}: another build wrote it; use that build's `offpath whatif`")
    return _Reader(ring).source(path)


class _Reader:
    """One pass over the entries: who submitted what when, how long it ran, how long instances took."""

    def __init__(self, ring: Ring) -> None:
        entries = ring.entries(ring.oldest_checkpoint())
        book = replay(iter([next(entries)])).book
        ledger = book.ledger
        self._policy = ledger.policy.name
        self._settings, self._kernels, self._gpus = ledger.settings, ledger.kernels, book.leasing.gpus
        self._rights = {name: tenant.spec for name, tenant in ledger.tenants.items()}
        self._tenant = {number: session.tenant for number, session in ledger.sessions.items()}
        self._jobs: dict[int, TraceJob] = {}
        self._ran: dict[int, int] = {}
        self._took: dict[int, int] = {}
        self._opened: dict[int, int] = {}
        self._closed: dict[int, int] = {}
        self._open_ns: list[int] = []
        self._close_ns: list[int] = []
        self._last_ns = 0
        for entry in entries:
            self._last_ns = entry.time_ns
            if entry.kind != codec.KIND_CHECKPOINT:
                for value in codec.values(entry):
                    self._see(value, entry.time_ns)

    def _see(self, value: Any, now_ns: int) -> None:
        if isinstance(value, events.JobSubmitted):
            kernel = self._kernels.get(value.kernel)
            share = value.share or (kernel.share if kernel is not None else 0)
            tenant = self._tenant.get(value.session)
            if tenant is not None and 1 <= share <= 100:
                self._jobs[value.job] = TraceJob(now_ns, 0, tenant, share)
        elif isinstance(value, events.ResultArrived):
            self._ran[value.job] = max(0, value.finished_ns - value.started_ns)
        elif isinstance(value, commands.Answer) and value.state is JobState.COMPLETED:
            self._took[value.job] = value.stages[-1]
        elif isinstance(value, events.SessionOpened):
            self._tenant[value.session] = value.tenant
        elif isinstance(value, events.HelperJoined):
            self._gpus = list(value.gpus)
            self._kernels = {kernel.kernel: kernel for kernel in value.kernels}
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

    def source(self, path: str) -> Source:
        """See `of_journal`."""
        ran = sorted((job, trace) for job, trace in self._jobs.items() if job in self._ran)
        if not ran or not self._gpus:
            raise WhatIfError(f"{path}: no job in it ran to its end, or no helper was there")
        rows = tuple(replace(trace, duration_ns=self._ran[job]) for job, trace in ran)
        stream = Stream(path, "journal", rows[0].submit_ns, max(self._last_ns, rows[0].submit_ns + 1), rows)
        device = DeviceModel(
            "as recorded",
            int(statistics.median(self._open_ns or [0])),
            0,
            0,
            int(statistics.median(self._close_ns or [0])),
        )
        return Source(
            stream, self._gpus, self._settings.policy or self._policy, self._settings, device, self._rights,
            {row: self._took[job] for row, (job, _) in enumerate(ran) if job in self._took},
            len(self._jobs) - len(ran),
        )  # fmt: skip


def simulate(source: Source, policy: str, gpus: list[GpuSpec], plugin_s: float = DEADLINE_S) -> Side:
    """One side, to the end of its last job. Raises: WhatIfError: no such policy. PluginError."""
    placed: dict[int, Place] = {}
    ordinal = {gpu.gpu: n for n, gpu in enumerate(gpus)}

    def note(row: int, lease: commands.OpenLease) -> None:
        placed[row] = ordinal[lease.gpu], lease.profile, lease.start

    try:
        decider = make_simulated(policy)
    except SchedError as fault:
        raise WhatIfError(str(fault)) from None
    with contextlib.ExitStack() as stack:
        plugin: PluginProcess | None = None
        if policy.startswith(PREFIX):
            plugin = PluginProcess(policy.removeprefix(PREFIX), plugin_s)
            stack.callback(plugin.close)
            plugin.wait()
        cluster = Cluster(
            source.stream, gpus, decider, device=source.device, settings=source.settings, rights=source.rights,
            advisor=plugin,
        )  # fmt: skip
        cluster.on_decision = note
        hours = _to_the_end(cluster, source, policy)
    return Side(hours, placed, cluster.answers, [advice.fault for advice in cluster.plugin_faults])


def _to_the_end(cluster: Cluster, source: Source, policy: str) -> GpuHours:
    """Run the window, whose hours are returned, then on until the last job has ended; says how far it is every two
    seconds."""
    begin_ns, end_ns = source.stream.begin_ns, source.stream.end_ns
    told_s = time.monotonic()
    for part in range(1, _PARTS + 1):
        cluster.run(begin_ns + (end_ns - begin_ns) * part // _PARTS)
        if time.monotonic() - told_s > _PROGRESS_S:
            told_s = time.monotonic()
            print(f"{policy}: {part / _PARTS:.0%} of the time, {len(cluster.jobs)} jobs alive", file=sys.stderr)
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
        "jobs": len(rows), "left_out": source.left_out,
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
    """Its p99 rose."""
    return now_ms is not None and then_ms is not None and then_ms > now_ms * (1 + _HURT)


def _latencies(source: Source, side: Side, tenant: str | None = None) -> list[int]:
    """Of completed jobs, in ns."""
    rows = source.stream.jobs
    return [
        ns
        for row, (state, ns) in side.answers.items()
        if state is JobState.COMPLETED and tenant in (None, rows[row].tenant)
    ]


def _quantile(times_ns: list[int], q: float) -> float | None:
    ordered = sorted(times_ns)
    return round(ordered[min(len(ordered) - 1, int(q * len(ordered)))] / 1e6, 3) if ordered else None


def text(data: dict[str, Any]) -> str:
    """For people."""

    def pair(name: str, unit: str = "") -> str:
        now, then = data[name]
        return f"{now} → {then}{unit}" if not isinstance(now, float) else f"{now:.3f} → {then:.3f}{unit}"

    lines = [
        f"{data['jobs']} jobs of {data['source']}" + (f" ({data['left_out']} never ran)" if data["left_out"] else ""),
        f"policy            {pair('policy')}",
        f"GPUs              {pair('gpus')}",
        f"decisions         {data['decisions_that_differ']} of {data['jobs']} differ",
        f"completed         {pair('completed')}",
        f"latency p50       {pair('p50_ms', ' ms')}",
        f"latency p99       {pair('p99_ms', ' ms')}",
        f"active GPU-hours  {pair('active_gpu_hours')}",
        f"slice-hours       {pair('slice_hours')}",
        f"tenants hurt      {', '.join(data['tenants_hurt']) or 'none'}",
    ]
    for fault in (*data["plugin_faults"][0], *data["plugin_faults"][1]):
        lines.append(f"the plug-in was quarantined, the built-in policy decided: {fault}")
    if data["recorded_p50_ms"] is not None:
        lines.append(f"as recorded       p50 {data['recorded_p50_ms']} ms, p99 {data['recorded_p99_ms']} ms")
    for each in data["first_that_differ"]:
        lines.append(f"  row {each['row']} of {each['tenant']}: {_at(each['now'])} → {_at(each['then'])}")
    return "\n".join(lines)


def _at(place: Place | None) -> str:
    return f"GPU {place[0]} {place[1]} at {place[2]}" if place is not None else "nowhere"
