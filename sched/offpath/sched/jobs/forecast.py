"""Estimates when a job ends, by serving the tenant's jobs ahead of it over its leases, limited by Σ R and by lanes.

Jobs are ordered by their ranks. Each goes to the lease where it can start first. The kernels of one lease
start in that order, at most one per lane and with Σ R ≤ α. A kernel's run time is that of its last runs
(`offpath.sched.jobs.service`); without history it is 0. A lease that is being opened counts as open. Both make a
forecast too early rather than too late, so that no job is refused that would have met its deadline. Jobs that batch
count as launches of full batches, which is too early too if their batches are not full. Jobs that wait for their
sequence count as if they waited for any lane of its lease; only `is_unreachable` leaves them out.
"""

from __future__ import annotations

from bisect import insort
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain, islice
from typing import Final

from offpath.sched.gpu.policy import Demand, LeaseView, share_in
from offpath.sched.jobs.batch_size import MOST_MEMBERS
from offpath.sched.jobs.events import Kernel
from offpath.sched.jobs.planning import MOST_PROSPECTS, Plans
from offpath.sched.jobs.records import Job, Lease, QueueKind, Tenant
from offpath.sched.jobs.service import typical_ns
from offpath.sched.jobs.states import FIRST_TERMINAL, LeaseState

_SEATED: Final = 512
"""Product of jobs and leases that a forecast examines, about 0.4 ms; `_work_ends_ns` alone covers further jobs."""
_SORTED: Final = 512
"""A longer queue is not sorted."""
_CLASSES: Final = 64
"""Kinds of queued jobs that are summed; further ones are left out or assumed to be similar."""
_NEVER_NS: Final = 1 << 62
_USABLE: Final = (LeaseState.PLANNED, LeaseState.CREATING, LeaseState.WARM)


class _Paces(dict[int, int]):
    """Typical run times of a tenant's kernels at ``now_ns``, by kernel; each is computed once."""

    __slots__ = ("now_ns", "service")

    def __init__(self, tenant: Tenant, now_ns: int) -> None:
        super().__init__()
        self.service = tenant.service
        self.now_ns = now_ns

    def __missing__(self, kernel: int) -> int:
        self[kernel] = found_ns = typical_ns(self.service, kernel, self.now_ns)
        return found_ns

    def left_ns(self, job: Job) -> int:
        """Remaining time of a job on a lane; one that was answered before it ran will not run."""
        if not job.is_running:
            return self[job.kernel] if job.state < FIRST_TERMINAL else 0
        return max(0, self[job.kernel] - (self.now_ns - job.launched_ns))


