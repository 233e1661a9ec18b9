"""What the shadow of the job book remembers, and the exception of a broken promise."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from offpath.sched.jobs import events
from offpath.sched.jobs.commands import Answer, CloseLease, OpenLease
from offpath.sched.jobs.settings import BookSettings
from offpath.sched.jobs.states import EndReason, JobState

REPORTED = (
    EndReason.KERNEL_RAISED, EndReason.RESULT_TOO_LARGE, EndReason.RESULT_NOT_SPLIT, EndReason.PAYLOAD_CHECKSUM
)  # fmt: skip
"""Reasons that a result brings."""


class Violation(AssertionError):
    """The book broke a promise."""


def promise(kept: bool, text: str) -> None:
    if not kept:
        raise Violation(text)


@dataclass(frozen=True, slots=True)
class Needs:
    """Of a kernel, or of a job. ``models``: R by GPU model; empty: ``share`` on all. ``memory_bytes``: without the
    lane's buffers; 0: not stated."""

    share: int
    models: tuple[tuple[str, int], ...] = ()
    memory_bytes: int = 0

    def share_on(self, model: str) -> int:
        return dict(self.models).get(model, 0) if self.models else self.share

    def asked(self, share: int, most: int) -> Needs:
        """Those of a job. ``share``: R in the request, 0 for none; ``most``: what its tenant may request."""
        models = tuple((model, share or on_model) for model, on_model in self.models)
        models = tuple(each for each in models if each[1] <= most) or models
        least = min((on_model for _, on_model in models), default=share or self.share)
        return Needs(least, models, self.memory_bytes)


@dataclass(slots=True, eq=False)
class ShadowJob:
    """``phase``: queued, copying, waiting (copied, no share yet), running, answered."""

    event: events.JobSubmitted
    tenant: str
    needs: Needs
    order: int
    phase: str = "queued"
    attempt: int = -1
    launches: int = 0
    answered_ns: int = 0
    answer: Answer | None = None
    lost_its_kernel: bool = False
    rows: int = 0
    stack: int = 0
    """Jobs of a kernel with the same number may share a launch; 0: it has its own."""
    ripe_by_ns: int = 0
    """When it has waited for others as long as it may."""
    ripe_from_ns: int = 0
    """Before this its deadline does not end the wait."""
    follows: events.SequenceSubmitted | None = None
    sequence: Any = None
    """The `shadow_sequences.ShadowSequence` that it is in, as long as that has not ended."""
    is_doomed: bool = False
    """It needs a state that is lost."""
    way: list[int] = field(default_factory=list)
    """When it was accepted, and when its last attempt was placed, copied and launched, as far as it came."""

    def rank(self, step_ns: int) -> tuple[int, int, int]:
        """Its place in its tenant's order: each step of priority counts as ``step_ns`` of waiting; 0: for ever."""
        if not step_ns:
            return -self.event.priority, self.way[0], self.order
        return 0, self.way[0] - self.event.priority * step_ns, self.order

    def goes_on(self, phase: str, now_ns: int) -> None:
        self.phase = phase
        self.way.append(now_ns)

    def falls_back(self, phase: str) -> None:
        """Its attempt is void: what passed counts as queued."""
        self.phase = phase
        del self.way[1:]

    def has_stages(self, answer: Answer, now_ns: int) -> bool:
        """The stages add up, and are as far as the job came. The worker's clock parts only what follows the copy."""
        *parts, total = answer.stages
        so_far = [end - start for start, end in zip(self.way, [*self.way[1:], now_ns], strict=True)]
        if answer.state is JobState.COMPLETED or answer.reason in REPORTED:
            right = parts[:2] == so_far[:2] and min(parts) >= 0
        else:
            right = parts == so_far + [0] * (5 - len(so_far))
        return right and sum(parts) == total == now_ns - self.way[0]

    def is_queued_like(self, other: ShadowJob) -> bool:
        """It is queued, for its tenant and demand."""
        return self.phase == "queued" and (self.tenant, self.needs) == (other.tenant, other.needs)

    @property
    def share(self) -> int:
        """R, the least where it depends on the GPU's model."""
        return self.needs.share


@dataclass(slots=True, eq=False)
class Occupant:
    """What is in a lane: it outlives the job's answer. ``members``: of a batch, the leader first. ``phase``: as of a
    job, or closing: rows of members that left are to be closed up."""

    members: list[ShadowJob]
    attempt: int
    share: int
    """R on the GPU of its lane."""
    phase: str = "copying"

    @property
    def job(self) -> ShadowJob:
        """The job, or the leader of its batch."""
        return self.members[0]

    def goes_on(self, phase: str, now_ns: int) -> None:
        self.phase = phase
        for job in self.members:
            job.goes_on(phase, now_ns)

    def overruns_ns(self, settings: BookSettings, *, has_states: bool) -> int:
        """When what runs has run for too long; 0 for never. ``has_states``: of other sequences, its worker."""
        if self.phase != "running":
            return 0
        dues = [self._overruns_ns(job, settings, has_states) for job in self.members]
        return max(dues) if all(dues) else 0

    @staticmethod
    def _overruns_ns(job: ShadowJob, settings: BookSettings, has_states: bool) -> int:
        launched = job.way[-1] + settings.kernel_ns if settings.kernel_ns else 0
        is_limited = bool(settings.linger_ns) and job.answer is not None and not has_states
        if job.answer is not None and job.answer.state is JobState.EXPIRED:
            is_limited &= settings.kills_expired
        lingers = job.answered_ns + settings.linger_ns if is_limited else 0
        return min(launched or lingers, lingers or launched)


