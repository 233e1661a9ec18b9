"""Explains a job's state: what blocks it, which leases hold what it needs, and what would unblock it.

Only reads the ledger. The geometry is rebuilt from the leases, so the policy is not queried.
`offpath.sched.jobs.obstacles` covers what a queued job lacks; `explain_end` covers ended jobs.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from offpath.sched.gpu.geometry import GpuSpec
from offpath.sched.gpu.policy import Demand, Unblocker
from offpath.sched.jobs.demands import demand_of
from offpath.sched.jobs.forecast import ends_in_ns, ends_on_lane_in_ns, is_unreachable
from offpath.sched.jobs.ledger import Ledger
from offpath.sched.jobs.limits import has_others_states, launch_due_ns
from offpath.sched.jobs.obstacles import Cause, Hold, holder_of, no_profile, obstacles
from offpath.sched.jobs.planning import Plans
from offpath.sched.jobs.records import Job, Tenant
from offpath.sched.jobs.ripeness import is_ripe
from offpath.sched.jobs.settings import MS, TenantSpec
from offpath.sched.jobs.states import EndReason, JobState
from offpath.sched.record import record

_LAST: Final = 1 << 62  # greater than every job number


@record
class Explanation:
    """``ahead``: jobs of the tenant that are served before it. ``estimate_ns``: time until it ends; None if unknown (no
    recent run of its kernel, a run longer than usual, or no lease to run it)."""

    where: str
    holds: tuple[Hold, ...]
    ahead: int
    estimate_ns: int | None


@record
class Ended:
    """Record of an ended job: its request and its answer. ``share`` and ``budget_ms`` are as requested.
    ``operator_uid``: the operator who cancelled it, if any. ``detail``: the worker's error text."""

    job: int
    tenant: str
    share: int
    payload_bytes: int
    budget_ms: int
    state: JobState
    reason: EndReason
    retry_after_ms: int
    lease: int
    stages: tuple[int, int, int, int, int, int]
    kernel: int
    priority: int
    operator_uid: int | None = None
    detail: str = ""


def explain(
    job: Job, ledger: Ledger, gpus: tuple[GpuSpec, ...], now_ns: int, *, names_others: bool = True
) -> Explanation:
    """Explain a job that the book holds and has not answered.

    ``names_others``: name other tenants. True for an operator; a tenant learns only that there are others.
    """
    result = Explanation("accepted", (), 0, None)
    if job.state is JobState.QUEUED:
        result = _in_the_queue(job, ledger, gpus, now_ns)
    elif job.placement is not None:
        result = _on_a_lane(job, ledger, now_ns)
    if job.deadline_ns:
        result = replace(result, holds=(*result.holds, *_deadline(job, result, ledger, now_ns)))
    return (
        result if names_others else replace(result, holds=tuple(_nameless(h, job.demand.tenant) for h in result.holds))
    )


def _in_the_queue(job: Job, ledger: Ledger, gpus: tuple[GpuSpec, ...], now_ns: int) -> Explanation:
    tenant = ledger.tenants[job.demand.tenant]
    ahead = _ahead(job, ledger)
    estimate = ends_in_ns(job, tenant, ledger.kernels, now_ns)
    where = f"queued for {_ms(now_ns - job.accepted_ns)}"
    if job.awaits:
        return Explanation(where, (_waits_for_sequence(job, ledger),), 0, None)
    waits = _waits_for_others(job, tenant, ledger, now_ns)
    return Explanation(where, waits or obstacles(job, tenant, ledger, gpus, now_ns), ahead, estimate)


