"""A cluster under load and a queue of jobs, for `bench hire`: all drawn from a seed.

Servers are the most frequent ones of Alibaba's v2023 cluster. What runs before has demands of its pods on random
servers, and random services on random switches, until the mean CPU and the mean match-action stages reach the load.
"""

from __future__ import annotations

import csv
from random import Random
from typing import Final

from offpath.cli.demo.samples import DATA
from offpath.sched.inc.hire import Hire
from offpath.sched.inc.poly import PolyReq, TaskGroup
from offpath.sched.inc.request import Composite, CompReq, Connection, Servers
from offpath.sched.inc.resources import Resources, ServerSpec, SwitchSpec
from offpath.sched.inc.store import CompStore
from offpath.sched.inc.transform import transform
from offpath.sched.topology.fattree import fat_tree

CPU_MILLI: Final = 96_000
MEMORY_MIB: Final = 393_216
GROUPS: Final = 800
ROUND_MS: Final = 300
"""Between rounds."""
MOST_TASKS: Final = 4
"""Of a composite on servers: 1 … 4, evenly."""
INC_PERCENT: Final = 30
"""Of the composites: so many may run on switches."""
_TEMPLATES: Final = ("aggregate", "balance", "cache", "coordinator", "replicate")
_FEATURES: Final = frozenset(("accelerator", "openflow", "p4-14", "sharp"))
_PATIENCE: Final = 8
"""Random places tried for one task of what runs before."""
Demand = tuple[int, int]


class World:
    """A `Hire` whose queue holds as many task groups as a round takes.

    ``is_distinct``: nearly every composite has a demand of its own; else demands on servers are those of real pods.
    """

    def __init__(self, degree: int, load: float, *, is_distinct: bool, seed: int, groups: int = GROUPS) -> None:
        self._draw, self._is_distinct, self._groups = Random(seed), is_distinct, groups
        self._demands, self._counts = demands()
        topology = fat_tree(degree)
        self.resources = Resources(
            topology,
            [ServerSpec((CPU_MILLI, MEMORY_MIB))] * topology.hosts,
            [SwitchSpec(_FEATURES)] * topology.switches,
        )
        self._store, self._jobs, self._distinct = CompStore(), 0, 0
        self._fill_servers(load)
        self._fill_switches(load)
        self.hire = Hire(self.resources)
        self.now_ms = 0

    # -- what runs before ------------------------------------------------------------------------------------------
    def _fill_servers(self, load: float) -> None:
        hosts = self.resources.topology.hosts
        wanted, number = load * CPU_MILLI * hosts, 0
        while wanted > 0:
            group = TaskGroup(("before", f"s{number}"), "c", "server", 1, self._pod(), "")
            number += 1
            if self._try(group, range(hosts)):
                wanted -= group.demand[0]

    def _fill_switches(self, load: float) -> None:
        topology = self.resources.topology
        switches = range(topology.hosts, topology.nodes)
        for number in range(_PATIENCE * len(switches)):
            used = sum(self.resources.used(node)[1] for node in switches[::16])
            if used >= load * sum(self.resources.capacity(node)[1] for node in switches[::16]):
                return
            for group in self._request(f"before-{number}", 1, 100).groups:
                if group.is_inc:
                    self._try(group, switches)

    def _try(self, group: TaskGroup, nodes: range) -> bool:
        for _ in range(_PATIENCE):
            node = self._draw.choice(nodes)
            if self.resources.fits(group, node):
                self.resources.start(group, node)
                return True
        return False

    # -- jobs ------------------------------------------------------------------------------------------------------
    def fill_queue(self) -> None:
        """Submit jobs until the next one's groups would not be in the network."""
        waiting = sum(
            len(job.materialized()) + len(job.undecided()) for job in self.hire.jobs.values()
        )  # fmt: skip
        while waiting < self._groups:
            request = self._request(f"j{self._jobs}", self._draw.randint(1, 3), INC_PERCENT)
            self._jobs += 1
            self.hire.submit(request, self.now_ms)
            waiting += len(request.groups)

    def end_whole_jobs(self) -> None:
        """Jobs that have all their places end, so that the load stays."""
        for name, job in list(self.hire.jobs.items()):
            if not job.materialized() and not job.undecided():
                self.hire.cancel(name)

    def _request(self, job: str, composites: int, inc_percent: int) -> PolyReq:
        draw = self._draw
        parts = []
        for n in range(composites):
            is_inc = draw.randrange(100) < inc_percent
            template = draw.choice(_TEMPLATES) if is_inc else "server"
            servers = Servers(draw.randint(1, MOST_TASKS), *self._demand())
            among = draw.choice(("incbricks", "netcache", "distcache")) if template == "cache" else ""
            parts.append(Composite(f"c{n}", template, servers, (among, "server") if among else ()))
        links = tuple(Connection(f"c{n}", f"c{n + 1}") for n in range(composites - 1))
        return transform(CompReq(job, tuple(parts), links, priority=draw.choice((20, 50, 80))), self._store)

    def _demand(self) -> Demand:
        cpu, memory = self._pod()
        if self._is_distinct:  # so many less that no two are equal, and none grows
            self._distinct += 1
            memory = max(1, memory - self._distinct % 4_096)
            cpu = max(1, cpu - self._distinct // 4_096 % 256)
        return cpu, memory

    def _pod(self) -> Demand:
        return self._draw.choices(self._demands, self._counts)[0]


def demands() -> tuple[list[Demand], list[int]]:
    """CPU and memory of the pods that fit such a server, with their numbers."""
    with open(DATA / "openb_demands.csv", encoding="ascii", newline="") as file:
        rows = [(int(row["cpu_milli"]), int(row["memory_mib"]), int(row["pods"])) for row in csv.DictReader(file)]
    fitting = [each for each in rows if each[0] <= CPU_MILLI and each[1] <= MEMORY_MIB]
    return [each[:2] for each in fitting], [each[2] for each in fitting]
