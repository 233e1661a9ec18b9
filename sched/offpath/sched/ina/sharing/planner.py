"""The controller's planner: trees and shares from its policies, laid out for ranks.

It is called at every event and computes a new plan only if one of its inputs changed: jobs, switches, mode, turn, a
job's step.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Final, Protocol

from offpath.sched.errors import SchedError
from offpath.sched.ina import patterns
from offpath.sched.ina.conflicts import Limit, Per
from offpath.sched.ina.protocol import events
from offpath.sched.ina.protocol.records import Step, Wants
from offpath.sched.ina.sharing.layout import TreeUnusable, lay
from offpath.sched.ina.sharing.policies import (
    Plan,
    Share,
    Sharing,
    TreeBuilder,
    grouped,
    one_root,
)
from offpath.sched.ina.trees import Tree, within
from offpath.sched.ina.tuning import DEFAULT
from offpath.sched.topology.graph import Topology

MS: Final = 1_000_000
_UNKNOWN_PERCENT: Final = round(100 * DEFAULT)
"""Expectation for a job without known values."""
_STEADY: Final = 0.2
"""A step counts as unchanged if its length changes by at most this part: a new epoch per measurement is of no use."""


class SwitchUnknown(SchedError):
    """A name of none of the aggregating switches."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings that operators change at run time. ``capacity``: operations that a switch has room for."""

    mode: str
    capacity: int = 1
    alternate_ms: int = 1000
    link_bytes_per_s: float = 12.5e9
    latency_us: float = 50.0


def network(settings: Settings, ranks: int) -> patterns.Network:
    """The Plan's times if a rank's link is the bottleneck: an all-reduce of B bytes moves 2(n-1)/n·B over it as a ring,
    and B through the switch."""
    ring = 2 * (ranks - 1) / ranks
    return patterns.Network(settings.link_bytes_per_s / ring, ring, round(settings.latency_us * 1e3))


class Tuning(Protocol):
    """Computes what each job of a group should expect of INA. Results may arrive later: see ``found``."""

    @property
    def found(self) -> int:
        """Number of groups with results so far. It grows when a new plan may use more results."""

    def trusts(self, groups: Iterable[Sequence[patterns.Timed]]) -> list[tuple[Fraction, ...] | None]:
        """`decision.Epoch.trust` of each job of each group of the plan in progress; None: not known yet."""