def _waits_for_others(job: Job, tenant: Tenant, ledger: Ledger, now_ns: int) -> tuple[Hold, ...]:
    """What a job that batches still waits for; empty if only a lane is missing."""
    queue = tenant.queues.get(job.queue_kind) if job.stack else None
    kernel = ledger.kernels.get(job.kernel)
    if queue is None or kernel is None or kernel.batching is None or is_ripe(queue, ledger, now_ns):
        return ()
    jobs = queue.waiting()
    first_ns = min([each.ripe_ns for each in jobs]) - now_ns
    text = (
        f"it waits to share a launch: {_jobs(sorted(each.job for each in jobs))} of its kernel have {queue.rows} rows, "
        f"{' or '.join(map(str, kernel.batching.sizes))} are enough; they wait for {_ms(first_ns)} at most"
    )
    return (Hold(Cause.BATCH, text, (Unblocker.TIME, Unblocker.OTHER_REQUEST), (), ()),)


def _waits_for_sequence(job: Job, ledger: Ledger) -> Hold:
    """What a job of a sequence waits for: those before it, or the lane whose worker has the state."""
    sequence = ledger.sequences[job.sequence]
    which = f"sequence {sequence.sequence_id}"
    if job.turn is None:
        before = [sequence.head, *sequence.later]
        numbers = before[: before.index(job.job)]
        text = f"it waits for {_jobs(numbers)} of {which}, whose requests run one after the other"
        return Hold(Cause.SEQUENCE, text, (Unblocker.JOB_ENDS,), (), ())
    number, lane = job.turn
    lease = ledger.leases[number]
    there = [held.job for held in lease.jobs.values() if held.placement is not None and held.placement.lane == lane]
    text = f"it waits for lane {lane} of lease {number}, which has the state of {which} and holds {_jobs(there)}"
    return Hold(Cause.SEQUENCE, text, (Unblocker.JOB_ENDS,), (holder_of(lease),), ())


def _on_a_lane(job: Job, ledger: Ledger, now_ns: int) -> Explanation:
    assert job.placement is not None
    lease = ledger.leases[job.placement.lease]
    left = ends_on_lane_in_ns(job, lease, ledger.tenants[job.demand.tenant], now_ns)
    more = f" and {len(lease.view.others)} more" if lease.is_gang else ""
    instance = f"{lease.view.profile} of {lease.view.gpu}{more}"
    place = f"lane {job.placement.lane} of lease {lease.view.lease} ({instance})"
    if job.batch is not None:
        rows = sum([each.rows for each in job.members])
        numbers = [each.job for each in job.members]
        place += f", with {job.rows} of the {rows} rows of a batch of {_jobs(numbers)}"
    leader = job.members[0]
    if job.is_running:
        ran = now_ns - job.launched_ns
        return Explanation(f"its kernel has run for {_ms(ran)} in {place}", (), 0, left)
    if job.is_copying:
        copying = now_ns - job.placed_ns
        return Explanation(f"its payload has been copying for {_ms(copying)} to {place}", (), 0, None)
    ahead = lease.waiting.index(leader) if leader in lease.waiting else 0
    running = [each.job for each in lease.occupants if each.is_running]
    text = (
        f"{lease.running_share} of the lease's {lease.view.alpha} % are in use by {_jobs(running)}, "
        f"this job needs {job.share}"
    )
    hold = Hold(Cause.SHARE, text, (Unblocker.JOB_ENDS,), (holder_of(lease),), ())
    return Explanation(f"its payload has waited for {_ms(now_ns - job.copied_ns)} in {place}", (hold,), ahead, left)


def _ahead(job: Job, ledger: Ledger) -> int:
    """Number of jobs of its tenant that are placed before it, if all leases were the same."""
    tenant = ledger.tenants[job.demand.tenant]
    others = [*tenant.awaiting.values(), *(other for queue in tenant.queues.values() for other in queue.waiting())]
    return sum(other.rank < job.rank for other in others)


