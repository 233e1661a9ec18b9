"""Records of the job book: tenants and settings from configuration, and the jobs and leases that it tracks."""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from offpath.sched.gpu.geometry import Slice
from offpath.sched.gpu.policy import Demand, LeaseView, Placement, Refusal
from offpath.sched.jobs.service import ServiceTimes
from offpath.sched.jobs.states import EndReason, JobState, LeaseState

MS = 1_000_000
MOST_MEMBERS = 256
"""Jobs of one batch."""
QueueKind = tuple[Any, ...]
"""What jobs of one queue have in common: the kind of their demand; if they batch, also their kernel and stack."""


@dataclass(frozen=True, slots=True)
class TenantSpec:
    """A tenant's rights.

    ``weight`` splits contended GPUs. ``max_jobs``: jobs accepted and unanswered. ``max_share``: sum of α of its leases,
    in percent of a GPU (250 = two and a half GPUs). ``max_demand``: the largest R of a request. ``profile``: the MIG
    profile of leases that are opened on a need; None selects the smallest that holds R. ``kernels``: names of those
    that it may call; None: all. ``max_sequences``: sequences at a time.
    """

    name: str
    weight: int = 1
    max_jobs: int = 256
    max_share: int = 100_000
    max_demand: int = 100
    profile: str | None = None
    kernels: tuple[str, ...] | None = None
    max_sequences: int = 64


@dataclass(frozen=True, slots=True)
class PinnedLease:
    """A lease from configuration: opened when the helper joins, never closed for idleness or for another tenant.
    ``gpu_index``: position in the order of the helper's GPUs."""

    tenant: str
    gpu_index: int
    profile: str
    start: int
    helper: str = ""


@dataclass(frozen=True, slots=True)
class BookSettings:
    """Parameters of the leasing loop and bounds of the book; times in ns, sizes in bytes.

    ``max_sequences``: of all tenants at a time. ``sequence_idle_ns``: how long a sequence without a job lasts, and how
    long sequences may stay on a lease that is to be taken; never 0.
    ``lanes``: the least that a lease has. ``max_lanes``: the most, if more of the jobs that it is opened for fit its
    share at once and its memory has room; 0: as ``lanes``.
    ``keep_warm_ns``: how long an idle lease stays. ``grow_after_ns``: how long a backlog lasts before another lease is
    opened. ``reclaim_after_ns``: how long a tenant starves before busy leases of others are taken. ``min_hold_ns``: how
    long a new lease is safe from that. ``retry_open_ns``: the pause after an instance failed, doubled with each failure
    in a row up to ``retry_limit_ns``.

    Limits, 0 for none. ``kernel_ns``: run time of a launch. ``linger_ns``: run time after the job was answered (if the
    job expired, only where ``kills_expired``, else until ``kernel_ns``). ``open_ns``: time a lease may be CREATING
    until all its lanes are reserved. ``load_ns``: time that its workers may take from then on to load their models.
    ``scrub_ns``: time its workers may take to scrub. ``drain_ns``: time that running jobs of a removed tenant may take
    to finish (0: no time at all). ``kernel_gone_ns``: time without a helper that serves a kernel before its name is
    forgotten and its queued jobs end. ``policy``: name of a policy of `offpath.sched.gpu.registry`; "" keeps the
    current one.
    """

    lanes: int = 2
    max_lanes: int = 0
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
    load_ns: int = 0
    scrub_ns: int = 0
    drain_ns: int = 30_000 * MS
    kernel_gone_ns: int = 0
    policy: str = ""
    max_sequences: int = 4_096
    sequence_idle_ns: int = 10_000 * MS


@dataclass(slots=True, eq=False)
class Job:
    """One request. Times are 0 until set. ``attempt`` rises each time it goes back to the queue. ``share``: R on the
    GPU of its lane, or of its last lane. ``asked_share``: R in the request, 0 for its kernel's. ``streams``: its kernel
    did when it was submitted; while it is queued, the lease ``awaits_lease`` is kept for it, 0 for none.
    ``stack``: jobs of a kernel with the same number may share a launch; 0: it has its own. ``rows``: its part of one.
    ``ripe_ns``: how long it waits for others. ``batch``: the one that it is in, from its placement on. Of the
    batch whose launch has ended, ``led_by`` is the leader, ``first_row`` where its rows were. ``sequence``: number of
    the one that it is in, 0 for none; ``is_start``, ``is_end``: it is the first, or the last one there. Of a queued job
    ``is_held``: it is behind others of its sequence; ``turn``: the lease and the lane that it waits for. ``is_seated``:
    the policy does not count its share, since the lane is its sequence's."""

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
    share: int = 0
    asked_share: int = 0
    rows: int = 0
    stack: int = 0
    ripe_ns: int = 0
    batch: Batch | None = None
    led_by: int = 0
    first_row: int = 0
    sequence: int = 0
    sequence_state: int = 0
    """Number of the state that it needs or starts, from when it is its sequence's head: `Sequence.state`."""
    is_start: bool = False
    is_end: bool = False
    is_held: bool = False
    turn: tuple[int, int] | None = None
    is_seated: bool = False
    streams: bool = False
    awaits_lease: int = 0

    @property
    def queue_kind(self) -> QueueKind:
        """The queue that it waits in."""
        return (*self.demand.kind, self.kernel, self.stack) if self.stack else self.demand.kind

    @property
    def awaits(self) -> bool:
        """True if it is queued, but in no queue: it waits for others of its sequence, or for that one's lane."""
        return self.is_held or self.turn is not None

    @property
    def is_follower(self) -> bool:
        """True if it is in a batch that another job leads: that one stands for the lane."""
        return self.batch is not None and self.batch.members[0] is not self

    @property
    def members(self) -> list[Job]:
        """The jobs of its launch."""
        return self.batch.members if self.batch else [self]

    def is_due(self, now_ns: int) -> bool:
        """True if the deadline has passed: answer the job, do not start it."""
        return 0 < self.deadline_ns <= now_ns


