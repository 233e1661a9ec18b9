"""That the job book keeps no more than it must and wakes in time; `shadow` asks it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from offpath.sched.gpu.policy import Policy
from offpath.sched.jobs.book import JobBook
from offpath.sched.jobs.settings import MS

from .shadow_batches import is_surely_ripe
from .shadow_records import ShadowJob, promise

if TYPE_CHECKING:
    from .shadow import Shadow


def after_bounds(shadow: Shadow, book: JobBook, queued: dict[str, list[ShadowJob]], taken: set[int]) -> None:
    """Deadlines, timers and everything kept have bounds. ``taken``: jobs whose credit came back with this event."""
    ledger, settings, next_ns = book.ledger, shadow.settings, book.next_deadline_ns()
    deadlines = [job.event.deadline_ns for job in shadow.live.values() if job.event.deadline_ns]
    needy = [jobs for jobs in queued.values() if any(is_surely_ripe(shadow, job) for job in jobs)]
    deadlines += [shadow.now_ns + max(settings.grow_after_ns, MS) for _ in needy]
    shadow.offered_kernels.agrees(ledger)
    if settings.kernel_gone_ns:
        deadlines += [since_ns + settings.kernel_gone_ns for since_ns in shadow.offered_kernels.gone.values()]
    promise(not deadlines or (next_ns is not None and next_ns <= min(deadlines)), "next_deadline_ns is late")
    lanes = sum(len(occupant.members) for lease in shadow.leases.values() for occupant in lease.lanes.values())
    for jobs in shadow.uncredited.values():
        jobs -= taken
    kept = set[int]().union(*shadow.uncredited.values())
    promise(set(ledger.jobs) == kept, "the jobs kept are those whose credit is out")
    promise(len(ledger.leaving) <= lanes, f"{len(ledger.leaving)} jobs are leaving {lanes} lanes")
    promise(set(ledger.sessions) == set(shadow.sessions), "sessions")
    live = len(shadow.live) + 4 * len(shadow.leases) + 2 * len(shadow.tenants) + len(shadow.offered_kernels.gone) + 2
    promise(len(ledger.timers) <= max(257, 2 * live + 1), f"{len(ledger.timers)} timers for {live} live things")
    promise(not ledger.out, "no command is kept back")
    _after_policy(shadow, ledger.policy)


def _after_policy(shadow: Shadow, policy: Policy) -> None:
    """The policy counts the share of each job on a lane once, however the job came there; it routes to no gang."""
    for held in policy.state().leases:
        lease = shadow.leases[held.view.lease]
        there = 0 if held.view.others else sum(occupant.share for occupant in lease.lanes.values())
        number = held.view.lease
        promise(held.placed_share == there, f"the policy counts {held.placed_share}% on lease {number}, not {there}")
