"""Simulates a cluster that serves a queue of training jobs: placement, trees and sharing, until all jobs have ended.

First come first served with head-of-line blocking, as in the paper's simulator: a job that does not fit blocks those
behind it. Changes are planned at once; an operation in flight continues on its tree at its pace.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Final

from offpath.sched.errors import SchedError
from offpath.sched.ina.conflicts import NDR, Limit, components, share
from offpath.sched.ina.engine import Engine, Rule
from offpath.sched.ina.engine_kernel import FOREVER
from offpath.sched.ina.patterns import NS_PER_S, Network, Pattern, Timed, timed
from offpath.sched.ina.trees import Tree
from offpath.sched.ina.tuning import VALUES, trusts
from offpath.sched.placement.checker import fragments
from offpath.sched.placement.cluster import Cluster
from offpath.sched.placement.port import Placement, Request
from offpath.sched.sim.ina.contention import LEVELS, Links, factor, levels
from offpath.sched.sim.ina.planners import Moment, Placed, Planner, Trees
from offpath.sched.topology.graph import Topology

MIGRATION_NS: Final = 559_000_000
"""The paper's mean (§V-D): 125 ms of it to release a tree, 294 ms to get the next."""


class JobTooLarge(SchedError):
    """A job requires more hosts than exist; the queue would wait forever."""


@dataclass(frozen=True, slots=True)
class Job:
    """``pattern``: by its number; ``steps`` of training on ``hosts``, not before ``arrival_ns`` (in ticks of the
    patterns, like all times of a run)."""

    pattern: int
    hosts: int
    steps: int
    arrival_ns: int = 0


@dataclass(slots=True)
class Outcome:
    """Result of a job. ``none_ns`` and ``all_ns``: its time if none, or all, of its operations used INA, without
    sharing links; ``slowest``: the greatest factor by which other jobs slowed its plain operations."""

    job: Job
    hosts: tuple[int, ...]
    fragments: int
    started_ns: int
    none_ns: int
    all_ns: int
    ended_ns: int = 0
    ina_ns: int = 0
    with_ina: int = 0
    refused: int = 0
    migrations: int = 0
    migrations_in_flight: int = 0
    """Migrations that waited for an operation on the old tree to end, counted at that end: the only ones that the
    paper's simulator counts. A tree that is replaced by another during the wait does not count."""
    blocked_ns: int = 0
    slowest: float = 1.0

    @property
    def jct_ns(self) -> int:
        """Time from start to end: the paper's JCT, without queueing."""
        return self.ended_ns - self.started_ns


@dataclass(frozen=True, slots=True)
class Sample:
    """The cluster just after jobs started."""

    now_ns: int
    running: int
    fragments: int
    """Fragments of all running jobs' hosts."""
    free_fragments: int
    sharing: int
    """Jobs that share a tree's links with others."""
    without: int
    """Jobs of more than one host without a tree."""


@dataclass(frozen=True, slots=True)
class World:
    """All inputs except the jobs.

    ``migration_ns``: time without INA of a job that changes its tree (in the paper's figures: 0). ``limit``: the
    resource for which trees compete. ``samples``: one `Sample` per this many jobs, 0: none. ``contention``: plain
    all-reduces share links, which the paper's model ignores: factors are recomputed whenever jobs start or end, and
    apply from each job's next operation on (`contention.levels`).

    As in the simulator of the paper's figures: ``ends_one_by_one``: of jobs that end at one instant each releases its
    hosts, and others are placed and planned, before the next ends (otherwise all release first);
    ``single_hosts_use_ina``: operations of a job of one host, which send nothing, count as made with INA.
    """

    topology: Topology
    patterns: Sequence[Pattern]
    network: Network
    placement: Placement
    planner: Planner
    rule: Rule
    gpu_speedup: float = 1.0
    migration_ns: int = 0
    limit: Limit = NDR
    samples: int = 0
    compiled: bool | None = None
    fast_forward: bool = True
    contention: bool = False
    ends_one_by_one: bool = False
    single_hosts_use_ina: bool = False


