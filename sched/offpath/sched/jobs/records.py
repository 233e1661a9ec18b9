"""What the job book knows: tenants and settings from configuration, jobs and leases it keeps itself."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from offpath.sched.gpu.geometry import Slice
from offpath.sched.gpu.policy import Demand, LeaseView, Placement, Refusal
from offpath.sched.jobs.service import ServiceTimes
from offpath.sched.jobs.states import EndReason, JobState, LeaseState

MS = 1_000_000


@dataclass(frozen=True, slots=True)
class TenantSpec:
    """A tenant's rights.

    ``weight`` splits contended GPUs; ``max_jobs`` jobs accepted and unanswered; ``max_share`` sum of α of its leases
    in percent of a GPU (250 = two and a half GPUs); ``max_demand`` the largest R a request may ask for;
    ``profile`` the MIG profile its leases take when they are opened on a need, else the smallest that holds R.
    """

    name: str
    weight: int = 1
    max_jobs: int = 256
    max_share: int = 100_000
    max_demand: int = 100
    profile: str | None = None


@dataclass(frozen=True, slots=True)
class PinnedLease:
    """A lease from configuration: opened when a helper joins, never closed for idleness or for others."""

    tenant: str
    gpu_index: int
    profile: str
    start: int


@dataclass(frozen=True, slots=True)
class BookSettings:
    """The leasing loop's numbers and the book's bounds; times in ns, sizes in bytes.

    ``keep_warm_ns`` an idle lease stays; ``grow_after_ns`` a backlog must last before another lease is opened;
    ``reclaim_after_ns`` a tenant must starve before others' busy leases are taken; ``min_hold_ns`` a lease is safe
    from that; ``retry_open_ns`` pause after an instance failed, doubled with each failure in a row up to
    ``retry_limit_ns``.

    Limits, 0 for none: ``kernel_ns`` a launch may run; ``linger_ns`` it may run on after its job was answered (one
    whose job expired only where ``kills_expired``, else until ``kernel_ns``);
    ``open_ns`` a lease may be CREATING; ``scrub_ns`` its workers may take to scrub; ``drain_ns`` what runs may take
    to finish when its tenant is removed (0: no time at all); ``kernel_gone_ns`` a kernel may be without a helper that
    serves it before its name is forgotten and its queued jobs end. ``policy`` is the name of the one that decides, of
    `offpath.sched.gpu.registry`; "": the one that the book has.
    """

    lanes: int = 2
    landing_bytes: int = 1 << 20
    result_bytes: int = 1 << 20
    max_jobs: int = 65_536
    keep_warm_ns: int = 5_000 * MS
    grow_after_ns: int = 20 * MS
    reclaim_after_ns: int = 100 * MS
    min_hold_ns: int = 200 * MS
    retry_open_ns: int = 1_000 * MS
    retry_limit_ns: int = 60_000 * MS
    kernel_ns: int = 0
    linger_ns: int = 0
    kills_expired: bool = True
    open_ns: int = 0
    scrub_ns: int = 0
    drain_ns: int = 30_000 * MS
    kernel_gone_ns: int = 0
    policy: str = ""


@dataclass(slots=True, eq=False)
class KnownKernel:
    """A kernel's number and name, its demand R in percent of a GPU, and since when no helper serves it."""

    kernel: int
    name: str
    share: int
    is_served: bool = True
    gone_ns: int = 0