@dataclass(slots=True, eq=False)
class ShadowLease:
    """A lease from OpenLease until InstanceClosed, InstanceFailed or HelperLost."""

    opened: OpenLease
    alpha: int
    slices: range
    model: str
    memory_bytes: int
    """Of the whole instance, or of a gang's together."""
    loading: set[int] = field(default_factory=set)
    ready: set[int] = field(default_factory=set)
    lost: set[int] = field(default_factory=set)
    asked: set[int] = field(default_factory=set)
    scrubbed: set[int] = field(default_factory=set)
    closing: CloseLease | None = None
    lanes: dict[int, Occupant] = field(default_factory=dict)
    waiting: list[Occupant] = field(default_factory=list)
    flying: set[tuple[int, int]] = field(default_factory=set)
    idle_since_ns: int = 0
    drains_ns: int = 0
    """Leaves since then; 0: not."""
    since_ns: int = 0
    """CREATING since then, or loading since then; from the first ScrubLane on: SCRUBBING since then."""

    stale: set[int] = field(default_factory=set)
    """Lanes whose worker may run the code from before a reload."""
    renewing: dict[int, int] = field(default_factory=dict)
    """Lanes whose worker is being replaced: since when the new one is awaited, or loads."""
    renewals: dict[int, int] = field(default_factory=dict)
    code: dict[int, frozenset[int]] = field(default_factory=dict)
    """The kernels that each lane's worker surely has: those served when it was ordered."""

    def reloaded(self) -> None:
        """The helper runs other code; its workers do not yet."""
        if not self.asked and self.closing is None:
            self.stale |= set(range(self.opened.lanes)) - self.lost

    def renews(self, event: events.LaneLoading | events.LaneReady, now_ns: int) -> bool:
        """The new worker of a lane loads, or is ready. True: the lane takes jobs again."""
        if isinstance(event, events.LaneLoading):
            if event.lane not in self.loading:
                self.loading.add(event.lane)
                self.renewing[event.lane] = now_ns
            return False
        del self.renewing[event.lane]
        if not self.lanes:
            self.idle_since_ns = now_ns
        return event.lane not in self.stale

    @property
    def awaited(self) -> set[int]:
        """Lanes whose worker is not ready."""
        return set(range(self.opened.lanes)) - self.ready | self.renewing.keys()

    @property
    def to_renew(self) -> set[int]:
        """Lanes whose worker must be replaced now, if the lease serves."""
        return self.stale - self.lanes.keys() - self.renewing.keys()

    @property
    def takes_a_job(self) -> bool:
        """True if a lane is free and runs the present code."""
        return len(self.lanes.keys() | self.renewing.keys() | self.stale) < self.opened.lanes

    def renewal_overruns_ns(self, lane: int, settings: BookSettings) -> int:
        """When the lane's new worker has taken too long; 0 for never."""
        limit_ns = settings.load_ns if lane in self.loading else settings.open_ns
        return self.renewing[lane] + limit_ns if limit_ns and lane in self.renewing else 0

    def loads(self, lane: int, now_ns: int) -> None:
        """A lane's worker loads its models; the last of them starts that limit."""
        if lane not in self.loading:
            self.loading.add(lane)
            if len(self.loading) == self.opened.lanes:
                self.since_ns = now_ns

    def creating_ns(self, settings: BookSettings) -> int:
        """How long it may go on as it is while it is CREATING; 0: for ever."""
        return settings.load_ns if len(self.loading) == self.opened.lanes else settings.open_ns

    def has_allowed_lanes(self, settings: BookSettings, *, may_be_few: bool) -> bool:
        """As many as the settings allow, and no more than the instance holds. ``may_be_few``: kernels that state their
        memory are served."""
        lanes, order = self.opened.lanes, self.opened
        return (1 if may_be_few else settings.lanes) <= lanes <= max(settings.lanes, settings.max_lanes) and lanes * (
            order.landing_bytes + order.result_bytes
        ) <= self.memory_bytes // len(self.gpus)

    def share_of(self, job: ShadowJob) -> int:
        """R of the job here; 0: it may never be in a lane of this lease. Lanes share the memory equally."""
        share, memory = job.needs.share_on(self.model), job.needs.memory_bytes
        buffers = self.opened.landing_bytes + self.opened.result_bytes
        has_memory = not memory or self.opened.lanes * (memory + buffers) <= self.memory_bytes
        is_gangs = share > 100 or len(self.gpus) > 1
        fits = share == self.alpha and len(self.gpus) > 1 if is_gangs else share <= self.alpha
        return share if fits and has_memory else 0

    @property
    def gpus(self) -> tuple[str, ...]:
        """All GPUs of the lease: several, if it is a gang's."""
        return (self.opened.gpu, *self.opened.others)

    @property
    def places(self) -> set[tuple[str, int]]:
        """All memory slices that it holds."""
        return {(gpu, slice_) for gpu in self.gpus for slice_ in self.slices}

    @property
    def running_share(self) -> int:
        return sum(o.share for o in self.lanes.values() if o.phase == "running")

    @property
    def is_serving(self) -> bool:
        return len(self.ready) == self.opened.lanes and not self.asked and self.closing is None
