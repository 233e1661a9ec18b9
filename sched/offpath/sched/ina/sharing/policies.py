"""Assigns trees to jobs and shares roots among them: the built-in policies, and checks for any policy. Pure.

Arbitration happens at one root. Jobs may therefore share what their trees compete for only if the trees have the same
root; a job that would meet another elsewhere gets another tree, or none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Final, Protocol

from offpath.sched.errors import SchedError
from offpath.sched.ina.conflicts import Limit, components
from offpath.sched.ina.groups import plan
from offpath.sched.ina.protocol.records import Wants
from offpath.sched.ina.sharing.layout import TreeUnusable, roles
from offpath.sched.ina.trees import Tree, candidates
from offpath.sched.topology.graph import Topology

MODES: Final = ("none", "all", "exclusive", "alternate", "trylock", "shared")


class PolicyFault(SchedError):
    """A policy returned an unusable answer and is no longer used."""


@dataclass(frozen=True, slots=True)
class Share:
    """How a job may use its tree. ``is_shared``: other jobs may be on it."""

    wants: Wants
    is_shared: bool


Hosts = Mapping[str, tuple[int, ...]]
"""Hosts of each job that could use a tree, in order of arrival."""
Trees = Mapping[str, Tree]


class TreeBuilder(Protocol):
    """Builds a tree for each job that should have one."""

    name: str

    def build(self, topology: Topology, jobs: Hosts, former: Trees, limit: Limit) -> Trees:
        """``former``: the current trees of the jobs; keeping one is free."""


class Sharing(Protocol):
    """Decides which jobs of a group may use the root now, and how."""

    name: str

    def share(self, group: Sequence[str], turn: int) -> Mapping[str, Share]:
        """``group``: jobs with trees of one root, in order of arrival; ``turn`` counts up."""


class Mina:
    """MINA's categories (`sched.ina.groups`) with ``k`` candidates per job, drawn once for its hosts."""

    name = "mina"

    def __init__(self, k: int, random: Random) -> None:
        self._k, self._random = k, random
        self._drawn: dict[tuple[int, ...], tuple[Tree, ...]] = {}

    def build(self, topology: Topology, jobs: Hosts, former: Trees, limit: Limit) -> Trees:
        """See `TreeBuilder`."""
        names = list(jobs)
        self._drawn = {
            hosts: self._drawn.get(hosts) or candidates(topology, hosts, self._k, self._random)
            for hosts in jobs.values()
        }
        drawn = {n: self._drawn[jobs[name]] for n, name in enumerate(names)}
        held = {n: former[name] for n, name in enumerate(names) if name in former}
        found = plan(drawn, held, limit)
        trees = {names[n]: tree for n, tree in found.trees.items()}
        return {name: trees[name] for name in names if name in trees}


class Mode:
    """The built-in modes of sharing a root."""

    def __init__(self, name: str) -> None:
        self.name = name

    def share(self, group: Sequence[str], turn: int) -> Mapping[str, Share]:
        """See `Sharing`."""
        match self.name:
            case "none":
                return {}
            case "exclusive":
                return {group[0]: Share(Wants.ALWAYS, False)}
            case "alternate":
                return {group[turn % len(group)]: Share(Wants.ALWAYS, False)}
        wants = Wants.PLAN if self.name == "shared" else Wants.ALWAYS
        return {job: Share(wants, len(group) > 1) for job in group}


@dataclass(frozen=True, slots=True)
class Plan:
    """``trees``: of jobs that may have one; ``groups``: jobs by shared root; ``shares``: of jobs that may use their
    tree now; ``without``: by job, why it has none."""

    trees: Trees
    groups: Mapping[int, tuple[str, ...]]
    shares: Mapping[str, Share]
    without: Mapping[str, str]


def checked_trees(topology: Topology, jobs: Hosts, trees: Trees, usable: frozenset[int]) -> None:
    """Raises: PolicyFault: an unknown job, or a tree that is invalid, not the job's, or not limited to aggregating
    switches."""
    for job, tree in trees.items():
        if job not in jobs:
            raise PolicyFault(f"a tree for {job!r:.80}, which is not among the jobs")
        try:
            roles(topology, tree, jobs[job])
        except TreeUnusable as fault:
            raise PolicyFault(f"the tree of {job}: {fault}") from None
        if not usable.issuperset(tree.switches):
            raise PolicyFault(f"the tree of {job} has a switch that does not aggregate")


def one_root(trees: Trees, limit: Limit) -> tuple[Trees, dict[str, str]]:
    """Drop trees that meet another beyond the capacity at a place other than a common root; later jobs lose. Returns
    the rest, and the reasons."""
    kept: dict[str, Tree] = {}
    without: dict[str, str] = {}
    at: dict[int, set[int]] = {}  # need: roots of the groups there
    for job, tree in trees.items():
        crowded = [
            need for need in limit.needs(tree) if len(at.get(need, set()) | {tree.root}) > limit.capacity
        ]  # fmt: skip
        if crowded:
            without[job] = "its tree meets a tree with another root, and no root arbitrates between them"
            continue
        kept[job] = tree
        for need in limit.needs(tree):
            at.setdefault(need, set()).add(tree.root)
    return kept, without


def over_capacity(trees: Trees, limit: Limit) -> str:
    """Error text for trees that meet away from their root; empty if there are none."""
    kept, without = one_root(trees, limit)
    return (
        "" if len(kept) == len(trees) else f"over capacity: {', '.join(sorted(without))} meet others away from a root"
    )


def grouped(trees: Trees, limit: Limit, order: Sequence[str]) -> dict[int, tuple[str, ...]]:
    """Jobs with competing trees, by root; a job without competitors is alone at its root."""
    numbers = {n: trees[job] for n, job in enumerate(order) if job in trees}
    found: dict[int, list[str]] = {}
    for part in components(numbers, limit):
        for n in sorted(part):
            found.setdefault(numbers[n].root, []).append(order[n])
    return {root: tuple(sorted(jobs, key=list(order).index)) for root, jobs in sorted(found.items())}


def checked_shares(group: Sequence[str], shares: Mapping[str, Share]) -> None:
    """Raises: PolicyFault: a job of another group, or an exclusive job beside others."""
    for job, share in shares.items():
        if job not in group:
            raise PolicyFault(f"a share for {job!r:.80}, which is not in the group")
        if not share.is_shared and len(shares) > 1:
            raise PolicyFault(f"over capacity: {job} requires exclusive use of a root with {len(shares)} jobs")