@dataclass(slots=True, eq=False)
class Job:
    """One request. Times are 0 until they happened. ``attempt`` rises each time it goes back to the queue."""

    job: int
    session: int
    request_id: int
    demand: Demand
    kernel: int
    priority: int
    deadline_ns: int
    is_idempotent: bool
    accepted_ns: int
    state: JobState = JobState.ACCEPTED
    attempt: int = 0
    launches: int = 0
    placement: Placement | None = None
    is_copying: bool = False
    is_running: bool = False
    placed_ns: int = 0
    copied_ns: int = 0
    launched_ns: int = 0
    answered_ns: int = 0
    refusal: Refusal | None = None
    reason: EndReason = EndReason.NONE
    origin: int = 0

    def is_due(self, now_ns: int) -> bool:
        """Its deadline is there: it is to be answered, not to be started."""
        return 0 < self.deadline_ns <= now_ns

    def stages(self, now_ns: int, started_ns: int, finished_ns: int) -> tuple[int, int, int, int, int, int]:
        """Queued, copy, launch, kernel, back, total in ns. A job whose kernel did not run to its end has the stages of
        its last attempt as far as it came; what came before that attempt counts as queued.

        Args:
            started_ns, finished_ns: by the worker's clock. Where they do not lie between the copy's end and ``now_ns``,
                that clock is another one (the host's, not the DPU's): the kernel's time is then what they differ by,
                bounded by the time since the copy, and the rest of that time counts as launch.
        """
        total = now_ns - self.accepted_ns
        if not finished_ns:
            return (*self._stages_so_far(now_ns), 0, total)
        if self.copied_ns <= started_ns and finished_ns <= now_ns:
            launch, kernel, back = started_ns - self.copied_ns, finished_ns - started_ns, now_ns - finished_ns
        else:
            kernel = min(finished_ns - started_ns, now_ns - self.copied_ns)
            launch, back = now_ns - self.copied_ns - kernel, 0
        return self.placed_ns - self.accepted_ns, self.copied_ns - self.placed_ns, launch, kernel, back, total

    def _stages_so_far(self, now_ns: int) -> tuple[int, int, int, int]:
        """Queued, copy, launch, kernel; the last of them that is not zero still went on at ``now_ns``. The start of a
        kernel that has not ended is not known: it counts from its launch."""
        if self.placement is None:
            return now_ns - self.accepted_ns, 0, 0, 0
        queued = self.placed_ns - self.accepted_ns
        if self.is_copying or self.copied_ns < self.placed_ns:  # a failed copy leaves the time of an earlier attempt's
            return queued, now_ns - self.placed_ns, 0, 0
        copy = self.copied_ns - self.placed_ns
        if self.launched_ns < self.copied_ns:
            return queued, copy, now_ns - self.copied_ns, 0
        return queued, copy, self.launched_ns - self.copied_ns, now_ns - self.launched_ns


@dataclass(slots=True, eq=False)
class Lease:
    """A lease and what runs on it. ``running_share`` is Σ R of launched jobs, never above α; ``strays`` are copies
    (job, attempt) that still write although their lane was lost: no byte counts as scrubbed before they ended.
    ``since_ns`` is when it became CREATING or SCRUBBING; ``watch_ns`` when `Limits` looks at it next, 0 for never."""

    view: LeaseView
    generation: int
    is_pinned: bool
    state: LeaseState = LeaseState.PLANNED
    ready: set[int] = field(default_factory=set)
    lost: set[int] = field(default_factory=set)
    scrubbed: set[int] = field(default_factory=set)
    jobs: dict[int, Job] = field(default_factory=dict)
    waiting: deque[Job] = field(default_factory=deque)
    orphaned_copies: set[tuple[int, int]] = field(default_factory=set)
    running_share: int = 0
    opened_ns: int = 0
    idle_since_ns: int = 0
    since_ns: int = 0
    watch_ns: int = 0
    is_idle_timer_armed: bool = False
    is_closing: bool = False


