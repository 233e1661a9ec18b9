"""Jobs that wait for their sequence: behind others of it, or as its head for its lane. Changes what a tenant records of
them."""

from __future__ import annotations

from offpath.sched.jobs.records import Job, JobHeap, Lease, Tenant


def wait(tenant: Tenant, job: Job) -> None:
    """The job waits for its sequence from now on."""
    tenant.awaiting[job.job] = job
    kind = job.priority, job.kernel, job.demand.share
    tenant.awaited[kind] = tenant.awaited.get(kind, 0) + 1


def wait_no_more(tenant: Tenant, job: Job) -> None:
    """The job waits for its sequence no longer. Call it before its demand changes."""
    del tenant.awaiting[job.job]
    kind = job.priority, job.kernel, job.demand.share
    if tenant.awaited[kind] == 1:
        del tenant.awaited[kind]
    else:
        tenant.awaited[kind] -= 1


def take_turn(tenant: Tenant, job: Job, lease: Lease, lane: int) -> None:
    """The head of a sequence waits for its lane."""
    job.turn = place = lease.view.lease, lane
    tenant.turns.setdefault(place, JobHeap()).push(job)
    if not any(held.placement is not None and held.placement.lane == lane for held in lease.jobs.values()):
        tenant.open_turns.add(place)


def leave_turn(tenant: Tenant, job: Job) -> None:
    """The head of a sequence waits for its lane no longer; it has left the heap."""
    place, job.turn = job.turn, None
    assert place is not None
    if not len(tenant.turns[place]):
        del tenant.turns[place]
        tenant.open_turns.discard(place)