@dataclass(slots=True, eq=False)
class Batch:
    """Jobs of one tenant, kernel and stack in one lane, in the order of their rows; the first is the leader. ``copy``:
    job and attempt of the last `CopyBatch`. ``is_ending``: the rows of members that leave are not closed up."""

    members: list[Job]
    copy: tuple[int, int]
    is_ending: bool = False


@dataclass(slots=True, eq=False)
class Lease:
    """A lease and what runs on it. ``running_share`` is Σ R of launched jobs, never above α. ``orphaned_copies``:
    copies (job, attempt) that still write although their lane was lost; the lease is not scrubbed before they end.
    ``since_ns``: when it became CREATING or SCRUBBING, or when all its lanes were ``loading``.
    ``watch_ns``: when `Limits` checks it next, 0 for never.

    After its helper has reloaded its kernels, ``stale``: lanes whose worker runs the former code. ``renewing``: lanes
    whose worker is being replaced, with the time since when the new one is awaited, or loads. ``renewals``: how often a
    lane's worker was replaced, for each where it was.

    ``free_lanes``: those of a gang's lease, which no policy routes to; taken from the end.

    ``sequences``: for each lane that has any, the number of sequences that are bound to it. ``since_ns`` is also the
    time when a lease with sequences became DRAINING. ``is_forsaken``: their time there is over; jobs on its lanes
    finish."""

    view: LeaseView
    generation: int
    is_pinned: bool
    state: LeaseState = LeaseState.PLANNED
    loading: set[int] = field(default_factory=set)
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
    stale: set[int] = field(default_factory=set)
    renewing: dict[int, int] = field(default_factory=dict)
    renewals: dict[int, int] = field(default_factory=dict)
    free_lanes: list[int] = field(default_factory=list)
    sequences: dict[int, int] = field(default_factory=dict)
    is_forsaken: bool = False

    @property
    def occupants(self) -> list[Job]:
        """One job for each lane that holds any: of a batch its leader."""
        return [job for job in self.jobs.values() if not job.is_follower]

    @property
    def is_gang(self) -> bool:
        """True if it is on several GPUs."""
        return bool(self.view.others)

    @property
    def is_renewing(self) -> bool:
        """True if a lane comes back by itself, as those of a lease that opens do."""
        return bool(self.renewing) and self.state is LeaseState.WARM


@dataclass(slots=True, eq=False)
class Tenant:
    """A tenant's queue and holdings. ``queues`` has one heap per kind of demand, so that a large job that waits for a
    large lease does not block small ones, and one for each kernel and stack that batches. ``room``: slices that are
    being cleared for its next lease. ``failures``: leases in a row that could not be opened. ``outgoing``: sessions
    of a removed tenant that still wait for answers; they keep that state if the tenant is added again.
    ``need_timer_ns``: when its need is checked next, 0 for never. ``service``: run times of its kernels, by kernel.
    ``waiting``: count of queued jobs by (priority, kernel, R, may be overtaken: it has a deadline, it batches, or
    more than R decides which instances it fits). ``stacked``: of the queued jobs those that batch; ``ripe_timer_ns``:
    when the first of them stops waiting for others. ``stranded``: queued jobs, by number, of kernels that no helper
    has; they are in no queue and not in ``waiting``. ``sequences``: their number. ``turns``: heads of sequences that
    wait for their lane, by lease and lane; ``awaiting``: the number of these and of the jobs behind them."""

    spec: TenantSpec
    queues: dict[QueueKind, JobHeap] = field(default_factory=dict)
    queued: int = 0
    stacked: int = 0
    ripe_timer_ns: int = 0
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
    sequences: int = 0
    turns: dict[tuple[int, int], JobHeap] = field(default_factory=dict)
    awaiting: int = 0

    def came(self, job: Job) -> None:
        """Count a job as queued."""
        kind = self._waiting_kind(job)
        self.waiting[kind] = self.waiting.get(kind, 0) + 1
        self.queued += 1
        self.stacked += job.stack > 0

    def went(self, job: Job) -> None:
        """Count a job as no longer queued."""
        kind = self._waiting_kind(job)
        self.queued -= 1
        self.stacked -= job.stack > 0
        if self.waiting[kind] == 1:
            del self.waiting[kind]
        else:
            self.waiting[kind] -= 1

    @staticmethod
    def _waiting_kind(job: Job) -> tuple[int, int, int, bool]:
        is_uncertain = job.deadline_ns > 0 or job.stack > 0 or job.sequence > 0 or job.demand.is_restricted
        return job.priority, job.kernel, job.demand.share, is_uncertain

    @property
    def backlog(self) -> int:
        """Number of jobs that are on no lane, for any reason."""
        return self.queued + len(self.stranded) + self.awaiting


