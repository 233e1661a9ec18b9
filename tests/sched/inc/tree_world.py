"""A cluster whose switches sum, and what must be true of the trees that are booked in it."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from offpath.sched.inc.live import tree_events
from offpath.sched.inc.live.book import Book
from offpath.sched.inc.live.live_hire import LiveHire
from offpath.sched.inc.live.ports import Ports
from offpath.sched.inc.live.records import Request, TaskState
from offpath.sched.inc.live.tree_hire import TreeHire
from offpath.sched.inc.request import Connection
from offpath.sched.inc.resources import Resources, ServerSpec, SwitchSpec
from offpath.sched.inc.store import CompStore
from offpath.sched.topology.fattree import fat_tree, leaf_spine
from offpath.sched.topology.graph import Topology

from .test_live import Cluster, composite, spec

SHARP = SwitchSpec(frozenset({"sharp"}))
TOPOLOGIES = (leaf_spine(3, 2, 2), fat_tree(4))


class TreeWorld(Cluster):
    """Each server has room for one rank; every switch can aggregate."""

    def __init__(self, topology: Topology = TOPOLOGIES[0], numbers: Iterable[int] | None = None) -> None:
        self.topology = topology
        self.usable = frozenset(range(topology.hosts, topology.nodes))
        self.ids = iter(numbers or itertools.count())
        self.is_confirming = True
        self.used = 0
        """Identities."""
        super().__init__(self.new_book())

    def new_book(self) -> Book:
        self.hire = TreeHire(self.resources(), preempt_ms=2_000)
        self.set_controller()
        return self.made(self.hire)

    def resources(self) -> Resources:
        servers = [ServerSpec((1_000, 8_192))] * self.topology.hosts
        return Resources(self.topology, servers, [SHARP] * self.topology.switches)

    def made(self, hire: LiveHire) -> Book:
        return Book(hire, CompStore(), None, Ports({}, 20_000, 20_999), self.identity)

    def identity(self, name: str) -> str:
        self.used += 1
        return f"{name}.{next(self.ids)}"

    def set_controller(self, fault: str = "") -> None:
        """What it has reported last."""
        self.hire.usable, self.hire.fault = self.usable, fault

    def submit(self, name: str = "r", ranks: int = 3, among: tuple[str, ...] = (), sram: int = 8_192) -> Request:
        """Ranks that fill a server each, and their sum, whose servers are small."""
        sums = composite("sum", "aggregate", 1, 0, among=among, demand={"sharp": {"sram_kib": sram}})
        wanted = spec(name, composite("ranks", tasks=ranks), sums, connections=(Connection("ranks", "sum", True),))
        self.carry(self.book.submit(wanted, self.now_ms))
        return self.book.get(name)

    def round(self, count: int = 1) -> None:
        """Rounds; after each of them the controller confirms the trees' jobs."""
        for _ in range(count):
            before, bound = self.used, self.book.scheduler.most_new
            super().round()
            assert self.used - before <= bound, "identities that are not reserved"
            if self.is_confirming:
                self.confirm()

    def confirm(self) -> None:
        for name, request in self.book.requests.items():
            for summing, tree in request.trees.items():
                if where(request, f"{summing}.sharp"):
                    job = {"OFFPATH_INA_JOB": tree.name}
                    self.carry(tree_events.confirmed(self.book, name, summing, job))

    def again(self) -> None:
        """The job manager is killed and started."""
        self.restart(self.new_book())


def where(request: Request, group: str) -> list[str]:
    return sorted(
        each.node for each in request.tasks.values() if each.group == group and each.state is not TaskState.STOPPING
    )


def is_tree(topology: Topology, hosts: set[int], places: set[int]) -> bool:
    """The places are connected and reach every host, and without any of them it would not be so."""

    def joins(switches: set[int]) -> bool:
        leaves = [{leaf for leaf, _ in topology.up[host]} & switches for host in hosts]
        if not switches or not all(leaves):
            return False
        seen, waiting = set(), [min(switches)]
        while waiting:
            node = waiting.pop()
            if node not in seen:
                seen.add(node)
                waiting += [other for other, _ in topology.beside[node] if other in switches]
        return seen == switches

    return joins(places) and not any(joins(places - {each}) for each in places)


def judge_trees(here: TreeWorld) -> None:
    """After a round."""
    numbers = {name: number for number, name in enumerate(here.topology.names)}
    for name, request in here.book.requests.items():
        places = {numbers[each] for each in where(request, "sum.sharp")}
        hosts = {numbers[each] for each in where(request, "ranks.server")}
        job = here.hire.jobs.get(name)
        if not places:
            assert request.chosen.get("sum") != "sharp" or job is None
            continue
        assert "sum" in here.saved[name].trees, "booked under a name that is not on the disk"
        assert places <= here.usable or here.hire.fault
        if job is not None and len(hosts) == job.size(job.request.by_id[name, "ranks.server"]):
            assert is_tree(here.topology, hosts, places), f"{hosts}: {places} is no tree of them"
