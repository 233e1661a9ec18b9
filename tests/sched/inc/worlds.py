"""Small clusters and jobs, drawn from a seed."""

from __future__ import annotations

from random import Random

from offpath.sched.inc.poly import TaskGroup
from offpath.sched.inc.request import Composite, CompReq, Connection, Servers
from offpath.sched.inc.resources import Resources, ServerSpec, SwitchSpec
from offpath.sched.inc.templates import Connectivity
from offpath.sched.topology.fattree import fat_tree
from offpath.sched.topology.graph import Topology

FEATURES = ("p4-14", "sharp", "openflow", "accelerator")
ALL = frozenset(FEATURES)


def cluster(
    topology: Topology | None = None, *, seed: int | None = None, is_shared: bool = True, cpu: int = 32_000
) -> Resources:
    """Equal nodes; with a seed each switch lacks some features or allows two services only."""
    found = topology or fat_tree(4)
    servers = [ServerSpec((cpu, 131_072))] * found.hosts
    if seed is None:
        return Resources(found, servers, [SwitchSpec(ALL)] * found.switches, is_shared=is_shared)
    draw = Random(seed)
    names = ["sharp", "netcache", "distcache", "netchain", "harmonia", "hovercraft", "r2p2", "incbricks"]
    switches = [
        SwitchSpec(
            frozenset(each for each in FEATURES if draw.random() < 0.8),
            services=frozenset(draw.sample(names, 2)) if draw.random() < 0.5 else None,
            most_services=draw.randint(1, 3),
        )
        for _ in range(found.switches)
    ]
    return Resources(found, servers, switches, is_shared=is_shared)


def inc_group(
    name: str = "g", service: str = "netcache", demand: tuple[int, int, int] = (5, 4, 6_144),
    shared: tuple[int, int, int] = (0, 8, 0), tasks: int = 3, **more: object,
) -> TaskGroup:  # fmt: skip
    return TaskGroup(
        ("j", name), "c", service, tasks, demand, "", service, shared, frozenset({"p4-14"}), **more  # type: ignore[arg-type]
    )  # fmt: skip


def server_group(
    name: str = "s", tasks: int = 4, demand: tuple[int, int] = (4_000, 8_192), job: str = "j"
) -> TaskGroup:
    return TaskGroup((job, name), "c", "server", tasks, demand, "")


def random_groups(draw: Random, count: int = 8) -> list[TaskGroup]:
    """On servers and on switches, several of one service, also with different shared demands."""
    found = []
    for n in range(count):
        if draw.random() < 0.3:
            found.append(server_group(f"g{n}", draw.randint(1, 5), (draw.randint(0, 20_000), draw.randint(0, 60_000))))
            continue
        service = draw.choice(("netcache", "netchain", "harmonia", "r2p2"))
        demand = (draw.randint(0, 40), draw.randint(0, 12), draw.randint(0, 9_000))
        shared = (0, draw.choice((8, 8, 8, 3)), 0)
        connectivity = draw.choice((Connectivity.SINGLE, Connectivity.CHAIN, Connectivity.TOR, Connectivity.SPINE))
        found.append(inc_group(f"g{n}", service, demand, shared, draw.randint(1, 4), connectivity=connectivity))
    return found


def random_request(draw: Random, job: str, largest: int = 10) -> CompReq:
    """One to three composites in a row."""
    templates = ("server", "cache", "coordinator", "aggregate", "replicate", "balance")
    parts = tuple(
        Composite(f"c{n}", draw.choice(templates),
                  Servers(draw.randint(1, largest), draw.randint(500, 8_000), draw.randint(256, 16_384)))
        for n in range(draw.randint(1, 3))
    )  # fmt: skip
    links = tuple(Connection(f"c{n}", f"c{n + 1}") for n in range(len(parts) - 1))
    return CompReq(job, parts, links, priority=draw.randint(0, 100))
