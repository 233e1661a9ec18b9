"""`netpack`: the time to place one batch of thousands of jobs, from an idle cluster, by cluster size and kind of jobs.

Philly: GPU counts of the Philly trace's shape; most jobs fit on one server. Stress: nearly all jobs span servers, and
the estimate is computed again before each. `fill_ms` is one job's part of the estimates, `dp_ms` one of the paper's
dynamic programs with its PS, both measured apart on the same jobs. Compilation is not counted: it happens once per
installation.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
from random import Random
from typing import Any, Final

import numpy as np

from offpath.cli.bench.command import Bar, Report
from offpath.cli.bench.measure import machine
from offpath.sched.ina.engine import can_compile
from offpath.sched.ina.statistical.network import regular
from offpath.sched.ina.statistical.steady import SteadyState
from offpath.sched.placement.batch_port import BatchDecision, JobRequest
from offpath.sched.placement.batch_registry import make
from offpath.sched.placement.gpu_cluster import GpuCluster
from offpath.sched.placement.models import MODELS
from offpath.sched.placement.netpack.plans import plans, view

DESCRIPTION: Final = "placing a batch of 4 000 jobs on 100 … 10 000 servers"
RACKS: Final = 16
"""As in NetPack's figures 9 and 10."""
GPUS: Final = 4
_SEED: Final = 20_261_124
_PHILLY: Final = ((1, 76_627), (2, 1_818), (4, 1_870), (8, 1_643), (16, 199), (32, 67), (64, 6), (128, 3))
"""GPU counts of the Philly trace, with their numbers of jobs."""
PHILLY_S: Final = 1.0
STRESS_S: Final = 10.0
RSS_MIB: Final = 300.0
PAPER_S: Final = 60.0
"""The paper's: 4 000 jobs within a minute (§6.2)."""


def run(arguments: argparse.Namespace) -> Report:
    """``--quick``: the largest cluster, and one of 1 000 servers."""
    begun = time.monotonic()
    sizes = (1_000, 10_000) if arguments.quick else (100, 400, 1_000, 4_000, 10_000)
    counts = (4_000,) if arguments.quick else (500, 1_000, 2_000, 4_000)
    _batch(200, 50, "stress", "netpack")  # compiles
    rows = []
    for servers in sizes:
        for jobs in counts if servers == sizes[-1] else counts[-1:]:
            for kind in ("philly", "stress"):
                for policy in ("netpack", "netpack-paper"):
                    print(f"{servers} servers, {jobs} jobs, {kind}, {policy} …", file=sys.stderr)
                    rows.append(_batch(servers, jobs, kind, policy))
    data: dict[str, Any] = {
        "benchmark": "netpack", "quick": arguments.quick, "machine": machine(), "seed": _SEED,
        "compiled": can_compile(), "rows": rows, "paper_s": PAPER_S, "seconds": round(time.monotonic() - begun, 1),
    }  # fmt: skip
    if not arguments.quick or arguments.plot:
        from offpath.cli.bench.netpack_plot import draw

        data["plot"] = draw(rows, arguments.plot or "bench-out/netpack.svg")
    return Report(data, _text(rows), _bars(rows))


def requests(servers: int, jobs: int, kind: str) -> list[JobRequest]:
    """Jobs of the kind; together they want at most nine tenths of the GPUs, as far as that allows ``jobs`` of them."""
    random = Random(_SEED)
    models = list(MODELS.values())
    most = servers * GPUS * 9 // 10
    sizes: list[int] = []
    for left in range(jobs, 0, -1):
        if kind == "philly":
            wanted = random.choices([size for size, _ in _PHILLY], [count for _, count in _PHILLY])[0]
        else:
            mean = max(GPUS + 1, most // jobs)
            wanted = random.randint(GPUS + 1, 2 * mean - GPUS - 1)
        sizes.append(max(1, min(wanted, most - sum(sizes) - (left - 1), servers * GPUS)))
    found = []
    for n, gpus in enumerate(sizes):
        model = random.choice(models)
        found.append(JobRequest(f"job-{n}", gpus, model.data_gbit, model.compute_s, arrival_s=float(n)))
    return found


def _batch(servers: int, jobs: int, kind: str, policy: str) -> dict[str, Any]:
    racks = min(RACKS, servers)
    cluster = GpuCluster(regular(racks, servers // racks), GPUS)
    batch = requests(cluster.network.servers, jobs, kind)
    begun = time.process_time()
    decision = make(policy).place_batch(cluster, batch)
    total_s = time.process_time() - begun
    spanning = [each for each in decision.started if each.placement is not None and each.placement.ps is not None]
    return {
        "servers": cluster.network.servers, "jobs": jobs, "kind": kind, "policy": policy,
        "gpus": sum(request.gpus for request in batch), "placed": len(decision.started), "spanning": len(spanning),
        "total_s": round(total_s, 4), "per_job_ms": round(total_s / jobs * 1e3, 5),
        "fill_ms": round(_fill_ms(cluster, decision), 5), "dp_ms": round(_dp_ms(cluster, batch), 5),
        "rss_mib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1),
    }  # fmt: skip


def _fill_ms(cluster: GpuCluster, decision: BatchDecision) -> float:
    """Mean time to add a spanning job to the estimate, all others of the batch that precede it running."""
    state = SteadyState(cluster.network)
    spreads = [(each.job, each.placement.spread) for each in decision.started if each.placement is not None]
    begun = time.process_time()
    count = 0
    for job, spread in spreads:
        if spread is not None:
            state.add(job, spread)
            count += 1
    return (time.process_time() - begun) / max(1, count) * 1e3


def _dp_ms(cluster: GpuCluster, batch: list[JobRequest]) -> float:
    """Mean time of the paper's steps 2 and 3 for the jobs that span servers, on the idle cluster."""
    sizes = [request.gpus for request in batch if request.gpus > GPUS][:200]
    seen, servers = view(cluster), np.arange(cluster.network.servers)
    begun = time.process_time()
    for gpus in sizes:
        plans(seen, servers, gpus, servers)
    return (time.process_time() - begun) / max(1, len(sizes)) * 1e3


def _bars(rows: list[dict[str, Any]]) -> list[Bar]:
    largest = max((row["servers"], row["jobs"]) for row in rows)
    found = [
        Bar(
            f"{row['kind']}, {row['policy']}: {row['jobs']} jobs on {row['servers']} servers, s", row["total_s"],
            PHILLY_S if row["kind"] == "philly" else STRESS_S,
        )
        for row in rows
        if (row["servers"], row["jobs"]) == largest
    ]  # fmt: skip
    return [*found, Bar("memory, MiB", max(row["rss_mib"] for row in rows), RSS_MIB)]


def _text(rows: list[dict[str, Any]]) -> str:
    return "\n".join(
        f"{row['servers']:6} servers, {row['jobs']:5} {row['kind']:6} jobs ({row['spanning']:4} span servers),"
        f" {row['policy']:13}: {row['total_s']:7.3f} s, {row['per_job_ms']:7.3f} ms a job; estimate"
        f" {row['fill_ms']:.3f} ms, dynamic program {row['dp_ms']:.3f} ms, {row['rss_mib']:.0f} MiB"
        for row in rows
    )
