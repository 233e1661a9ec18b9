"""Decides whether a job is accepted and when a refused requester may retry. Pure functions over the ledger."""

from __future__ import annotations

from offpath.sched.jobs.demands import Instances
from offpath.sched.jobs.forecast import is_unreachable, work_ns
from offpath.sched.jobs.gangs import MOST_GPUS
from offpath.sched.jobs.ledger import Ledger
from offpath.sched.jobs.planning import Plans
from offpath.sched.jobs.records import Job, Session, Tenant
from offpath.sched.jobs.settings import MS
from offpath.sched.jobs.states import EndReason

_RETRYABLE = (EndReason.TENANT_QUEUE_FULL, EndReason.DAEMON_FULL)
DRAIN_RETRY_MS = 1_000  # a drain ends with a restart or an operator's command, and a sequence when its client ends it
_MIN_RETRY_MS = 1
_MAX_RETRY_MS = 5_000


def refuse(
    job: Job, session: Session, tenant: Tenant, leasing: Plans, instances: Instances, now_ns: int, *, in_sequence: bool
) -> EndReason:
    """Return why this job is not accepted, or NONE. Whether its sequence takes it, `Sequences.refuse` decides.

    ``instances``: those of the GPUs of the present or former helpers that serve its kernel. Before the first helper no
    kernel is known. ``in_sequence``: the request names a sequence.
    """
    ledger, share = leasing.ledger, job.demand.share
    if session.is_leaving:
        return EndReason.TENANT_REMOVED
    if job.request_id <= session.last_request_id:
        return EndReason.DUPLICATE_ID
    if job.kernel not in ledger.kernels:
        return EndReason.UNKNOWN_KERNEL
    if tenant.spec.kernels is not None and not ledger.may_call(tenant, job.kernel):
        return EndReason.KERNEL_NOT_PERMITTED
    if ledger.kernels[job.kernel].sequences is not in_sequence:
        return EndReason.BAD_SEQUENCE
    if not is_valid(share) or not all(
        is_valid(each) and (each > 100) is (share > 100) for _, each in job.demand.models
    ):
        return EndReason.BAD_DEMAND
    least = instances.least_fraction(job.demand)
    if share > 100 and not least:
        return instances.lacking(job.demand)
    if share > tenant.spec.max_demand or least > tenant.spec.max_share:
        return EndReason.TENANT_SHARE_LIMIT
    if job.demand.payload_bytes > ledger.settings.landing_bytes:
        return EndReason.PAYLOAD_TOO_LARGE
    if not least:
        return instances.lacking(job.demand)
    if ledger.is_draining:
        return EndReason.DRAINING
    if tenant.jobs >= tenant.spec.max_jobs:
        return EndReason.TENANT_QUEUE_FULL
    if ledger.unanswered >= ledger.settings.max_jobs:
        return EndReason.DAEMON_FULL
    if job.deadline_ns and (job.deadline_ns < now_ns if in_sequence else is_unreachable(job, tenant, leasing, now_ns)):
        return EndReason.DEADLINE_UNREACHABLE
    return EndReason.NONE


def is_valid(share: int) -> bool:
    """True for a part of a GPU in percent, and for 100 percent of each GPU of a gang."""
    return 1 <= share <= 100 or (share % 100 == 0 and 100 < share <= 100 * MOST_GPUS)


def withdraw(
    job: Job, session: Session | None, tenant: Tenant, ledger: Ledger, instances: Instances | None
) -> EndReason | None:
    """Return why an accepted job without a lane must not get one, or None: rights, helpers and GPUs may have changed.
    ``instances`` None: no GPU is known, so this check is skipped."""
    if session is None or session.is_leaving:
        return EndReason.TENANT_REMOVED
    if not ledger.may_call(tenant, job.kernel):
        return EndReason.KERNEL_NOT_PERMITTED
    if is_unlike(job, ledger):
        return EndReason.BAD_SEQUENCE
    least = instances.least_fraction(job.demand) if instances is not None else 0
    if not least and instances is not None:
        return instances.lacking(job.demand)
    if least > tenant.spec.max_share:
        return EndReason.TENANT_SHARE_LIMIT
    return None


def is_unlike(job: Job, ledger: Ledger) -> bool:
    """True if the job's kernel takes requests of sequences only and the job is of none, or the reverse: helpers have
    changed since it was accepted."""
    kernel = ledger.kernels.get(job.kernel)
    return kernel is not None and kernel.sequences is not (job.sequence > 0)


def retry_after_ms(tenant: Tenant, ledger: Ledger, reason: EndReason, now_ns: int) -> int:
    """Time after which a retry of a rejected request is useful: the time in which the tenant's own leases serve half
    of its jobs.

    1 ms to 5 s; 0 if the same request would be refused again.
    """
    if reason in (EndReason.DRAINING, EndReason.TOO_MANY_SEQUENCES):
        return DRAIN_RETRY_MS
    if reason not in _RETRYABLE:
        return 0
    return min(_MAX_RETRY_MS, max(_MIN_RETRY_MS, work_ns(tenant, ledger.kernels, now_ns) // 2 // MS))
