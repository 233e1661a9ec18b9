"""One run of one policy on one stream of jobs, and what HIRE's evaluation reads of it."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.metadata import entry_points
from typing import Any, Final

from offpath.cli.hire.traces import read
from offpath.cli.hire.workloads import Load, Stream, cluster, stream
from offpath.sched.inc import hire, policies
from offpath.sched.inc.flow import Flow, FlowProblem, solve
from offpath.sched.inc.policies import POLICIES, Policy
from offpath.sched.inc.scheduler import Scheduler
from offpath.sched.inc.units import SERVER_DIMENSIONS, SWITCH_DIMENSIONS
from offpath.sched.inc.variants import Mode
from offpath.sched.sim.inc import IncRun, JobOutcome, Thinking, simulated

FLOW_THINKING: Final = Thinking(fixed_ms=10.0, group_ms=0.1)
"""Of `hire` and CoCo++: about what the solver takes on a cluster of the paper's size, 90 ms at 800 groups."""
PLACING_MS: Final = 2.0
"""An allocation of the others: within the paper's 0.4 to 7.2 ms."""
FALLBACK: Final = {"coco++": 0.1, "k8++/timeout": 0.1, "yarn++/timeout": 0.1, "sparrow++/timeout": 0.1}
"""For which part of a job's duration switches are tried (§6.1: a tenth)."""
WARM_PART: Final = 0.2
COUNTED_PART: Final = 0.8
"""Jobs that arrive between these parts of the arrivals count: before, the cluster fills; after, the end is near."""
QUANTILES: Final = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "max": 1.0}


@dataclass(frozen=True, slots=True)
class World:
    """A cluster, its workload and one policy. ``fallback``: part of a job's duration; None: `FALLBACK`'s.
    ``placing_ms``: how long policies without a flow network think about an allocation."""

    trace: str
    policy: str
    mu: float = 1.0
    heterogeneous: bool = False
    seed: int = 0
    degree: int = 8
    count: int = 300
    load: float = 1.2
    fallback: float | None = None
    placing_ms: float = PLACING_MS

    def as_arguments(self) -> dict[str, Any]:
        """For a piece of a sweep."""
        return asdict(self)


def known(name: str) -> Policy:
    """The policy of that name: built-in, or an entry point of another package. Raises: SchedError."""
    if name in POLICIES:
        return POLICIES[name]
    for each in entry_points(group=policies.GROUP, name=name):
        return Policy(name, each.load())
    return policies.policy(name)


def cell(**world: Any) -> dict[str, Any]:
    """One run. ``world``: of `World`. Raises: TraceError, SchedError."""
    return _row(World(**world))


def speed(**world: Any) -> dict[str, Any]:
    """As `cell`, and processor time of the solver in ms, by network (figure 7). Only for policies of HIRE."""
    took: list[float] = []
    with _measured(took):
        row = _row(World(**world))
    return {**row, "solve_ms": sorted(took)}


def _row(world: World) -> dict[str, Any]:
    trace = read(world.trace)
    topology, servers, switches = cluster(world.degree, trace.server, world.heterogeneous, world.seed)
    jobs = stream(trace, topology, world.seed, world.count, world.mu, Load(world.load))
    which = known(world.policy)
    part = FALLBACK.get(world.policy, 0.1) if world.fallback is None else world.fallback
    scheduler = policies.make(
        which, topology, servers, switches, fallback_ms=lambda job: round(part * jobs.lasts_ms[job])
    )
    scheduler.is_counting_lacks = False
    run = simulated(
        scheduler, jobs.jobs, jobs.span_ms, thinking(scheduler, world.placing_ms), sample_from_ms=_from_ms(jobs)
    )
    return {**summary(run, jobs), "servers": topology.hosts, "switches": topology.switches, "trace": trace.kind}


@contextmanager
def _measured(took: list[float]) -> Iterator[None]:
    """Processor time of each solution, in ms, while this is open. The core has no clock: the solver that it calls is
    replaced by one that this module measures."""

    def solved(problem: FlowProblem) -> Flow:
        begun = time.process_time()
        flow = solve(problem)
        took.append((time.process_time() - begun) * 1e3)
        return flow

    vars(hire)["solve"] = solved
    try:
        yield
    finally:
        vars(hire)["solve"] = solve


def thinking(scheduler: Scheduler, placing_ms: float = PLACING_MS) -> Thinking:
    """How long a round of this policy takes in the simulation."""
    is_flow = isinstance(scheduler, hire.Hire) or getattr(scheduler, "name", "") == "coco++"
    return FLOW_THINKING if is_flow else Thinking(placement_ms=placing_ms)


def _from_ms(jobs: Stream) -> int:
    return round(WARM_PART * jobs.span_ms)


def summary(run: IncRun, jobs: Stream) -> dict[str, Any]:
    """What the figures show. Ratios are None where no job counts."""
    counted = [each for each in run.jobs if _from_ms(jobs) <= each.at_ms <= COUNTED_PART * jobs.span_ms]
    wanting = [each for each in counted if each.alternatives]
    detours = [each.detours for each in wanting if each.detours is not None]
    latencies = sorted(each for job in counted for each in job.latencies_ms)
    return {
        "jobs": len(counted), "inc_jobs": len(wanting),
        "inc_satisfied": _ratio(sum(each.is_satisfied for each in wanting), len(wanting)),
        "inc_groups_satisfied": _ratio(
            sum(each.on_switches for each in wanting), sum(each.alternatives for each in wanting)
        ),
        "placed": _ratio(sum(each.is_placed for each in counted), len(counted)),
        "detours": round(statistics.fmean(detours), 4) if detours else None,
        "load": _load(run),
        "latency_s": {name: quantile(latencies, part) for name, part in QUANTILES.items()},
        "below_1_s": _ratio(sum(each < 1_000 for each in latencies), len(latencies)),
        "late": sum(each.late for each in counted), "refused": run.refused, "rounds": run.rounds,
        "preempted_tasks": run.preempted, "detours_by_job": detours_by_job(wanting),
    }  # fmt: skip


def detours_by_job(jobs: Sequence[JobOutcome]) -> dict[str, int]:
    """Of those that run on switches: to compare two policies on the jobs that both serve."""
    return {each.job: each.detours for each in jobs if each.detours is not None}


def quantile(sorted_ms: Sequence[int], part: float) -> float | None:
    """In s: the smallest value such that ``part`` of all are at most that. None: there are none."""
    if not sorted_ms:
        return None
    return sorted_ms[max(0, math.ceil(part * len(sorted_ms)) - 1)] / 1_000


def _load(run: IncRun) -> dict[str, float]:
    loads = (*run.server_load, *run.switch_load)
    names = (*SERVER_DIMENSIONS, *SWITCH_DIMENSIONS)
    return {name: round(each, 4) for name, each in zip(names, loads, strict=True)}


def _ratio(part: int, whole: int) -> float | None:
    return round(part / whole, 4) if whole else None


def mode_of(name: str) -> str | None:
    """Of a baseline; None: HIRE."""
    mode: Mode | None = POLICIES[name].mode if name in POLICIES else None
    return None if mode is None else mode.value


def base_name(name: str) -> str:
    """``k8++`` of ``k8++/timeout``."""
    return name.partition("/")[0]