@dataclass(slots=True, eq=False)
class Tenant:
    """A tenant's queue and holdings. ``queues`` has one heap per demand R, so that a large job that must wait for a
    large lease does not hold up the small ones; ``room`` are the slices that are being cleared for its next lease.
    ``failures`` counts leases in a row that could not be opened. Of a removed tenant, ``outgoing`` are the sessions
    that still wait for answers; they stay so if it is added again meanwhile. ``need_timer_ns``: when its need is looked
    at next, 0 for never. ``service``: how long its kernels take, by kernel; ``waiting`` counts its queued jobs by
    (priority, kernel, R, whether it has a deadline). ``stranded``: queued jobs, by number, whose kernel no helper
    serves; they are in no queue and not in ``waiting``."""

    spec: TenantSpec
    queues: dict[int, JobHeap] = field(default_factory=dict)
    queued: int = 0
    jobs: int = 0
    held_share: int = 0
    leases: dict[int, Lease] = field(default_factory=dict)
    need_since_ns: int = 0
    retry_open_ns: int = 0
    failures: int = 0
    sessions: int = 0
    is_leaving: bool = False
    leave_ns: int = 0
    outgoing: dict[int, Session] = field(default_factory=dict)
    need_timer_ns: int = 0
    room: set[Slice] = field(default_factory=set)
    service: dict[int, ServiceTimes] = field(default_factory=dict)
    waiting: dict[tuple[int, int, int, bool], int] = field(default_factory=dict)
    stranded: dict[int, Job] = field(default_factory=dict)

    def came(self, job: Job) -> None:
        """A job is queued."""
        kind = job.priority, job.kernel, job.demand.share, job.deadline_ns > 0
        self.waiting[kind] = self.waiting.get(kind, 0) + 1
        self.queued += 1

    def went(self, job: Job) -> None:
        """It is queued no longer."""
        kind = job.priority, job.kernel, job.demand.share, job.deadline_ns > 0
        self.queued -= 1
        if self.waiting[kind] == 1:
            del self.waiting[kind]
        else:
            self.waiting[kind] -= 1

    @property
    def backlog(self) -> int:
        """Jobs on no lane, whatever they wait for."""
        return self.queued + len(self.stranded)


class JobHeap:
    """Queued jobs of one tenant and demand: highest priority first, then first come first served, also for those that
    were placed and came back.

    A job that leaves out of turn stays inside until it surfaces or half of the heap is such; so memory stays bounded
    by twice the live jobs.
    """

    __slots__ = ("_dead", "_entries")

    def __init__(self) -> None:
        self._entries: list[tuple[int, int, int, int, Job]] = []
        self._dead = 0

    def __len__(self) -> int:
        return len(self._entries) - self._dead

    def waiting(self) -> Iterator[Job]:
        """Those that wait, in no order; for reading only."""
        return (e[4] for e in self._entries if e[4].state is JobState.QUEUED and e[4].attempt == e[3])

    def turns(self) -> list[tuple[int, int, int, Job]]:
        """Those that wait, in no order: what their turn goes by, and the job; for reading only."""
        return [
            (e[0], e[1], e[2], e[4]) for e in self._entries if e[4].state is JobState.QUEUED and e[4].attempt == e[3]
        ]

    def push(self, job: Job) -> None:
        """The job is queued."""
        heapq.heappush(self._entries, (-job.priority, job.accepted_ns, job.job, job.attempt, job))

    def peek(self) -> Job | None:
        """The job whose turn it is."""
        while self._entries:
            *_, attempt, job = self._entries[0]
            if job.state is JobState.QUEUED and job.attempt == attempt:
                return job
            heapq.heappop(self._entries)
            self._dead -= 1
        return None

    def pop(self) -> None:
        """Take out what `peek` gave."""
        heapq.heappop(self._entries)

    def queued(self) -> list[int]:
        """The jobs inside, in turn."""
        return [e[4].job for e in sorted(self._entries) if e[4].state is JobState.QUEUED and e[4].attempt == e[3]]

    def removed(self) -> None:
        """Some job inside is queued no longer."""
        self._dead += 1
        if self._dead > 32 and self._dead * 2 > len(self._entries):
            self._entries = [e for e in self._entries if e[4].state is JobState.QUEUED and e[4].attempt == e[3]]
            heapq.heapify(self._entries)
            self._dead = 0


@dataclass(slots=True)
class Session:
    """A requester's session: the last request id it used, and its jobs without a returned credit. ``is_leaving``: its
    tenant was removed."""

    session: int
    tenant: str
    credits: int
    last_request_id: int = 0
    origin: str = ""
    jobs: dict[int, Job] = field(default_factory=dict)
    is_leaving: bool = False
