"""The rounds of one case of `bench hire`, in a process of its own: `python -m offpath.cli.bench.hire_rounds CASE`."""

from __future__ import annotations

import json
import resource
import statistics
import sys
import time
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from offpath.cli.bench.hire_world import ROUND_MS, World
from offpath.cli.local.child import end_with_parent
from offpath.dpu_daemon.manager.inc.collector import settled
from offpath.sched.inc.decisions import Placed
from offpath.sched.inc.flow import solve
from offpath.sched.inc.network import FlowNetwork, Round
from offpath.sched.topology.graph import Topology

PHASES: Final = ("cost", "build", "solve", "decisions")
_WARM_UP: Final = 3
_FLOOR: Final = 5
"""The solver alone is run so often."""


@dataclass(frozen=True, slots=True)
class Case:
    """``degree``: of the fat-tree. ``rounds``: of each mode."""

    degree: int
    load: float
    is_distinct: bool
    rounds: int
    groups: int
    seed: int


@dataclass(slots=True)
class _Samples:
    """Of one mode, ms of CPU time by round (one thread computes); ``tasks``: that were placed."""

    round_ms: list[float] = field(default_factory=list)
    phases: list[dict[str, float]] = field(default_factory=list)
    tasks: list[int] = field(default_factory=list)


def measure(case: Case) -> list[dict[str, Any]]:
    """A row for the cold and one for the warm rounds. They take turns in the same world: before a cold one everything
    that an earlier round kept is thrown away, and making it again counts as cost."""
    world = World(case.degree, case.load, is_distinct=case.is_distinct, seed=case.seed, groups=case.groups)
    with settled():  # as the job manager
        return _measured(world, case)


def _measured(world: World, case: Case) -> list[dict[str, Any]]:
    samples = {"cold": _Samples(), "warm": _Samples()}
    for n in range(_WARM_UP + 2 * case.rounds):
        mode = "cold" if n % 2 else "warm"
        _round(world, mode, samples[mode] if n >= _WARM_UP else _Samples())
    world.fill_queue()
    jobs = list(world.hire.jobs.values())
    prepared = world.hire.network.prepare(jobs)
    built = world.hire.network.built(prepared, jobs, world.now_ms)
    floor_ms = min(_timed_solve(built) for _ in range(_FLOOR))
    demands = {(each.group.service, each.group.demand, each.group.shared) for each in built.groups.values()}
    topology = world.resources.topology
    common = {
        "groups": len(built.groups), "servers": topology.hosts, "switches": topology.switches,
        "arcs": _arcs(built, topology), "solver_arcs": len(built.problem.tails), "load": case.load,
        "demands": len(demands),
        "kind": "distinct" if case.is_distinct else "pods",
    }  # fmt: skip
    rss_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return [
        {**common, **_medians(each), "solve_floor_ms": round(floor_ms, 2), "rss_mib": round(rss_mib, 1), "mode": mode}
        for mode, each in samples.items()
    ]


def _round(world: World, mode: str, samples: _Samples) -> None:
    world.now_ms += ROUND_MS
    world.fill_queue()
    hire, marks = world.hire, list[tuple[str, float]]()
    hire.watch = lambda phase: marks.append((phase, time.process_time()))
    begun = time.process_time()
    if mode == "cold":
        old = hire.network
        hire.network = FlowNetwork.rebuilt(old.resources, old.reading, old.limits, list(hire.jobs.values()))
    decisions = hire.round(world.now_ms)
    ended = time.process_time()
    samples.round_ms.append((ended - begun) * 1e3)
    samples.tasks.append(sum(isinstance(each, Placed) for each in decisions))
    before, phases = begun, dict.fromkeys(PHASES, 0.0)
    for phase, at in marks:  # a round with several networks comes by the phases several times
        if phase in phases:
            phases[phase] += (at - before) * 1e3
            before = at
    samples.phases.append(phases)
    world.end_whole_jobs()


def _arcs(built: Round, topology: Topology) -> int:
    """Of the network as HIRE's §5.3 has it, with a node and arcs for every switch in both trees."""
    links = [child >= topology.hosts for child in range(topology.nodes) for _ in topology.up[child]]
    edges = sum(len(each.shortcuts) for each in built.groups.values())
    return built.first_edge + edges + len(links) + sum(links) + topology.switches + topology.nodes


def _timed_solve(built: Round) -> float:
    """The same graph once more, nothing else, ms."""
    begun = time.process_time()
    solve(built.problem)
    return (time.process_time() - begun) * 1e3


def _medians(samples: _Samples) -> dict[str, Any]:
    ordered = sorted(samples.round_ms)
    return {
        **{f"{phase}_ms": round(statistics.median(each[phase] for each in samples.phases), 2) for phase in PHASES},
        "round_ms": round(statistics.median(ordered), 2),
        "round_p99_ms": round(ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))], 2),
        "tasks": int(statistics.median(samples.tasks)), "rounds": len(ordered),
    }  # fmt: skip


def main() -> int:
    """Print the case's rows as JSON."""
    end_with_parent()
    print(json.dumps(measure(Case(**json.loads(sys.argv[1])))))
    return 0


def words(case: Case) -> str:
    """The command line's argument."""
    return json.dumps(asdict(case))


if __name__ == "__main__":
    raise SystemExit(main())
