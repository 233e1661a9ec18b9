"""Policies of a controller: for each group of entry points one that works, and those that do what none may."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

from offpath.sched.ina.conflicts import Limit, share
from offpath.sched.ina.protocol.records import Wants
from offpath.sched.ina.sharing.policies import Share
from offpath.sched.ina.trees import Tree, build, roots
from offpath.sched.placement.cluster import Cluster
from offpath.sched.placement.port import Decision, Request
from offpath.sched.topology.graph import Topology


class LastHosts:
    """The last hosts that are free."""

    name = "last"

    def place(self, cluster: Cluster, request: Request) -> Decision:
        free = list(cluster.free_hosts())
        if len(free) < request.hosts:
            return Decision((), None, ("too few",))
        return Decision(tuple(free[-request.hosts :]), None, ("the last that are free",))


class TakenHosts(LastHosts):
    """More than there is: hosts that are another's."""

    def place(self, cluster: Cluster, request: Request) -> Decision:
        return Decision(tuple(range(request.hosts)), None, ("mine",))


class LowestRoot:
    """The tree with the lowest root that meets nobody else's, in the order in which jobs came."""

    name = "lowest-root"

    def build(
        self, topology: Topology, jobs: Mapping[str, Sequence[int]], former: Mapping[str, Tree], limit: Limit
    ) -> Mapping[str, Tree]:
        found: dict[str, Tree] = {}
        for job, hosts in jobs.items():
            for root in islice(roots(topology, hosts), 64):
                tree = build(topology, hosts, root)
                if not any(share(tree, other, limit) and other.root != root for other in found.values()):
                    found[job] = tree
                    break
        return found


class Turning(LowestRoot):
    """All jobs have one root, another one whenever a job comes or goes: trees move."""

    def build(
        self, topology: Topology, jobs: Mapping[str, Sequence[int]], former: Mapping[str, Tree], limit: Limit
    ) -> Mapping[str, Tree]:
        found = {}
        for job, hosts in jobs.items():
            known = roots(topology, hosts)
            found[job] = build(topology, hosts, known[len(jobs) % len(known)])
        return found


class Crowded(LowestRoot):
    """Over capacity: every job a root of its own, also where others are."""

    def build(
        self, topology: Topology, jobs: Mapping[str, Sequence[int]], former: Mapping[str, Tree], limit: Limit
    ) -> Mapping[str, Tree]:
        found = {}
        for n, (job, hosts) in enumerate(jobs.items()):
            known = roots(topology, hosts)
            found[job] = build(topology, hosts, known[n % len(known)])
        return found


class Torn(LowestRoot):
    """A tree without one of its links."""

    def build(
        self, topology: Topology, jobs: Mapping[str, Sequence[int]], former: Mapping[str, Tree], limit: Limit
    ) -> Mapping[str, Tree]:
        found = super().build(topology, jobs, former, limit)
        return {job: replace(tree, links=tree.links[1:]) for job, tree in found.items()}


class LastCome:
    """Who came last has the root alone."""

    name = "last-come"

    def share(self, group: Sequence[str], turn: int) -> Mapping[str, Share]:
        return {group[-1]: Share(Wants.ALWAYS, is_shared=False)}


class Selfish:
    """Over capacity: everybody has it alone."""

    name = "selfish"

    def share(self, group: Sequence[str], turn: int) -> Mapping[str, Share]:
        return {job: Share(Wants.ALWAYS, is_shared=False) for job in group}


class _Any:
    """Answers to every question of every group."""

    name = "any"

    def place(self, *asked: Any) -> Any:
        return self.answer()

    def build(self, *asked: Any) -> Any:
        return self.answer()

    def share(self, *asked: Any) -> Any:
        return self.answer()

    def answer(self) -> Any:
        raise NotImplementedError


class Raises(_Any):
    """A bug."""

    def answer(self) -> Any:
        raise KeyError("it was here\na moment ago")


class Nonsense(_Any):
    """What no question has as its answer."""

    def answer(self) -> Any:
        return {"job": Share(Wants.PLAN, is_shared=True), "stranger": Share(Wants.PLAN, is_shared=True)}


class Sleeps(_Any):
    """Far beyond any deadline."""

    def answer(self) -> Any:
        time.sleep(30)


class Dies(_Any):
    """In the middle of a question."""

    def answer(self) -> Any:
        os._exit(3)
