"""Step 4 of Algorithm 2: which jobs of the batch use aggregation, by aggregation efficiency, until PAT is used up."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from offpath.sched.ina.statistical.model import Spread, leaves
from offpath.sched.ina.statistical.network import Network
from offpath.sched.placement.gpu_cluster import GpuCluster

_PAT_GBPS = 1e-6


def entering(network: Network, spread: Spread) -> int:
    """Flows that enter the job's switches with aggregation: the sum over its ToRs."""
    below = leaves(network, spread)
    local = len(spread.workers) - sum(below.values())
    return sum(below.values()) + local + len(below)


def efficiency(cluster: GpuCluster, job: str) -> float:
    """AE of a running job (§5.2, step 4): its throughput times the flows that enter its switches."""
    spread = cluster.running[job].spread
    assert spread is not None
    return cluster.steady.rate_gbps(job) * entering(cluster.network, spread)


def disabled(cluster: GpuCluster, jobs: Iterable[str]) -> set[str]:
    """Those of ``jobs`` that do not use aggregation: when PAT ran out, others with more efficiency had it.

    Nothing is disabled while no ToR's PAT is used up.
    """
    steady = cluster.steady
    up_to = steady.aggregated_up_to_gbps
    left = steady.pat_left_gbps
    if np.all(np.isinf(up_to)) and np.all(left > 0):
        return set()
    network = cluster.network
    racks: dict[str, tuple[int, ...]] = {}
    for job in jobs:
        spread = cluster.running[job].spread
        assert spread is not None
        racks[job] = (network.rack_of[spread.ps], *leaves(network, spread))
        for rack in racks[job]:
            left[rack] += min(steady.rate_gbps(job), float(up_to[rack]))
    off = set()
    for job in sorted(racks, key=lambda job: -efficiency(cluster, job)):
        if all(left[rack] > _PAT_GBPS for rack in racks[job]):
            for rack in racks[job]:
                left[rack] -= steady.rate_gbps(job)
        else:
            off.add(job)
    return off
