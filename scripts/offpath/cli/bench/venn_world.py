"""One part of `bench venn`, in a process of its own: `python -m offpath.cli.bench.venn_world CASE`.

Shapes of the eligibility lattice. *nested*: the devices of each group are some of the next one's. *random*: a device
meets each requirement with probability 1/2. *thresholds*: two numbers with thresholds. *adversarial*: groups of all
sizes that intersect, and the job that comes and goes is always the one by which the most groups' turns change.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from random import Random
from typing import Any, Final

from offpath.cli.local.child import end_with_parent
from offpath.cli.venn.population import Population, Shape
from offpath.cli.venn.workloads import Scale, jobs_of
from offpath.dpu_daemon.manager.inc.collector import settled
from offpath.sched.collab.book import Book
from offpath.sched.collab.fairness import Standing
from offpath.sched.collab.policies import make
from offpath.sched.collab.port import CollabPolicy, Waiting
from offpath.sched.collab.records import MOST_DEADLINE_NS, JobSpec
from offpath.sched.collab.requirements import Properties, Requirement
from offpath.sched.collab.venn import Venn
from offpath.sched.sim.collab_fast import simulation
from offpath.sched.sim.collab_records import CollabRun

_STANDING: Final = Standing(1, 0)
_SCRATCH: Final = 20
_LEASES: Final = 20_000
_WARM_UP_CLIENTS: Final = 10


@dataclass(frozen=True, slots=True)
class Case:
    """``shape``: of `SHAPES`, or ``devices``, or ``simulation``. ``plans``: or simulated days. ``decisions``: or known
    devices, or clients. ``policy``: not of devices."""

    shape: str
    jobs: int
    groups: int
    atoms: int
    plans: int
    decisions: int
    seed: int
    policy: str = "venn-paper"


def nested(case: Case, random: Random) -> list[int]:
    """As many atoms as groups."""
    return [(1 << case.groups) - (1 << group) for group in range(case.groups)]


def drawn(case: Case, random: Random) -> list[int]:
    """Shape *random*."""
    return _distinct(case.atoms, lambda: random.getrandbits(case.groups))


def thresholds(case: Case, random: Random) -> list[int]:
    """Fewer atoms than wanted, if the thresholds make fewer."""
    least = [(random.random(), random.random()) for _ in range(case.groups)]

    def device() -> int:
        memory, cpu = random.random(), random.random()
        return sum(1 << bit for bit, (m, c) in enumerate(least) if memory >= m and cpu >= c)

    return _distinct(case.atoms, device)


def adversarial(case: Case, random: Random) -> list[int]:
    """See the module's docstring; `_worst` finds the job."""
    chances = [(bit + 1) / (case.groups + 1) for bit in range(case.groups)]
    return _distinct(
        case.atoms, lambda: sum(1 << bit for bit, chance in enumerate(chances) if random.random() < chance)
    )


SHAPES: Final[dict[str, Callable[[Case, Random], list[int]]]] = {
    "nested": nested, "random": drawn, "thresholds": thresholds, "adversarial": adversarial,
}  # fmt: skip


def _distinct(count: int, device: Callable[[], int]) -> list[int]:
    found: set[int] = set()
    for _ in range(20 * count):
        found.add(device())
        if len(found) > count:
            break
    return sorted(found - {0})[:count]


def measure(case: Case) -> dict[str, Any]:
    """The part's row."""
    with settled():
        return {"devices": _devices, "simulation": _simulation}.get(case.shape, _plans)(case)


def _plans(case: Case) -> dict[str, Any]:
    random = Random(case.seed)
    atoms = SHAPES[case.shape](case, random)
    supply = {atom: random.randrange(1, 1_000) for atom in atoms}
    policy, waiting = make(case.policy, random.randrange), _jobs(case, supply, random)
    for each in waiting:
        policy.waits(each)
    scratch = [_timed(lambda: _again(policy, supply)) for _ in range(_SCRATCH)]
    movable = _worst(policy, waiting) if case.shape == "adversarial" and isinstance(policy, Venn) else waiting
    before = _turns(policy)
    absent: set[int] = set()
    replans = [_timed(lambda: _changed(policy, movable, absent, random)) for _ in range(case.plans)]
    turns = _turns(policy) - before
    asked = [atoms[random.randrange(len(atoms))] for _ in range(case.decisions)]
    decisions = [_timed(partial(_first, policy, atom)) for atom in asked]
    return {
        "shape": case.shape, "policy": case.policy, "jobs": case.jobs, "groups": case.groups, "atoms": len(atoms),
        "replan_ms": _at(replans, 0.5, 1e6), "replan_p99_ms": _at(replans, 0.99, 1e6),
        "replan_max_ms": _at(replans, 1.0, 1e6), "turns": round(turns / max(1, case.plans), 2),
        "scratch_ms": _at(scratch, 0.5, 1e6), "decide_us": _at(decisions, 0.5, 1e3),
        "decide_p99_us": _at(decisions, 0.99, 1e3), "rss_mib": _rss_mib(),
    }  # fmt: skip


def _first(policy: CollabPolicy, atom: int) -> str | None:
    return next(iter(policy.candidates(atom)), None)


def _turns(policy: CollabPolicy) -> int:
    return policy.irs.turns if isinstance(policy, Venn) else 0


