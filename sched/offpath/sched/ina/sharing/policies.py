"""Who gets which tree, and how those at one root share it. Pure: the built-in policies, and what holds for any.

Arbitration is at one root. So jobs may share what their trees compete for only if their trees have the same root; a
job that would meet another elsewhere gets another tree, or none.
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
    """A policy's answer cannot be used: it is not asked any more."""


@dataclass(frozen=True, slots=True)
class Share:
    """How a job may use its tree. ``is_shared``: others may be on it."""

    wants: Wants
    is_shared: bool


Hosts = Mapping[str, tuple[int, ...]]
"""Of each job that could use a tree, in the order in which jobs came."""
Trees = Mapping[str, Tree]


class TreeBuilder(Protocol):
    """A tree for each job that is to have one."""

    name: str

    def build(self, topology: Topology, jobs: Hosts, former: Trees, limit: Limit) -> Trees:
        """``former``: what jobs have now; to keep it costs nothing."""


class Sharing(Protocol):
    """Who of a group may use the root now, and how."""

    name: str

    def share(self, group: Sequence[str], turn: int) -> Mapping[str, Share]:
        """``group``: jobs whose trees have one root, in the order in which they came; ``turn`` counts up."""


class Mina:
    """MINA's categories (`sched.ina.groups`) with ``k`` candidates for each job, drawn once for its hosts."""

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
    """The built-in ways to share a root."""

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
    """``trees``: of jobs that may have one; ``groups``: jobs by the root that they share; ``shares``: of jobs that may
    use their tree now; ``without``: why a job has none."""

    trees: Trees
    groups: Mapping[int, tuple[str, ...]]
    shares: Mapping[str, Share]
    without: Mapping[str, str]


def checked_trees(topology: Topology, jobs: Hosts, trees: Trees, usable: frozenset[int]) -> None:
    """Raises: PolicyFault: a job that is none, or a tree that is none, or not one of the job's, or beyond the switches
    that aggregate."""
    for job, tree in trees.items():
        if job not in jobs:
            raise PolicyFault(f"a tree for {job!r:.80}, which asked for none")
        try:
            roles(topology, tree, jobs[job])
        except TreeUnusable as fault:
            raise PolicyFault(f"the tree of {job}: {fault}") from None
        if not usable.issuperset(tree.switches):
            raise PolicyFault(f"the tree of {job} has a switch that does not aggregate")


def one_root(trees: Trees, limit: Limit) -> tuple[Trees, dict[str, str]]:
    """Without the trees that meet another at more than the capacity allows, but not at one root; the later jobs give
    way. With why."""
    kept: dict[str, Tree] = {}
    without: dict[str, str] = {}
    at: dict[int, set[int]] = {}  # need: roots of the groups there
    for job, tree in trees.items():
        crowded = [
            need for need in limit.needs(tree) if len(at.get(need, set()) | {tree.root}) > limit.capacity
        ]  # fmt: skip
        if crowded:
            without[job] = "its tree meets another's that has another root, and nobody would arbitrate between them"
            continue
        kept[job] = tree
        for need in limit.needs(tree):
            at.setdefault(need, set()).add(tree.root)
    return kept, without


def over_capacity(trees: Trees, limit: Limit) -> str:
    """What is wrong with trees of which some meet away from their root; empty: nothing."""
    kept, without = one_root(trees, limit)
    return (
        "" if len(kept) == len(trees) else f"over capacity: {', '.join(sorted(without))} meet others away from a root"
    )


def grouped(trees: Trees, limit: Limit, order: Sequence[str]) -> dict[int, tuple[str, ...]]:
    """Jobs by root, those whose trees compete in one; a job whose tree meets nobody's is alone at its own."""
    numbers = {n: trees[job] for n, job in enumerate(order) if job in trees}
    found: dict[int, list[str]] = {}
    for part in components(numbers, limit):
        for n in sorted(part):
            found.setdefault(numbers[n].root, []).append(order[n])
    return {root: tuple(sorted(jobs, key=list(order).index)) for root, jobs in sorted(found.items())}


def checked_shares(group: Sequence[str], shares: Mapping[str, Share]) -> None:
    """Raises: PolicyFault: a job of another group, or one that is alone beside others."""
    for job, share in shares.items():
        if job not in group:
            raise PolicyFault(f"a share for {job!r:.80}, which is not in the group")
        if not share.is_shared and len(shares) > 1:
            raise PolicyFault(f"over capacity: {job} is to be alone at a root with {len(shares)} jobs")
