"""Enforces time limits on launches, launches of answered jobs, lease opening, replacing of workers, model loading and
scrubbing, and on sequences of leases that drain. One timer per lease."""

from __future__ import annotations

from collections.abc import Callable

from offpath.sched.jobs.leasing import Leasing
from offpath.sched.jobs.ledger import Ledger
from offpath.sched.jobs.records import Job, Lease
from offpath.sched.jobs.states import FIRST_TERMINAL, EndReason, JobState, LeaseState
from offpath.sched.jobs.victims import keeps_sequences

End = Callable[[Job, JobState, EndReason, int], None]
LoseLane = Callable[[Lease, int, int], None]


def launch_due_ns(job: Job, ledger: Ledger) -> int:
    """Time at which a running job exceeds its limit and its worker is killed; 0 for never. A batch has the last limit
    of its members, so that an answered one does not end the others."""
    if job.batch is None:
        return _due_ns(job, ledger)
    dues = [_due_ns(member, ledger) for member in job.batch.members]
    return max(dues) if all(dues) else 0


def has_others_states(job: Job, ledger: Ledger) -> bool:
    """True if other sequences than the job's own are bound to its lane: they would end with its worker."""
    lease = ledger.leases.get(job.placement.lease) if job.placement is not None else None
    if job.placement is None or lease is None:
        return False
    bound = lease.sequences.get(job.placement.lane, ())
    return len(bound) > (job.sequence in bound)


def watch_answered(lease: Lease, lane: int, ledger: Ledger) -> None:
    """A sequence has left the lane: an answered job that runs there may have its limit from now on."""
    for job in lease.jobs.values():
        is_answered = job.is_running and job.answered_ns > 0
        is_there = job.placement is not None and job.placement.lane == lane
        if is_answered and is_there and (due_ns := launch_due_ns(job, ledger)):
            ledger.watch(lease, due_ns)


def _due_ns(job: Job, ledger: Ledger) -> int:
    settings = ledger.settings
    launched_ns = job.launched_ns + settings.kernel_ns if settings.kernel_ns else 0
    is_spared = job.state is JobState.EXPIRED and not settings.kills_expired
    answered_ns = job.answered_ns + settings.linger_ns if job.answered_ns and settings.linger_ns else 0
    if answered_ns and job.reason is EndReason.KERNEL_OVERRAN:
        return answered_ns  # a stream: its worker is stopped first
    if is_spared or not answered_ns or has_others_states(job, ledger):
        return launched_ns
    return min(launched_ns or answered_ns, answered_ns)


class Limits:
    """Checks a lease when its watch is due; ``end`` and ``lose_lane`` are the book's."""

    def __init__(
        self,
        ledger: Ledger,
        leasing: Leasing,
        end: End,
        lose_lane: LoseLane,
        end_sequences: Callable[[Lease, int], None],
    ) -> None:
        """``end_sequences`` ends those of a lease."""
        self._ledger = ledger
        self._end_sequences = end_sequences
        self._leasing = leasing
        self._end = end
        self._lose_lane = lose_lane

    def timer(self, lease_id: int, now_ns: int) -> None:
        """Handle the lease's watch: end what has overrun, then arm the watch for the next limit."""
        lease = self._ledger.leases.get(lease_id)
        if lease is None or not 0 < lease.watch_ns <= now_ns:
            return  # the watch was moved
        lease.watch_ns = 0
        due_ns = self._due_ns(lease)
        if not due_ns or due_ns > now_ns:
            self.watch(lease)
        elif lease.state is LeaseState.CREATING:
            self._leasing.opening_overran(lease, now_ns)
        elif lease.state is LeaseState.SCRUBBING:
            self._leasing.scrub_overran(lease)
        else:
            for job in [job for job in lease.occupants if 0 < self._job_due_ns(job) <= now_ns]:
                self._overran(job, lease, now_ns)
            self._end_renewals(lease, now_ns)
            if 0 < self._sequences_due_ns(lease) <= now_ns:
                self._end_sequences(lease, now_ns)
            self.watch(lease)

    def watch(self, lease: Lease) -> None:
        """Arm the watch for the first limit on the lease."""
        if due_ns := self._due_ns(lease):
            self._ledger.watch(lease, due_ns)

    def _due_ns(self, lease: Lease) -> int:
        """Time of the first limit on the lease; 0 for never."""
        settings = self._ledger.settings
        if lease.state is LeaseState.CREATING:
            limit_ns = settings.load_ns if len(lease.loading) == lease.view.lanes else settings.open_ns
            return lease.since_ns + limit_ns if limit_ns else 0
        if lease.state is LeaseState.SCRUBBING:
            return lease.since_ns + settings.scrub_ns if settings.scrub_ns and not lease.is_closing else 0
        dues = [self._job_due_ns(job) for job in lease.occupants]
        dues += [self._lane_due_ns(lease, lane) for lane in lease.renewing]
        dues.append(self._sequences_due_ns(lease))
        return min((due for due in dues if due), default=0)

    def _sequences_due_ns(self, lease: Lease) -> int:
        """Time at which a lease that drains waits no longer for its sequences; 0 for never. From then on it waits for
        the jobs on its lanes only."""
        is_waiting = lease.state is LeaseState.DRAINING and bool(lease.sequences) and not keeps_sequences(lease)
        due_ns = lease.since_ns + self._ledger.settings.sequence_leave_ns
        return due_ns if is_waiting and not lease.is_forsaken else 0

    def _end_renewals(self, lease: Lease, now_ns: int) -> None:
        """Lanes whose new workers take too long are lost."""
        for lane in [lane for lane in lease.renewing if 0 < self._lane_due_ns(lease, lane) <= now_ns]:
            if lease.state is not LeaseState.SCRUBBING:  # the loss of another may have ended the drain
                self._leasing.kill_lane(lease, lane)
                self._lose_lane(lease, lane, now_ns)

    def _lane_due_ns(self, lease: Lease, lane: int) -> int:
        """Time at which the new worker of a lane exceeds its limit; 0 for never."""
        limit_ns = self._ledger.settings.load_ns if lane in lease.loading else self._ledger.settings.open_ns
        return lease.renewing[lane] + limit_ns if limit_ns else 0

    def _job_due_ns(self, job: Job) -> int:
        """Time at which the job's launch exceeds its limit; 0 for never."""
        return launch_due_ns(job, self._ledger) if job.is_running else 0

    def _overran(self, job: Job, lease: Lease, now_ns: int) -> None:
        """Kill the worker of an endless kernel at once instead of when the lease has drained. Other lanes finish. A
        stream is answered first, which stops its kernel where that waits for its reader: only one that runs on is
        killed, after the time for answered jobs."""
        assert job.placement is not None
        if job.streams and job.state < FIRST_TERMINAL and job.batch is None and self._ledger.settings.linger_ns:
            self._end(job, JobState.FAILED, EndReason.KERNEL_OVERRAN, now_ns)
            return
        lane = job.placement.lane
        self._leasing.kill_lane(lease, lane)
        for member in list(job.members):
            if member.state < FIRST_TERMINAL:
                self._end(member, JobState.FAILED, EndReason.KERNEL_OVERRAN, now_ns)
        self._lose_lane(lease, lane, now_ns)