def _refreshed(policy: CollabPolicy) -> None:
    """A plan that is not kept is current at once."""
    if isinstance(policy, Venn):
        policy.irs.refresh()


def _jobs(case: Case, supply: dict[int, int], random: Random) -> list[Waiting]:
    sizes = [sum(count for atom, count in supply.items() if atom >> bit & 1) for bit in range(case.groups)]
    weights = [1] * case.groups if case.shape != "adversarial" else [1 + size for size in sizes]
    bits = random.choices(range(case.groups), weights, k=case.jobs)
    return [Waiting(f"job {n}", bit, random.randrange(1, 1_000), n, 0, _STANDING) for n, bit in enumerate(bits)]


def _worst(policy: Venn, waiting: Sequence[Waiting]) -> Sequence[Waiting]:
    """Jobs of the group with the most devices leave until one is found by which half of all turns change."""
    most = policy.irs.order[-1]
    for each in waiting:
        if each.bit == most:
            before = policy.irs.turns
            policy.left(each.job)
            policy.irs.refresh()
            if policy.irs.turns - before > len(policy.irs.order) // 2:
                policy.waits(each)
                return [each]
    return waiting


def _again(policy: CollabPolicy, supply: dict[int, int]) -> None:
    policy.supplied(supply)
    _refreshed(policy)


def _changed(policy: CollabPolicy, waiting: Sequence[Waiting], absent: set[int], random: Random) -> None:
    number = random.randrange(len(waiting))
    if number in absent:
        absent.remove(number)
        policy.waits(waiting[number])
    else:
        absent.add(number)
        policy.left(waiting[number].job)
    _refreshed(policy)


def _devices(case: Case) -> dict[str, Any]:
    """All devices work today, a few of them at the end: known are those that may not work again today."""
    random = Random(case.seed)
    book = Book(Venn(), random.randrange, MOST_DEADLINE_NS)
    least = [(random.randrange(1_000), random.randrange(1_000)) for _ in range(case.groups)]
    requirements = [Requirement(Properties.of({"memory": m, "cpu": c})) for m, c in (*least[1:], (0, 0))]
    for n in range(case.jobs):
        book.open(JobSpec(f"job {n}", "tenant", requirements[n % case.groups]), 0)
        book.request(f"job {n}", 0, 1_000_000, MOST_DEADLINE_NS, 0)
    kinds = [
        Properties.of({"memory": random.randrange(1_000), "cpu": random.randrange(1_000)}) for _ in range(case.atoms)
    ]
    empty = _rss_mib()
    took = []
    for n in range(case.decisions):
        begun = time.thread_time_ns()
        lease = book.check_in(f"device {n}", kinds[n % case.atoms], n)
        took.append(time.thread_time_ns() - begun) if n % 10 == 0 else None
        if lease is not None and n < case.decisions - _LEASES:
            book.result(lease.device, lease.number, False, n)
    return {
        "shape": "devices", "jobs": case.jobs, "groups": case.groups, "atoms": len(kinds), "devices": case.decisions,
        "leases": len(book.leases), "checkin_us": _at(took, 0.5, 1e3), "checkin_p99_us": _at(took, 0.99, 1e3),
        "rss_mib": _rss_mib(), "empty_rss_mib": empty,
    }  # fmt: skip


def _simulation(case: Case) -> dict[str, Any]:
    """The even workload at the paper's size; making the sessions does not count, nor does compiling."""
    _simulated(case, _WARM_UP_CLIENTS, 1)
    run, took_s = _simulated(case, case.decisions, case.plans)
    return {
        "shape": "simulation", "policy": case.policy, "jobs": case.jobs, "groups": 4, "atoms": 5,
        "clients": case.decisions, "check_ins": run.check_ins,
        "rounds": sum(each.completed + each.aborted for each in run.jobs.values()),
        "checkins_per_s": round(run.check_ins / took_s), "rss_mib": _rss_mib(),
    }  # fmt: skip


def _simulated(case: Case, clients: int, count: int) -> tuple[CollabRun, float]:
    """``count``: days. With the CPU time that it took, s."""
    population = Population(clients, case.seed, Shape())
    days = [population.day(number) for number in range(count)]
    jobs = jobs_of("even", case.jobs, Scale(share=1, shorter=1), 3, clients, case.seed)
    random = Random(case.seed)
    policy = make(case.policy, random.randrange)
    world = simulation(policy, random.randrange, population.devices, days.__getitem__)
    begun = time.process_time()
    run = world.run(jobs, count)
    return run, time.process_time() - begun


def _timed(act: Callable[[], object]) -> int:
    begun = time.thread_time_ns()
    act()
    return time.thread_time_ns() - begun


def _at(took_ns: list[int], part: float, unit_ns: float) -> float:
    ordered = sorted(took_ns)
    return round(ordered[min(len(ordered) - 1, int(part * len(ordered)))] / unit_ns, 4)


def _rss_mib() -> float:
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1)


def words(case: Case) -> str:
    """The command line's argument."""
    return json.dumps(asdict(case))


def main() -> int:
    """Print the part's row as JSON."""
    end_with_parent()
    print(json.dumps(measure(Case(**json.loads(sys.argv[1])))))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