class JobHeap:
    """Queued jobs of one tenant and kind: by priority, highest first, then by arrival, including jobs that were placed
    and came back. ``rows``: the sum of theirs.

    A job removed out of order stays in the heap until it surfaces or until half of the heap is such entries. Memory
    thus stays bounded by twice the live jobs.
    """

    __slots__ = ("_dead", "_entries", "_first", "_ripe_ns", "rows")

    def __init__(self) -> None:
        self._entries: list[tuple[int, int, int, int, Job]] = []
        self._dead = 0
        self._ripe_ns = 0
        """No job waits for others for less time."""
        self._first: tuple[Job, int] | None = None
        """The job that set it, and its attempt."""
        self.rows = 0

    def __len__(self) -> int:
        return len(self._entries) - self._dead

    def waiting(self) -> list[Job]:
        """Queued jobs, in no order; read-only."""
        return [e[4] for e in self._entries if e[4].state is JobState.QUEUED and e[4].attempt == e[3]]

    def turns(self) -> list[tuple[int, int, int, Job]]:
        """Queued jobs with their sort keys, in no order; read-only."""
        return [
            (e[0], e[1], e[2], e[4]) for e in self._entries if e[4].state is JobState.QUEUED and e[4].attempt == e[3]
        ]

    def push(self, job: Job) -> None:
        """Add a queued job."""
        heapq.heappush(self._entries, (-job.priority, job.accepted_ns, job.job, job.attempt, job))
        if job.stack:
            if not self.rows or job.ripe_ns < self._ripe_ns:
                self._ripe_ns, self._first = job.ripe_ns, (job, job.attempt)
            self.rows += job.rows

    def is_aged(self, now_ns: int) -> bool:
        """True if one of the jobs has waited for others as long as it may. Examines the queue only if the job that may
        wait the least has left it."""
        if not self.rows or self._ripe_ns > now_ns or self._first is None:
            return False
        job, attempt = self._first
        if job.state is not JobState.QUEUED or job.attempt != attempt:
            job = min(self.waiting(), key=lambda other: other.ripe_ns)
            self._ripe_ns, self._first = job.ripe_ns, (job, job.attempt)
        return self._ripe_ns <= now_ns

    def peek(self) -> Job | None:
        """Return the next job."""
        while self._entries:
            *_, attempt, job = self._entries[0]
            if job.state is JobState.QUEUED and job.attempt == attempt:
                return job
            heapq.heappop(self._entries)
            self._dead -= 1
        return None

    def pop(self) -> None:
        """Remove the job that `peek` returned."""
        self.rows -= heapq.heappop(self._entries)[4].rows

    def queued(self) -> list[int]:
        """Numbers of the queued jobs, in order."""
        return [e[4].job for e in sorted(self._entries) if e[4].state is JobState.QUEUED and e[4].attempt == e[3]]

    def removed(self, job: Job) -> None:
        """Note that a job in the heap is no longer queued."""
        self._dead += 1
        self.rows -= job.rows
        if self._dead > 32 and self._dead * 2 > len(self._entries):
            self._entries = [e for e in self._entries if e[4].state is JobState.QUEUED and e[4].attempt == e[3]]
            heapq.heapify(self._entries)
            self._dead = 0


@dataclass(slots=True)
class Session:
    """A requester's session: the last request id it used, and its jobs with an outstanding credit. ``is_leaving``:
    its tenant was removed. ``sequences``: the numbers of its sequences, by kernel and the client's id."""

    session: int
    tenant: str
    credits: int
    last_request_id: int = 0
    origin: str = ""
    jobs: dict[int, Job] = field(default_factory=dict)
    is_leaving: bool = False
    sequences: dict[tuple[int, int], int] = field(default_factory=dict)
