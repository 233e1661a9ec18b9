"""`gpu-policy`: the cost of a decision, by policy and number of GPUs, and on a core with other work (figure 8c).

Times the port itself in its worst state: every GPU cut in seven leases of twenty tenants, each lease full, a
thousand jobs queued. One step is a job that ends (`release`) and its tenant's next job that gets the lane (`place`).
The second figure is that of opening a lease: `plan` with exactly one GPU, at random, that has a free seventh.
"""

from __future__ import annotations

import argparse
import gc
import os
import statistics
import sys
import time
from collections import deque
from collections.abc import Callable
from random import Random
from typing import Any, Final

from offpath.cli.bench.command import Bar, Report
from offpath.cli.bench.measure import background_load, cores, machine, pin, ratio
from offpath.sched.gpu.baselines import BestFit, MpsOnly
from offpath.sched.gpu.conspirator import ConspiratorPaper
from offpath.sched.gpu.greedy import GreedyFirstFit
from offpath.sched.gpu.oldest_gpu_first import OldestGpuFirst
from offpath.sched.gpu.paper import paper_gpu
from offpath.sched.gpu.policy import Demand, LeasePlan, LeaseView, Opening, Placement, Policy

DESCRIPTION: Final = "place + release by policy and number of GPUs (10 … 10 000), and under load (figure 8c)"
P99_US, GROWTH = 50.0, 1.5
GPUS: Final = (10, 16, 100, 1_000, 10_000)
QUEUED: Final = 1_000
TENANTS: Final = 20
SEVENTHS: Final = 7
SHARE: Final = 14
LOADS: Final = (0, 25, 50, 75, 100)
_SEED: Final = 20_261_121
_POLICIES: Final[dict[str, Callable[[], Policy]]] = {
    "conspirator-paper": ConspiratorPaper,
    "oldest-gpu-first": OldestGpuFirst,
    "best-fit": BestFit,
    "greedy-first-fit": GreedyFirstFit,
    "mps-only": MpsOnly,
}
_NOT_BEYOND: Final = {"greedy-first-fit": 1_000}
"""It scans a tenant's leases: larger fleets only take long."""
FIGURE_8C_GPUS: Final = 100
"""The paper's scale is "over 80 GPUs"."""