class Planner:
    """Callable as `events.Planner`. ``addresses``: of the aggregating switches, by name."""

    def __init__(
        self, topology: Topology, addresses: Mapping[str, str], builder: TreeBuilder, sharing: Sharing,
        settings: Settings, tuner: Tuning,
    ) -> None:  # fmt: skip
        self._topology = topology
        self._numbers = {name: number for number, name in enumerate(topology.names)}
        self._tuner = tuner
        self._trust: dict[str, int] = {}
        """In percent, by job: see `_steps`."""
        self._addresses = addresses
        self._builder, self._sharing = builder, sharing
        self.settings = settings
        self._patterns: dict[tuple[str, int], patterns.Pattern] = {}
        self.plan = Plan({}, {}, {}, {})
        """The newest plan, by job name."""
        self._only: dict[str, tuple[int, ...]] = {}
        """Switches that a job's tree may use, by job; a job that is not here may use all."""
        self._seen: object = None
        self._assignments: Mapping[str, events.Assignment] = {}
        self._changes = 0

    def name_of(self, node: int) -> str:
        """Name of a host or switch."""
        return self._topology.names[node]

    def set(self, settings: Settings, sharing: Sharing) -> None:
        """Use these from now on."""
        self.settings, self._sharing = settings, sharing
        self._changes += 1

    # -- jobs that may use some switches only --------------------------------------------------------------------------
    def check_switches(self, hosts: Sequence[str], switches: Sequence[str]) -> None:
        """A tree over ``hosts`` exists within ``switches``; without switches none is needed.

        Raises: SwitchUnknown: one of them does not aggregate. TreeUnusable: there is no such tree.
        """
        if odd := [each for each in switches if each not in self._addresses]:
            raise SwitchUnknown(f"{odd[0]}: no aggregating switch has this name")
        numbers = self._topology.host_numbers
        if switches and not within(self._topology, sorted({numbers[host] for host in hosts}), self._nodes(switches)):
            raise TreeUnusable(f"no tree over {', '.join(hosts)} exists within {', '.join(switches)}"[:400])

    def restrict(self, job: str, switches: Sequence[str] | None) -> None:
        """The job's tree uses only these switches from now on; None: any. Names that do not aggregate are no switches
        of a tree."""
        nodes = None if switches is None else self._nodes([each for each in switches if each in self._addresses])
        if nodes != self._only.get(job):
            self._changes += 1
            if nodes is None:
                del self._only[job]
            else:
                self._only[job] = nodes

    def _nodes(self, switches: Sequence[str]) -> tuple[int, ...]:
        return tuple(sorted(self._numbers[each] for each in switches))

    def _trees(self, jobs: Mapping[str, tuple[int, ...]], limit: Limit) -> dict[str, Tree]:
        """Trees of the jobs, in the order of their arrival. A restricted job keeps its tree, or gets the first that the
        restriction leaves; normally there is one."""
        free = {job: hosts for job, hosts in jobs.items() if job not in self._only}
        former = {job: tree for job, tree in self.plan.trees.items() if job in free}
        built = dict(self._builder.build(self._topology, free, former, limit)) if free else {}
        for job in jobs.keys() - free.keys():
            found = within(self._topology, jobs[job], self._only[job])
            if found:
                kept = self.plan.trees.get(job)
                built[job] = kept if kept is not None and kept in found else found[0]
        return {job: built[job] for job in jobs if job in built}

    def measured(self, job: str, incarnation: int, data: Any) -> bool:
        """Take a job's pattern as measured by its ranks; ignore invalid data. True: the pattern is now in use."""
        try:
            pattern = patterns.parse(job, data)
        except SchedError:
            return False
        before = self._patterns.get((job, incarnation))
        if before is not None and _is_alike(before, pattern):
            return False
        self._patterns = {key: each for key, each in self._patterns.items() if key[0] != job or key[1] > incarnation}
        self._patterns[job, incarnation] = pattern
        self._changes += 1
        return True

    def pattern(self, job: str, incarnation: int) -> patterns.Pattern | None:
        """The pattern in use."""
        return self._patterns.get((job, incarnation))

    def __call__(
        self, views: tuple[events.JobView, ...], capacities: Mapping[str, int], now_ns: int
    ) -> Mapping[str, events.Assignment]:
        """See `events.Planner`. Jobs keep their tree if it is still suitable."""
        turn = now_ns // (self.settings.alternate_ms * MS) if self.settings.mode == "alternate" else 0
        seen = (
            self._changes,
            self._tuner.found,
            turn,
            tuple((v.job, v.incarnation, v.hosts) for v in views),
            frozenset(capacities),
        )
        if seen != self._seen:
            self._seen = seen
            self._plan(views, capacities.keys(), turn)
        return self._assignments

    def _plan(self, views: Iterable[events.JobView], up: Iterable[str], turn: int) -> None:
        numbers = self._topology.host_numbers
        without: dict[str, str] = {}
        ranks: dict[str, tuple[int, ...]] = {}
        for view in views:
            if unknown := sorted(set(view.hosts) - numbers.keys()):
                without[view.job] = f"{unknown[0]} is not a host of the topology"
            elif len(set(view.hosts)) < 2:
                without[view.job] = "it has one host, so there is nothing to aggregate"
            elif self.settings.mode == "none":
                without[view.job] = "the mode is none"
            else:
                ranks[view.job] = tuple(numbers[host] for host in view.hosts)
        jobs = {job: tuple(sorted(set(hosts))) for job, hosts in ranks.items()}
        limit = Limit(Per.SWITCH, self.settings.capacity)
        built = self._trees(jobs, limit)
        without |= {job: self._why_without(job) for job in jobs if job not in built}
        trees, apart = one_root(built, limit)
        without |= apart
        laid: dict[str, events.Tree] = {}
        up_now = set(up)
        for job, tree in list(trees.items()):
            try:
                laid[job] = self._laid(job, tree, ranks[job])
                down = sorted(part.switch for part in laid[job].parts if part.switch not in up_now)
                if down:
                    raise TreeUnusable(f"unreachable: {', '.join(down)}")
            except TreeUnusable as fault:
                without[job] = str(fault)
        groups = grouped({job: trees[job] for job in trees if job not in without}, limit, list(jobs))
        shares: dict[str, Share] = {}
        for group in groups.values():
            now = self._sharing.share(group, turn)
            shares |= now
            without |= {job: "it is another job's turn at the root" for job in group if job not in now}
        self.plan = Plan(trees, groups, shares, without)
        steps = self._steps([view for view in views if view.job in shares], shares, groups.values())
        self._assignments = {
            job: events.Assignment(laid[job], self._group(job, groups), share.wants, share.is_shared, steps.get(job))
            for job, share in shares.items()
        }

    def _why_without(self, job: str) -> str:
        if job not in self._only:
            return "every candidate tree conflicts with several groups"
        names = ", ".join(map(self.name_of, self._only[job]))
        return f"no tree over its hosts exists within {names or 'no switches'}, to which its submitter restricts it"

    def _group(self, job: str, groups: Mapping[int, tuple[str, ...]]) -> str:
        """Jobs that take turns have one group; in the mode ``all`` each job is in a group of its own."""
        if self.settings.mode == "all":
            return job
        return next(f"at {self._topology.names[root]}" for root, jobs in groups.items() if job in jobs)

    def _laid(self, job: str, tree: Tree, ranks: tuple[int, ...]) -> events.Tree:
        names = self._topology.names
        laid = lay(self._topology, tree, ranks, self._addresses)
        path = "+".join(names[switch] for switch in tree.switches)
        return events.Tree(f"{names[tree.root]}:{path}"[:255], laid.parts, laid.attach)

    def _steps(
        self, views: Iterable[events.JobView], shares: Mapping[str, Share], groups: Iterable[Sequence[str]]
    ) -> dict[str, Step]:
        """Steps of jobs with a known pattern; jobs that share by the Plan get the trust computed for their group. Until
        it is known they keep their old one: a job's new pattern alone causes no new epoch for the others, only the
        result does."""
        timed = {view.job: each for view in views if (each := self._timed(view)) is not None}
        sharing = [[job for job in group if job in shares and shares[job].wants is Wants.PLAN] for group in groups]
        sharing = [jobs for jobs in sharing if len(jobs) > 1 and all(job in timed for job in jobs)]
        found = self._tuner.trusts([timed[job] for job in jobs] for jobs in sharing)
        for jobs, trusts in zip(sharing, found, strict=True):
            if trusts is not None:
                self._trust |= {job: round(100 * each) for job, each in zip(jobs, trusts, strict=True)}
        self._trust = {job: percent for job, percent in self._trust.items() if job in timed}
        return {
            job: Step(each.duration_ns, each.starts, each.plain, each.ina, self._trust.get(job, _UNKNOWN_PERCENT))
            for job, each in timed.items()
        }

    def _timed(self, view: events.JobView) -> patterns.Timed | None:
        pattern = self._patterns.get((view.job, view.incarnation))
        return None if pattern is None else patterns.timed(pattern, network(self.settings, len(view.hosts)))


def _is_alike(one: patterns.Pattern, other: patterns.Pattern) -> bool:
    """True for the same operations in a step of about the same length."""
    if [each.nbytes for each in one.operations] != [each.nbytes for each in other.operations]:
        return False
    return abs(one.duration_ns - other.duration_ns) <= _STEADY * one.duration_ns


def settings_of(settings: Settings, mode: str, capacity: int, link_bytes_per_s: float | None) -> Settings:
    """``settings`` with an operator's changes."""
    rate = settings.link_bytes_per_s if link_bytes_per_s is None else link_bytes_per_s
    return replace(settings, mode=mode, capacity=capacity, link_bytes_per_s=rate)