class _Abreast(dict[int, int]):
    """Number of jobs of a share that the leases can run at a time, by share, at least 1; each is computed once."""

    __slots__ = ("kinds",)

    def __init__(self, leases: list[Lease]) -> None:
        super().__init__()
        self.kinds = Counter([(lease.view.alpha, lease.view.lanes) for lease in leases])

    def __missing__(self, share: int) -> int:
        abreast = sum(count * min(lanes, alpha // share) for (alpha, lanes), count in self.kinds.items())
        self[share] = found = max(1, abreast)
        return found


class _Line:
    """A lease, with the schedule of the jobs that precede the job in question. Times in ns from now."""

    __slots__ = ("alpha", "free", "room", "running", "start_ns", "view")

    def __init__(self, view: LeaseView, start_ns: int = 0) -> None:
        """No job runs on it; none does before ``start_ns``."""
        self.view = view
        self.alpha = self.room = view.alpha
        self.free = view.lanes
        self.start_ns = start_ns
        self.running: list[tuple[int, int]] = []
        """(end, share), by end."""

    @classmethod
    def of(cls, lease: Lease, paces: _Paces, until: Job | None = None) -> _Line:
        """With its jobs. ``until``: of those that wait on the lease for share, count only those before this one."""
        line = cls(lease.view)
        line._take(lease, paces, until)
        return line

    def _take(self, lease: Lease, paces: _Paces, until: Job | None) -> None:
        jobs = lease.occupants
        until = until.members[0] if until is not None else None
        for job in jobs:
            if job.is_running:
                self._run(paces.left_ns(job), job.share)
        coming = [job for job in jobs if not job.is_running and job not in lease.waiting and job is not until]
        for job in chain(lease.waiting, coming):
            if job is until:
                break
            if job.state < FIRST_TERMINAL:  # an answered one leaves when its copy ends
                self.seat(job, job.share, paces)

    def earliest_ns(self, share: int) -> int:
        """Time at which a job of ``share`` ≤ α can start after the scheduled jobs."""
        start_ns, free, room = self.start_ns, self.free, self.room
        for end_ns, held in self.running:
            if free > 0 and room >= share:
                break
            start_ns = max(start_ns, end_ns)
            free, room = free + 1, room + held
        return start_ns

    def holds(self, demand: Demand) -> int:
        """R of the demand on the lease's GPU; 0: the lease cannot hold it."""
        if demand.is_restricted:
            return share_in(demand, self.view)
        return demand.share if demand.share <= self.alpha and not self.view.others else 0

    def seat(self, job: Job, share: int, paces: _Paces) -> bool:
        """Schedule the job, which needs ``share`` here, at its earliest start. False: it has expired by then."""
        start_ns = self.earliest_ns(share)
        if job.is_due(paces.now_ns + start_ns):
            return False
        self.start_ns = start_ns
        running = self.running
        while running and running[0][0] <= start_ns:
            self.free += 1
            self.room += running.pop(0)[1]
        self._run(start_ns + paces[job.kernel], share)
        return True

    def _run(self, end_ns: int, share: int) -> None:
        insort(self.running, (end_ns, share))
        self.free -= 1
        self.room -= share


class _Seated:
    """The batches that are scheduled and still take rows: at most one for each queue. ``kernels``: those served."""

    __slots__ = ("_batches", "_kernels")

    def __init__(self, kernels: Mapping[int, Kernel]) -> None:
        self._kernels = kernels
        self._batches: dict[QueueKind, tuple[int, int]] = {}
        """The rows that it still takes, and its start in ns from now."""

    def join(self, job: Job) -> int | None:
        """The start of the batch that takes the job, with its rows; None: the job starts a launch of its own."""
        left, start_ns = self._batches.get(job.queue_kind, (0, 0)) if job.stack else (0, 0)
        if not job.stack or left < job.rows:
            return None
        self._batches[job.queue_kind] = left - job.rows, start_ns
        return start_ns

    def lead(self, job: Job, start_ns: int) -> None:
        """The job is scheduled; jobs behind it in its queue may share its launch."""
        if job.stack:
            self._batches[job.queue_kind] = _batch_rows(self._kernels, job.kernel) - job.rows, start_ns


def _batch_rows(kernels: Mapping[int, Kernel], kernel: int) -> int:
    """Rows of a full batch of jobs with one row each; 1 if the kernel does not batch."""
    served = kernels.get(kernel)
    batching = served.batching if served is not None else None
    return min(batching.max_rows, MOST_MEMBERS) if batching is not None else 1


def is_unreachable(job: Job, tenant: Tenant, leasing: Plans | None, now_ns: int) -> bool:
    """True if the job, submitted now, would end after its deadline, also with the leases that its tenant's backlog
    would open in what is free. ``leasing`` None: with those that it has.

    False while its kernel's run time is unknown, a lane that could run it is idle, room is being made for its tenant,
    or more than R decides where it fits. Takes about 5 µs. If the deadline is neither far nor clearly too short, adds
    about 1 µs per job on a lane and about 1 µs per (job ahead, lease) pair, the latter up to 0.4 ms; twice that, and
    the policy's plans, before it says True.
    """
    budget_ns = job.deadline_ns - now_ns
    if budget_ns < 0:
        return True
    paces = _Paces(tenant, now_ns)
    service_ns = paces[job.kernel]
    if not service_ns or job.demand.is_restricted:
        return False
    share, latest_ns = job.demand.share, budget_ns - service_ns
    leases = [lease for lease in tenant.leases.values() if lease.state in _USABLE and not lease.is_gang]
    fitting = [lease for lease in leases if lease.view.alpha >= share]
    if not fitting or any(_is_idle_for(share, lease) for lease in fitting):
        return False
    if latest_ns < 0:
        return True
    if _all_in_a_row_ns(tenant, leases, paces) <= latest_ns:
        return False
    if not _is_late(job, tenant, leases, (), 0, paces, latest_ns):
        return False
    if leasing is None:
        return True
    if tenant.room:
        return False
    opens_ns, prospects = leasing.prospects(job.demand, tenant, now_ns)
    if not prospects or opens_ns > latest_ns:
        return True
    if len(prospects) == MOST_PROSPECTS:
        return False
    return _is_late(job, tenant, leases, prospects, opens_ns, paces, latest_ns)


def _is_late(
    job: Job,
    tenant: Tenant,
    leases: list[Lease],
    more: Sequence[LeaseView],
    opens_ns: int,
    paces: _Paces,
    latest_ns: int,
) -> bool:
    """True if the job would certainly start later than ``latest_ns`` from now. ``more``: leases that would open, not
    before ``opens_ns``."""
    if _work_ends_ns(tenant, leases, more, job.demand.share, job.priority, paces) > latest_ns:
        return True
    lines = [*[_Line.of(lease, paces) for lease in leases], *[_Line(view, opens_ns) for view in more]]
    return _start_ns(job, tenant, lines, paces, _Seated({}), latest_ns) > latest_ns


def ends_in_ns(job: Job, tenant: Tenant, kernels: Mapping[int, Kernel], now_ns: int) -> int | None:
    """Time until a queued or new job would end, in ns from now; None if unknown or without a lease for it. ``kernels``:
    those served."""
    paces = _Paces(tenant, now_ns)
    leases = [lease for lease in tenant.leases.values() if lease.state in _USABLE]
    is_there = any(share_in(job.demand, held.view) and held.state is LeaseState.WARM for held in leases)
    if not paces[job.kernel] or not is_there:
        return None
    lines = [_Line.of(lease, paces) for lease in leases]
    return _start_ns(job, tenant, lines, paces, _Seated(kernels)) + paces[job.kernel]


def ends_on_lane_in_ns(job: Job, lease: Lease, tenant: Tenant, now_ns: int) -> int | None:
    """Time until a job on a lane would end, in ns from now; None if unknown or if its kernel runs longer than usual."""
    paces = _Paces(tenant, now_ns)
    if not paces[job.kernel]:
        return None
    if job.is_running:
        return paces.left_ns(job) or None
    return _Line.of(lease, paces, until=job).earliest_ns(job.share) + paces[job.kernel]


def work_ns(tenant: Tenant, kernels: Mapping[int, Kernel], now_ns: int) -> int:
    """Time that the tenant's warm leases need for all its jobs, queued and on lanes; each kind of job runs as many at a
    time as its R and the lanes allow, in full batches if its kernel batches, and of each sequence one at a time.
    ``kernels``: those served. 0 if unknown. Takes about 0.2 µs per lease and per job on a lane."""
    paces = _Paces(tenant, now_ns)
    leases = [lease for lease in tenant.leases.values() if lease.state is LeaseState.WARM]
    abreast = _Abreast(leases)
    total_ns = counted = 0
    for (_, kernel, share, _), count in islice(tenant.waiting.items(), _CLASSES):
        counted += count
        launches = -(-count // _batch_rows(kernels, kernel))
        total_ns += launches * paces[kernel] // abreast[share]
    if counted < tenant.queued:
        total_ns = total_ns * tenant.queued // counted
    awaited_ns = counted = 0
    for (_, kernel, share), count in islice(tenant.awaited.items(), _CLASSES):
        counted += count
        awaited_ns += count * paces[kernel] // min(abreast[share], max(1, tenant.sequences))
    total_ns += awaited_ns * len(tenant.awaiting) // max(1, counted)
    for lease in leases:
        for job in lease.occupants:
            total_ns += paces.left_ns(job) // abreast[job.share]
    return total_ns


def _is_idle_for(share: int, lease: Lease) -> bool:
    """True if a lane and enough share are free: the job could start now."""
    if lease.state is not LeaseState.WARM or len(jobs := lease.occupants) >= lease.view.lanes:
        return False
    return sum(job.share for job in jobs) + share <= lease.view.alpha


def _all_in_a_row_ns(tenant: Tenant, leases: list[Lease], paces: _Paces) -> int:
    """Upper bound for what `_start_ns` finds for a new job: until then a job ahead of it runs. Those of a lower
    priority may be ahead too, if they have waited for long."""
    if len(tenant.waiting) > _CLASSES:
        return _NEVER_NS
    ahead = [count * paces[kernel] for (_, kernel, *_), count in tenant.waiting.items()]
    return sum(ahead) + sum(paces.left_ns(job) for lease in leases for job in lease.occupants)


def _work_ends_ns(
    tenant: Tenant, leases: list[Lease], more: Sequence[LeaseView], share: int, priority: int, paces: _Paces
) -> int:
    """Lower bound for the start of a job of ``share`` and ``priority``.

    By that time every job ahead that is not larger has started, unless it expired or fits fewer instances, and only
    what runs at that moment remains of them: Σ R · service ≤ Σ α · (start + the longest service).
    """
    work = longest_ns = 0
    for (queued, kernel, held, is_uncertain), count in islice(tenant.waiting.items(), _CLASSES):
        if queued >= priority and held <= share and not is_uncertain:
            work += count * held * paces[kernel]
            longest_ns = max(longest_ns, paces[kernel])
    alphas = sum(lease.view.alpha for lease in leases) + sum(view.alpha for view in more)
    return work // alphas - longest_ns


def _start_ns(
    job: Job, tenant: Tenant, lines: list[_Line], paces: _Paces, batches: _Seated, enough_ns: int = _NEVER_NS
) -> int:
    """Time until the job would start, in ns from now. Above ``enough_ns`` any number not greater than that time may be
    returned."""
    share = job.demand.share
    awaiting = tenant.awaiting.values() if enough_ns == _NEVER_NS else ()
    if 0 < tenant.queued + len(awaiting) <= _SORTED:
        turns = [(*each.rank, each) for each in awaiting]
        turns += chain.from_iterable([queue.turns() for queue in tenant.queues.values()])
        turns.sort()
        for turn_ns, number, ahead in islice(turns, _SEATED // len(lines)):
            if (turn_ns, number) >= job.rank:
                break
            if (ahead.demand.is_restricted or ahead.stack or ahead.sequence) and enough_ns < _NEVER_NS:
                continue  # where it runs, or with which others, is not certain, so it may not delay this job
            if batches.join(ahead) is not None:
                continue
            there = [line for line in lines if line.view.lease == ahead.turn[0]] if ahead.turn else lines
            line = _earliest(there, ahead.demand)
            if line is not None and line.seat(ahead, line.holds(ahead.demand), paces):
                batches.lead(ahead, line.start_ns)
                if ahead.demand.share <= share and line.start_ns > enough_ns:
                    return line.start_ns  # later jobs of at least this size start later
    joined_ns = batches.join(job)
    if joined_ns is not None:
        return joined_ns
    return min(line.earliest_ns(need) for line in lines if (need := line.holds(job.demand)))


def _earliest(lines: list[_Line], demand: Demand) -> _Line | None:
    """Lease where a job of this demand can start first, or None."""
    if len(lines) == 1:
        return lines[0] if lines[0].holds(demand) else None
    fitting = [line for line in lines if line.holds(demand)]
    return min(fitting, key=lambda line: line.earliest_ns(line.holds(demand)), default=None)
