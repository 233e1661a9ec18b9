"""Jobs of `demo netpack`: run live by a job manager, and simulated with the same policy (figures 6 and 15)."""

from __future__ import annotations

import json
import os
import time
from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import Any, Final

from offpath.bindings.errors import OffpathError, PeerGone
from offpath.bindings.wire import work_admin
from offpath.cli.demo.netpack.reference import fingerprints
from offpath.cli.demo.netpack.training import Training
from offpath.cli.local.child import arithmetic, command
from offpath.cli.local.engines import GPUS, Started
from offpath.cli.local.job_manager import ENDED, JobManager
from offpath.cli.local.statistical_switch import Rate, StatisticalSwitch
from offpath.sched.ina.statistical.network import pat_gbps, regular
from offpath.sched.placement.batch_port import JobRequest
from offpath.sched.placement.batch_registry import make
from offpath.sched.placement.gpu_cluster import GpuCluster
from offpath.sched.sim.batches import BatchJob, BatchSimulation

SERVERS: Final = 5
LEAVES: Final = {"s0": SERVERS}
"""All servers are below one leaf switch."""
AGGREGATORS: Final = 32
PACKET_BYTES: Final = 4096
RATE: Final = Rate(link_mbps=20.0, rtt_ms=40.0, mark_packets=40.0)
RTT_S: Final = RATE.rtt_ms / 1e3 + RATE.mark_packets * PACKET_BYTES * 8 / (RATE.link_mbps * 1e6)
"""As §4.1 estimates it: without queues, plus the ECN threshold over the bandwidth."""
PERIOD_S: Final = 0.2
_POLICY: Final = "netpack"
_WINDOW: Final = "2:16:96"
"""Least, first and most; the bandwidth-delay product without queues is 24 packets."""
_LEAST_POINT: Final = 3
"""Steps under one estimate that make a point of figure 15."""
_POLL_S: Final = 0.1
_SECONDS: Final = 120.0


@dataclass(frozen=True, slots=True)
class DemoJob:
    """``at_s``: when it is submitted. ``data_bytes``: gradients of a step. ``compute_s``: of a step."""

    name: str
    gpus: int
    at_s: float
    data_bytes: int
    compute_s: float
    steps: int

    @property
    def model(self) -> str:
        """Its model's name in the job manager's configuration."""
        return f"digits-{self.name}"


_NOTHING: Final = {
    False: DemoJob("nothing", 1, 0.0, 4_000, 0.001, 1), True: DemoJob("nothing-wide", 3, 0.0, 4_000, 0.001, 1)
}  # fmt: skip
"""By whether it spans servers: engines start such jobs in another way."""
_FIRST: Final = tuple(replace(_NOTHING[False], name=f"first-{n}", gpus=GPUS) for n in range(SERVERS))
"""One for each server, before all others: an engine's first start on a server also starts what it keeps there (on Ray
an actor), and no later job waits for that."""
_PAUSE_S: Final = 5.0
"""After them: an engine also ends what it keeps for a moment only (idle worker processes on Ray, after a second),
and jobs of the workload seldom follow each other that fast."""


