"""Streams of jobs for HIRE's evaluation (§6.2): which jobs want switches, for what, and how loaded the cluster is.

- A share μ of the jobs gets alternatives on switches, for a third of its task groups (rounded up). The service is
  drawn from Table 3's eight, its demand uniformly from the ranges there; the other alternative is servers only.
- An alternative on switches needs 90 to 100 % of the servers, and its server tasks last 90 to 100 % as long (§6.2).
- All jobs are drawn as if μ were 1; a smaller μ takes a part of them. So the sets of two μ are nested, and all policies
  get the same jobs.
- Arrivals are scaled so that the switches' SRAM, the scarcest resource, would be `Load.switches` in use if all jobs
  used switches (μ = 1, nothing shared, no waiting). The number of tasks of each group is scaled so that the servers'
  CPUs are `Load.servers` in use. Order, bursts and durations remain. Longer streams repeat the trace.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from typing import Final

from offpath.cli.hire.traces import Row, Trace
from offpath.sched.inc.request import Composite, CompReq, Connection, Servers
from offpath.sched.inc.resources import ServerSpec, SwitchSpec
from offpath.sched.inc.store import CompStore
from offpath.sched.inc.transform import transform
from offpath.sched.inc.units import SWITCH_CAPACITY, SWITCH_DIMENSIONS
from offpath.sched.sim.inc import IncJob
from offpath.sched.topology.fattree import fat_tree
from offpath.sched.topology.graph import Topology

SERVICES: Final = {
    "sharp": "aggregate", "incbricks": "cache", "netcache": "cache", "distcache": "cache", "netchain": "coordinator",
    "harmonia": "replicate", "hovercraft": "replicate", "r2p2": "balance",
}  # fmt: skip
"""With the template of each. The authors' experiments leave DAIET out too."""
PART: Final = 3
"""One of so many task groups gets an alternative."""
SAVED_PERCENT: Final = 10
SERVICES_OF_SWITCH: Final = 2
"""Of a switch, if they are heterogeneous."""
PRIORITY: Final = {True: 25, False: 75}
"""Of service and batch jobs."""
FEATURES: Final = frozenset({"p4-14", "sharp", "openflow", "accelerator"})
STORE: Final = CompStore()
_SRAM: Final = SWITCH_DIMENSIONS.index("sram_kib")
_ROUNDS: Final = 4
"""In which the two loads settle: more tasks need more switches."""


@dataclass(frozen=True, slots=True)
class Load:
    """Offered at μ = 1: of the switches' SRAM and of the servers' CPUs."""

    switches: float = 0.9
    servers: float = 0.7


@dataclass(frozen=True, slots=True)
class Draw:
    """An alternative on switches for a task group. ``demand``: of a task on a switch, by suffix-free dimension.
    ``percent``: servers still needed; ``faster``: by which their time is multiplied."""

    service: str
    demand: Mapping[str, int]
    percent: int
    faster: float


@dataclass(frozen=True, slots=True)
class Drawn:
    """A job of the stream, as if μ were 1. ``tasks``: by group; ``draws``: by number of the group."""

    name: str
    row: Row
    tasks: tuple[int, ...]
    draws: Mapping[int, Draw]


@dataclass(frozen=True, slots=True)
class Stream:
    """``span_ms``: from the first to the last arrival. ``timeouts_ms``: by job, how long its longest task lasts."""

    jobs: tuple[IncJob, ...]
    span_ms: int
    lasts_ms: Mapping[str, int]


def cluster(
    degree: int, server: tuple[int, int], is_heterogeneous: bool, seed: int
) -> tuple[Topology, list[ServerSpec], list[SwitchSpec]]:
    """A fat tree of that degree; switches run all services, or two each."""
    topology = fat_tree(degree)
    random = Random(f"hire switches {degree} {seed}")
    names = sorted(SERVICES)
    switches = [
        SwitchSpec(FEATURES, services=frozenset(random.sample(names, SERVICES_OF_SWITCH)) if is_heterogeneous else None)
        for _ in range(topology.switches)
    ]
    return topology, [ServerSpec(server)] * topology.hosts, switches