class Simulation:
    """One run. Call ``run`` once; then ``outcomes`` is by job, in queue order."""

    def __init__(
        self, world: World, jobs: Sequence[Job], *, on_plan: Callable[[Trees], None] | None = None,
        clock: Callable[[], int] = lambda: 0,
    ) -> None:  # fmt: skip
        """``on_plan`` receives the trees after each planning; ``clock`` (ns) is for ``plan_ns`` only.

        Raises: JobTooLarge; ValueError: the patterns' times are in different ticks.
        """
        ticks = {each.ticks_per_s for each in world.patterns}
        if len(ticks) != 1:
            raise ValueError(f"patterns count time in {sorted(ticks)} ticks per second; one is needed")
        (self.ticks_per_s,) = ticks
        for job in jobs:
            if not 1 <= job.hosts <= world.topology.hosts:
                raise JobTooLarge(f"{job.hosts} hosts of {world.topology.hosts}")
        self.world = world
        self.jobs = sorted(jobs, key=lambda job: job.arrival_ns)
        self.outcomes: list[Outcome] = []
        self.samples: list[Sample] = []
        self.plans = 0
        self.plan_ns = 0
        """Time measured with ``clock`` during planning."""
        self._levels = LEVELS if world.contention else 1
        self._trusts = VALUES if world.rule.tuned else (Fraction(world.rule.trust),)
        variants = [
            (_slower(world, pattern, hosts, level), trust)
            for pattern in world.patterns
            for hosts in (1, 2)
            for level in range(self._levels)
            for trust in self._trusts
        ]
        self._kinds = [each for each, _ in variants]
        self._steps = [(each.none_ns, each.all_ns) for each in self._kinds]
        self.engine = Engine(
            self._kinds, len(jobs), world.rule, compiled=world.compiled, fast_forward=world.fast_forward,
            trusts=[trust for _, trust in variants],
        )  # fmt: skip
        self._cluster = Cluster(world.topology)
        self._running: dict[int, Placed] = {}
        self._trees: Trees = {}
        self._leaving: dict[int, tuple[Tree, int]] = {}
        """Jobs with an operation in flight on a tree that is no longer theirs, and its end."""
        self._moves: dict[int, int] = {}
        """By job, end of its time without INA because its tree changed."""
        self._migration = world.migration_ns * self.ticks_per_s // NS_PER_S
        self._links = Links(world.topology)
        self._rings: dict[int, tuple[int, ...]] = {}
        self._level: dict[int, int] = {}
        self._trust: dict[int, int] = {}  # index into VALUES
        self._on_plan = on_plan
        self._clock = clock

    def run(self) -> None:
        """Run to the end of the last job."""
        engine = self.engine
        while len(self.outcomes) < len(self.jobs) or self._running:
            begun = self._place()
            if begun:
                self._plan(begun)
            groups = self._share()
            if begun and self.world.samples and len(self.outcomes) % self.world.samples < len(begun):
                self._sample(groups)
            waits = len(self.outcomes) < len(self.jobs)
            arrival = self.jobs[len(self.outcomes)].arrival_ns if waits else FOREVER
            self._free(engine.run(arrival if arrival > engine.now_ns else FOREVER))

    def _free(self, ended: Sequence[int]) -> None:
        """Handle the jobs that ended at this instant. One by one, only the last leaves the placing to its caller.

        The order is a guess. The authors' simulator visits its sharing groups in the order of a hash table, and a
        group's jobs by start. In nearly all observed pairs the youngest group came first, where a group is as old as
        its oldest job.
        """
        left = list(ended)
        while self.world.ends_one_by_one and len(left) > 1:
            job = min(left, key=self._turn())
            left.remove(job)
            self._ended(job)
            begun = self._place()
            if begun:
                self._plan(begun)
        for job in left:
            self._ended(job)

    def _turn(self) -> Callable[[int], tuple[int, int]]:
        trees = {job: tree for job in self._running if (tree := self._trees.get(job))}
        oldest = {job: min(group) for group in components(trees, self.world.limit) for job in group}
        return lambda job: (-oldest.get(job, job), job)

    def _place(self) -> list[int]:
        begun = []
        while len(self.outcomes) < len(self.jobs):
            job = self.jobs[len(self.outcomes)]
            if job.arrival_ns > self.engine.now_ns:
                break
            decision = self.world.placement.place(self._cluster, Request(job.hosts))
            if not decision.is_placed:
                break
            self._cluster.take(decision.hosts)
            number = len(self.outcomes)
            kind = self._kind(job)
            none, everything = self._steps[kind]
            self._running[number] = Placed(number, decision.hosts, (none - everything) / none, self._kinds[kind])
            self.outcomes.append(
                Outcome(
                    job, decision.hosts, fragments(self.world.topology, decision.hosts), self.engine.now_ns,
                    none * job.steps, everything * job.steps,
                )
            )  # fmt: skip
            self.engine.add(number, kind, job.steps, hosts=job.hosts)
            if self.world.contention and job.hosts > 1:
                self._rings[number], self._level[number] = self._links.ring(decision.hosts), 0
            begun.append(number)
        return begun

    def _kind(self, job: Job, level: int = 0, trust: int = 0) -> int:
        slowed = (2 * job.pattern + (job.hosts > 1)) * self._levels + level
        return slowed * len(self._trusts) + trust

    def _ended(self, job: int) -> None:
        outcome = self.outcomes[job]
        progress = self.engine.progress(job)
        outcome.ended_ns = self.engine.now_ns
        outcome.with_ina, outcome.refused = progress.with_ina, progress.refused
        if len(outcome.hosts) > 1:
            outcome.ina_ns = progress.ina_ns
        elif self.world.single_hosts_use_ina:
            pattern = self._kinds[self._kind(outcome.job)]
            outcome.ina_ns = outcome.job.steps * sum(pattern.ina)
            outcome.with_ina = outcome.job.steps * len(pattern.ina)
        self._land(job)
        self._cluster.release(outcome.hosts)
        del self._running[job]
        self._trees.pop(job, None)
        self._rings.pop(job, None)
        self._moves.pop(job, None)

    # -- trees ----------------------------------------------------------------------------------------------------
    def _plan(self, begun: Sequence[int]) -> None:
        self.plans += 1
        self._landed()
        in_use: list[Tree] = []
        if self.world.planner.reads_traffic:
            for job, tree in self._trees.items():
                if tree is not None and tree.links and self.engine.uses_until_ns(job) is not None:
                    in_use.append(tree)
        former = self._trees
        moment = Moment(self.world.topology, tuple(self._running.values()), begun, former, in_use)
        begin_ns = self._clock()
        self._trees = self.world.planner.plan(moment)
        self.plan_ns += self._clock() - begin_ns
        if self._on_plan is not None:
            self._on_plan(self._trees)
        for job, tree in former.items():
            now = self._trees.get(job)
            if tree is None or now == tree:
                continue
            until = self.engine.uses_until_ns(job)
            if until is not None:
                self._leaving.setdefault(job, (tree, until))
            if now is not None:
                self.outcomes[job].migrations += 1
                if self._migration:
                    free = (until or self.engine.now_ns) + self._migration
                    self._moves[job] = max(self._moves.get(job, 0), free)
                    self.outcomes[job].blocked_ns += self._migration
        self._block()

    def _block(self) -> None:
        """Block INA for jobs while they move, or while a tree that is being left conflicts with theirs: an operation in
        flight keeps its tree to its end."""
        for job in self._running:
            new = self._trees.get(job)
            ways = [
                until
                for other, (tree, until) in self._leaving.items()
                if other != job and new and share(tree, new, self.world.limit)
            ]
            self.engine.block(job, max([*ways, self._moves.get(job, 0)]))

    def _landed(self) -> None:
        for job, (_, until) in list(self._leaving.items()):
            if until <= self.engine.now_ns:
                self._land(job)

    def _land(self, job: int) -> None:
        """The operation that kept the job's old tree ended: the job takes its new tree now."""
        tree, _ = self._leaving.pop(job, (None, 0))
        now = self._trees.get(job)
        if tree is not None and now is not None and now != tree:
            self.outcomes[job].migrations_in_flight += 1

    def _share(self) -> list[list[int]]:
        trees = {job: tree for job in self._running if (tree := self._trees.get(job))}
        parts = [sorted(each) for each in components(trees, self.world.limit)]
        groups = [each for each in parts if len(each) > 1]
        conflicts: Mapping[int, list[int]] = {}
        if self.world.rule.by_tree:
            conflicts = {
                job: [other for other in group if other != job and share(trees[job], trees[other], self.world.limit)]
                for group in groups
                for job in group
            }
        alone = [each[0] for each in parts if len(each) == 1]
        if self.world.contention:
            self._contend(alone, groups)
        if self.world.rule.tuned:
            self._tune(groups)
        self.engine.share(alone, [job for job in self._running if job not in trees], groups, conflicts)
        return groups

    def _contend(self, alone: Sequence[int], groups: Sequence[Sequence[int]]) -> None:
        """Set how much other jobs slow each job down now. A job with its own tree sends nothing plain; each of n jobs
        that share a tree has it for one n-th of the time."""
        sends = dict.fromkeys(self._rings, 1.0)
        if self.world.rule.capacity:
            sends |= dict.fromkeys(alone, 0.0)
            sends |= {job: 1.0 - 1.0 / len(group) for group in groups for job in group}
        plain = {job: sends[job] * self._busy(self.jobs[job]) for job in self._rings}
        for job, level in levels(self._rings, plain).items():
            if level != self._level[job]:
                self._level[job] = level
                kind = self._kind(self.jobs[job], level, self._trust.get(job, 0))
                self.engine.change(job, kind)
                none, everything = self._steps[kind]
                self._running[job] = replace(
                    self._running[job], gain=(none - everything) / none, pattern=self._kinds[kind]
                )
                self.outcomes[job].slowest = max(self.outcomes[job].slowest, factor(level))

    def _tune(self, groups: Sequence[Sequence[int]]) -> None:
        """Set each group's jobs to the trust that is best for the group, as if links were not shared."""
        for group in groups:
            known = sorted(group, key=lambda job: self._kind(self.jobs[job]))  # equal groups then hit the cache
            patterns = tuple(self._kinds[self._kind(self.jobs[job])] for job in known)
            for job, trust in zip(known, trusts(patterns, compiled=self.world.compiled), strict=True):
                place = VALUES.index(trust)
                if place != self._trust.get(job, 0):
                    self._trust[job] = place
                    self.engine.change(job, self._kind(self.jobs[job], self._level.get(job, 0), place))

    def _busy(self, job: Job) -> float:
        """The part of a step in which the job sends, without INA and other jobs."""
        kind = self._kind(job)
        return sum(self._kinds[kind].plain) / self._steps[kind][0]

    def _sample(self, groups: Sequence[Sequence[int]]) -> None:
        without = sum(1 for job, each in self._running.items() if len(each.hosts) > 1 and not self._trees.get(job))
        self.samples.append(
            Sample(
                self.engine.now_ns,
                len(self._running),
                sum(self.outcomes[job].fragments for job in self._running),
                fragments(self.world.topology, list(self._cluster.free_hosts())),
                sum(map(len, groups)),
                without,
            )
        )


def _slower(world: World, pattern: Pattern, hosts: int, level: int) -> Timed:
    """``pattern`` with shared links; network aggregation is not slowed."""
    alone = timed(pattern, world.network, hosts=hosts, gpu_speedup=world.gpu_speedup)
    slow = replace(world.network, bandwidth=world.network.bandwidth / factor(level))
    return replace(alone, plain=timed(pattern, slow, hosts=hosts).plain)
