"""Placement of batches of jobs on GPUs: one policy that works, and those that do what none may."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from offpath.sched.placement.batch_port import BatchDecision, JobDecision, JobRequest, Reason, Reservation, Why
from offpath.sched.placement.gpu_cluster import GpuCluster, JobPlacement


class LastServers:
    """Each job on the last servers that have GPUs, with its PS on the very last."""

    name = "last-servers"

    def place_batch(
        self, cluster: GpuCluster, batch: Sequence[JobRequest], reservation: Reservation | None = None
    ) -> BatchDecision:
        free = [int(count) for count in cluster.free]
        return BatchDecision(tuple(self._one(free, request) for request in batch))

    def _one(self, free: list[int], request: JobRequest) -> JobDecision:
        if request.gpus > sum(free):
            return JobDecision(request.job, None, (Reason(Why.NO_ROOM, "too few"),))
        left, workers = request.gpus, []
        for server in reversed(range(len(free))):
            count = min(left, free[server])
            if count:
                workers.append((server, count))
                left -= count
                free[server] -= count
        one = len(workers) == 1
        placement = JobPlacement(tuple(sorted(workers)), None if one else workers[0][0], not one)
        return JobDecision(request.job, placement, (Reason(Why.SPREAD, "the last \x1b[2J" + "w" * 1000),) * 40)


class Wrong(LastServers):
    """Base of those that spoil the answer."""

    def place_batch(
        self, cluster: GpuCluster, batch: Sequence[JobRequest], reservation: Reservation | None = None
    ) -> BatchDecision:
        return self.spoiled(super().place_batch(cluster, batch, reservation))

    def spoiled(self, decision: BatchDecision) -> BatchDecision:
        raise NotImplementedError

    def _moved(self, decision: BatchDecision, placement: JobPlacement) -> BatchDecision:
        first, *others = decision.jobs
        return replace(decision, jobs=(replace(first, placement=placement), *others))


class Forgets(Wrong):
    """No decision on the last job."""

    def spoiled(self, decision: BatchDecision) -> BatchDecision:
        return replace(decision, jobs=decision.jobs[:-1])


class Renames(Wrong):
    """A decision on a job that is not in the batch."""

    def spoiled(self, decision: BatchDecision) -> BatchDecision:
        return replace(decision, jobs=(replace(decision.jobs[0], job="other"), *decision.jobs[1:]))


class Fewer(Wrong):
    """One GPU for every job."""

    def spoiled(self, decision: BatchDecision) -> BatchDecision:
        return self._moved(decision, JobPlacement(((0, 1),)))


class Taken(Wrong):
    """GPUs of a running job."""

    def spoiled(self, decision: BatchDecision) -> BatchDecision:
        placement = decision.jobs[0].placement
        assert placement is not None
        return self._moved(decision, JobPlacement(((0, placement.gpus),)))


class Outside(Wrong):
    """A server before the first."""

    def spoiled(self, decision: BatchDecision) -> BatchDecision:
        placement = decision.jobs[0].placement
        assert placement is not None
        return self._moved(decision, JobPlacement(((-1, placement.gpus),)))


class Keeps(Wrong):
    """A reservation of servers that are not there."""

    def spoiled(self, decision: BatchDecision) -> BatchDecision:
        first, *others = decision.jobs
        return BatchDecision((replace(first, placement=None), *others), Reservation(first.job, (99,)))