def _deadline(job: Job, result: Explanation, ledger: Ledger, now_ns: int) -> tuple[Hold, ...]:
    left = job.deadline_ns - now_ns
    if result.estimate_ns is not None and result.estimate_ns <= left:
        return ()
    if result.estimate_ns is None and not result.holds and not job.is_running:
        return ()
    guess = (
        f"it is estimated to end in {_ms(result.estimate_ns)}"
        if result.estimate_ns is not None
        else "its end is unknown"
    )
    text = f"its deadline is in {_ms(left)}; {guess}; at its deadline it ends EXPIRED"
    if job.is_running:
        text += f", and its kernel keeps the lane {_kept_until(job, ledger)}"
    return (Hold(Cause.DEADLINE, text, (Unblocker.JOB_ENDS, Unblocker.SAME_REQUEST), (), ()),)


def _kept_until(job: Job, ledger: Ledger) -> str:
    """Text for how long a kernel keeps its lane once its job has expired."""
    settings = ledger.settings
    kills = settings.kills_expired and settings.linger_ns > 0
    if kills and not has_others_states(job, ledger):
        return f"until it ends; after {_ms(settings.linger_ns)} its worker is killed (limits.on_expiry)"
    why = "other sequences have their states there" if kills else "limits.on_expiry"
    if settings.kernel_ns:
        return f"until it ends or has run for {_ms(settings.kernel_ns)} in all ({why}, limits.kernel_ms)"
    return f"until it ends ({why})"


def _nameless(hold: Hold, own: str) -> Hold:
    """The same hold without the names of other tenants."""
    others = {each.tenant for each in hold.holders} - {own}
    text = hold.text
    for name in sorted(others, key=len, reverse=True):
        text = text.replace(f"tenant {name}", "another tenant")
    holders = tuple(each if each.tenant == own else replace(each, tenant="") for each in hold.holders)
    return replace(hold, text=text, holders=holders)


def explain_end(ended: Ended, leasing: Plans, now_ns: int) -> Explanation:
    """Explain an answered job from its record; the numbers are current, not those of the time it ended."""
    ledger = leasing.ledger
    where = f"{ended.state.name} after {_ms(ended.stages[5])}"
    if ended.reason is EndReason.NONE:
        return Explanation(where, (), 0, None)
    if ended.reason in _NO_INSTANCE:
        kernel, spec = ledger.kernels.get(ended.kernel), TenantSpec(ended.tenant)
        demand = demand_of(ended.job, kernel, spec, ledger.settings, ended.share, ended.payload_bytes)
        hold = no_profile(demand, ledger.settings, tuple(leasing.gpus))
        if hold is not None:
            return Explanation(where, (hold,), 0, None)
    text, unblockers = _end_text(ended, leasing, now_ns)
    return Explanation(where, (Hold(_END_CAUSE.get(ended.reason, Cause.FAULT), text, unblockers, (), ()),), 0, None)


_NO_INSTANCE: Final = (EndReason.NO_INSTANCE_FITS, EndReason.NO_GPU_MODEL, EndReason.NO_INSTANCE_MEMORY)
_END_CAUSE = {
    EndReason.PAYLOAD_TOO_LARGE: Cause.MEMORY,
    EndReason.TENANT_QUEUE_FULL: Cause.QUOTA,
    EndReason.TENANT_SHARE_LIMIT: Cause.QUOTA,
    EndReason.DAEMON_FULL: Cause.FULL,
    EndReason.DEADLINE_UNREACHABLE: Cause.DEADLINE,
    EndReason.DEADLINE_PASSED: Cause.DEADLINE,
    EndReason.NO_INSTANCE_FITS: Cause.NO_PROFILE,
    EndReason.NO_GPU_MODEL: Cause.NO_PROFILE,
    EndReason.NO_INSTANCE_MEMORY: Cause.MEMORY,
    EndReason.GANG_UNSUPPORTED: Cause.NO_PROFILE,
    EndReason.HELPER_LOST: Cause.HELPER,
    EndReason.WORKER_LOST: Cause.HELPER,
    EndReason.DRAINING: Cause.DRAINING,
    EndReason.TENANT_REMOVED: Cause.REMOVED,
    EndReason.CANCELLED_BY_REQUESTER: Cause.REQUESTER,
    EndReason.CANCELLED_BY_OPERATOR: Cause.OPERATOR,
    EndReason.SESSION_CLOSED: Cause.REQUESTER,
    EndReason.BAD_HEADER: Cause.REQUEST,
    EndReason.UNKNOWN_KERNEL: Cause.REQUEST,
    EndReason.KERNEL_NOT_PERMITTED: Cause.REQUEST,
    EndReason.BAD_DEMAND: Cause.REQUEST,
    EndReason.DUPLICATE_ID: Cause.REQUEST,
    EndReason.PAYLOAD_CHECKSUM: Cause.REQUEST,
    EndReason.KERNEL_RAISED: Cause.KERNEL,
    EndReason.RESULT_TOO_LARGE: Cause.KERNEL,
    EndReason.KERNEL_OVERRAN: Cause.KERNEL,
    EndReason.KERNEL_GONE: Cause.KERNEL,
    EndReason.RESULT_NOT_SPLIT: Cause.KERNEL,
    EndReason.BAD_SEQUENCE: Cause.REQUEST,
    EndReason.SEQUENCE_UNKNOWN: Cause.SEQUENCE,
    EndReason.TOO_MANY_SEQUENCES: Cause.QUOTA,
    EndReason.SEQUENCE_LOST: Cause.SEQUENCE,
    EndReason.STREAM_MISMATCH: Cause.REQUEST,
}