def jobs(*, is_quick: bool) -> tuple[DemoJob, ...]:
    """Long and short, computing and communicating; together more than the cluster's ten GPUs. At most two compete for
    the same GPUs, so that who runs first does not hang on tenths of a second."""
    found = (
        DemoJob("wide", 6, 0.0, 1_000_000, 0.10, 12),
        DemoJob("deep", 3, 0.0, 700_000, 0.20, 12),
        DemoJob("alone", 1, 0.2, 200_000, 0.15, 30),
        DemoJob("heavy", 4, 1.0, 1_500_000, 0.05, 8),
        DemoJob("pair", 4, 1.2, 500_000, 0.30, 14),
        DemoJob("light", 2, 9.0, 300_000, 0.10, 40),
        DemoJob("short", 3, 16.0, 1_500_000, 0.05, 5),
        DemoJob("late", 5, 27.0, 1_200_000, 0.10, 8),
    )
    return tuple(replace(job, steps=job.steps * 3 // 4) for job in found[:5]) if is_quick else found


@dataclass(slots=True)
class Ran:
    """A job that ran. Rates in bit/s of each worker; 0: it had no traffic. ``points``: (estimated, measured, steps)
    for each estimate that held for some steps."""

    job: DemoJob
    servers: list[str]
    ps: str
    jct_s: float
    rate_est: float
    rate_measured: float
    is_exact: bool
    accuracy: float
    rtt_ms: float
    window: float
    points: list[tuple[float, float, int]] = field(default_factory=list)
    simulated_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Live:
    """What was measured. ``start_s``: time to the end of a job that does nothing, on one server and on several: what
    the engine, which has started such jobs before, and the start of a process take."""

    ran: list[Ran]
    switch: dict[str, Any]
    start_s: dict[bool, float]


def live(folder: str, engine: Started, wanted: tuple[DemoJob, ...]) -> Live:
    """Run them. Raises: OffpathError: a job failed, or they take too long."""
    outputs = os.path.join(folder, "out")
    os.makedirs(outputs)
    with StatisticalSwitch(os.path.join(folder, "switch"), engine.nodes, AGGREGATORS, RATE) as switch:
        network = {
            "link_gbps": RATE.link_mbps / 1e3, "switch_memory_mib": AGGREGATORS * PACKET_BYTES / 2**20,
            "rtt_us": RTT_S * 1e6, "switches": dict.fromkeys(engine.leaves, switch.address),
        }  # fmt: skip
        models = [
            {"name": job.model, "data_bytes": _exact_bytes(job), "compute_ms": job.compute_s * 1e3}
            for job in (*_FIRST, *_NOTHING.values(), *wanted)
        ]
        tables = {
            "engine": engine.table, "network": network, "model": models,
            "policy": {"name": _POLICY, "batch_ms": round(PERIOD_S * 1e3)},
        }  # fmt: skip
        with JobManager(os.path.join(folder, "manager"), tables) as manager:
            _run(manager, outputs, _FIRST)
            time.sleep(_PAUSE_S)
            nothing, _ = _run(manager, outputs, tuple(_NOTHING.values()))
            ended, estimates = _run(manager, outputs, wanted)
    for name, (line, _) in ended.items():
        if line.state != "succeeded":
            raise OffpathError(f"job {name}: {line.state} (exit code {line.exit_code}): see {outputs}")
    reports = {job.name: _reports(outputs, job) for job in wanted}
    plans = [Training(1, tuple(reports[job.name][0]["shares"]), job.data_bytes, job.steps) for job in wanted]
    ran = [
        _ran(reports[job.name], job, ended[job.name][1], estimates[job.name], right)
        for job, right in zip(wanted, fingerprints(plans), strict=True)
    ]
    return Live(ran, switch.statistics(), {spans: nothing[job.name][1] for spans, job in _NOTHING.items()})


def _exact_bytes(job: DemoJob) -> int:
    return 4 * Training(0, (1,), job.data_bytes, 1).parameters


def _run(
    manager: JobManager, outputs: str, wanted: tuple[DemoJob, ...]
) -> tuple[dict[str, tuple[work_admin.JobLine, float]], dict[str, list[tuple[int, float]]]]:
    """Submit each job in time; until all have ended, sample the estimates. Returns each job's last line and its time
    to the end, and (when, rate) by job."""
    began = time.monotonic()
    waiting = list(wanted)
    submitted: dict[str, float] = {}
    ended: dict[str, tuple[work_admin.JobLine, float]] = {}
    estimates: dict[str, list[tuple[int, float]]] = defaultdict(list)
    while len(ended) < len(wanted):
        now = time.monotonic()
        if now - began > _SECONDS:
            raise PeerGone(f"jobs {sorted({job.name for job in wanted} - set(ended))} did not end in {_SECONDS:g} s")
        while waiting and waiting[0].at_s <= now - began:
            job = waiting.pop(0)
            submitted[job.name] = now
            manager.submit(
                job.name, job.gpus, _argv(job, outputs), model=job.model, environment=arithmetic(),
                output=os.path.join(outputs, f"{job.name}.log"), directory=outputs,
            )  # fmt: skip
        for line in manager.jobs():
            if line.job not in submitted:
                continue
            if line.rate_bps:
                estimates[line.job].append((time.monotonic_ns(), line.rate_bps))
            if line.state in ENDED and line.job not in ended:
                ended[line.job] = line, time.monotonic() - submitted[line.job]
        time.sleep(_POLL_S)
    return ended, estimates


def _argv(job: DemoJob, outputs: str) -> list[str]:
    folder = os.path.join(outputs, job.name)
    os.makedirs(folder)
    return command(
        "demo.netpack.process", folder, "--steps", str(job.steps), "--data-bytes", str(job.data_bytes),
        "--compute-ms", str(job.compute_s * 1e3), "--payload-bytes", str(PACKET_BYTES), "--window", _WINDOW,
    )  # fmt: skip


def _reports(outputs: str, job: DemoJob) -> list[dict[str, Any]]:
    """What the job's processes with workers wrote, by rank."""
    reports: list[dict[str, Any]] = []
    for name in os.listdir(os.path.join(outputs, job.name)):
        with open(os.path.join(outputs, job.name, name), encoding="ascii") as file:
            reports.append(json.load(file))
    return sorted(reports, key=lambda each: int(each["rank"]))


def _ran(
    reports: list[dict[str, Any]], job: DemoJob, jct_s: float, estimates: list[tuple[int, float]], right: str
) -> Ran:
    """``right``: the fingerprint of weights without a network."""
    first = reports[0]
    is_exact = len(reports) == len(first["nodes"]) and all(each["weights"] == right for each in reports)
    rates = [(begin + end) // 2 for begin, end in first["steps_ns"]]
    measured = first["rates_bps"]
    is_networked = len(first["nodes"]) > 1 and bool(estimates)
    held = [_held(estimates, at) for at in rates] if is_networked else []
    groups: dict[float, list[float]] = defaultdict(list)
    for estimate, rate in zip(held, measured, strict=False):
        groups[round(estimate, -4)].append(rate)
    points = [
        (estimate, harmonic(found), len(found)) for estimate, found in groups.items() if len(found) >= _LEAST_POINT
    ]
    return Ran(
        job, list(first["nodes"]), first["ps"], jct_s, harmonic(held) if held else 0.0,
        harmonic(measured) if is_networked else 0.0, is_exact, first["accuracy"], first["rtt_ms"], first["window"],
        points,
    )  # fmt: skip


def harmonic(rates: list[float]) -> float:
    """The mean rate of steps with equal data.

    >>> harmonic([1.0, 3.0])
    1.5
    """
    return len(rates) / sum(1 / rate for rate in rates)


def _held(estimates: list[tuple[int, float]], at_ns: int) -> float:
    """The estimate in force then; before the first sample, the first."""
    before = [rate for when, rate in estimates if when <= at_ns]
    return before[-1] if before else estimates[0][1]


def simulate(wanted: tuple[DemoJob, ...], gpus: int, start_s: dict[bool, float]) -> dict[str, float]:
    """Time to the end of each job in `BatchSimulation`, s. ``start_s`` is spread over the compute times of its steps:
    the simulation knows no start."""
    pat = pat_gbps(AGGREGATORS * PACKET_BYTES, RTT_S)
    cluster = GpuCluster(regular(1, SERVERS, link_gbps=RATE.link_mbps / 1e3, pat=pat), gpus, compiled=False)
    requests = []
    for job in wanted:
        compute_s = job.compute_s + start_s[job.gpus > gpus] / job.steps
        request = JobRequest(job.name, job.gpus, _exact_bytes(job) * 8e-9, compute_s, arrival_s=job.at_s)
        requests.append(BatchJob(request, job.steps * compute_s))
    outcomes = BatchSimulation(cluster, make(_POLICY), requests, PERIOD_S).run()
    return {outcome.job.request.job: outcome.jct_s for outcome in outcomes}
