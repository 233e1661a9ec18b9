"""A `GpuCluster` as a record: for policies in other processes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from offpath.sched.ina.statistical.network import Network
from offpath.sched.placement.gpu_cluster import PLAIN, GpuCluster, JobPlacement


@dataclass(frozen=True, slots=True)
class RunningJob:
    """``data_gbit``: of an iteration."""

    job: str
    placement: JobPlacement
    data_gbit: float


@dataclass(frozen=True, slots=True)
class ClusterState:
    """``gpus`` and ``free``: by server, shape [S]. ``free`` need not follow from the running jobs: an engine may have
    jobs whose places are not known."""

    network: Network
    gpus: tuple[int, ...]
    free: tuple[int, ...]
    lost: tuple[int, ...]
    running: tuple[RunningJob, ...]


def state_of(cluster: GpuCluster) -> ClusterState:
    """What a copy in another process needs."""
    running = tuple(
        RunningJob(job, placement, cluster.steady.data_gbit(job) if placement.ps is not None else 0.0)
        for job, placement in cluster.running.items()
    )
    return ClusterState(
        cluster.network, tuple(cluster.gpus.tolist()), tuple(cluster.free.tolist()), tuple(sorted(cluster.lost)),
        running,
    )  # fmt: skip


def cluster_of(state: ClusterState) -> GpuCluster:
    """The reverse of `state_of`, with rates computed anew. Raises: GpusHeld, SpreadInvalid: the record is damaged."""
    compiled = None if state.network.servers > PLAIN else False
    cluster = GpuCluster(state.network, state.gpus, compiled=compiled)
    for each in state.running:
        cluster.start(each.job, each.placement, each.data_gbit)
    for server in state.lost:
        cluster.lose(server)
    cluster.free = np.array(state.free, np.int64)
    return cluster