class _Full:
    """A policy in that state. Times are of the policy's own calls only."""

    def __init__(self, policy: Policy, gpus: int) -> None:
        self.policy = policy
        self._random = Random(_SEED)
        self._jobs = 0
        self.running: list[tuple[Demand, Placement]] = []
        self._now_ns = 0
        whole = isinstance(policy, MpsOnly)
        for n in range(gpus):
            policy.gpu_added(paper_gpu(f"gpu-{n}"))
        for lease in range(gpus * (1 if whole else SEVENTHS)):
            gpu, start = (lease, 13) if whole else divmod(lease, SEVENTHS)
            profile, alpha = ("100%", 100) if whole else ("14%", SHARE)
            tenant = f"t{self._random.randrange(TENANTS)}"
            policy.lease_planned(LeaseView(lease, tenant, f"gpu-{gpu}", profile, start, alpha, SEVENTHS, 0))
            policy.lease_opened(lease)
            for _ in range(alpha // SHARE):
                demand = self._demand(tenant)
                placed = policy.place(demand, self._now_ns)
                assert isinstance(placed, Placement)
                self.running.append((demand, placed))
        self.leases = gpus * (1 if whole else SEVENTHS)
        self.queues: dict[str, deque[Demand]] = {f"t{n}": deque() for n in range(TENANTS)}
        for n in range(QUEUED):
            tenant = f"t{n % TENANTS}"
            self.queues[tenant].append(self._demand(tenant))

    def _demand(self, tenant: str) -> Demand:
        self._jobs += 1
        return Demand(self._jobs, tenant, SHARE, 0)

    def block_ns(self, count: int, among: int | None = None) -> list[int]:
        """``count`` steps; ``among``: only on this many first running jobs, whose memory stays in the caches."""
        policy, clock, taken = self.policy, time.perf_counter_ns, []
        for _ in range(count):
            at = self._random.randrange(among or len(self.running))
            old, placement = self.running[at]
            queue = self.queues[old.tenant]
            demand = queue.popleft()
            self._now_ns += 1_000_000
            begun = clock()
            policy.release(placement, old.share, self._now_ns)
            placed = policy.place(demand, self._now_ns)
            taken.append(clock() - begun)
            assert isinstance(placed, Placement), placed
            self.running[at] = demand, placed
            queue.append(self._demand(old.tenant))
        return taken

    def plans_ns(self, count: int) -> list[int]:
        """``count`` openings: a lease closes and another opens in its place, the only free one."""
        policy, clock, taken = self.policy, time.perf_counter_ns, []
        for _ in range(count):
            at = self._random.randrange(len(self.running))
            old, placement = self.running[at]
            siblings = [each for each in self.running if each[1].lease == placement.lease] if self.whole else []
            for demand, placed in siblings or [(old, placement)]:
                policy.release(placed, demand.share, self._now_ns)
            policy.lease_lost(placement.lease)
            begun = clock()
            plan = policy.plan(self._demand(old.tenant), self._now_ns, Opening())
            taken.append(clock() - begun)
            assert isinstance(plan, LeasePlan), plan
            view = LeaseView(placement.lease, old.tenant, plan.gpu, plan.profile, plan.start, plan.alpha, SEVENTHS, 0)
            policy.lease_planned(view)
            policy.lease_opened(placement.lease)
            again = policy.place(old, self._now_ns)
            assert isinstance(again, Placement)
            self.running[at] = old, again
        return taken

    @property
    def whole(self) -> bool:
        """Whether its leases are whole GPUs."""
        return isinstance(self.policy, MpsOnly)


def run(arguments: argparse.Namespace) -> Report:
    """Rows by policy and fleet in alternating blocks, then the loaded core."""
    begun = time.monotonic()
    here = machine()
    pin(cores(pinned=True).dpu)
    blocks, count = (10, 500) if arguments.quick else (20, 2_000)
    only = arguments.only or [*_POLICIES, "load"]
    rows: list[dict[str, Any]] = []
    growth: dict[str, dict[str, Any]] = {}
    for name in (name for name in _POLICIES if name in only):
        print(f"{name} …", file=sys.stderr)
        rows += _rows(name, blocks, count, growth)
    data: dict[str, Any] = {
        "benchmark": "gpu-policy", "quick": arguments.quick, "machine": here, "rows": rows, "growth": growth,
        "tenants": TENANTS, "share": SHARE,
    }  # fmt: skip
    if "load" in only:
        data["figure_8c"] = under_load(blocks * count // 5)
    data["seconds"] = round(time.monotonic() - begun, 1)
    if not arguments.only:
        from offpath.cli.bench.gpu_policy_plot import draw

        data["plot"] = draw(data, arguments.plot or "bench-out/gpu-policy.svg")
    return Report(data, _text(data), _bars(data))


def _rows(name: str, blocks: int, count: int, growth: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    fleets = {gpus: _Full(_POLICIES[name](), gpus) for gpus in GPUS if gpus <= _NOT_BEYOND.get(name, GPUS[-1])}
    gc.collect()
    gc.freeze()  # as the daemon does after its start
    taken: dict[int, list[list[int]]] = {gpus: [] for gpus in fleets}
    for full in fleets.values():
        full.block_ns(count)
    near: list[float] = []
    for _ in range(blocks):
        for gpus, full in fleets.items():
            taken[gpus].append(full.block_ns(count))
        if GPUS[-1] in fleets:
            fleets[GPUS[-1]].block_ns(count, fleets[100].leases)  # warms up the caches
            near.append(statistics.median(fleets[GPUS[-1]].block_ns(count, fleets[100].leases)))
    opened = {gpus: full.plans_ns(min(count, 300)) if not full.whole else [] for gpus, full in fleets.items()}
    gc.unfreeze()
    if GPUS[-1] in fleets:
        medians = {gpus: [statistics.median(block) for block in each] for gpus, each in taken.items()}
        growth[name] = ratio(medians[GPUS[-1]], medians[100])
        growth[name]["in_caches"] = ratio(near, medians[100])
    return [
        {
            "policy": name, "gpus": gpus, "leases": fleets[gpus].leases, "queued": QUEUED,
            "p50_us": _us(each, 0.5), "p99_us": _us(each, 0.99),
            "plan_p50_us": _us([opened[gpus]], 0.5), "plan_p99_us": _us([opened[gpus]], 0.99),
        }
        for gpus, each in taken.items()
    ]  # fmt: skip


def _us(blocks: list[list[int]], q: float) -> float | None:
    ordered = sorted(each for block in blocks for each in block)
    return round(ordered[min(len(ordered) - 1, int(q * len(ordered)))] / 1e3, 2) if ordered else None


def under_load(count: int) -> list[dict[str, Any]]:
    """``count`` decisions at each background load of the core that this process is pinned to.

    The paper's figure 8c has a SmartNIC core beside a host core with other work; this is the core with the work.
    """
    before = os.sched_getaffinity(0)
    core = cores(pinned=True).dpu
    pin(core)
    full = _Full(ConspiratorPaper(), FIGURE_8C_GPUS)
    rows = []
    try:
        for load in LOADS:
            with background_load(load, core):
                taken: list[int] = []
                end = time.monotonic() + 4.0
                while len(taken) < count and time.monotonic() < end:
                    taken += full.block_ns(100)
                    time.sleep(0.001)  # a scheduler waits for work between decisions
            rows.append({"load": load, "n": len(taken), "p50_us": _us([taken], 0.5), "p99_us": _us([taken], 0.99)})
    finally:
        os.sched_setaffinity(0, before)
    return rows


def text_8c(rows: list[dict[str, Any]]) -> list[str]:
    """As text lines."""
    return [
        f"figure 8c: {FIGURE_8C_GPUS} GPUs, conspirator-paper, background load of the deciding core",
        *(f"  {row['load']:3} %: p50 {row['p50_us']:.1f} µs, p99 {row['p99_us']:.1f} µs" for row in rows),
    ]


def _bars(data: dict[str, Any]) -> list[Bar]:
    bars = []
    for row in data["rows"]:
        if row["policy"] in ("conspirator-paper", "oldest-gpu-first") and row["gpus"] == 16:
            bars.append(Bar(f"{row['policy']}: place + release p99 at 16 GPUs, µs", row["p99_us"], P99_US))
    for name in ("conspirator-paper", "oldest-gpu-first"):
        if name in data["growth"]:
            bars.append(Bar(f"{name}: cost at 10 000 GPUs over 100", data["growth"][name]["median"], GROWTH))
    return bars


def _text(data: dict[str, Any]) -> str:
    lines = [f"{'policy':20} {'GPUs':>6} {'leases':>7}   place + release p50 / p99 µs    plan p50 / p99 µs"]
    for row in data["rows"]:
        plan = f"{row['plan_p50_us']:8.1f} / {row['plan_p99_us']:.1f}" if row["plan_p50_us"] is not None else ""
        both = f"{row['p50_us']:10.2f} / {row['p99_us']:<10.2f}"
        lines.append(f"{row['policy']:20} {row['gpus']:6} {row['leases']:7}   {both} {plan}")
    for name, each in data["growth"].items():
        near = each["in_caches"]
        lines.append(
            f"{name}: 10 000 GPUs over 100: {each['median']:.2f} [{each['min']:.2f}, {each['max']:.2f}];"
            f" while no more leases are touched than 100 GPUs have: {near['median']:.2f}"
            f" [{near['min']:.2f}, {near['max']:.2f}]"
        )
    if "figure_8c" in data:
        lines += ["", *text_8c(data["figure_8c"])]
    return "\n".join(lines)
