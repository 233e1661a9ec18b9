"""How far the policies are from the optimum of the corrected Table 3, on small random clusters."""

from __future__ import annotations

from random import Random
from typing import Any, Final

from offpath.sched.ina.statistical.network import Network
from offpath.sched.placement.batch_port import JobRequest
from offpath.sched.placement.batch_registry import make
from offpath.sched.placement.gpu_cluster import GpuCluster
from offpath.sched.placement.models import MODELS
from offpath.sched.placement.netpack.exact import MOST_JOBS, MOST_SERVERS, optimum

POLICIES: Final = ("netpack", "netpack-paper", "gpu-balance", "comb")


def case(random: Random) -> tuple[GpuCluster, list[JobRequest]]:
    """An idle cluster of one or two racks, at most `MOST_SERVERS` servers of 2 to 4 GPUs, and at most `MOST_JOBS` jobs
    that fit into it together and of which most span servers.
    """
    racks = random.randint(1, 2)
    servers = random.randint(2, MOST_SERVERS // racks)
    gpus = random.randint(2, 4)
    up = servers * 100.0 / random.choice([1.0, 4.0, 10.0])
    pat = random.choice([0.0, 50.0, 1_000.0])
    network = Network((servers,) * racks, (100.0,) * (racks * servers), (up,) * racks, (pat,) * racks)
    left = racks * servers * gpus
    jobs = []
    for n in range(random.randint(2, MOST_JOBS)):
        wanted = min(left, random.randint(gpus, 3 * gpus))
        if wanted < 1:
            break
        left -= wanted
        model = random.choice(list(MODELS.values()))
        jobs.append(JobRequest(f"job-{n}", wanted, model.data_gbit, model.compute_s, arrival_s=float(n)))
    return GpuCluster(network, gpus), jobs


def cost_of(policy: str, cluster: GpuCluster, jobs: list[JobRequest]) -> float | None:
    """The sum of d/v of the policy's placement; None if it defers a job."""
    decision = make(policy).place_batch(cluster, jobs)
    if len(decision.started) < len(jobs):
        return None
    after = cluster.copied()
    data_gbit = {job.job: job.data_gbit for job in jobs}
    for each in decision.started:
        assert each.placement is not None
        after.start(each.job, each.placement, data_gbit[each.job])
    return after.steady.total_cost()


def gaps(seed: int, count: int) -> dict[str, Any]:
    """By policy, over ``count`` cases with traffic: the sum of d/v over the optimum, less 1."""
    random = Random(f"exact {seed}")
    found: dict[str, list[float]] = {policy: [] for policy in POLICIES}
    filled = 0
    while len(found[POLICIES[0]]) < count:
        cluster, jobs = case(random)
        costs = {policy: cost_of(policy, cluster, jobs) for policy in POLICIES}
        known = [cost for cost in costs.values() if cost is not None]
        if len(known) < len(costs):
            continue
        best, number = optimum(cluster, jobs, min(known))
        filled += number
        if best > 0:
            for policy, cost in costs.items():
                assert cost is not None
                found[policy].append(cost / best - 1)
    return {"gaps": found, "filled": filled}
