"""`ina`: the cost of placing a job and of planning all running jobs' trees, their growth, and the simulator's speed.

Placement: MINA's minimum beside Slurm's first n hosts, the floor, on the same cluster in the same blocks; the load is
that of a cluster in use, with jobs coming and going. Trees: candidates, conflicts, sets and groups for 100 and 300 jobs
at k = 5, beside the exact solver's time and result on the same jobs. Simulator: simulated all-reduces per second of
one thread, of whole clusters (skipped steps count) and of contended groups alone (nothing is skipped).
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from random import Random
from typing import Any, Final

from offpath.cli.bench.command import Bar, Report
from offpath.cli.bench.measure import machine
from offpath.cli.mina.cells import cell, pairs
from offpath.sched.gpu.exact import SolverMissing
from offpath.sched.ina import exact, fast
from offpath.sched.ina.conflicts import HDR, NDR, Limit
from offpath.sched.ina.groups import plan
from offpath.sched.ina.trees import Tree, candidates
from offpath.sched.placement.baselines import FirstN
from offpath.sched.placement.cluster import Cluster
from offpath.sched.placement.fragments import Fragments
from offpath.sched.placement.port import Placement, Request
from offpath.sched.placement.registry import make
from offpath.sched.topology.fattree import fat_tree, regular
from offpath.sched.topology.graph import Topology

DESCRIPTION: Final = "placing jobs on 1 024 … 16 384 hosts, and planning trees for 100 and 300 running jobs"
PLAN_S: Final = 1.0
"""The bar: trees for 300 running jobs at k = 5. In CPU time of one thread, which excludes other work on the machine."""
CONTENDED_PER_S: Final = 200_000
"""The bar: all-reduces of contended groups, each simulated."""
CLUSTER_PER_S: Final = 1_000_000
"""The aim, not a bar: simulated all-reduces of a whole cluster."""
K: Final = 5
_SEED: Final = 20_261_122
_SIZES: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_WEIGHTS: Final = (20, 20, 20, 15, 10, 8, 4, 2, 1)
"""Many small jobs, few large: the shape of the traces' host counts."""
_SWEPT: Final = (4, 16, 64, 256)
_LIMITS: Final[dict[str, Limit]] = {"hdr": HDR, "ndr": NDR}


def _topologies(quick: bool) -> dict[int, Topology]:
    """By hosts: N, at a height K of 3."""
    found = [fat_tree(16), regular((16, 32, 32), (1, 8, 8))]
    if not quick:
        found += [fat_tree(24), regular((16, 16, 32), (1, 8, 8))]
    return {each.hosts: each for each in sorted(found, key=lambda each: each.hosts)}


def run(arguments: argparse.Namespace) -> Report:
    """Each part is a function; ``--only PART`` selects one."""
    begun = time.monotonic()
    topologies = _topologies(arguments.quick)
    data: dict[str, Any] = {
        "benchmark": "ina", "quick": arguments.quick, "machine": machine(), "seed": _SEED, "alpha": 0.5, "k": K,
    }  # fmt: skip
    parts: dict[str, Callable[[], list[dict[str, Any]]]] = {
        "placement": lambda: placement(topologies, 150 if arguments.quick else 1_000),
        "growth": lambda: growth(topologies, 12 if arguments.quick else 60),
        "trees": lambda: trees(topologies, 3 if arguments.quick else 10, 2.0 if arguments.quick else 20.0),
        "simulator": lambda: simulator(500, 10, 2) if arguments.quick else simulator(2_000, 100, 5),
    }
    for name, part in parts.items():
        if name in (arguments.only or parts):
            print(f"{name} …", file=sys.stderr)
            data[name] = part()
    data["seconds"] = round(time.monotonic() - begun, 1)
    if not arguments.only:
        from offpath.cli.bench.ina_plot import draw

        data["plot"] = draw(data, arguments.plot or "bench-out/ina.svg")
    return Report(data, _text(data), _bars(data))


