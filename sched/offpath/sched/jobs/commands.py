"""What the job book tells its shell to do, in order. The shell has no say in any of it."""

from __future__ import annotations

from offpath.sched.gpu.plugin import PluginDecision
from offpath.sched.jobs.states import EndReason, JobState
from offpath.sched.record import record


@record
class Copy:
    """Copy the job's payload from its slot into the lane; report CopyDone with this ``attempt``."""

    job: int
    attempt: int
    lease: int
    lane: int


@record
class Launch:
    """Signal the lane's worker. The book has recorded LAUNCHED before this leaves; it is sent at most once."""

    job: int
    attempt: int
    lease: int
    lane: int
    generation: int
    kernel: int
    share: int


@record
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


@record
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


@record
class ScrubLane:
    """Have the worker scrub its lane and confirm."""

    lease: int
    lane: int
    generation: int


@record
class CloseLease:
    """Have the helper end the workers and destroy the instance; ``scrub``: it must scrub the whole instance first,
    because a worker died before it could."""

    lease: int
    generation: int
    helper: int
    scrub: bool


@record
class KillLane:
    """Have the helper kill the lane's worker, now: what it runs has overrun. The book counts the lane as lost."""

    lease: int
    lane: int
    generation: int
    helper: int


@record
class EndSession:
    """The session's tenant was removed and all its answers are out: say so and close it."""

    session: int


@record
class TenantGone:
    """A removed tenant holds nothing any more: forget who it was."""

    tenant: str


Command = (
    Copy | Launch | Answer | OpenLease | ScrubLane | CloseLease | KillLane | EndSession | TenantGone | PluginDecision
)
"""A `PluginDecision` asks nothing of the shell: it is what a policy plug-in said, for the journal."""
