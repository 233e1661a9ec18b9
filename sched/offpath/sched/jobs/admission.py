"""Decides whether a job is accepted and when a refused requester may retry. Pure functions over the ledger."""

from __future__ import annotations

from bisect import bisect_left

from offpath.sched.jobs.forecast import is_unreachable, work_ns
from offpath.sched.jobs.ledger import Ledger
from offpath.sched.jobs.records import MS, Job, Session, Tenant
from offpath.sched.jobs.states import EndReason

_RETRYABLE = (EndReason.TENANT_QUEUE_FULL, EndReason.DAEMON_FULL)
DRAIN_RETRY_MS = 1_000  # a drain ends with a restart or an operator's command, at a time unknown here
_MIN_RETRY_MS = 1
_MAX_RETRY_MS = 5_000


def refuse(
    job: Job, session: Session, tenant: Tenant, ledger: Ledger, alphas: tuple[int, ...], now_ns: int
) -> EndReason:
    """Return why this job is not accepted, or NONE.

    ``alphas``: the fractions of instances large enough for a lease's lanes, ascending, on the GPUs of the present or
    former helpers that serve its kernel. Before the first helper no kernel is known.
    """
    share = job.demand.share
    if session.is_leaving:
        return EndReason.TENANT_REMOVED
    if job.request_id <= session.last_request_id:
        return EndReason.DUPLICATE_ID
    if job.kernel not in ledger.kernels:
        return EndReason.UNKNOWN_KERNEL
    if share > 100:
        return EndReason.GANG_UNSUPPORTED if share % 100 == 0 else EndReason.BAD_DEMAND
    if share < 1:
        return EndReason.BAD_DEMAND
    least = _least(share, alphas)
    if share > tenant.spec.max_demand or least > tenant.spec.max_share:
        return EndReason.TENANT_SHARE_LIMIT
    if job.demand.payload_bytes > ledger.settings.landing_bytes:
        return EndReason.PAYLOAD_TOO_LARGE
    if not least:
        return EndReason.NO_INSTANCE_FITS
    if ledger.is_draining:
        return EndReason.DRAINING
    if tenant.jobs >= tenant.spec.max_jobs:
        return EndReason.TENANT_QUEUE_FULL
    if ledger.unanswered >= ledger.settings.max_jobs:
        return EndReason.DAEMON_FULL
    if job.deadline_ns and is_unreachable(job, tenant, now_ns):
        return EndReason.DEADLINE_UNREACHABLE
    return EndReason.NONE


def withdraw(job: Job, session: Session | None, tenant: Tenant, alphas: tuple[int, ...] | None) -> EndReason | None:
    """Return why an accepted job without a lane must not get one, or None: rights and GPUs may have changed. ``alphas``
    None: no GPU is known, so this check is skipped."""
    if session is None or session.is_leaving:
        return EndReason.TENANT_REMOVED
    least = _least(job.demand.share, alphas or ())
    if not least and alphas is not None:
        return EndReason.NO_INSTANCE_FITS
    if least > tenant.spec.max_share:
        return EndReason.TENANT_SHARE_LIMIT
    return None


def _least(share: int, alphas: tuple[int, ...]) -> int:
    """The smallest fraction that holds the share; 0 if none does."""
    at = bisect_left(alphas, share)
    return alphas[at] if at < len(alphas) else 0


def retry_after_ms(tenant: Tenant, reason: EndReason, now_ns: int) -> int:
    """Time after which a retry of a rejected request is useful: the time in which the tenant's own leases serve half
    of its jobs.

    1 ms to 5 s; 0 if the same request would be refused again.
    """
    if reason is EndReason.DRAINING:
        return DRAIN_RETRY_MS
    if reason not in _RETRYABLE:
        return 0
    return min(_MAX_RETRY_MS, max(_MIN_RETRY_MS, work_ns(tenant, now_ns) // 2 // MS))
