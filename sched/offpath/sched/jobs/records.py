"""Records of the job book: the jobs, leases, tenants and sessions that it tracks."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from offpath.sched.gpu.geometry import Slice
from offpath.sched.gpu.policy import Demand, LeaseView, Placement, Refusal
from offpath.sched.jobs.batch_size import MOST_MEMBERS, formed
from offpath.sched.jobs.events import Batching
from offpath.sched.jobs.service import ServiceTimes
from offpath.sched.jobs.settings import TenantSpec
from offpath.sched.jobs.states import EndReason, JobState, LeaseState

QueueKind = tuple[Any, ...]
"""What jobs of one queue have in common: the kind of their demand; if they batch, also their kernel and stack."""


@dataclass(slots=True, eq=False)
class Job:
    """One request. Times are 0 until set. ``attempt`` rises each time it goes back to the queue. ``share``: R on the
    GPU of its lane, or of its last lane. ``asked_share``: R in the request, 0 for its kernel's. ``streams``: its kernel
    did when it was submitted; while it is queued, the lease ``awaits_lease`` is kept for it, 0 for none.
    ``stack``: jobs of a kernel with the same number may share a launch; 0: it has its own. ``rows``: its part of one.
    ``ripe_ns``: how long it waits for others. ``batch``: the one that it is in, from its placement on. Of the
    batch whose launch has ended, ``led_by`` is the leader, ``first_row`` where its rows were. ``sequence``: number of
    the one that it is in, 0 for none; ``is_start``, ``is_end``: it is the first, or the last one there. Of a queued job
    ``is_held``: it is behind others of its sequence; ``turn``: the lease and the lane that it waits for."""

    job: int
    session: int
    request_id: int
    demand: Demand
    kernel: int
    priority: int
    deadline_ns: int
    is_idempotent: bool
    accepted_ns: int
    turn_ns: int
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
    streams: bool = False
    awaits_lease: int = 0

    @property
    def rank(self) -> tuple[int, int]:
        """Its place in the order of its tenant's jobs, the first is the least."""
        return self.turn_ns, self.job

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

    ``sequences``: by lane, the numbers of the sequences bound to it, if any. ``since_ns`` is also the time since when a
    lease with sequences has to leave. ``is_forsaken``: their time there is over; jobs on its lanes finish. ``is_kept``:
    it became DRAINING because a lane was lost, and nobody has needed its room since."""

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
    sequences: dict[int, set[int]] = field(default_factory=dict)
    is_forsaken: bool = False
    is_kept: bool = False

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
    wait for their lane, by lease and lane; ``open_turns``: those whose lane holds no job. ``awaiting``: the heads in
    ``turns`` and the jobs behind heads, by number; ``awaited``: their count by (priority, kernel, R).
    ``idle_sequences``, ``lost_sequences``: how many ended because they were idle, or with their state."""

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
    open_turns: set[tuple[int, int]] = field(default_factory=set)
    awaiting: dict[int, Job] = field(default_factory=dict)
    awaited: dict[tuple[int, int, int], int] = field(default_factory=dict)
    idle_sequences: int = 0
    lost_sequences: int = 0

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
        return self.queued + len(self.stranded) + len(self.awaiting)


class JobHeap:
    """Queued jobs of one tenant and kind in the order of their ranks, including jobs that were placed and came back.
    ``rows``: the sum of theirs.

    A job removed out of order stays in the heap until it surfaces or until half of the heap is such entries. Memory
    thus stays bounded by twice the live jobs.
    """

    __slots__ = ("_dead", "_entries", "_first", "_forms", "_patient", "_ripe_ns", "rows")

    def __init__(self) -> None:
        self._entries: list[tuple[int, int, int, Job]] = []
        self._dead = 0
        self._ripe_ns = 0
        """No job waits for others for less time."""
        self._first: tuple[Job, int] | None = None
        """The job that set it, and its attempt."""
        self._forms: tuple[Batching, bool] | None = None
        """What `forms` has found for the present jobs."""
        self._patient: dict[int, Job] = {}
        """Those that wait for others and were not told to `hurry`."""
        self.rows = 0

    def __len__(self) -> int:
        return len(self._entries) - self._dead

    def waiting(self) -> list[Job]:
        """Queued jobs, in no order; read-only."""
        return [e[3] for e in self._entries if e[3].state is JobState.QUEUED and e[3].attempt == e[2]]

    def turns(self) -> list[tuple[int, int, Job]]:
        """Queued jobs with their ranks, in no order; read-only."""
        return [(e[0], e[1], e[3]) for e in self._entries if e[3].state is JobState.QUEUED and e[3].attempt == e[2]]

    def push(self, job: Job) -> None:
        """Add a queued job."""
        heapq.heappush(self._entries, (*job.rank, job.attempt, job))
        if job.stack:
            if not self.rows or job.ripe_ns < self._ripe_ns:
                self._ripe_ns, self._first = job.ripe_ns, (job, job.attempt)
            self.rows += job.rows
            self._patient[job.job] = job
            self._forms = None

    def _in_order(self) -> Iterator[int]:
        """The rows of the queued jobs, first come first. Takes time for those that are looked at only."""
        entries = self._entries
        ahead = [(entries[0], 0)] if entries else []
        while ahead:
            entry, at = heapq.heappop(ahead)
            job = entry[3]
            if job.state is JobState.QUEUED and job.attempt == entry[2]:
                yield job.rows
            for child in (2 * at + 1, 2 * at + 2):
                if child < len(entries):
                    heapq.heappush(ahead, (entries[child], child))

    def forms(self, batching: Batching) -> bool:
        """True if its first jobs are a batch that does not wait for others (`formed`)."""
        sizes = batching.sizes
        if self.rows >= sizes[-1] or len(self) >= MOST_MEMBERS:
            return True
        if self.rows < sizes[0]:
            return False
        if self._forms is None or self._forms[0] is not batching:
            self._forms = batching, formed(batching, self._in_order()) > 0
        return self._forms[1]

    def formed_behind(self, leader: Job, batching: Batching) -> int:
        """As `formed`, of the leader, which has left the queue, and the jobs in it."""
        return formed(batching, chain((leader.rows,), self._in_order()))

    def hurry(self, now_ns: int) -> bool:
        """Its jobs wait for others no longer. False: none did."""
        is_needed = False
        for job in self._patient.values():
            if job.ripe_ns > now_ns:
                job.ripe_ns, is_needed = now_ns, True
                self._ripe_ns, self._first = now_ns, (job, job.attempt)
        self._patient.clear()
        return is_needed

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
        self._forget(heapq.heappop(self._entries)[3])

    def _forget(self, job: Job) -> None:
        self.rows -= job.rows
        self._patient.pop(job.job, None)
        self._forms = None

    def queued(self) -> list[int]:
        """Numbers of the queued jobs, in order."""
        return [e[3].job for e in sorted(self._entries) if e[3].state is JobState.QUEUED and e[3].attempt == e[2]]

    def removed(self, job: Job) -> None:
        """Note that a job in the heap is no longer queued."""
        self._dead += 1
        self._forget(job)
        if self._dead > 32 and self._dead * 2 > len(self._entries):
            self._entries = [e for e in self._entries if e[3].state is JobState.QUEUED and e[3].attempt == e[2]]
            heapq.heapify(self._entries)
            self._dead = 0

    def sort_again(self) -> None:
        """The ranks of the jobs have changed."""
        self._entries = [(*job.rank, job.attempt, job) for job in self.waiting()]
        heapq.heapify(self._entries)
        self._dead = 0
        self._forms = None


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
