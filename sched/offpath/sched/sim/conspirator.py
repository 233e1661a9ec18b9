"""Reproduces Conspirator §4.2 with the job book: GPU-hours of each policy over a window, and the gap of greedy to
optimal.

One window: the same stream under Algorithm 1 (`greedy`), `oldest-gpu-first`, `migrating`, MPS-only and exclusive GPUs,
on an unlimited number of GPUs without operation times; also the GPU-hours of time-sharing. The jobs that greedy runs at
certain instants ("sub-windows") are packed to proven optimality, for GPUs in use and for slices, with free migration
(ε2 = 0, as in the paper). These instants are spread evenly over the time in which at most `MOST_LIVE` jobs are alive.
If more jobs are alive at times, as many further instants are taken from the whole window.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from offpath.sched.gpu.exact import Costs, solve
from offpath.sched.gpu.geometry import GpuSpec
from offpath.sched.gpu.packing import TooManyFillings
from offpath.sched.gpu.paper import paper_gpu
from offpath.sched.gpu.policy import Demand, LeasePlan, LeaseView, Opening, Placement, Policy, PolicyState, Refusal
from offpath.sched.gpu.registry import SIMULATED
from offpath.sched.jobs.states import JobState
from offpath.sched.sim.accounting import GpuHours
from offpath.sched.sim.cluster import Cluster
from offpath.sched.sim.time_sharing import time_shared
from offpath.sched.sim.workload import Stream, evenly, live_spans, tenants_of

MAKE: Final[dict[str, Callable[[], Policy]]] = {
    name: SIMULATED[policy]
    for name, policy in (
        ("greedy", "conspirator-paper"),
        ("oldest-gpu-first", "oldest-gpu-first"),
        ("migrating", "migrating"),
        ("mps_only", "mps-only"),
        ("exclusive", "exclusive"),
    )
}
TIME_SHARING: Final = "time_sharing"
"""Computed from the stream: no policy of the book may share a GPU this way."""
ROWS: Final = (*MAKE, TIME_SHARING)
MOST_LIVE: Final = 60
"""Maximum number of jobs at an instant to solve."""
POINTS: Final = 120
"""Points of a cumulative curve (figure 8a)."""
CUT_OFF_S: Final = 600.0
"""The paper's cut-off (§4.2, footnote 4)."""


class Timed:
    """A policy with measured decision times: per job, the sum of all its calls until it has a lane."""

    def __init__(self, policy: Policy, clock: Callable[[], int]) -> None:
        self.name = policy.name
        self._policy = policy
        self._clock = clock
        self._spent: dict[int, int] = {}
        self.decisions_ns: list[int] = []

    def place(self, demand: Demand, now_ns: int) -> Placement | Refusal:
        """See `Policy.place`."""
        begun = self._clock()
        placed = self._policy.place(demand, now_ns)
        spent = self._spent.pop(demand.job, 0) + self._clock() - begun
        if isinstance(placed, Placement):
            self.decisions_ns.append(spent)
        else:
            self._spent[demand.job] = spent
        return placed

    def plan(self, demand: Demand, now_ns: int, opening: Opening) -> LeasePlan | Refusal:
        """See `Policy.plan`."""
        begun = self._clock()
        planned = self._policy.plan(demand, now_ns, opening)
        self._spent[demand.job] = self._spent.get(demand.job, 0) + self._clock() - begun
        return planned

    def state(self) -> PolicyState:
        """See `Policy.state`."""
        return self._policy.state()

    def restore(self, state: PolicyState) -> None:
        """See `Policy.restore`."""
        self._policy.restore(state)

    def gpu_added(self, spec: GpuSpec) -> None:
        """See `Policy.gpu_added`."""
        self._policy.gpu_added(spec)

    def gpu_removed(self, gpu: str) -> None:
        """See `Policy.gpu_removed`."""
        self._policy.gpu_removed(gpu)

    def lease_planned(self, lease: LeaseView) -> None:
        """See `Policy.lease_planned`."""
        self._policy.lease_planned(lease)

    def lease_opened(self, lease: int) -> None:
        """See `Policy.lease_opened`."""
        self._policy.lease_opened(lease)

    def lease_draining(self, lease: int) -> None:
        """See `Policy.lease_draining`."""
        self._policy.lease_draining(lease)

    def lane_paused(self, lease: int, lane: int) -> None:
        """See `Policy.lane_paused`."""
        self._policy.lane_paused(lease, lane)

    def lane_taken(self, lease: int, lane: int, share: int, now_ns: int) -> None:
        """See `Policy.lane_taken`."""
        self._policy.lane_taken(lease, lane, share, now_ns)

    def lease_lost(self, lease: int) -> None:
        """See `Policy.lease_lost`."""
        self._policy.lease_lost(lease)

    def release(self, placement: Placement, share: int, now_ns: int) -> None:
        """See `Policy.release`."""
        self._policy.release(placement, share, now_ns)


@dataclass(slots=True)
class Instant:
    """Greedy and the optimum at one instant: GPUs in use and percent of slices. ``solve_ms``: both proofs."""

    jobs: int
    gpus: int
    slices: int
    best_gpus: int = 0
    best_slices: int = 0
    is_proven: bool = False
    solve_ms: float = 0.0


