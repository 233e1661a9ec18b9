"""The batch placement port: GPUs on servers, a parameter server (PS) and network aggregation for a batch of jobs.

`placement.port` places one job on whole hosts; here jobs get some of a server's GPUs, and a batch is decided at once
(NetPack §3.2). A policy does not start what it decides; its caller does, with `GpuCluster.start`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from offpath.sched.placement.gpu_cluster import GpuCluster, JobPlacement


@dataclass(frozen=True, slots=True)
class JobRequest:
    """A job of a batch. Unchecked: `refusal` says what is wrong with it."""

    job: str
    gpus: int
    data_gbit: float
    """Data that each worker sends in an iteration, in Gbit: d of Table 2. 0: the job never uses the network."""
    compute_s: float = 0.0
    """Compute time of an iteration."""
    value: float = 1.0
    """The user's value of the job, above 0."""
    arrival_s: float = 0.0
    passed_over: int = 0
    """Batches in which another job was placed and this one was not."""


class Why(StrEnum):
    """Kinds of reasons."""

    ONE_SERVER = "one-server"
    """One server has room for all workers."""
    SPREAD = "spread"
    """How the workers' servers were chosen."""
    PS = "ps"
    INA_ON = "ina-on"
    INA_OFF = "ina-off"
    NOT_SELECTED = "not-selected"
    """Deferred: the batch wants more GPUs than are free, and others are worth more."""
    NO_ROOM = "no-room"
    """Deferred: too few GPUs are free."""
    RESERVED_FOR_OTHERS = "reserved-for-others"
    """Deferred: enough GPUs are free, but a job that has waited long has reserved some of them."""
    HAS_RESERVATION = "has-reservation"
    """Deferred: the job's reserved servers are not free yet."""
    REFUSED = "refused"
    """The request is invalid, now and later."""


@dataclass(frozen=True, slots=True)
class Reason:
    """``text`` is for people. ``server``: what it is about, if it is one server."""

    why: Why
    text: str
    server: int | None = None

    def describe(self, names: Sequence[str]) -> str:
        """For people. ``names``: of the servers, shape [S]; a number that is none of them stays a number."""
        if self.server is None:
            return f"{self.why}: {self.text}"
        known = 0 <= self.server < len(names)
        return f"{self.why}: {names[self.server] if known else f'server {self.server}'}: {self.text}"


@dataclass(frozen=True, slots=True)
class JobDecision:
    """``placement``: None if the job is deferred or refused."""

    job: str
    placement: JobPlacement | None
    reasons: tuple[Reason, ...]

    @property
    def is_refused(self) -> bool:
        """True if the request can never be placed."""
        return any(reason.why is Why.REFUSED for reason in self.reasons)


@dataclass(frozen=True, slots=True)
class Reservation:
    """Servers on which no job but ``job`` is started. The caller passes it to the next batch."""

    job: str
    servers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class BatchDecision:
    """``jobs``: one decision per request, in the order of the batch."""

    jobs: tuple[JobDecision, ...]
    reservation: Reservation | None = None

    @property
    def started(self) -> tuple[JobDecision, ...]:
        """Decisions that start a job; in this order they fit."""
        return tuple(each for each in self.jobs if each.placement is not None)


class BatchPlacement(Protocol):
    """A policy. Deterministic; keeps no state between batches but caches."""

    name: str

    def place_batch(
        self, cluster: GpuCluster, batch: Sequence[JobRequest], reservation: Reservation | None = None
    ) -> BatchDecision:
        """Decide each request of the batch. Does not change ``cluster``. Invalid requests are refused, each with a
        reason; the others are decided as if those were not there.

        ``reservation``: what the decision of the batch before returned.
        """


def refusal(cluster: GpuCluster, request: JobRequest) -> str | None:
    """Why the request is invalid; None if it is valid."""
    if not isinstance(request.gpus, int) or isinstance(request.gpus, bool) or request.gpus < 1:
        return f"{request.gpus!r:.20} GPUs: give a whole number of 1 or more"
    if request.gpus > cluster.largest_job:
        return f"{request.gpus} GPUs: the cluster has {cluster.largest_job} that one job can use"
    for name, value, least in (
        ("data_gbit", request.data_gbit, 0.0), ("compute_s", request.compute_s, 0.0),
        ("arrival_s", request.arrival_s, -math.inf),
    ):  # fmt: skip
        if not (math.isfinite(value) and value >= least):
            return f"{name} of {value}: give a number of 0 or more"
    if not (math.isfinite(request.value) and request.value > 0):
        return f"value of {request.value}: give a number above 0"
    if request.job in cluster.running:
        return "a job of that name is running"
    return None


def admitted(cluster: GpuCluster, batch: Sequence[JobRequest]) -> tuple[list[JobRequest], dict[int, JobDecision]]:
    """The valid requests, and the decisions on the invalid ones by their place in the batch."""
    valid: list[JobRequest] = []
    refused: dict[int, JobDecision] = {}
    names: set[str] = set()
    for at, request in enumerate(batch):
        why = "the batch has another job of that name" if request.job in names else refusal(cluster, request)
        if why is None:
            valid.append(request)
            names.add(request.job)
        else:
            refused[at] = JobDecision(request.job, None, (Reason(Why.REFUSED, why),))
    return valid, refused
