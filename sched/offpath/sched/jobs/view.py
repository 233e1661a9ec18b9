"""Returns the book's state as plain records for monitoring. Only reads the ledger.

Each function visits no more entries than it returns, except for entries that a filter rejects. None is on the request
path.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator

from offpath.sched.jobs.ledger import Ledger
from offpath.sched.jobs.records import Job, Lease, Session, Tenant
from offpath.sched.jobs.states import JobState, LeaseState
from offpath.sched.record import record


@record
class JobRecord:
    """The current state of a job; times in ns. ``deadline_in_ns`` is None without a deadline, ``lease`` 0 without a
    lease."""

    job: int
    session: int
    request_id: int
    tenant: str
    kernel: int
    share: int
    priority: int
    payload_bytes: int
    state: JobState
    is_waiting_for_share: bool
    age_ns: int
    deadline_in_ns: int | None
    lease: int
    lane: int
    attempt: int


@record
class LeaseRecord:
    """A lease; ``running`` of its ``jobs`` use ``running_share`` of its α (percent of a GPU). ``is_restricted``: memory
    or the GPU's model decides where one of them fits. ``others``: the further GPUs of a gang."""

    lease: int
    generation: int
    tenant: str
    gpu: str
    profile: str
    start: int
    alpha: int
    lanes: int
    state: LeaseState
    is_pinned: bool
    jobs: int
    running: int
    running_share: int
    held_ns: int
    is_restricted: bool = False
    others: tuple[str, ...] = ()


@record
class TenantRecord:
    """A tenant's queue and holdings; ``held_share`` of at most ``max_share`` percent of a GPU. Of its unanswered
    ``jobs`` some are ``queued`` and some ``running``; the rest are on a lane, being copied or waiting for share.
    ``sequences``: those that have not ended."""

    tenant: str
    jobs: int
    queued: int
    running: int
    leases: int
    held_share: int
    max_share: int
    sequences: int = 0


@record
class SessionRecord:
    """A session; ``jobs``: number of jobs with an outstanding credit."""

    session: int
    tenant: str
    credits: int
    jobs: int
    last_request_id: int


def _is_waiting_for_share(job: Job) -> bool:
    return job.state is JobState.COPYING and not job.is_copying


def job_record(job: Job, now_ns: int) -> JobRecord:
    """One job."""
    placement = job.placement
    return JobRecord(
        job.job, job.session, job.request_id, job.demand.tenant, job.kernel, job.share, job.priority,
        job.demand.payload_bytes, job.state, _is_waiting_for_share(job),
        now_ns - job.accepted_ns, job.deadline_ns - now_ns if job.deadline_ns else None,
        placement.lease if placement is not None else 0, placement.lane if placement is not None else 0, job.attempt,
    )  # fmt: skip


def jobs(
    ledger: Ledger,
    now_ns: int,
    *,
    tenant: str | None = None,
    session: int | None = None,
    states: Collection[JobState] = (),
    is_waiting_for_share: bool | None = None,
    after: int = 0,
    limit: int = 128,
) -> list[JobRecord]:
    """Jobs with an outstanding credit, by number, greater than ``after``, in one of ``states`` if any are given.
    ``is_waiting_for_share``: of the jobs on a lane, only those whose payload has arrived (True) or is being copied
    (False)."""
    found: Iterator[Job] = iter(ledger.jobs.values())  # insertion order is by number
    if session is not None:
        held = ledger.sessions.get(session)
        found = iter(held.jobs.values()) if held is not None else iter(())
    fitting = (
        job
        for job in found
        if job.job > after
        and (tenant is None or job.demand.tenant == tenant)
        and (not states or job.state in states)
        and (is_waiting_for_share is None or _is_waiting_for_share(job) is is_waiting_for_share)
    )
    return [job_record(job, now_ns) for job in itertools.islice(fitting, limit)]


def find_job(ledger: Ledger, session: int, request_id: int) -> Job | None:
    """Find the job of the session's request, while the book holds it."""
    held = ledger.sessions.get(session)
    if held is None:
        return None
    return next((job for job in held.jobs.values() if job.request_id == request_id), None)


def lease_record(lease: Lease, now_ns: int) -> LeaseRecord:
    """One lease."""
    view = lease.view
    running = sum(job.is_running for job in lease.jobs.values())
    return LeaseRecord(
        view.lease, lease.generation, view.tenant, view.gpu, view.profile, view.start, view.alpha, view.lanes,
        lease.state, lease.is_pinned, len(lease.jobs), running, lease.running_share,
        now_ns - lease.opened_ns if lease.opened_ns else 0,
        lease.is_gang or any(job.demand.is_restricted for job in lease.jobs.values()), view.others,
    )  # fmt: skip


def leases(ledger: Ledger, now_ns: int, *, after: int = 0, limit: int | None = None) -> list[LeaseRecord]:
    """Leases by number, greater than ``after``; without ``limit`` all of them."""
    fitting = (lease for number, lease in ledger.leases.items() if number > after)
    return [lease_record(lease, now_ns) for lease in itertools.islice(fitting, limit)]


def tenant_record(tenant: Tenant) -> TenantRecord:
    """One tenant."""
    running = sum(job.state is JobState.LAUNCHED for lease in tenant.leases.values() for job in lease.jobs.values())
    return TenantRecord(
        tenant.spec.name, tenant.jobs, tenant.backlog, running, len(tenant.leases), tenant.held_share,
        tenant.spec.max_share, tenant.sequences,
    )  # fmt: skip


def tenants(ledger: Ledger) -> list[TenantRecord]:
    """All tenants, in the order of the configuration."""
    return [tenant_record(tenant) for tenant in ledger.tenants.values()]


def session_record(session: Session) -> SessionRecord:
    """One session."""
    return SessionRecord(session.session, session.tenant, session.credits, len(session.jobs), session.last_request_id)


def sessions(ledger: Ledger, *, tenant: str | None = None, after: int = 0, limit: int = 128) -> list[SessionRecord]:
    """Sessions by number, greater than ``after``."""
    fitting = [
        session
        for session in ledger.sessions.values()
        if session.session > after and (tenant is None or session.tenant == tenant)
    ]
    fitting.sort(key=lambda session: session.session)  # the order of opening is that of ticket redemption
    return [session_record(session) for session in fitting[:limit]]
