"""What the shadow of the job book remembers, and the exception of a broken promise."""

from __future__ import annotations

from dataclasses import dataclass, field

from offpath.sched.jobs import events
from offpath.sched.jobs.commands import Answer, CloseLease, OpenLease


class Violation(AssertionError):
    """The book broke a promise."""


def promise(kept: bool, text: str) -> None:
    if not kept:
        raise Violation(text)


@dataclass(slots=True, eq=False)
class ShadowJob:
    """``phase``: queued, copying, waiting (copied, no share yet), running, answered."""

    event: events.JobSubmitted
    tenant: str
    share: int
    order: int
    phase: str = "queued"
    attempt: int = -1
    launches: int = 0
    launched_ns: int = 0
    answered_ns: int = 0
    answer: Answer | None = None


@dataclass(slots=True, eq=False)
class Occupant:
    """What is in a lane: it outlives the job's answer."""

    job: ShadowJob
    attempt: int
    phase: str = "copying"


@dataclass(slots=True, eq=False)
class ShadowLease:
    """A lease from OpenLease until InstanceClosed, InstanceFailed or HelperLost."""

    opened: OpenLease
    alpha: int
    slices: range
    ready: set[int] = field(default_factory=set)
    lost: set[int] = field(default_factory=set)
    asked: set[int] = field(default_factory=set)
    scrubbed: set[int] = field(default_factory=set)
    closing: CloseLease | None = None
    lanes: dict[int, Occupant] = field(default_factory=dict)
    waiting: list[Occupant] = field(default_factory=list)
    flying: set[tuple[int, int]] = field(default_factory=set)
    idle_since_ns: int = 0
    since_ns: int = 0
    """CREATING since then; from the first ScrubLane on: SCRUBBING since then."""

    @property
    def running_share(self) -> int:
        return sum(o.job.share for o in self.lanes.values() if o.phase == "running")

    @property
    def is_serving(self) -> bool:
        return len(self.ready) == self.opened.lanes and not self.asked and self.closing is None