@dataclass(slots=True)
class Window:
    """Result of a window; `data` is the printed form."""

    stream: Stream
    hours: dict[str, GpuHours] = field(default_factory=dict)
    curves: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    """Active and slice GPU-hours so far, at `POINTS` evenly spaced times."""
    instants: list[Instant] = field(default_factory=list)
    any_instants: list[Instant] = field(default_factory=list)
    """Instants with any number of jobs; those of `instants` have at most `MOST_LIVE`."""
    decisions_ns: list[int] = field(default_factory=list)
    migrations: int = 0
    jobs: int = 0
    live_part: float = 0.0
    """Part of the window with 1 to `MOST_LIVE` jobs alive, from which instants are taken."""
    mixed: float | None = None
    """GPU-hours of time-sharing in which a GPU has jobs of several tenants."""

    def data(self) -> dict[str, Any]:
        """Convert to plain values."""
        decided = sorted(self.decisions_ns)
        return {
            "name": self.stream.name,
            "stream": self.stream.kind,
            "tenants": len(tenants_of(self.stream.jobs)),
            "jobs": self.jobs,
            "load_gpus": round(self.stream.load_gpus, 3),
            "active_gpu_hours": {name: round(hours.active, 3) for name, hours in self.hours.items()},
            "slice_hours": {name: round(hours.slices, 3) for name, hours in self.hours.items()},
            "used_gpu_hours": round(self.hours["greedy"].used, 3) if "greedy" in self.hours else None,
            "migrations": self.migrations,
            "time_sharing_mixed_gpu_hours": None if self.mixed is None else round(self.mixed, 3),
            "optimal_tried": len(self.instants),
            "optimal_proven": sum(each.is_proven for each in self.instants),
            "optimal_part_of_time": round(self.live_part, 4),
            "gap_slice": gap(self.instants, "slices"),
            "gap_active": gap(self.instants, "gpus"),
            "optimal_any_tried": len(self.any_instants),
            "optimal_any_proven": sum(each.is_proven for each in self.any_instants),
            "gap_slice_any": gap(self.any_instants, "slices"),
            "gap_active_any": gap(self.any_instants, "gpus"),
            "decision_p50_us": decided[len(decided) // 2] / 1e3 if decided else None,
            "optimal_p50_ms": _median([each.solve_ms for each in self.instants if each.is_proven]),
        }


def gap(instants: Sequence[Instant], what: str) -> float | None:
    """Greedy over the optimum, minus 1, summed over the proven instants; None without proven instants."""
    proven = [each for each in instants if each.is_proven]
    ours, best = sum(getattr(i, what) for i in proven), sum(getattr(i, f"best_{what}") for i in proven)
    return ours / best - 1 if best else None


def _median(values: list[float]) -> float | None:
    return sorted(values)[len(values) // 2] if values else None


def measure(
    stream: Stream,
    *,
    instants: int,
    clock: Callable[[], int],
    limit_s: float = CUT_OFF_S,
    names: tuple[str, ...] = ROWS,
    gpu: Callable[[int], GpuSpec] = lambda number: paper_gpu(f"gpu-{number}"),
) -> Window:
    """Run the stream under each policy; ``clock`` (ns) only times decisions and proofs. ``gpu`` creates the GPU of a
    number from 0; there are as many GPUs as the peak number of jobs alive.

    Raises: RuntimeError: a job waited or did not complete, which would make every figure wrong.
    """
    window = Window(stream)
    specs = [gpu(n) for n in range(stream.peak_gpus())]
    length = stream.end_ns - stream.begin_ns
    spans = live_spans(stream, MOST_LIVE)
    window.live_part = sum(end - begin for begin, end in spans) / length
    few = evenly(spans, instants) if instants else []
    every = evenly(live_spans(stream, len(specs)), instants) if instants else []
    steps = [stream.begin_ns + n * length // POINTS for n in range(1, POINTS + 1)]
    for name in names:
        if name == TIME_SHARING:
            shared = time_shared(stream, steps)
            window.hours[name], window.curves[name], window.mixed = shared.hours, shared.curve, shared.mixed
            continue
        policy = MAKE[name]()
        timed = Timed(policy, clock) if name == "greedy" else None
        cluster = Cluster(stream, specs, timed or policy)
        window.curves[name] = []
        for moment in sorted({*steps, *(few + every if name == "greedy" else ())}):
            cluster.run(moment)
            if moment in steps:
                so_far = cluster.meter.total(moment)
                window.curves[name].append((so_far.active, so_far.slices))
            if timed is not None and moment in few + every:
                instant = _instant(specs, cluster, limit_s, clock)
                window.instants += [instant] if moment in few else []
                window.any_instants += [instant] if moment in every else []
        window.hours[name] = cluster.meter.total(stream.end_ns)
        window.jobs = cluster.ended[JobState.COMPLETED] + len(cluster.jobs)
        window.migrations = max(window.migrations, cluster.migrations)
        if timed is not None:
            window.decisions_ns = timed.decisions_ns
        if sum(cluster.ended.values()) != cluster.ended[JobState.COMPLETED] or max(cluster.waited_ns, default=0):
            raise RuntimeError(f"{stream.name} under {name}: {dict(cluster.ended)}, jobs waited")
    return window


def _instant(specs: list[GpuSpec], cluster: Cluster, limit_s: float, clock: Callable[[], int]) -> Instant:
    jobs = cluster.live()
    instant = Instant(len(jobs), cluster.meter.active, cluster.meter.slices)
    begun = clock()
    try:
        gpus, slices = (solve(specs, jobs, costs, limit_s=limit_s) for costs in (Costs(1), Costs(0, 0, 1)))
    except TooManyFillings:
        return instant
    instant.solve_ms = (clock() - begun) / 1e6
    instant.best_gpus, instant.best_slices = gpus.objective, slices.objective
    instant.is_proven = gpus.is_proven and slices.is_proven
    return instant
