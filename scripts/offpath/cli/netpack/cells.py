"""One run of one policy on one stream of jobs, and what the evaluation reads of it."""

from __future__ import annotations

import statistics
import time
from dataclasses import asdict, dataclass
from random import Random
from typing import Any, Final

from offpath.cli.netpack.workloads import LINK_GBPS, LOAD, USUAL_GPUS, stream
from offpath.sched.ina.statistical.network import Network, regular
from offpath.sched.placement.batch_port import JobRequest
from offpath.sched.placement.batch_registry import make
from offpath.sched.placement.gpu_cluster import GpuCluster
from offpath.sched.placement.models import MODELS
from offpath.sched.placement.netpack.policy import PATIENCE
from offpath.sched.placement.netpack.reservation import waiting_bound_s
from offpath.sched.sim.batches import BatchJob, BatchOutcome, distribution_efficiency, simulated

PERIOD_S: Final = 60.0
"""Between batches."""
_STARVED_PERIOD_S: Final = 30.0
"""So long that nearly each batch starts some jobs, and passes the large one over."""
POLICIES: Final = (
    "netpack", "netpack-paper", "gpu-balance", "flow-balance", "least-fragmentation", "optimus", "tetris", "comb",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class World:
    """A cluster and its workload. Defaults: the paper's simulator (§6.1)."""

    setting: str
    """Its name in the rows."""
    kind: str = "real"
    count: int = 1_000
    """Jobs."""
    racks: int = 16
    servers: int = 16
    """Of each rack."""
    gpus: int = USUAL_GPUS
    """Of each server."""
    oversubscription: float = 1.0
    pat_gbps: float = 1_000.0
    gpu_speedup: float = 1.0
    load: float = LOAD

    @property
    def network(self) -> Network:
        """Its network."""
        return regular(
            self.racks, self.servers, link_gbps=LINK_GBPS, oversubscription=self.oversubscription, pat=self.pat_gbps
        )

    def as_arguments(self) -> dict[str, Any]:
        """For a piece of a sweep."""
        return asdict(self)


def run_of(world: World, policy: str, jobs: list[BatchJob]) -> list[BatchOutcome]:
    """Simulate ``jobs`` on the world's cluster. Raises: BatchSimulationError."""
    return simulated(world.network, world.gpus, make(policy), jobs, PERIOD_S)


def cell(world: dict[str, Any], folder: str | None, seed: int, policies: list[str]) -> dict[str, Any]:
    """By policy: the mean times of one seed's stream; all policies get the same jobs. ``world``: of `World`."""
    place = World(**world)
    jobs = stream(
        folder, place.kind, seed, place.count, place.racks * place.servers, place.gpus, load=place.load,
        gpu_speedup=place.gpu_speedup,
    )  # fmt: skip
    return {"runs": {policy: summary(run_of(place, policy, jobs)) for policy in policies}}


def summary(outcomes: list[BatchOutcome]) -> dict[str, float]:
    """Means over the jobs, times in s: with queueing, of queueing, and without."""
    return {
        "jct_s": statistics.fmean(each.jct_s for each in outcomes),
        "queue_s": statistics.fmean(each.queue_s for each in outcomes),
        "run_s": statistics.fmean(each.ran_s for each in outcomes),
        "de": distribution_efficiency(outcomes),
        "spanning": statistics.fmean(each.servers > 1 for each in outcomes),
        "longest_queue_s": max(each.queue_s for each in outcomes),
    }


def placement_time(servers: int, jobs: int, seed: int, policies: list[str]) -> dict[str, Any]:
    """By policy: processor time to place ``jobs`` of Philly's sizes in one batch on an idle cluster (figure 10)."""
    from offpath.cli.bench.netpack import GPUS, RACKS, requests

    racks = min(RACKS, servers)
    cluster = GpuCluster(regular(racks, servers // racks), GPUS)
    batch = requests(cluster.network.servers, jobs, "philly")
    runs = {}
    for policy in policies:
        make(policy).place_batch(GpuCluster(regular(2, 4), GPUS), batch[:4])  # compiles
        begun = time.process_time()
        make(policy).place_batch(cluster, batch)
        runs[policy] = {"place_s": time.process_time() - begun}
    return {"runs": runs}


def starved(small_jobs: int, policy: str, seed: int) -> dict[str, Any]:
    """A stream on which ageing never starts a job of 64 GPUs while small jobs arrive.

    128 GPUs in 2 racks; jobs of one GPU keep all busy, because they come 1.05 times as fast as they end. The large job
    arrives when the cluster is full; ``small_jobs`` come after it.
    """
    random = Random(f"starved {seed}")
    small, large = MODELS["resnet50"], MODELS["vgg16"]
    world = World("starved", racks=2)
    capacity, longest_s = 2 * world.servers * world.gpus, 850.0
    gap_s = 0.75 * longest_s / (1.05 * capacity)  # three quarters: the mean of the draws below
    before = 2 * capacity
    jobs = []
    for n in range(before + small_jobs):
        request = JobRequest(f"small-{n}", 1, small.data_gbit, small.compute_s, arrival_s=n * gap_s)
        jobs.append(BatchJob(request, random.uniform(0.5, 1.0) * longest_s))
    arrived_s, last_s = before * gap_s, (before + small_jobs) * gap_s
    jobs.append(BatchJob(JobRequest("large", 64, large.data_gbit, large.compute_s, arrival_s=arrived_s), longest_s))
    outcomes = simulated(world.network, world.gpus, make(policy), jobs, _STARVED_PERIOD_S)
    large_out, others = outcomes[-1], outcomes[:-1]
    return {
        "arrived_s": arrived_s, "queue_s": large_out.queue_s, "last_arrival_s": last_s,
        "started_while_small_arrive": large_out.started_s <= last_s, "bound_s": _bound_s(others, arrived_s),
        "avg_jct_s": statistics.fmean(each.jct_s for each in outcomes),
    }  # fmt: skip


def _bound_s(others: list[BatchOutcome], arrived_s: float) -> float:
    """The bound of `reservation.waiting_bound_s`, whose patience counts batches that start other jobs: here those that
    did, as they came."""
    longest_run_s = max(each.ran_s for each in others)
    passing = sorted({each.started_s for each in others if each.started_s > arrived_s})
    last = passing[min(PATIENCE, len(passing)) - 1]
    return last - arrived_s + waiting_bound_s(0, 0, longest_run_s, _STARVED_PERIOD_S, _STARVED_PERIOD_S)
