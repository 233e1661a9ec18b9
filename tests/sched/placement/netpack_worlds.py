"""Random clusters in use, and the definitions that NetPack's steps are compared with."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from random import Random

from offpath.sched.ina.statistical.network import Network, regular
from offpath.sched.placement.batch_port import BatchDecision, JobRequest
from offpath.sched.placement.gpu_cluster import GpuCluster, JobPlacement
from offpath.sched.placement.models import MODELS
from offpath.sched.placement.netpack.plans import View


def in_use(random: Random, *, servers: int = 8, compiled: bool | None = None) -> GpuCluster:
    """One to three racks with at most ``servers`` servers of 1 to 4 GPUs, on which jobs run."""
    racks = random.randint(1, 3)
    sizes = tuple(random.randint(1, max(1, servers // racks)) for _ in range(racks))
    count = sum(sizes)
    network = Network(
        sizes,
        tuple(random.choice([100.0, 100.0, 50.0]) for _ in range(count)),
        tuple(random.choice([100.0, 200.0, 1_600.0]) for _ in sizes),
        tuple(random.choice([0.0, 80.0, 1_000.0]) for _ in sizes),
    )
    cluster = GpuCluster(network, [random.randint(1, 4) for _ in range(count)], compiled=compiled)
    for job in range(random.randint(0, count)):
        some = random.sample(range(count), random.randint(1, min(3, count)))
        workers = tuple((s, random.randint(1, int(cluster.free[s]))) for s in sorted(some) if cluster.free[s])
        if len(workers) > 1:
            cluster.start(f"old-{job}", JobPlacement(workers, random.randrange(count), random.random() < 0.8), 2.0)
        elif workers and random.random() < 0.3:
            cluster.start(f"old-{job}", JobPlacement(workers))
    return cluster


def requests(random: Random, count: int, largest: int) -> list[JobRequest]:
    """Jobs of random models and sizes."""
    models = list(MODELS.values())
    found = []
    for n in range(count):
        model = random.choice(models)
        gpus = random.randint(1, max(1, min(largest, random.choice([2, 4, 8, 16]))))
        value = random.choice([1.0, 1.0, 2.5])
        found.append(
            JobRequest(f"job-{n}", gpus, model.data_gbit, model.compute_s, value, float(n), random.randint(0, 3))
        )
    return found


def value(seen: View, server: int, charge: float) -> float:
    """The server's value (§5.2)."""
    bandwidth = round(float(seen.left_gbps[server]), 6)
    return bandwidth - (seen.fastest_gbps - bandwidth) / (round(float(seen.flows[server])) + 1) - charge


def all_plans(seen: View, servers: list[int], wanted: int, charge: float) -> dict[tuple[int, int], float]:
    """By (f, g): the greatest sum of values of a set of servers with that many flows at most and GPUs in all."""
    usable = [s for s in servers if seen.free[s] > 0]
    best: dict[tuple[int, int], float] = {}
    for some in subsets(usable):
        gpus = sum(int(seen.free[s]) for s in some)
        if wanted <= gpus <= wanted + seen.most_gpus:
            key = max(round(float(seen.flows[s])) for s in some), gpus
            best[key] = max(best.get(key, -1e300), sum(value(seen, s, charge) for s in some))
    return best


def subsets(servers: list[int]) -> Iterator[tuple[int, ...]]:
    """All but the empty one."""
    for size in range(1, len(servers) + 1):
        yield from itertools.combinations(servers, size)


def equation_1(seen: View, worth: float, flows: int, chosen: tuple[int, ...], ps: int, own: int = 0) -> float:
    """Equation 1 with its sign mended, and the worst share of an uplink."""
    beside = own if ps in chosen else 1
    there = round(float(seen.flows[ps]))
    bandwidth = round(float(seen.left_gbps[ps]), 6)
    shares = [seen.fastest_gbps / (max(flows, there + beside) + 1)]
    root, crossing = int(seen.rack_of[ps]), 0
    for rack in sorted({int(seen.rack_of[s]) for s in chosen} - {root}):
        entering = 1 if seen.is_open[rack] else sum(int(seen.rack_of[s]) == rack for s in chosen)
        crossing += entering
        shares.append(seen.uplinks_gbps[rack] / (seen.uplink_flows[rack] + entering))
    if crossing:
        shares.append(seen.uplinks_gbps[root] / (seen.uplink_flows[root] + crossing))
    return worth + bandwidth - (seen.fastest_gbps - bandwidth) / (there + beside + 1) + min(shares)


def faults(cluster: GpuCluster, batch: list[JobRequest], decision: BatchDecision) -> list[str]:
    """What is wrong with a decision; ``cluster`` is as before it, and as after it when this returns."""
    found = []
    if [each.job for each in decision.jobs] != [each.job for each in batch]:
        found.append("not one decision per request, in their order")
    before = int(cluster.free.sum())
    given = 0
    by_name = {request.job: request for request in batch}
    for each in decision.started:
        assert each.placement is not None
        request = by_name[each.job]
        if each.placement.gpus != request.gpus:
            found.append(f"{each.placement.gpus} GPUs for {request.gpus}")
        if (each.placement.ps is None) != (len(each.placement.workers) == 1):
            found.append("a PS for one server, or none for several")
        given += each.placement.gpus
        cluster.start(each.job, each.placement, request.data_gbit)  # raises if GPUs are not free
    if int(cluster.free.sum()) != before - given:
        found.append("GPUs are not conserved")
    found += [f"{each.job}: no reason" for each in decision.jobs if not each.reasons]
    return found


def small_cluster(racks: int = 2, servers: int = 4, gpus: int = 4, **more: float) -> GpuCluster:
    """An idle regular cluster."""
    return GpuCluster(regular(racks, servers, **more), gpus)
