"""`venn`: plans and decisions for 10 000 federated jobs in 100 groups, on at most 2 048 atoms of devices.

`replan_ms`: a job comes or goes, and the plan is current again. `scratch_ms`: the whole plan from new supply.
`decide_us`: which job gets a device of a given atom. `checkin_us`: all that the book does for it, up to its lease.
Times are CPU time of the one thread that computes. In rows they are medians, and beside them 99th percentiles; the
`replan_ms` of the whole is the 99th percentile of the slowest row. Each part runs in a process of its own.
`live_checkins_per_s`: check-ins that a collaboration controller answers by ZeroMQ and by HTTP, each with a lease that
is on the disk, and the client on the same cores. `live_cpu_us`: CPU time of the controller for each, which other load
on the machine disturbs less.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from typing import Any, Final

from offpath.cli.bench.command import Bar, Report
from offpath.cli.bench.measure import machine
from offpath.cli.bench.venn_world import SHAPES, Case, words
from offpath.cli.local import child

DESCRIPTION: Final = "plans and decisions of Venn for 10 000 jobs, a million known devices, the simulator"
JOBS: Final = 10_000
GROUPS: Final = 100
ATOMS: Final = 2_048
DEVICES: Final = 1_000_000
POLICIES: Final = ("venn-paper", "venn")
SIMULATED_JOBS: Final = 50
CLIENTS: Final = 107_749
"""The paper's."""
LIVE_JOBS: Final = 50
LIVE_GROUPS: Final = 10
LIVE_KINDS: Final = 32
"""Kinds of devices."""
REPLAN_P99_MS: Final = 10.0
DECIDE_US: Final = 5.0
DECIDE_P99_US: Final = 20.0
RSS_MIB: Final = 300.0
SIM_PER_S: Final = 1e6
LIVE_PER_S: Final = {"zmq": 20_000, "http": 5_000}
_SEED: Final = 20_261_126
_LIMIT_S: Final = 900


def run(arguments: argparse.Namespace) -> Report:
    """``--quick``: fewer plans and decisions; the sizes are the same."""
    begun = time.monotonic()
    rows = [_row(case) for case in cases(quick=arguments.quick)]
    data: dict[str, Any] = {
        "benchmark": "venn", "quick": arguments.quick, "machine": machine(), "seed": _SEED, **figures(rows),
        "rows": rows, "seconds": round(time.monotonic() - begun, 1),
    }  # fmt: skip
    return Report(data, "\n".join(map(line, rows)), bars(rows))


def cases(*, quick: bool) -> list[Case]:
    """The shapes of the eligibility lattice, and the known devices."""
    plans, decisions = (1_000, 20_000) if quick else (10_000, 200_000)
    shapes = [
        Case(shape, JOBS, GROUPS, ATOMS, plans, decisions, _SEED, policy) for policy in POLICIES for shape in SHAPES
    ]  # fmt: skip
    return [
        *shapes, Case("devices", JOBS, GROUPS, ATOMS, 0, DEVICES, _SEED),
        *(Case("simulation", SIMULATED_JOBS, GROUPS, ATOMS, 2 if quick else 6, CLIENTS, _SEED, policy)
          for policy in POLICIES),
        Case("live", LIVE_JOBS, LIVE_GROUPS, LIVE_KINDS, 10_000 if quick else 30_000, DEVICES, _SEED),
    ]  # fmt: skip


def _row(case: Case) -> dict[str, Any]:
    print(f"{case.shape} …", file=sys.stderr)
    module = "bench.venn_live" if case.shape == "live" else "bench.venn_world"
    done = subprocess.run(
        child.command(module, words(case)), env=child.environment(child.ONE_THREAD),
        stdout=subprocess.PIPE, check=True, timeout=_LIMIT_S,
    )  # fmt: skip
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def figures(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Of all rows the worst."""
    plans = [row for row in rows if row["shape"] in SHAPES]
    live = next((row for row in rows if row["shape"] == "live"), None)
    simulated = [row["checkins_per_s"] for row in rows if row["shape"] == "simulation"]
    return {
        "jobs": JOBS, "groups": GROUPS, "atoms": max(row["atoms"] for row in rows),
        "replan_ms": max(row["replan_p99_ms"] for row in plans),
        "decide_us": max(row["decide_us"] for row in plans),
        "sim_checkins_per_s": min(simulated, default=None),
        "live_checkins_per_s": {way: live[f"{way}_checkins_per_s"] for way in LIVE_PER_S} if live else None,
        "live_cpu_us": {way: live[f"{way}_cpu_us"] for way in LIVE_PER_S} if live else None,
        "rss_mib": max(row["rss_mib"] for row in rows if row["shape"] != "simulation"),
    }  # fmt: skip


def bars(rows: list[dict[str, Any]]) -> list[Bar]:
    """A plan and a decision by shape; the memory of known devices; check-ins of live devices."""
    found = []
    for row in rows:
        if row["shape"] == "live":
            found.append(Bar("live, 1 000 000 known devices: memory, MiB", row["rss_mib"], RSS_MIB))
            for way, least in LIVE_PER_S.items():
                found.append(Bar(f"live check-ins by {way}, 1/s", row[f"{way}_checkins_per_s"], least, is_upper=False))
            continue
        if row["shape"] == "devices":
            found.append(Bar("1 000 000 known devices: memory, MiB", row["rss_mib"], RSS_MIB))
            continue
        if row["shape"] == "simulation":
            found.append(
                Bar(f"{row['policy']}: simulated check-ins, 1/s", row["checkins_per_s"], SIM_PER_S, is_upper=False)
            )
            continue
        name = f"{row['policy']}, {row['shape']}"
        found.append(Bar(f"{name}: re-plan, p99, ms", row["replan_p99_ms"], REPLAN_P99_MS))
        found.append(Bar(f"{name}: decision, median, µs", row["decide_us"], DECIDE_US))
        found.append(Bar(f"{name}: decision, p99, µs", row["decide_p99_us"], DECIDE_P99_US))
    return found


def line(row: dict[str, Any]) -> str:
    """One row for people."""
    if row["shape"] == "live":
        return (
            f"live: check-ins a second by ZeroMQ {row['zmq_checkins_per_s']} ({row['zmq_cpu_us']:.0f} µs of CPU each),"
            f" by HTTP {row['http_checkins_per_s']} ({row['http_cpu_us']:.0f} µs); {row['devices']} devices,"
            f" {row['rss_mib']:.0f} MiB, {row['empty_rss_mib']:.0f} without them"
        )
    if row["shape"] == "devices":
        return (
            f"{row['devices']} devices, {row['leases']} leases: a check-in {row['checkin_us']:.1f} µs"
            f" (p99 {row['checkin_p99_us']:.1f}), {row['rss_mib']:.0f} MiB, {row['empty_rss_mib']:.0f} without them"
        )
    if row["shape"] == "simulation":
        return (
            f"{row['policy']}: simulation of {row['clients']} clients and {row['jobs']} jobs: {row['checkins_per_s']}"
            f" check-ins a second ({row['check_ins']}, in which {row['rounds']} rounds ended), {row['rss_mib']:.0f} MiB"
        )
    return (
        f"{row['policy']:10} {row['shape']:12} {row['atoms']:5} atoms: re-plan {row['replan_ms']:.3f} ms"
        f" (p99 {row['replan_p99_ms']:.3f}, longest {row['replan_max_ms']:6.2f}; {row['turns']:.1f} of {row['groups']}"
        f" turns, from scratch {row['scratch_ms']:6.2f} ms), decision {row['decide_us']:.2f} µs"
        f" (p99 {row['decide_p99_us']:.2f})"
    )
