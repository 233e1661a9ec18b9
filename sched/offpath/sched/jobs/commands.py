"""Commands of the job book to its shell, in order. The shell takes no part in the decisions."""

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
class CopyBatch:
    """Copy the payloads of several jobs into the lane, tensor by tensor: rows of one tensor lie together. Report one
    CopyDone with ``job`` and ``attempt`` when all copies have ended. ``job``: the leader, in whose name the batch is
    launched. ``members``: each job with its first row, the leader first. ``rows``: of all."""

    job: int
    attempt: int
    lease: int
    lane: int
    rows: int
    members: tuple[tuple[int, int], ...]


@record
class Launch:
    """Signal the lane's worker. The book records LAUNCHED before this is sent; it is sent at most once."""

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
    """Have the helper create the instance and start a worker per lane. ``scrub_first``: the scrub of the last holder's
    data was never confirmed. ``others``: the further GPUs of a gang, each with the same instance."""

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
    others: tuple[str, ...] = ()

    @property
    def gpus(self) -> tuple[str, ...]:
        """All GPUs of the lease."""
        return (self.gpu, *self.others)


@record
class ScrubLane:
    """Have the worker scrub its lane and confirm."""

    lease: int
    lane: int
    generation: int


@record
class CloseLease:
    """Have the helper end the workers and destroy the instance. ``scrub``: it must scrub the whole instance first,
    because a worker died before it could."""

    lease: int
    generation: int
    helper: int
    scrub: bool


@record
class KillLane:
    """Have the helper kill the lane's worker at once: its kernel has overrun. The book counts the lane as lost."""

    lease: int
    lane: int
    generation: int
    helper: int


@record
class RenewLane:
    """Have the helper replace the lane's worker, which holds no job, by one that runs the present code. ``renewal``:
    how often this lane's worker was replaced, this time included. No former worker of it may connect."""

    lease: int
    lane: int
    generation: int
    helper: int
    renewal: int


@record
class EndSequence:
    """Have the lane's worker drop the state of a sequence that ended without its last request, or that starts anew.
    ``sequence``: the number of the state, which no other start has: the order may arrive late."""

    lease: int
    lane: int
    generation: int
    sequence: int


@record
class EndSession:
    """The session's tenant was removed and all its answers are sent: notify the requester and close the session."""

    session: int


@record
class TenantGone:
    """A removed tenant holds nothing: forget it."""

    tenant: str


Command = (
    Copy | Launch | Answer | OpenLease | ScrubLane | CloseLease | KillLane | EndSession | TenantGone | PluginDecision
    | RenewLane | CopyBatch | EndSequence
)  # fmt: skip
"""A `PluginDecision` requires no action of the shell: it records a policy plug-in's decision in the journal."""