def stream(trace: Trace, topology: Topology, seed: int, count: int, mu: float, load: Load = Load()) -> Stream:
    """``count`` jobs for the cluster. Another ``seed`` begins elsewhere in the trace and draws other alternatives."""
    random = Random(f"hire jobs {seed}")
    rows = _stretch(trace, seed, count)
    draws = [_draws(random, row) for row in rows]
    order = list(range(count))
    random.shuffle(order)
    wanting = set(order[: round(mu * count)])
    factor, span_s = 1.0, 1.0
    sram = topology.switches * SWITCH_CAPACITY[_SRAM] * load.switches
    cpu = topology.hosts * trace.server[0] * load.servers
    for _ in range(_ROUNDS):
        tasks = [_tasks(row, factor) for row in rows]
        span_s = sum(map(_sram_work, rows, tasks, draws)) / sram
        work = sum(each.tasks * each.cpu_milli * each.lasts_s for row in rows for each in row.groups)
        factor = cpu * span_s / work
    jobs, lasts = [], {}
    scale = span_s / ((rows[-1].at_s - rows[0].at_s) or 1.0)
    for n, row in enumerate(rows):
        drawn = Drawn(f"job-{n}", row, tasks[n], draws[n] if n in wanting else {})
        jobs.append(_job(drawn, round((row.at_s - rows[0].at_s) * scale * 1_000)))
        lasts[drawn.name] = round(max(each.lasts_s for each in row.groups) * 1_000)
    return Stream(tuple(jobs), round(span_s * 1_000), lasts)


def _stretch(trace: Trace, seed: int, count: int) -> list[Row]:
    """``count`` rows from another place for each seed; after the last row the first follows, a mean gap later."""
    known = trace.rows
    span_s = known[-1].at_s - known[0].at_s
    again_s = span_s + span_s / max(1, len(known) - 1) + 1e-9
    first = seed * 97 % len(known)
    return [
        Row(known[n % len(known)].at_s + n // len(known) * again_s, known[n % len(known)].is_service,
            known[n % len(known)].groups)
        for n in range(first, first + count)
    ]  # fmt: skip


def _tasks(row: Row, factor: float) -> tuple[int, ...]:
    return tuple(max(1, round(each.tasks * factor)) for each in row.groups)


def _draws(random: Random, row: Row) -> dict[int, Draw]:
    wanted = math.ceil(len(row.groups) / PART)
    return {group: _draw(random) for group in sorted(random.sample(range(len(row.groups)), wanted))}


def _draw(random: Random) -> Draw:
    service = random.choice(sorted(SERVICES))
    group = STORE.services[service].groups[0]
    demand = {
        name: random.randint(low, high)
        for name, low, high in zip(SWITCH_DIMENSIONS, group.least, group.most, strict=True)
    }
    return Draw(service, demand, 100 - random.randint(0, SAVED_PERCENT), 1 - random.random() * SAVED_PERCENT / 100)


def _sram_work(row: Row, tasks: tuple[int, ...], draws: Mapping[int, Draw]) -> float:
    """KiB · s of the job's alternatives, each for as long as the job lasts."""
    lasts_s = max(each.lasts_s for each in row.groups)
    return lasts_s * sum(
        each.demand["sram_kib"] * group.count.of(tasks[at])
        for at, each in draws.items()
        for group in STORE.services[each.service].groups
    )


def _job(drawn: Drawn, at_ms: int) -> IncJob:
    composites, links, lasts = [], [], {}
    for n, group in enumerate(drawn.row.groups):
        name, draw = f"g{n}", drawn.draws.get(n)
        servers = Servers(drawn.tasks[n], group.cpu_milli, group.memory_mib)
        lasts_ms = max(1, round(group.lasts_s * 1_000))
        lasts[drawn.name, f"{name}.server"] = lasts_ms
        if draw is None:
            composites.append(Composite(name, "server", servers))
        else:
            composites.append(_with_switches(name, servers, draw))
            lasts[drawn.name, f"{name}.{draw.service}.servers"] = max(1, round(lasts_ms * draw.faster))
        links += [Connection(name, f"g{other}") for other in group.next if other < len(drawn.row.groups)]
    request = CompReq(drawn.name, tuple(composites), tuple(links), priority=PRIORITY[drawn.row.is_service])
    return IncJob(transform(request, STORE), at_ms, lasts)


def _with_switches(name: str, servers: Servers, draw: Draw) -> Composite:
    demand = dict(draw.demand)
    if STORE.services[draw.service].groups[0].stages_by_tasks:
        demand["stages"] = min(demand["stages"], servers.instances)
    return Composite(name, SERVICES[draw.service], servers, among=(draw.service, "server"),
                     demand={draw.service: demand}, servers_percent={draw.service: draw.percent})  # fmt: skip
