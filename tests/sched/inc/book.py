"""A policy of `sched.inc` under random events, and beside it a book of what its decisions add up to."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

from offpath.sched.inc.decisions import Decision, FlavorChosen, Placed, Postponed, Preempted, Stopped
from offpath.sched.inc.errors import Unhostable
from offpath.sched.inc.flavors import Status
from offpath.sched.inc.hire import Hire
from offpath.sched.inc.network import Limits
from offpath.sched.inc.readings import HIRE, Reading
from offpath.sched.inc.request import CompReq
from offpath.sched.inc.resources import Resources
from offpath.sched.inc.transform import transform
from offpath.sched.topology.fattree import leaf_spine

from .requests import STORE
from .worlds import cluster, random_request

ROUND_MS = 400


def of_kind(decisions: list[Decision], kind: type) -> list[Any]:
    return [each for each in decisions if isinstance(each, kind)]


class World:
    """A policy, and beside it a book of what its decisions add up to."""

    def __init__(self, seed: int, reading: Reading = HIRE, resources: Resources | None = None) -> None:
        self.use(Hire(resources or cluster(leaf_spine(3, 2, 2), seed=seed), reading, Limits(groups=24, flavors=3)))

    def use(self, scheduler: Any) -> None:
        """Another policy instead; nothing runs yet."""
        self.hire = scheduler
        self.idle = self.hire.resources.state()
        self.running: Counter[tuple[tuple[str, str], int]] = Counter()
        self.chosen: dict[tuple[str, str], str] = {}
        self.now = 0
        self.log: list[Decision] = []

    def submit(self, request: CompReq) -> None:
        self.hire.submit(transform(request, STORE, self.hire.earlier()), self.now)

    def take(self, decisions: list[Decision]) -> list[Decision]:
        """Add up, and check each decision against the book."""
        for each in decisions:
            if isinstance(each, FlavorChosen):
                assert (each.job, each.composite) not in self.chosen, "a flavor is chosen once"
                self.chosen[each.job, each.composite] = each.implementation
            elif isinstance(each, Preempted):
                assert self.chosen.pop((each.job, each.composite)) == each.implementation
            elif isinstance(each, Placed):
                self.running[each.group, each.node] += each.tasks
            elif isinstance(each, Stopped):
                self.running[each.group, each.node] -= each.tasks
                assert self.running[each.group, each.node] >= 0
        self.running = +self.running
        self.log += decisions
        self.check()
        return decisions

    def round(self) -> list[Decision]:
        self.now += ROUND_MS
        decisions = self.take(self.hire.round(self.now))
        if isinstance(self.hire, Hire):
            placed = Counter(each.node for each in of_kind(decisions, Placed))
            passes = self.hire.network.reading.passes
            assert len(self.hire.repeated) < passes
            assert sum(self.hire.repeated) <= self.hire.limits.groups
            if passes == 1:
                assert max(placed.values(), default=0) <= 1
            assert max(Counter(each.job for each in of_kind(decisions, FlavorChosen)).values(), default=0) <= passes
        self.check_reported(decisions)
        return decisions

    def check(self) -> None:
        resources = self.hire.resources
        for node in range(resources.topology.nodes):
            assert resources.running(node) == Counter(
                {group: count for (group, at), count in self.running.items() if at == node}
            )
            assert all(0 <= a <= b for a, b in zip(resources.used(node), resources.capacity(node), strict=True))
        for (name, group_id), node in self.running:
            job = self.hire.jobs[name]
            group = job.request.by_id[name, group_id]
            assert group.is_inc == (node >= resources.topology.hosts), "a server task on a switch, or the reverse"
            assert job.request.statuses(job.active)[group.id] is Status.SELECTED, "exactly one flavor"
            assert sum(resources.nodes_of(group.id).values()) == job.started[group.id] - job.ended.get(group.id, 0)

    def check_reported(self, decisions: list[Decision]) -> None:
        """Everything that waits is reported as postponed, with a reason, once."""
        postponed = Counter({each.group: each.tasks for each in of_kind(decisions, Postponed)})
        waits = Counter[tuple[str, str]]()
        for job in self.hire.jobs.values():
            for group in (*job.materialized(), *job.undecided()):
                waits[group.id] = job.waiting(group)
        assert postponed == waits
        assert len(of_kind(decisions, Postponed)) == len(postponed)
        assert all(each.reason.text for each in decisions)


def drive(world: World, draw: Random, steps: int = 14) -> World:
    """Random events, and a round after each."""
    hire, nodes = world.hire, world.hire.resources.topology.nodes
    for step in range(steps):
        kind = draw.random()
        if kind < 0.5:
            try:
                world.submit(random_request(draw, f"j{step}"))
            except Unhostable:
                assert f"j{step}" not in hire.jobs
        elif kind < 0.6 and hire.jobs:
            world.take(hire.cancel(draw.choice(sorted(hire.jobs))))
        elif kind < 0.8:
            node = draw.randrange(nodes)
            if hire.resources.is_lost(node):
                hire.restore(node)
            else:
                world.take(hire.lose(node, world.now))
        elif world.running:
            group, node = draw.choice(sorted(world.running))
            world.running[group, node] -= 1
            world.running = +world.running
            hire.ended(group, node)
        world.round()
    return world


def rounds(world: World, count: int) -> list[Decision]:
    return [each for _ in range(count) for each in world.round()]


def end(world: World) -> None:
    """All jobs are cancelled; nothing is left."""
    for job in sorted(world.hire.jobs):
        world.take(world.hire.cancel(job))
    for node in range(world.hire.resources.topology.nodes):
        world.hire.restore(node)
    assert world.hire.resources.state() == world.idle
    assert not world.running
