"""The integer program's plan can be carried out; brute force finds no better one; no policy serves more jobs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from random import Random

import pytest

from offpath.sched.inc import flavors
from offpath.sched.inc.baselines import K8s, Sparrow, Yarn
from offpath.sched.inc.errors import Unhostable
from offpath.sched.inc.exact import Served, most_served
from offpath.sched.inc.hire import Hire
from offpath.sched.inc.poly import PolyReq, TaskGroup
from offpath.sched.inc.readings import READINGS
from offpath.sched.inc.request import Composite, CompReq, Servers
from offpath.sched.inc.resources import Resources, ServerSpec
from offpath.sched.inc.scarcity import check_hostable
from offpath.sched.inc.scheduler import Scheduler
from offpath.sched.inc.transform import transform
from offpath.sched.inc.variants import Mode
from offpath.sched.topology.fattree import leaf_spine

from ...sizes import SIZE, sized
from .requests import STORE
from .worlds import cluster

SEEDS = sized(quick=6, fast=6, slow=25, full=300)


def small(seed: int, *, is_shared: bool = True) -> Resources:
    """At most 12 nodes."""
    draw = Random(seed)
    topology = leaf_spine(draw.randint(1, 3), draw.randint(1, 2), draw.randint(1, 2))
    drawn = cluster(topology, seed=seed)
    servers = [ServerSpec((draw.randint(4, 16) * 1_000, 16_384))] * topology.hosts
    return Resources(topology, servers, drawn.switches, is_shared=is_shared)


def jobs(seed: int, resources: Resources, count: int = 6) -> list[PolyReq]:
    """Hostable ones, each of one or two composites."""
    draw = Random(seed)
    found: list[PolyReq] = []
    for n in range(count):
        parts = tuple(
            Composite(f"c{m}", draw.choice(("server", "cache", "coordinator", "aggregate", "replicate", "balance")),
                      Servers(draw.randint(1, 4), draw.randint(1, 6) * 1_000, draw.randint(1, 8) * 1_024))
            for m in range(draw.randint(1, 2))
        )  # fmt: skip
        poly = transform(CompReq(f"j{n}", parts), STORE)
        try:
            check_hostable(resources, poly)
        except Unhostable:
            continue
        found.append(poly)
    return found


def carry_out(resources: Resources, requests: list[PolyReq], plan: Served) -> None:
    """Starts all of it; the oracle objects if it does not fit. Each served job has exactly one flavor, whole."""
    for request in requests:
        groups = [each for each in request.groups if each.id in plan.places]
        if request.job not in plan.jobs:
            assert groups == []
            continue
        active = flavors.joint((each.flavor for each in groups), len(request.active))
        selected = [each for each in request.groups if flavors.status(each.flavor, active) is flavors.Status.SELECTED]
        assert selected == groups
        for group in groups:
            assert sum(plan.places[group.id].values()) == group.tasks
            for node, tasks in plan.places[group.id].items():
                for _ in range(tasks):
                    resources.start(group, node)


def served_by(policy: Scheduler, requests: list[PolyReq], rounds: int = 40) -> Counter[str]:
    """Jobs all of whose tasks run at the end, and those of them that chose switches; nothing ends by itself."""
    for request in requests:
        policy.submit(request, 0)
    for n in range(rounds):
        policy.round(400 * n)  # type: ignore[attr-defined]
    served = [job for job in policy.jobs.values() if not job.materialized() and not job.undecided()]
    on_switches = [job for job in served if any(each.implementation != "server" for each in job.decided.values())]
    return Counter(jobs=len(served), on_switches=len(on_switches))


POLICIES: dict[str, Callable[[int], Scheduler]] = {
    **{name: lambda seed, each=each: Hire(small(seed), each) for name, each in READINGS.items()},
    **{f"{name}, no gangs": lambda seed, each=READINGS[name]: Hire(small(seed), each, gang_ms=None)
       for name in ("hire-paper", "hire-code")},
    **{f"{kind.name}, {mode}": lambda seed, kind=kind, mode=mode: kind(
        small(seed, is_shared=False), mode, fallback_ms=4_000) for kind in (K8s, Yarn, Sparrow) for mode in Mode},
}  # fmt: skip
IN_CI = ("hire", "hire-paper", "k8++, timeout")


def test_plans_can_be_carried_out_and_no_policy_serves_more() -> None:
    """docs/hire.md has the table of the full size."""
    served: dict[str, Counter[str]] = {"optimum": Counter()}
    for seed in range(SEEDS):
        resources = small(seed)
        requests = jobs(seed, resources)
        plan = most_served(resources, requests)
        assert plan.is_proven, seed
        carry_out(small(seed), requests, plan)
        served["optimum"]["jobs"] += len(plan.jobs)
        for name in POLICIES if SIZE == "full" else IN_CI:
            found = served_by(POLICIES[name](seed), requests)
            assert found["jobs"] <= len(plan.jobs), (seed, name)
            served.setdefault(name, Counter()).update(found)
    for name, found in served.items():
        print(f"{name}: {dict(found)}")
    assert 0.8 * served["optimum"]["jobs"] <= served["hire"]["jobs"]
    if SIZE == "full":
        assert served["hire"]["jobs"] == max(found["jobs"] for name, found in served.items() if name != "optimum")


# -- brute force ---------------------------------------------------------------------------------------------------
def brute_force(resources: Resources, requests: list[PolyReq]) -> int:
    """Tries every flavor and every node for every task, by the oracle."""
    if not requests:
        return 0
    first, rest = requests[0], requests[1:]
    best = brute_force(resources, rest)  # without it
    for groups in every_flavor(first):
        with closing(every_placement(resources, [each for each in groups for _ in range(each.tasks)], -1)) as places:
            for _ in places:
                best = max(best, 1 + brute_force(resources, rest))
                if best == len(requests):
                    return best
    return best


def every_flavor(request: PolyReq, active: str | None = None) -> Iterator[list[TaskGroup]]:
    active = request.active if active is None else active
    statuses = request.statuses(active)
    if undecided := [each for each in request.groups if statuses[each.id] is flavors.Status.UNDECIDED]:
        composite = undecided[0].composite
        for flavor in dict.fromkeys(each.flavor for each in undecided if each.composite == composite):
            yield from every_flavor(request, flavors.chosen(flavor, active))
    else:
        yield [each for each in request.groups if statuses[each.id] is flavors.Status.SELECTED]


def every_placement(resources: Resources, tasks: list[TaskGroup], after: int) -> Generator[None, None, None]:
    """Equal tasks in the order of their nodes only. While it yields, they run."""
    if not tasks:
        yield
        return
    group, rest = tasks[0], tasks[1:]
    for node in range(max(0, after), resources.topology.nodes):
        if resources.fits(group, node):
            resources.start(group, node)
            try:
                yield from every_placement(resources, rest, node if rest and rest[0] is group else -1)
            finally:
                resources.stop(group, node)


@pytest.mark.parametrize("seed", range(12))
def test_the_optimum_is_that_of_brute_force(seed: int) -> None:
    draw = Random(seed)
    topology = leaf_spine(draw.randint(1, 2), 1, 1)
    drawn = cluster(topology, seed=seed)
    resources = Resources(topology, [ServerSpec((6_000, 8_192))] * topology.hosts, drawn.switches)
    requests = [each for each in jobs(seed, resources) if sum(group.tasks for group in each.groups) <= 14][:3]
    assert len(most_served(resources, requests).jobs) == brute_force(resources, requests)


def test_as_printed_an_unselected_group_makes_a_job_unschedulable_as_corrected_not() -> None:
    """The coordinator's netchain needs three switches; there are two. On servers the job is served."""
    resources = small(0)
    poly = transform(CompReq("j", (Composite("c", "coordinator", Servers(1, 1, 1)),)), STORE)
    plan = most_served(resources, [poly])
    assert plan.jobs == ("j",)
    assert len(plan.places) == 1, "the groups of one flavor only"