def _end_text(ended: Ended, leasing: Plans, now_ns: int) -> tuple[str, tuple[Unblocker, ...]]:
    """Text for what ended the job, with numbers, and what would change that."""
    ledger = leasing.ledger
    reason, settings, share = ended.reason, ledger.settings, ended.share
    tenant = ledger.tenants.get(ended.tenant)
    spec = tenant.spec if tenant is not None else None
    if reason is EndReason.PAYLOAD_TOO_LARGE:
        text = f"its payload has {ended.payload_bytes} bytes, a lane's landing buffer {settings.landing_bytes}"
        return text, (Unblocker.OTHER_REQUEST, Unblocker.CONFIGURATION)
    if reason is EndReason.TENANT_QUEUE_FULL and spec is not None and tenant is not None:
        text = f"its tenant may have {spec.max_jobs} jobs unanswered; now it has {tenant.jobs}"
        return text, (Unblocker.JOB_ENDS, Unblocker.CONFIGURATION)
    if reason is EndReason.TENANT_SHARE_LIMIT and spec is not None:
        text = (
            f"a demand of {share} % exceeds what its tenant may request ({spec.max_demand} %) "
            f"or hold ({spec.max_share} %)"
        )
        return text, (Unblocker.OTHER_REQUEST, Unblocker.CONFIGURATION)
    if reason is EndReason.DAEMON_FULL:
        text = f"the daemon may have {settings.max_jobs} jobs unanswered; now it has {ledger.unanswered}"
        return text, (Unblocker.JOB_ENDS, Unblocker.CONFIGURATION)
    if reason is EndReason.DEADLINE_UNREACHABLE and tenant is not None:
        return _unreachable(ended, tenant, leasing, now_ns)
    if reason is EndReason.DEADLINE_PASSED:
        return _expired(ended, ledger, now_ns), (Unblocker.SAME_REQUEST, Unblocker.OTHER_REQUEST)
    text, unblockers = _ENDS[reason]
    if reason is EndReason.CANCELLED_BY_OPERATOR and ended.operator_uid is not None:
        text = f"an operator (uid {ended.operator_uid}) cancelled it"
    text = f"{text} (lease {ended.lease})" if ended.lease else text
    return (f"{text}: {ended.detail}" if ended.state is JobState.FAILED and ended.detail else text), unblockers


