"""Simulates a cluster that places batches of training jobs on GPUs, with the rates of the steady state (NetPack §6).

The same policies and the same `GpuCluster` as in production; only time differs. A job computes, then communicates, in
each iteration: compute time plus d / v, with v its rate at that moment. Batches are decided at multiples of the period,
when something has changed since the last.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np

from offpath.sched.errors import SchedError
from offpath.sched.ina.statistical.network import Network
from offpath.sched.placement.batch_port import BatchPlacement, JobRequest, Reservation
from offpath.sched.placement.gpu_cluster import GpuCluster
from offpath.sched.sim.core import EventCore

_NS: Final = 1_000_000_000


class BatchSimulationError(SchedError):
    """A job of the stream cannot ever be placed, or jobs are left that nothing will start."""


@dataclass(frozen=True, slots=True)
class BatchJob:
    """``run_s``: time to the end if the network took no time, above 0; so ``run_s / compute_s`` iterations."""

    request: JobRequest
    run_s: float

    @property
    def iterations(self) -> float:
        """Iterations to the end; not whole, so that ``run_s`` is exact."""
        return self.run_s / self.request.compute_s


@dataclass(slots=True)
class BatchOutcome:
    """Times in s. ``servers``: with workers."""

    job: BatchJob
    started_s: float
    servers: int
    ended_s: float = 0.0

    @property
    def queue_s(self) -> float:
        """From the arrival to the start."""
        return self.started_s - self.job.request.arrival_s

    @property
    def jct_s(self) -> float:
        """From the arrival to the end."""
        return self.ended_s - self.job.request.arrival_s

    @property
    def ran_s(self) -> float:
        """From the start to the end."""
        return self.ended_s - self.started_s


class BatchSimulation:
    """One run."""

    def __init__(
        self, cluster: GpuCluster, policy: BatchPlacement, jobs: Sequence[BatchJob], period_s: float = 10.0
    ) -> None:
        """``cluster``: idle; it is used. ``period_s``: between batches, above 0."""
        self.outcomes: dict[str, BatchOutcome] = {}
        self.batches = 0
        self._cluster, self._policy = cluster, policy
        self._period_ns = max(1, round(period_s * _NS))
        self._core = EventCore()
        self._jobs = {job.request.job: job for job in jobs}
        self._waiting: dict[str, JobRequest] = {}
        self._reservation: Reservation | None = None
        self._is_due = False
        self._running: list[str] = []
        self._left = np.zeros(0)
        self._iteration_s = np.zeros(0)
        self._at_s = 0.0
        self._version = 0
        for job in jobs:
            self._core.at(round(job.request.arrival_s * _NS), partial(self._arrives, job.request))

    def run(self) -> list[BatchOutcome]:
        """Run until all jobs have ended; outcomes in the order of the jobs.

        Raises: BatchSimulationError.
        """
        self._core.run()
        if self._waiting or len(self.outcomes) < len(self._jobs):
            raise BatchSimulationError(f"{len(self._waiting)} jobs wait and nothing will start them")
        return [self.outcomes[name] for name in self._jobs]

    def _arrives(self, request: JobRequest) -> None:
        self._waiting[request.job] = request
        self._call_batch()

    def _call_batch(self) -> None:
        if not self._is_due:
            self._is_due = True
            self._core.at(-(-(self._core.now_ns + 1) // self._period_ns) * self._period_ns, self._batch)

    def _batch(self) -> None:
        self._is_due = False
        least = min((request.gpus for request in self._waiting.values()), default=0)
        if not self._waiting or self._cluster.free.sum() < least <= self._cluster.largest_job:
            return  # nothing can start, and a batch that starts nothing passes no job over
        self.batches += 1
        decision = self._policy.place_batch(self._cluster, list(self._waiting.values()), self._reservation)
        self._reservation = decision.reservation
        self._advance()
        for each in decision.started:
            request = self._waiting.pop(each.job)
            assert each.placement is not None
            self._cluster.start(each.job, each.placement, request.data_gbit)
            self.outcomes[each.job] = BatchOutcome(self._jobs[each.job], self._at_s, len(each.placement.workers))
            self._running.append(each.job)
            self._left = np.append(self._left, self._jobs[each.job].iterations)
        refused = next((each for each in decision.jobs if each.is_refused), None)
        if refused is not None:
            raise BatchSimulationError(f"job {refused.job}: {refused.reasons[0].text}")
        if decision.started:
            self._waiting = {name: _passed_over(request) for name, request in self._waiting.items()}
        self._reschedule()

    def _advance(self) -> None:
        """Count what the running jobs have done since the last change."""
        now_s = self._core.now_ns / _NS
        if len(self._left):
            self._left -= (now_s - self._at_s) / self._iteration_s
        self._at_s = now_s

    def _reschedule(self) -> None:
        """Set the iteration times from the steady state, and the next end."""
        self._version += 1
        if not self._running:
            return
        steady = self._cluster.steady
        requests = [self._jobs[name].request for name in self._running]
        self._iteration_s = np.array([request.compute_s for request in requests])
        spread = [n for n, name in enumerate(self._running) if name in steady]
        if spread:
            rates = steady.rates_gbps(self._running[n] for n in spread)
            data = np.array([requests[n].data_gbit for n in spread])
            self._iteration_s[spread] += data / np.maximum(rates, 1e-12)
        soonest_s = float((np.maximum(self._left, 0.0) * self._iteration_s).min())
        version = self._version
        self._core.after(max(1, round(soonest_s * _NS)), lambda: self._ends(version))

    def _ends(self, version: int) -> None:
        if version != self._version:
            return
        self._advance()
        over = self._left * self._iteration_s <= 1e-6
        for n in np.flatnonzero(over):
            name = self._running[n]
            self.outcomes[name].ended_s = self._at_s
            self._cluster.finish(name)
        self._running = [name for n, name in enumerate(self._running) if not over[n]]
        self._left = self._left[~over]
        self._iteration_s = self._iteration_s[~over]
        self._call_batch()
        self._reschedule()


def _passed_over(each: JobRequest) -> JobRequest:
    """What `dataclasses.replace` gives, at a tenth of its time: long queues are passed over again and again."""
    return JobRequest(
        each.job, each.gpus, each.data_gbit, each.compute_s, each.value, each.arrival_s, each.passed_over + 1
    )


def simulated(
    network: Network,
    gpus: int | Sequence[int],
    policy: BatchPlacement,
    jobs: Sequence[BatchJob],
    period_s: float = 10.0,
) -> list[BatchOutcome]:
    """Outcomes of ``jobs``, in their order, on an idle cluster: what figure 6 compares with a live run of the list.

    ``gpus``: of each server, or by server; ``period_s``: between batches. Raises: BatchSimulationError.
    """
    return BatchSimulation(GpuCluster(network, gpus), policy, jobs, period_s).run()


def distribution_efficiency(outcomes: Sequence[BatchOutcome]) -> float:
    """DE (§6.1): the mean over jobs of JCT with 1 GPU / (real JCT · GPUs), with the JCT from the start.

    A job with 1 GPU takes ``run_s`` times its GPUs: nothing but the network slows a job here.
    """
    return float(np.mean([each.job.run_s / each.ran_s for each in outcomes]))
