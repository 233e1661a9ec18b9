"""The paper's workloads of federated jobs (§5.1, §5.4), drawn by a seed.

A job is one of the 33 of the authors' configuration. Each needs one of four classes of devices, at random: of a biased
workload half of the jobs need its class, and the others each of the other three equally often. The authors' program
never reads the bias of its configurations; it gives the classes in turn, also where a workload is called biased.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Final

from offpath.cli.venn.population import NETWORK_S, SPEED, S, published
from offpath.sched.collab.records import JobSpec
from offpath.sched.collab.requirements import Properties, Requirement
from offpath.sched.sim.collab_records import CollabJob

CATEGORIES: Final = ("general", "compute", "memory", "high-performance")
REQUIREMENTS: Final = (
    Requirement(Properties.of({"android": 6})),
    Requirement(Properties.of({"cpu_f": 7})),
    Requirement(Properties.of({"fp16": 1_000})),
    Requirement(Properties.of({"cpu_f": 7, "fp16": 1_000})),
)
BIASED: Final = {"general": 0, "compute-heavy": 1, "memory-heavy": 2, "resource-heavy": 3}
WORKLOADS: Final = ("even", "small", "large", "low", "high", *BIASED)
APART_S: Final = 1_800.0
"""Mean time between arrivals."""


@dataclass(frozen=True, slots=True)
class Scale:
    """``share``: clients and participants are divided by it. ``shorter``: rounds and the time between arrivals are."""

    share: int = 20
    shorter: int = 1


def jobs_of(workload: str, count: int, scale: Scale, tiers: int, clients: int, seed: int) -> list[CollabJob]:
    """``clients``: of the population, to estimate how long a job needs alone."""
    random = Random(f"{workload} {seed}")
    data = published()
    ids = data["workloads"].get(workload, data["workloads"]["even"])
    at_s, found = 3_600.0, []
    for number in range(count):
        participants, rounds, deadline_s, work = data["jobs"][random.choice(ids)]
        category = _category(workload, random)
        demand, rounds = max(1, participants // scale.share), max(1, rounds // scale.shorter)
        spec = JobSpec(
            f"{number}-{CATEGORIES[category]}", "tenant", REQUIREMENTS[category], speed=SPEED, tiers=tiers,
            alone_ns=round(rounds * _alone_s(demand, category, work, clients) * S),
        )  # fmt: skip
        found.append(CollabJob(spec, round(at_s * S), rounds, demand, deadline_s * S, work))
        at_s += random.expovariate(scale.shorter / APART_S)
    return found


def category_of(job: CollabJob) -> str:
    """Of `CATEGORIES`."""
    return CATEGORIES[REQUIREMENTS.index(job.spec.requirement)]


def _category(workload: str, random: Random) -> int:
    if workload not in BIASED:
        return random.randrange(len(CATEGORIES))
    mine = BIASED[workload]
    others = [each for each in range(len(CATEGORIES)) if each != mine]
    return mine if random.random() < 0.5 else random.choice(others)


def _alone_s(demand: int, category: int, work: int, clients: int) -> float:
    """A round without other jobs: every eligible client once a day, and the mean client's work."""
    classes = published()["classes"]
    able = sum(each["devices"] for each in classes if category + 1 in each["eligible"])
    a_second = clients * able / sum(each["devices"] for each in classes) / 86_400
    return demand / a_second + work + NETWORK_S