def _expired(ended: Ended, ledger: Ledger, now_ns: int) -> str:
    text = f"its budget of {ended.budget_ms} ms passed "
    if not ended.lease:
        return text + "while it was queued"
    text += f"on lease {ended.lease}"
    job = ledger.leaving.get(ended.job)
    if job is None or not job.is_running or job.placement is None:
        return text
    due_ns = launch_due_ns(job, ledger)
    limit = f"; its worker is killed in {_ms(max(0, due_ns - now_ns))}" if due_ns else ""
    return f"{text}; its kernel still runs and keeps lane {job.placement.lane} until it ends{limit}"


def _unreachable(ended: Ended, tenant: Tenant, leasing: Plans, now_ns: int) -> tuple[str, tuple[Unblocker, ...]]:
    """Evaluate the same request now: it is accepted once the jobs ahead of it leave enough time."""
    again = Job(
        _LAST, 0, 0, Demand(_LAST, ended.tenant, ended.share, ended.payload_bytes), ended.kernel, ended.priority,
        now_ns + ended.budget_ms * MS, False, now_ns, leasing.ledger.settings.turn_ns(ended.priority, now_ns),
    )  # fmt: skip
    text = f"its budget of {ended.budget_ms} ms was less than the estimated time to its end"
    if not is_unreachable(again, tenant, None, now_ns):  # outside of an event the policy is not asked
        return f"{text}; submitted now, it would be accepted", (Unblocker.SAME_REQUEST, Unblocker.OTHER_REQUEST)
    ends_ns = ends_in_ns(again, tenant, leasing.ledger.kernels, now_ns)
    if ends_ns is not None:
        text += f"; submitted now, it would end in about {_ms(ends_ns)} on the leases that its tenant has"
    text += "; it is accepted when that is within its budget, with the leases that would be opened, or a lane is idle"
    return text, (Unblocker.JOB_ENDS, Unblocker.LEASE_OPENS, Unblocker.OTHER_REQUEST)