class _InUse:
    """A cluster that is nine tenths full; at each step a job arrives, and others leave until there is room."""

    def __init__(self, topology: Topology, policy: Placement) -> None:
        self.cluster, self.policy = Cluster(topology), policy
        self._random = Random(_SEED)
        self._held: list[tuple[int, ...]] = []
        while True:
            (wanted,) = self._random.choices(_SIZES, _WEIGHTS)
            if self.cluster.free - wanted < topology.hosts // 10:
                break
            self.step(wanted)

    def step(self, wanted: int | None = None) -> int:
        """Place one job; returns ns of the policy's call."""
        if wanted is None:
            (wanted,) = self._random.choices(_SIZES, _WEIGHTS)
            least = max(wanted, self.cluster.topology.hosts // 10)
            while self.cluster.free < least:
                self.cluster.release(self._held.pop(self._random.randrange(len(self._held))))
        begun = time.perf_counter_ns()
        decision = self.policy.place(self.cluster, Request(wanted))
        taken = time.perf_counter_ns() - begun
        assert decision.is_placed
        self.cluster.take(decision.hosts)
        self._held.append(decision.hosts)
        return taken


def placement(topologies: dict[int, Topology], count: int) -> list[dict[str, Any]]:
    """``count`` arrivals on each network, alternating between policy and floor every ten."""
    rows = []
    for hosts, topology in topologies.items():
        uses = {policy.name: _InUse(topology, policy) for policy in (Fragments(), FirstN())}
        taken: dict[str, list[int]] = {name: [] for name in uses}
        for _ in range(count // 10):
            for name, use in uses.items():
                taken[name] += [use.step() for _ in range(10)]
        row: dict[str, Any] = {"hosts": hosts, "n": len(taken["fragments"])}
        for name, each in taken.items():
            ordered = sorted(each)
            row[name] = {
                "p50_us": round(statistics.median(ordered) / 1e3, 2),
                "p99_us": round(ordered[int(0.99 * len(ordered))] / 1e3, 2),
            }
        row["over_first_n"] = round(sum(taken["fragments"]) / sum(taken["first-n"]), 1)
        rows.append(row)
    return rows


def growth(topologies: dict[int, Topology], count: int) -> list[dict[str, Any]]:
    """One placement by N and M: without cached tables (the paper's algorithm, O(KNM²)), and with them."""
    rows = []
    for hosts, topology in topologies.items():
        use = _InUse(topology, Fragments())
        for wanted in _SWEPT:
            if wanted > use.cluster.free:
                continue
            fresh, kept = [], []
            for _ in range(max(2, count // wanted)):
                begun = time.perf_counter_ns()
                Fragments().place(use.cluster, Request(wanted))
                fresh.append(time.perf_counter_ns() - begun)
                use.step()
                begun = time.perf_counter_ns()
                use.policy.place(use.cluster, Request(min(wanted, use.cluster.free)))
                kept.append(time.perf_counter_ns() - begun)
            rows.append({
                "hosts": hosts, "wanted": wanted, "fresh_ms": round(statistics.median(fresh) / 1e6, 3),
                "kept_ms": round(statistics.median(kept) / 1e6, 3), "knm2": 3 * hosts * wanted**2,
            })  # fmt: skip
    return rows


def _jobs(topology: Topology, count: int, random: Random, policy: str) -> dict[int, tuple[int, ...]]:
    """``count`` running jobs of 2 to 64 hosts that arrived while others left."""
    cluster, placing = Cluster(topology), make(policy, random)
    sizes = [size for size in _SIZES if 2 <= size <= min(64, topology.hosts // count * 4)]
    jobs: dict[int, tuple[int, ...]] = {}
    for job in range(20 * count):
        if len(jobs) == count:
            break
        decision = placing.place(cluster, Request(random.choices(sizes, _WEIGHTS[1 : 1 + len(sizes)])[0]))
        if not decision.is_placed or (jobs and random.random() < 0.3):
            cluster.release(jobs.pop(random.choice(list(jobs))))
            continue
        cluster.take(decision.hosts)
        jobs[job] = decision.hosts
    return jobs


def trees(topologies: dict[int, Topology], rounds: int, limit_s: float) -> list[dict[str, Any]]:
    """Plans for 100 jobs on the smallest network and 300 on the largest: from scratch, and after one more job."""
    rows = []
    for hosts, count in ((min(topologies), 100), (max(topologies), 300)):
        for name, limit in _LIMITS.items():
            for policy in ("fragments", "random"):
                rows.append(_planned(topologies[hosts], count, name, limit, policy, rounds, limit_s))
    return rows


def _planned(
    topology: Topology, count: int, name: str, limit: Limit, policy: str, rounds: int, limit_s: float
) -> dict[str, Any]:
    building, first, again, kept = [], [], [], []
    offered: dict[int, tuple[Tree, ...]] = {}
    for n in range(rounds):
        random = Random(_SEED + n)
        jobs = _jobs(topology, count, random, policy)
        begun = time.process_time()
        offered = {job: candidates(topology, hosts, K, random) for job, hosts in jobs.items()}
        building.append(time.process_time() - begun)
        newest = max(jobs)
        begun = time.process_time()
        before = plan({job: each for job, each in offered.items() if job != newest}, {}, limit)
        first.append(time.process_time() - begun)
        begun = time.process_time()
        after = plan(offered, before.trees, limit)
        again.append(time.process_time() - begun)
        kept.append(after.migrations)
    served = fast.solve(offered, limit)
    row: dict[str, Any] = {
        "hosts": topology.hosts, "jobs": len(offered), "limit": name, "placed_by": policy, "rounds": rounds,
        "candidates_s": round(statistics.median(building), 4), "plan_s": round(statistics.median(first), 4),
        "plan_max_s": round(max(first), 4), "next_plan_s": round(statistics.median(again), 4),
        "next_plan_max_s": round(max(again), 4),
        "migrations_per_arrival": round(statistics.fmean(kept), 2), "served": len(served),
    }  # fmt: skip
    try:
        begun = time.process_time()
        proven = exact.solve(offered, limit, limit_s=limit_s, hint=served)
        row["exact_s"], row["exact"] = round(time.process_time() - begun, 3), proven.status
        row["bound"] = proven.bound
        row["exact_over_plan"] = round(row["exact_s"] / row["plan_s"], 1)
    except SolverMissing:
        row["exact"] = "no solver"
    return row


def simulator(jobs: int, seconds: int, rounds: int) -> list[dict[str, Any]]:
    """Clusters of Table I's setting with ``jobs`` jobs, by placement, trees and rule; figure 12's pairs over
    ``seconds`` of their time, by rule. The median of ``rounds`` after an uncounted one (which compiles).
    """
    rows = []
    for words in (
        ("fragments", "mina", "mina-paper"), ("fragments", "mina-gainers", "mina-weighed"),
        ("fragments", "mina-code", "mina-paper"), ("first-n", "first", "greedy"),
    ):  # fmt: skip
        cell(None, 0, *words, count=jobs // 5)
        runs = [cell(None, seed, *words, count=jobs) for seed in range(rounds)]
        planned = [run["plans"] * run["plan_ms"] / 1e3 / run["cpu_s"] for run in runs]
        rows.append({
            "what": "cluster", "name": " + ".join(words), "jobs": jobs,
            "per_s": round(statistics.median(run["all_reduces_per_s"] for run in runs)),
            "planning": round(statistics.median(planned), 3),
        })  # fmt: skip
    for rule in ("greedy", "plan", "mina-paper", "mina-weighed"):
        pairs(None, rule, seconds=1)
        rates = [pairs(None, rule, seconds=seconds)["all_reduces_per_s"] for _ in range(rounds)]
        rows.append({"what": "contended", "name": rule, "per_s": round(statistics.median(rates))})
    return rows


def _bars(data: dict[str, Any]) -> list[Bar]:
    simulated = [row for row in data.get("simulator", ()) if row["what"] == "contended"]
    return [
        Bar(f"contended all-reduces/s, {row['name']}", row["per_s"], CONTENDED_PER_S, is_upper=False)
        for row in simulated
    ] + [
        Bar(f"{word} of {row['jobs']} jobs, {row['limit']}, placed by {row['placed_by']}, s", row[key], PLAN_S)
        for row in data.get("trees", ()) for key, word in (("plan_s", "plan"), ("next_plan_s", "next plan"))
    ]  # fmt: skip


def _text(data: dict[str, Any]) -> str:
    lines = []
    for row in data.get("placement", ()):
        ours, floor = row["fragments"], row["first-n"]
        lines.append(
            f"placement on {row['hosts']:6} hosts: p50 / p99 {ours['p50_us']:.0f} / {ours['p99_us']:.0f} µs; first-n"
            f" {floor['p50_us']:.1f} / {floor['p99_us']:.1f} µs; time over first-n's {row['over_first_n']:g}"
        )
    for row in data.get("growth", ()):
        lines.append(
            f"  N {row['hosts']:6}, M {row['wanted']:4}: from scratch {row['fresh_ms']:9.2f} ms, cached tables"
            f" {row['kept_ms']:8.2f} ms"
        )
    for row in data.get("trees", ()):
        proven = (
            f"exact {row['exact']}, at most {row['bound']}, {row['exact_s']:g} s" if "bound" in row else row["exact"]
        )
        lines.append(
            f"trees: {row['jobs']} jobs on {row['hosts']}, {row['limit']}, placed by {row['placed_by']}: candidates"
            f" {row['candidates_s'] * 1e3:.0f} ms, plan {row['plan_s'] * 1e3:.0f} ms, the next"
            f" {row['next_plan_s'] * 1e3:.0f} ms; serves {row['served']} ({proven})"
        )
    for row in data.get("simulator", ()):
        aim = (
            f", {row['planning']:.0%} of the time in plans (aim {CLUSTER_PER_S:,})" if row["what"] == "cluster" else ""
        )
        lines.append(f"simulator, {row['what']:9} {row['name']:42}: {row['per_s']:10,} all-reduces/s{aim}")
    return "\n".join(lines)
