"""One run of one policy on one workload; how far policies are from the optimum of small cases."""

from __future__ import annotations

import statistics
import time
from dataclasses import asdict, dataclass
from importlib.metadata import entry_points
from random import Random
from typing import Any, Final

from offpath.cli.venn.population import Population, Shape, published
from offpath.cli.venn.workloads import Scale, category_of, jobs_of
from offpath.sched.collab.exact import SmallCase, optimum, total_of
from offpath.sched.collab.policies import COLLAB_POLICIES, epsilon_fault, make
from offpath.sched.collab.port import GROUP, CollabPolicy, Draw
from offpath.sched.collab.records import DAY_NS
from offpath.sched.errors import SchedError
from offpath.sched.sim.collab_fast import simulation

MOST_DAYS: Final = 2_000
_S: Final = 10**9


@dataclass(frozen=True, slots=True)
class World:
    """``share``, ``shorter``: see `Scale`. ``tiers``: V. Others: of `Shape`."""

    policy: str
    workload: str = "even"
    seed: int = 0
    jobs: int = 50
    share: int = 5
    shorter: int = 20
    tiers: int = 3
    epsilon: float = 0.0
    supply: float = 1.0
    sessions_per_device: float = 1.0
    diurnal: float = 0.5
    session_sigma: float = 1.5
    network_sigma: float = 1.0

    def as_arguments(self) -> dict[str, Any]:
        """For a piece of a sweep."""
        return asdict(self)

    @property
    def clients(self) -> int:
        """Of the population."""
        return int(published()["population"]["clients"]) // self.share


def policy_of(name: str, draw: Draw, epsilon: float = 0.0) -> CollabPolicy:
    """Built-in, or an entry point of another package. ``epsilon``: of Venn's. Raises: SchedError."""
    if fault := epsilon_fault(name, epsilon):
        raise SchedError(fault)
    if name not in COLLAB_POLICIES:
        for each in entry_points(group=GROUP, name=name):
            policy: CollabPolicy = each.load()(draw)
            return policy
    return make(name, draw, epsilon)


def cell(**words: Any) -> dict[str, Any]:
    """Of the run with the `World` of these words. ``unended_jobs``: those that have not ended in `MOST_DAYS`; their
    times count until then."""
    world = World(**words)
    shape = Shape(
        world.supply, world.sessions_per_device, world.diurnal, world.session_sigma, world.network_sigma
    )  # fmt: skip
    population = Population(world.clients, world.seed, shape)
    jobs = jobs_of(
        world.workload, world.jobs, Scale(world.share, world.shorter), world.tiers, world.clients, world.seed
    )
    random = Random(world.seed)
    policy = policy_of(world.policy, random.randrange, world.epsilon)
    begun = time.process_time()
    run = simulation(policy, random.randrange, population.devices, population.day).run(jobs, MOST_DAYS)
    seconds = time.process_time() - begun
    outcomes = [run.jobs[job.spec.name] for job in jobs]
    rounds = sum(each.completed for each in outcomes)
    assigned = sum(each.assigned for each in outcomes)
    last_ns = run.days * DAY_NS
    jct_s = [((each.ended_ns if each.ended_ns >= 0 else last_ns) - each.at_ns) / _S for each in outcomes]
    fair = [jct <= len(jobs) * job.spec.alone_ns / _S for job, jct in zip(jobs, jct_s, strict=True)]
    return {
        "unended_jobs": sum(each.ended_ns < 0 for each in outcomes),
        "avg_jct_s": round(statistics.fmean(jct_s), 1),
        "sched_delay_s": round(sum(each.schedule_ns for each in outcomes) / _S / max(1, rounds), 2),
        "response_s": round(sum(each.response_ns for each in outcomes) / _S / max(1, rounds), 2),
        "waste": round(sum(each.wasted for each in outcomes) / max(1, assigned), 4),
        "aborted_rounds": sum(each.aborted for each in outcomes), "rounds": rounds,
        "fair_share": round(sum(fair) / len(fair), 4), "check_ins": run.check_ins, "days": run.days,
        "checkins_per_s": round(run.check_ins / max(1e-9, seconds)),
        "jct_s": [round(each, 1) for each in jct_s], "demand": [job.demand * job.rounds for job in jobs],
        "category": [category_of(job) for job in jobs],
    }  # fmt: skip


def gaps(cases: int, seed: int, policies: list[str], limit_s: float = 10.0) -> dict[str, Any]:
    """Small cases with four requirements as in figure 8a. By policy the mean of how much longer its sum of scheduling
    delays is than the least one, over the proven cases, the largest, and how often it is the least."""
    found: dict[str, list[float]] = {name: [] for name in policies}
    unproven = 0
    for number in range(cases):
        case = small(Random(f"{seed} {number}"))
        best = optimum(case, limit_s)
        if not best.is_proven or best.total is None:
            unproven += 1
            continue
        for name in policies:
            total = total_of(policy_of(name, Random(number).randrange), case)
            if total is not None:
                found[name].append(total / best.total - 1)
    return {
        "cases": cases, "unproven": unproven,
        "policies": {
            name: {"cases": len(some), "gap": round(statistics.fmean(some), 4), "worst": round(max(some), 4),
                   "optimal": round(sum(each == 0 for each in some) / len(some), 4)}
            for name, some in found.items() if some
        },
    }  # fmt: skip


def small(random: Random) -> SmallCase:
    """3 to 6 jobs, and so many devices that each policy can serve them all."""
    masks = [0b1111, 0b0001, 0b0011, 0b0101]
    jobs = tuple((random.randrange(4), random.randrange(1, 8)) for _ in range(random.randrange(3, 7)))
    total = sum(demand for _, demand in jobs)
    arrivals = random.choices(masks, (417, 305, 78, 124), k=total)
    return SmallCase((*arrivals, *[0b1111] * total), jobs)