_ENDS: dict[EndReason, tuple[str, tuple[Unblocker, ...]]] = {
    EndReason.BAD_HEADER: ("its header violates the protocol", (Unblocker.OTHER_REQUEST,)),
    EndReason.UNKNOWN_KERNEL: ("no helper serves its kernel", (Unblocker.HELPER_JOINS, Unblocker.OTHER_REQUEST)),
    EndReason.BAD_DEMAND: ("its demand is neither 1 to 100 nor up to 16 whole GPUs", (Unblocker.OTHER_REQUEST,)),
    EndReason.PAYLOAD_TOO_LARGE: ("its payload exceeds a lane's landing buffer", (Unblocker.OTHER_REQUEST,)),
    EndReason.DUPLICATE_ID: ("its session had already used its request id", (Unblocker.OTHER_REQUEST,)),
    EndReason.GANG_UNSUPPORTED: (
        "it requires more whole GPUs of one model than any helper here has",
        (Unblocker.OTHER_REQUEST, Unblocker.HELPER_JOINS),
    ),
    EndReason.TENANT_QUEUE_FULL: ("its tenant had too many jobs unanswered", (Unblocker.JOB_ENDS,)),
    EndReason.DEADLINE_UNREACHABLE: ("its budget was less than the wait", (Unblocker.OTHER_REQUEST,)),
    EndReason.NO_INSTANCE_FITS: (
        "no instance of any GPU here holds its demand and a lane's memory",
        (Unblocker.OTHER_REQUEST, Unblocker.HELPER_JOINS, Unblocker.CONFIGURATION),
    ),
    EndReason.KERNEL_NOT_PERMITTED: (
        "its tenant may not call its kernel",
        (Unblocker.CONFIGURATION, Unblocker.OTHER_REQUEST),
    ),
    EndReason.NO_GPU_MODEL: (
        "no GPU here is of a model that its kernel accepts",
        (Unblocker.HELPER_JOINS,),
    ),
    EndReason.NO_INSTANCE_MEMORY: (
        "no instance here that holds its demand has the memory that its kernel needs",
        (Unblocker.HELPER_JOINS, Unblocker.CONFIGURATION),
    ),
    EndReason.TENANT_SHARE_LIMIT: ("its demand exceeds its tenant's rights", (Unblocker.CONFIGURATION,)),
    EndReason.CANCELLED_BY_REQUESTER: ("its requester cancelled it", (Unblocker.SAME_REQUEST,)),
    EndReason.CANCELLED_BY_OPERATOR: ("an operator cancelled it", (Unblocker.SAME_REQUEST,)),
    EndReason.SESSION_CLOSED: ("its session ended before it did", (Unblocker.SAME_REQUEST,)),
    EndReason.DRAINING: ("the daemon was being drained", (Unblocker.DRAIN_ENDS, Unblocker.SAME_REQUEST)),
    EndReason.JOURNAL_FAILED: (
        "the daemon could not write its acceptance into the journal",
        (Unblocker.CONFIGURATION,),
    ),
    EndReason.TENANT_REMOVED: ("its tenant was removed from the configuration", (Unblocker.CONFIGURATION,)),
    EndReason.KERNEL_RAISED: ("its kernel raised an exception", (Unblocker.OTHER_REQUEST,)),
    EndReason.RESULT_TOO_LARGE: ("its result exceeds the size that its session requested", (Unblocker.OTHER_REQUEST,)),
    EndReason.PAYLOAD_CHECKSUM: ("its payload changed between requester and lane", (Unblocker.SAME_REQUEST,)),
    EndReason.COPY_FAILED: ("the copy engine could not copy its payload to the lane", (Unblocker.SAME_REQUEST,)),
    EndReason.WORKER_LOST: ("its worker ended while it may have run", (Unblocker.SAME_REQUEST,)),
    EndReason.HELPER_LOST: (
        "the helper was lost while it may have run",
        (Unblocker.HELPER_JOINS, Unblocker.SAME_REQUEST),
    ),
    EndReason.DAEMON_RESTARTED: ("the daemon was restarted while it may have run", (Unblocker.SAME_REQUEST,)),
    EndReason.KERNEL_OVERRAN: (
        "its kernel exceeded its time limit; its worker was killed",
        (Unblocker.OTHER_REQUEST, Unblocker.CONFIGURATION),
    ),
    EndReason.RESULT_NOT_SPLIT: (
        "its kernel was called for a batch, and did not return the batch's rows in each tensor",
        (Unblocker.OTHER_REQUEST,),
    ),
    EndReason.BAD_SEQUENCE: (
        "it has no `sequence_id`, and its kernel needs one; or it has one, and its kernel takes none",
        (Unblocker.OTHER_REQUEST,),
    ),
    EndReason.SEQUENCE_UNKNOWN: (
        "it does not start a sequence, and its session has none of this id and kernel: none was started, or it ended",
        (Unblocker.OTHER_REQUEST,),
    ),
    EndReason.TOO_MANY_SEQUENCES: (
        "its tenant or the daemon had as many sequences as it may have",
        (Unblocker.TIME, Unblocker.CONFIGURATION),
    ),
    EndReason.SEQUENCE_LOST: (
        "the state of its sequence was lost before it could run: with its worker or lease, by a reload of the kernels, "
        "or because the request that starts the sequence did not run",
        (Unblocker.OTHER_REQUEST,),
    ),
    EndReason.STREAM_MISMATCH: (
        "it wanted a stream of answers and its kernel gives one, or the other way round",
        (Unblocker.OTHER_REQUEST,),
    ),
    EndReason.KERNEL_GONE: (
        "no helper served its kernel for longer than the configuration allows",
        (Unblocker.HELPER_JOINS, Unblocker.CONFIGURATION),
    ),
}


def _ms(ns: int) -> str:
    return f"{ns / MS:.1f} ms" if ns < 10_000 * MS else f"{ns / MS / 1000:.1f} s"


def _jobs(numbers: list[int]) -> str:
    return ("job " if len(numbers) == 1 else "jobs ") + ", ".join(map(str, numbers)) if numbers else "no job"
