"""What the job book tells its shell to do, in order. The shell has no say in any of it."""

from __future__ import annotations

from dataclasses import dataclass

from offpath.sched.jobs.states import EndReason, JobState


@dataclass(frozen=True, slots=True)
class Copy:
    """Copy the job's payload from its slot into the lane; report CopyDone with this ``attempt``."""

    job: int
    attempt: int
    lease: int
    lane: int


@dataclass(frozen=True, slots=True)
class Launch:
    """Signal the lane's worker. The book has recorded LAUNCHED before this leaves; it is sent at most once."""

    job: int
    attempt: int
    lease: int
    lane: int
    generation: int
    kernel: int
    share: int


@dataclass(frozen=True, slots=True)
class Answer:
    """The job's one terminal answer. ``stages``: queued, copy, launch, kernel, back, total, all in ns."""

    job: int
    session: int
    state: JobState
    reason: EndReason
    retry_after_ms: int
    lease: int
    generation: int
    stages: tuple[int, int, int, int, int, int]


@dataclass(frozen=True, slots=True)
class OpenLease:
    """Have the helper cut the instance and start a worker per lane; ``scrub_first``: what the last holder left was
    never confirmed scrubbed."""

    lease: int
    generation: int
    helper: int
    tenant: str
    gpu: str
    profile: str
    start: int
    lanes: int
    landing_bytes: int
    result_bytes: int
    scrub_first: bool


@dataclass(frozen=True, slots=True)
class ScrubLane:
    """Have the worker scrub its lane and confirm."""

    lease: int
    lane: int
    generation: int


@dataclass(frozen=True, slots=True)
class CloseLease:
    """Have the helper end the workers and destroy the instance; ``scrub``: it must scrub the whole instance first,
    because a worker died before it could."""

    lease: int
    generation: int
    helper: int
    scrub: bool


Command = Copy | Launch | Answer | OpenLease | ScrubLane | CloseLease
