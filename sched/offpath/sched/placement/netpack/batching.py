"""What batch policies share: step 1, the order of jobs, the choice of one server, and reasons."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from offpath.sched.placement.batch_port import (
    BatchDecision,
    JobDecision,
    JobRequest,
    Reason,
    Reservation,
    Why,
    admitted,
)
from offpath.sched.placement.gpu_cluster import GpuCluster, JobPlacement
from offpath.sched.placement.netpack.kernels import kernels
from offpath.sched.placement.netpack.knapsack import aged, chosen

Placed = tuple[JobPlacement, tuple[Reason, ...]]


@dataclass(slots=True)
class Space:
    """The cluster while a batch is placed: a copy in which earlier jobs of the batch run."""

    cluster: GpuCluster
    allowed: NDArray[np.bool_]
    """Servers that workers may use."""
    regions: list[NDArray[np.int64]]
    filled: int = 0
    """Rates computed in this batch to compare plans."""

    def free_gpus(self) -> int:
        """Free GPUs on allowed servers."""
        return int(self.cluster.free[self.allowed].sum())


def space(cluster: GpuCluster) -> Space:
    """All servers allowed."""
    return Space(cluster.copied(), np.ones(cluster.network.servers, np.bool_), cluster.regions())


def one_server(here: Space, gpus: int) -> Placed | None:
    """The server that the job fills best (lines 4-6); None if none has room."""
    cluster = here.cluster
    if gpus > cluster.most_gpus:
        return None
    tightest = kernels(cluster.steady.is_compiled)[4]
    server = int(tightest(cluster.free, cluster.steady.flows_view, here.allowed, gpus))
    if server < 0:
        return None
    left = int(cluster.free[server]) - gpus
    return JobPlacement(((server, gpus),)), (Reason(Why.ONE_SERVER, f"has room, {left} GPUs stay free", server),)


class BatchPolicy:
    """Base of the batch policies: a subset by value, then each job in the order of value."""

    name = ""

    def place_batch(
        self, cluster: GpuCluster, batch: Sequence[JobRequest], reservation: Reservation | None = None
    ) -> BatchDecision:
        """See `BatchPlacement`."""
        valid, refused = admitted(cluster, batch)
        here = space(cluster)
        found: dict[str, JobDecision] = {}
        reservation = self.reserve(here, valid, reservation, found)
        waiting = [request for request in valid if request.job not in found]
        values = [aged(request.value, request.passed_over) for request in waiting]
        taken = chosen(values, [each.gpus for each in waiting], here.free_gpus(), compiled=cluster.steady.is_compiled)
        order = sorted(range(len(waiting)), key=lambda n: (-values[n], waiting[n].arrival_s, n))
        free, all_free = here.free_gpus(), int(here.cluster.free.sum())
        for n in order:
            request = waiting[n]
            placed = self.place_one(here, request) if taken[n] else None
            if placed is None:
                found[request.job] = JobDecision(request.job, None, (_deferral(request, taken[n], free, all_free),))
            else:
                here.cluster.start(request.job, placed[0], request.data_gbit)
                found[request.job] = JobDecision(request.job, *placed)
                free, all_free = free - request.gpus, all_free - request.gpus
        self.finish_batch(here, valid, found)
        answers = iter(found[request.job] for request in valid)
        return BatchDecision(
            tuple(refused[at] if at in refused else next(answers) for at in range(len(batch))), reservation
        )

    def place_one(self, here: Space, request: JobRequest) -> Placed | None:
        """Place one job; None if there is no room. Does not change the cluster."""
        raise NotImplementedError

    def reserve(
        self, here: Space, valid: Sequence[JobRequest], reservation: Reservation | None, found: dict[str, JobDecision]
    ) -> Reservation | None:
        """Before the subset is chosen: decide on jobs with a reservation, and take their servers from the others."""
        return None

    def finish_batch(self, here: Space, valid: Sequence[JobRequest], found: dict[str, JobDecision]) -> None:
        """After all jobs are placed: adjust decisions."""


def _deferral(request: JobRequest, was_selected: bool, free: int, all_free: int) -> Reason:
    """``free``: GPUs on servers that no other job has reserved; ``all_free``: on all."""
    if free < request.gpus <= all_free:
        return Reason(Why.RESERVED_FOR_OTHERS, f"{all_free} GPUs are free, {all_free - free} of them reserved")
    if was_selected or free < request.gpus:
        return Reason(Why.NO_ROOM, f"{request.gpus} GPUs wanted, {free} are free, not all on connected servers")
    return Reason(Why.NOT_SELECTED, f"other jobs of the batch are worth more; batches waited: {request.passed_over}")
