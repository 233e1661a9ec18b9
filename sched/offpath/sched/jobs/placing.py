"""Where a job takes a lane: as the policy decides, but neither behind a stream, nor as a stream behind other jobs.

A stream runs for as long as its requester takes to read it, and that requester may be waiting for other jobs. So on a
lease that has a stream, the shares of all jobs fit at once, and none of them waits. A stream that waits for share
somewhere has that lease kept for it: jobs behind it in the order of the queues do not take what becomes free.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from offpath.sched.gpu.policy import Obstacle, Placement, Refusal, Unblocker, share_in
from offpath.sched.jobs.ledger import Ledger
from offpath.sched.jobs.records import Job, Lease, Tenant
from offpath.sched.jobs.states import LeaseState

Decide = Callable[[Job, Tenant, int], Placement | Refusal]
_BEHIND_A_STREAM: Final = Refusal((Obstacle.LANES,), (Unblocker.JOB_ENDS, Unblocker.LEASE_OPENS))


def has_stream(lease: Lease) -> bool:
    """True if a stream is on one of its lanes."""
    return any(job.streams for job in lease.jobs.values())


def may_join(lease: Lease, job: Job, share: int, tenant: Tenant) -> bool:
    """True if no stream waits for share on the lease, or is waited for, once the job is on a lane there."""
    is_there = has_stream(lease)
    if job.streams or is_there:
        placed = sum(other.share for other in lease.jobs.values() if not other.is_follower)
        if placed + share > lease.view.alpha:
            return False
    return is_there or not (tenant.queues or tenant.open_turns) or not _is_awaited(lease, job, tenant)


def _is_awaited(lease: Lease, job: Job, tenant: Tenant) -> bool:
    """True if a stream that precedes the job waits for the lease's share."""
    number = lease.view.lease
    heads = [head for queue in tenant.queues.values() if (head := queue.peek()) and head.awaits_lease == number]
    for place in tenant.open_turns:
        if place[0] == number and (head := tenant.turns[place].peek()) and head.streams:
            heads.append(head)
    return any(head is not job and head.rank < job.rank for head in heads)


def free_lanes(lease: Lease) -> list[int]:
    """The lanes that a job may take."""
    taken = {job.placement.lane for job in lease.jobs.values() if job.placement is not None}
    taken |= lease.lost | lease.stale | lease.renewing.keys()
    return [lane for lane in range(lease.view.lanes) if lane not in taken]


class Placing:
    """Takes lanes that the policy chooses, and gives back those that a job must not take."""

    def __init__(self, ledger: Ledger, decide: Decide) -> None:
        """``decide``: asks the policy, which takes the lane."""
        self._ledger = ledger
        self._decide = decide

    def kept(self, placement: Placement | Refusal, job: Job, tenant: Tenant, now_ns: int) -> Placement | Refusal:
        """The policy's decision about a job that is not bound to a lane, if the job may take that lane; else the lane
        is given back, and another one may be taken."""
        job.awaits_lease = 0
        if not isinstance(placement, Placement):
            return placement
        lease = self._ledger.leases[placement.lease]
        if not (lease.jobs or job.streams or tenant.queues or tenant.open_turns):
            return placement  # the usual case, without the cost of looking
        if self._is_kept(placement, job, tenant, now_ns):
            return placement
        return self._elsewhere(lease, job, tenant, now_ns)

    def _is_kept(self, placement: Placement, job: Job, tenant: Tenant, now_ns: int) -> bool:
        """False: it was given back."""
        lease = self._ledger.leases[placement.lease]
        share = job.demand.share_on(lease.view.model)
        is_kept = may_join(lease, job, share, tenant)
        if not is_kept:
            self._ledger.free_lane(lease, placement, share, now_ns)
        return is_kept

    def _elsewhere(self, refused: Lease, job: Job, tenant: Tenant, now_ns: int) -> Placement | Refusal:
        """The policy's choice is given back. If the job may take a lane of another lease, let the policy choose among
        those: it names one lease only, and does not know of streams."""
        closed, is_other = [refused], False
        for lease in tenant.leases.values():
            share = share_in(job.demand, lease.view) if lease.state is LeaseState.WARM and lease is not refused else 0
            if share and free_lanes(lease):
                if may_join(lease, job, share, tenant):
                    is_other = True
                else:
                    closed.append(lease)
        placement = self._without(closed, job, tenant, now_ns) if is_other else _BEHIND_A_STREAM
        if isinstance(placement, Placement) and self._is_kept(placement, job, tenant, now_ns):
            return placement
        if job.streams:
            free = [lease.view.lease for lease in closed if not has_stream(lease)]
            job.awaits_lease = free[0] if free else 0
        return _BEHIND_A_STREAM

    def _without(self, closed: list[Lease], job: Job, tenant: Tenant, now_ns: int) -> Placement | Refusal:
        """What the policy decides while these leases have no free lane."""
        hidden = [(lease, lane) for lease in closed for lane in free_lanes(lease)]
        for lease, lane in hidden:
            self._ledger.pause_lane(lease, lane)
        placement = self._decide(job, tenant, now_ns)
        for lease, lane in reversed(hidden):
            self._ledger.free_lane(lease, Placement(lease.view.lease, lane, False), 0, now_ns)
        return placement
