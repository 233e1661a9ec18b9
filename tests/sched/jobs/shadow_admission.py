"""Which requests the job book should refuse, and why, from the same facts; `shadow` asks it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from offpath.sched.jobs.states import EndReason

from .shadow_records import ShadowJob

if TYPE_CHECKING:
    from .shadow import Shadow


def renew(shadow: Shadow) -> None:
    """What waits needs what its kernel needs now; a plain R stays as accepted."""
    for job in shadow.live.values():
        if job.phase == "queued":
            renew_one(shadow, job)


def renew_one(shadow: Shadow, job: ShadowJob) -> None:
    """The same for a job that is to wait again."""
    kernel = shadow.kernels.get(job.event.kernel)
    if kernel is not None:
        asked = job.event.share or (0 if kernel.models else job.share)
        was, job.needs = job.needs, kernel.asked(asked, shadow.tenants[job.tenant].max_demand)
        shadow.seen["needs renewed"] += was != job.needs


def is_permitted(shadow: Shadow, job: ShadowJob) -> bool:
    """Its tenant may call its kernel."""
    permitted = shadow.tenants[job.tenant].kernels
    return permitted is None or shadow.offered_kernels.names[job.event.kernel] in permitted


def least_held(shadow: Shadow, job: ShadowJob) -> int:
    """The share of the smallest instance for it and for all lanes of a lease; 0: there is none."""
    return min(_holding(shadow, job, memory_bytes=job.needs.memory_bytes), default=0)


def _holding(shadow: Shadow, job: ShadowJob, *, memory_bytes: int) -> list[int]:
    """The shares of all instances that hold it."""
    buffers = shadow.settings.landing_bytes + shadow.settings.result_bytes
    lanes, needed = shadow.settings.lanes * buffers, memory_bytes + buffers if memory_bytes else 0
    room = max(lanes, needed)
    return _gangs(shadow, job, lanes, needed) + [
        gpu.alpha(profile)
        for gpu in shadow.offered
        for profile in gpu.profiles
        if profile.memory_bytes >= room and 0 < job.needs.share_on(gpu.model) <= gpu.alpha(profile)
    ]


def _gangs(shadow: Shadow, job: ShadowJob, lanes_bytes: int, needed_bytes: int) -> list[int]:
    """The shares of all gangs that hold it: whole GPUs of a model, with the job's memory in them together."""
    found = []
    for model in {gpu.model for gpu in shadow.offered}:
        share = job.needs.share_on(model)
        sizes = [
            profile.memory_bytes
            for gpu in shadow.offered
            for profile in gpu.profiles
            if gpu.model == model and profile.name == "whole" and profile.memory_bytes >= lanes_bytes
        ]
        if 100 < share <= 100 * len(sizes) and share // 100 * sizes[0] >= needed_bytes:
            found.append(share)
    return found


def _lacking(shadow: Shadow, job: ShadowJob) -> EndReason:
    if job.needs.models and not any(job.needs.share_on(gpu.model) for gpu in shadow.offered):
        return EndReason.NO_GPU_MODEL
    if _holding(shadow, job, memory_bytes=0):
        return EndReason.NO_INSTANCE_MEMORY
    return EndReason.GANG_UNSUPPORTED if job.share > 100 else EndReason.NO_INSTANCE_FITS


def refusal(shadow: Shadow, job: ShadowJob, mine: int, all_jobs: int) -> EndReason:
    """The first reason against the job, or NONE; whether a deadline is too short is not judged. ``mine``: unanswered
    jobs of its tenant besides it; ``all_jobs``: of all tenants."""
    event, spec = job.event, shadow.tenants[job.tenant]
    held = least_held(shadow, job)
    is_forbidden = event.kernel in shadow.kernels and not is_permitted(shadow, job)
    reasons = (
        (event.session in shadow.leaving, EndReason.TENANT_REMOVED),
        (event.request_id <= shadow.last_id[event.session], EndReason.DUPLICATE_ID),
        (event.kernel not in shadow.kernels, EndReason.UNKNOWN_KERNEL),
        (is_forbidden, EndReason.KERNEL_NOT_PERMITTED),
        (shadow.offered_kernels.is_unlike(job), EndReason.BAD_SEQUENCE),
        (not 1 <= job.share <= 100 and job.share not in range(200, 1_700, 100), EndReason.BAD_DEMAND),
        (job.share > 100 and not held, _lacking(shadow, job)),
        (job.share > spec.max_demand or held > spec.max_share, EndReason.TENANT_SHARE_LIMIT),
        (event.payload_bytes > shadow.settings.landing_bytes, EndReason.PAYLOAD_TOO_LARGE),
        (not held, _lacking(shadow, job)),
        (shadow.is_draining, EndReason.DRAINING),
        (mine >= spec.max_jobs, EndReason.TENANT_QUEUE_FULL),
        (all_jobs >= shadow.settings.max_jobs, EndReason.DAEMON_FULL),
    )
    found = next((reason for is_so, reason in reasons if is_so), EndReason.NONE)
    return shadow.sequences.refusal(shadow, job) if found is EndReason.NONE else found
