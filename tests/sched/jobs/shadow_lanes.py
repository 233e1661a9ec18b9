"""What the book may order of a lease's lanes and workers, from the same facts; `shadow` asks it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from offpath.sched.jobs.commands import CloseLease, KillLane, RenewLane, ScrubLane
from offpath.sched.jobs.states import JobState

from .shadow_records import promise
from .shadow_sequences import overruns_ns

if TYPE_CHECKING:
    from .shadow import Shadow


def judge_lane(shadow: Shadow, command: ScrubLane | CloseLease | KillLane | RenewLane) -> None:
    """Hold the command against the facts."""
    match command:
        case ScrubLane():
            _scrub(shadow, command)
        case CloseLease():
            _close(shadow, command)
        case KillLane():
            _kill(shadow, command)
        case RenewLane():
            _renew(shadow, command)


def _renew(shadow: Shadow, command: RenewLane) -> None:
    lease = shadow.leases.get(command.lease)
    promise(lease is not None and lease.opened.generation == command.generation, f"{command}: the lease is gone")
    assert lease is not None
    promise(command.helper == shadow.helper and lease.closing is None, f"{command}: to another helper, or too late")
    promise(command.lane in lease.to_renew, f"{command}: its worker runs the present code, or a job")
    promise(not lease.asked, f"{command}: the lease is being scrubbed")
    promise(command.renewal == lease.renewals.get(command.lane, 0) + 1, f"{command}: not the next number")
    lease.stale.remove(command.lane)
    lease.loading.discard(command.lane)
    lease.renewing[command.lane] = shadow.now_ns
    lease.renewals[command.lane] = command.renewal
    lease.code[command.lane] = frozenset(shadow.kernels)
    shadow.seen["renewed again"] += command.renewal > 1


def _scrub(shadow: Shadow, command: ScrubLane) -> None:
    lease = shadow.leases.get(command.lease)
    promise(lease is not None and lease.opened.generation == command.generation, f"{command}: the lease is gone")
    assert lease is not None
    workers = lease.ready - lease.lost - lease.asked - lease.renewing.keys()
    promise(command.lane in workers, f"{command}: no worker to ask")
    promise(not lease.lanes and not lease.flying, f"{command}: jobs {lease.flying} are still on the lease")
    if not lease.asked:
        lease.since_ns = shadow.now_ns
    lease.asked.add(command.lane)


def _close(shadow: Shadow, command: CloseLease) -> None:
    lease = shadow.leases.get(command.lease)
    promise(lease is not None and lease.opened.generation == command.generation, f"{command}: the lease is gone")
    assert lease is not None
    promise(command.helper == shadow.helper and lease.closing is None, f"{command}: twice, or to another helper")
    promise(not lease.lanes and not lease.flying, f"{command}: jobs {lease.flying} are still on the lease")
    has_all = lease.scrubbed == set(range(lease.opened.lanes)) and not lease.renewals
    is_scrubbed = command.scrub or has_all  # what a replaced worker had, only the helper can scrub
    promise(command.scrub or len(lease.gpus) == 1, f"{command}: workers scrub only the first GPU of a gang")
    promise(is_scrubbed, f"{command}: only lanes {sorted(lease.scrubbed)} are confirmed scrubbed")
    lease.closing = command
    shadow.seen["close with scrub" if command.scrub else "close"] += 1


def _kill(shadow: Shadow, command: KillLane) -> None:
    lease = shadow.leases.get(command.lease)
    promise(lease is not None and lease.opened.generation == command.generation, f"{command}: the lease is gone")
    assert lease is not None
    occupant = lease.lanes.get(command.lane)
    promise(command.helper == shadow.helper and command.lane not in lease.lost, f"{command}: no worker to kill")
    if 0 < lease.renewal_overruns_ns(command.lane, shadow.settings) <= shadow.now_ns:
        shadow.seen["kill a renewal"] += 1
        shadow.lane_lost(lease, command.lane)
        return
    promise(occupant is not None, f"{command}: the lane holds nothing")
    assert occupant is not None
    job, now_ns = occupant.job, shadow.now_ns
    sessions = [member.event.session for member in occupant.members]
    is_late = any(one in shadow.leaving or one not in shadow.sessions for one in sessions)
    has_overrun = 0 < overruns_ns(shadow, lease, command.lane) <= now_ns
    if is_late and shadow.leave_ns.get(job.tenant, now_ns + 1) <= now_ns:
        shadow.seen["kill at the drain limit"] += 1
        for member in occupant.members:
            if has_overrun and member.phase != "answered":
                shadow.expect(member, JobState.FAILED)  # at the same instant: either may be said
        shadow.lane_lost(lease, command.lane)
        return
    promise(has_overrun, f"{command}: nothing overran")
    unanswered = [member for member in occupant.members if member.phase != "answered"]
    shadow.seen["kill an overrun" if unanswered else "kill a lingerer"] += 1
    shadow.sequences.lane_lost(shadow, command.lease, command.lane)
    lease.lost.add(command.lane)
    shadow.free(lease, command.lane)
    for member in unanswered:
        member.phase = "overran"
        shadow.expect(member, JobState.FAILED)
