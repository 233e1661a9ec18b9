"""Lists what blocks a queued job: no free lane, and no lease that could be opened. Only reads the ledger."""

from __future__ import annotations

from collections import Counter
from enum import Enum

from offpath.sched.gpu.geometry import GpuGeometry, GpuSpec, Profile, Slice
from offpath.sched.gpu.greedy import candidates
from offpath.sched.gpu.policy import Demand, Unblocker, runs_on, share_in
from offpath.sched.jobs import gangs
from offpath.sched.jobs.ledger import Ledger
from offpath.sched.jobs.placing import free_lanes
from offpath.sched.jobs.records import Job, Lease, Tenant
from offpath.sched.jobs.settings import MS, BookSettings
from offpath.sched.jobs.states import FIRST_TERMINAL, LeaseState
from offpath.sched.record import record

_OPENING = (LeaseState.PLANNED, LeaseState.CREATING)


class Cause(Enum):
    """Kinds of causes that block a job or ended it."""

    HELPER = "helper"
    LANES = "lanes"
    SHARE = "share"
    DEMAND = "demand"
    OPENING = "opening"
    PAUSE = "pause"
    QUOTA = "quota"
    MEMORY = "memory"
    NO_PROFILE = "no_profile"
    GEOMETRY = "geometry"
    TENANT_CLASH = "tenant_clash"
    GROWTH = "growth"
    DEADLINE = "deadline"
    DRAINING = "draining"
    REMOVED = "removed"
    FULL = "full"
    REQUEST = "request"
    REQUESTER = "requester"
    OPERATOR = "operator"
    KERNEL = "kernel"
    BATCH = "batch"
    SEQUENCE = "sequence"
    FAULT = "fault"


@record
class Holder:
    """A lease that occupies what the job needs; ``tenant`` is empty where it must not be named."""

    lease: int
    tenant: str
    gpu: str
    profile: str
    start: int
    state: LeaseState
    jobs: int


@record
class BlockedStart:
    """A legal start of the profile, and the leases that block it; ``reserved_for``: the tenant for whose next lease the
    slices are being cleared."""

    gpu: str
    profile: str
    start: int
    leases: tuple[int, ...]
    reserved_for: str


@record
class Hold:
    """One cause that blocks the job, as text and as data."""

    cause: Cause
    text: str
    unblocked_by: tuple[Unblocker, ...]
    holders: tuple[Holder, ...]
    starts: tuple[BlockedStart, ...]


def holder_of(lease: Lease) -> Holder:
    """Describe the lease as a blocker."""
    view = lease.view
    return Holder(view.lease, view.tenant, view.gpu, view.profile, view.start, lease.state, len(lease.jobs))


def obstacles(job: Job, tenant: Tenant, ledger: Ledger, gpus: tuple[GpuSpec, ...], now_ns: int) -> tuple[Hold, ...]:
    """Return why the queued ``job`` has no lane on its tenant's leases, and why no further lease opens for it."""
    if not gpus:
        text = "no helper is connected, so there is no GPU" + _end_without_server(job, ledger, now_ns)
        return (Hold(Cause.HELPER, text, (Unblocker.HELPER_JOINS,), (), ()),)
    if job.kernel not in ledger.kernels:
        known = ledger.known.get(job.kernel)
        name = f"kernel {known.name or job.kernel}" if known is not None else "its kernel"
        text = f"no helper serves {name}" + _end_without_server(job, ledger, now_ns)
        return (Hold(Cause.KERNEL, text, (Unblocker.HELPER_JOINS,), (), ()),)
    gpus = tuple([gpu for gpu in gpus if runs_on(job.demand, gpu)])
    if not gpus:
        awaited = ", ".join(job.demand.helpers)
        text = f"no connected helper serves its kernel; awaited: {awaited}" + _end_without_server(job, ledger, now_ns)
        return (Hold(Cause.KERNEL, text, (Unblocker.HELPER_JOINS,), (), ()),)
    return (*_lanes(job, tenant, gpus), *_lease(job, tenant, ledger, gpus, now_ns))


def _end_without_server(job: Job, ledger: Ledger, now_ns: int) -> str:
    """Text for when the job ends if no helper that serves its kernel joins; empty if it waits without a limit."""
    known = ledger.known.get(job.kernel)
    ends_ns = ledger.gone_for_good_ns(known) if known is not None else 0
    return (
        f"; unless a helper that serves its kernel joins, it ends in {(ends_ns - now_ns) / MS:.0f} ms"
        if ends_ns
        else ""
    )


def _lanes(job: Job, tenant: Tenant, gpus: tuple[GpuSpec, ...]) -> list[Hold]:
    """Obstacles on the tenant's warm leases: too small, or full."""
    can_run_it = {gpu.gpu for gpu in gpus}
    warm = [held for held in tenant.leases.values() if held.state is LeaseState.WARM and held.view.gpu in can_run_it]
    fitting = [held for held in warm if share_in(job.demand, held.view)]
    if fitting:
        running = [each for held in fitting for each in held.jobs.values() if each.is_running]
        answered = sum(each.state >= FIRST_TERMINAL for each in running)
        lanes = sum(held.view.lanes for held in fitting)
        held_by = f"its tenant's {len(fitting)} lease(s) that hold {need_text(job.demand)}"
        taken = lanes - sum(len(free_lanes(held)) for held in fitting)
        count = f"{taken} of {lanes}" if taken < lanes else f"all {lanes}"
        text = f"{count} lanes of {held_by} are taken, {len(running)} run"
        if answered:
            text += f", {answered} of these for requests that have expired or were cancelled"
        if renewing := sum(len(held.renewing) for held in fitting):
            text += f"; {renewing} get a new worker, because their helper has reloaded its kernels"
        if taken < lanes:
            text += "; " + _behind(job, fitting)
        return [
            Hold(Cause.LANES, text, (Unblocker.JOB_ENDS, Unblocker.LEASE_OPENS), tuple(map(holder_of, fitting)), ())
        ]
    if warm:
        most = max(held.view.alpha for held in warm)
        text = f"it needs {need_text(job.demand)}, its tenant's largest lease has {most} %"
        if job.demand.memory_bytes:
            text += f" and at most {max(held.view.lane_bytes for held in warm)} bytes for each lane"
        return [Hold(Cause.DEMAND, text, (Unblocker.LEASE_OPENS,), tuple(map(holder_of, warm)), ())]
    return []


def _behind(job: Job, fitting: list[Lease]) -> str:
    """Why it takes none of the free lanes."""
    streams = sorted(each.job for held in fitting for each in held.jobs.values() if each.streams)
    if streams:
        return f"in the others it would wait for the share of stream {streams[0]}"
    if job.streams:
        return "a stream takes a lane only if the share for it is free"
    return "the others are kept for a request that precedes it and streams"


def _lease(job: Job, tenant: Tenant, ledger: Ledger, gpus: tuple[GpuSpec, ...], now_ns: int) -> list[Hold]:
    """Obstacles to a further lease: already opening, not allowed, or no free place."""
    opening = [held for held in tenant.leases.values() if held.state in _OPENING]
    if opening:
        text = f"lease {opening[0].view.lease} of its tenant is being opened"
        return [Hold(Cause.OPENING, text, (Unblocker.LEASE_OPENS,), tuple(map(holder_of, opening)), ())]
    if now_ns < tenant.retry_open_ns:
        left = (tenant.retry_open_ns - now_ns) / MS
        text = f"the last lease could not be opened; the next attempt is in {left:.0f} ms"
        return [Hold(Cause.PAUSE, text, (Unblocker.TIME,), (), ())]
    settings = ledger.settings
    room = settings.lanes * (settings.landing_bytes + settings.result_bytes)
    wanted = [(gpu, profile) for gpu in gpus for profile in candidates(gpu, job.demand, room, tenant.spec.profile)]
    possible = gangs.gangs(gpus, job.demand, room) if job.demand.share > 100 else []
    least = min([gpu.alpha(profile) for gpu, profile in wanted] + [100 * count for count, _ in possible])
    if tenant.held_share + least > tenant.spec.max_share:
        own = tuple(map(holder_of, tenant.leases.values()))
        text = (
            f"its tenant holds {tenant.held_share} % and may hold {tenant.spec.max_share} %; "
            f"the smallest lease for this job has {least} %"
        )
        return [Hold(Cause.QUOTA, text, (Unblocker.JOB_ENDS, Unblocker.LEASE_CLOSES, Unblocker.CONFIGURATION), own, ())]
    return _gang_place(ledger, possible) if possible else _place(job, tenant, ledger, wanted)


def _gang_place(ledger: Ledger, possible: list[tuple[int, list[GpuSpec]]]) -> list[Hold]:
    """The leases on the GPUs that a gang could have."""
    names = {gpu.gpu for _, group in possible for gpu in group}
    blocking = [lease for lease in ledger.leases.values() if not names.isdisjoint(lease.view.gpus)]
    held = {gpu for lease in blocking for gpu in lease.view.gpus}
    if any(sum(gpu.gpu not in held for gpu in group) >= count for count, group in possible):
        wait = ledger.settings.grow_after_ns / MS
        text = f"there is room for a gang; its lease is opened when the backlog has lasted {wait:g} ms"
        return [Hold(Cause.GROWTH, text, (Unblocker.TIME, Unblocker.JOB_ENDS), (), ())]
    count = min(count for count, _ in possible)
    text = f"it needs {count} whole GPUs of one helper and model, and leases hold too many of them"
    return [Hold(Cause.GEOMETRY, text, (Unblocker.LEASE_CLOSES,), tuple(map(holder_of, blocking)), ())]


def need_text(demand: Demand) -> str:
    """What the demand needs of an instance."""
    shares = " or ".join([f"{share} % of {model}" for model, share in demand.models]) or f"{demand.share} %"
    return f"{shares} with {demand.memory_bytes} bytes of memory" if demand.memory_bytes else shares


def no_profile(demand: Demand, settings: BookSettings, gpus: tuple[GpuSpec, ...]) -> Hold | None:
    """Return the obstacle if no GPU is of the right model, or no instance has enough compute, or enough memory for the
    lanes or the job; None if one fits or no GPU is known."""
    lanes = settings.lanes
    room = lanes * (settings.landing_bytes + settings.result_bytes)
    if not gpus or any(candidates(gpu, demand, room, None) for gpu in gpus) or gangs.gangs(gpus, demand, room):
        return None
    accepted = [(gpu, demand.share_on(gpu.model)) for gpu in gpus if demand.share_on(gpu.model)]
    if not accepted:
        there = ", ".join(sorted({gpu.model for gpu in gpus}))
        text = f"it needs {need_text(demand)}; the GPUs here are {there}"
        return Hold(Cause.NO_PROFILE, text, (Unblocker.HELPER_JOINS,), (), ())
    if demand.share > 100:
        wholes = Counter((gpu.helper, gpu.model) for gpu, _ in accepted if gpu.whole is not None)
        most = max(wholes.values(), default=0)
        text = f"it needs {need_text(demand)} on one host, which has at most {most} GPUs of one model that are whole"
        return Hold(Cause.NO_PROFILE, text, (Unblocker.OTHER_REQUEST, Unblocker.HELPER_JOINS), (), ())
    large = [(p, gpu) for gpu, share in accepted for p in gpu.profiles if gpu.alpha(p) >= share]
    if not large:
        most = max((gpu.alpha(p) for gpu, _ in accepted for p in gpu.profiles), default=0)
        text = f"it needs {need_text(demand)}, the largest profile here has {most} %"
        return Hold(Cause.NO_PROFILE, text, (Unblocker.OTHER_REQUEST, Unblocker.HELPER_JOINS), (), ())
    if not any(p.job_bytes >= demand.memory_bytes for p, _ in large):
        nbytes, name, model = max((p.job_bytes, p.name, gpu.model) for p, gpu in large)
        text = f"it needs {need_text(demand)}, the largest suitable instance here ({name} of {model}) has {nbytes}"
        return Hold(Cause.MEMORY, text, (Unblocker.HELPER_JOINS,), (), ())
    nbytes, name, model = max((p.memory_bytes, p.name, gpu.model) for p, gpu in large)
    text = f"{lanes} lanes take {room} bytes of an instance, the largest suitable one ({name} of {model}) has {nbytes}"
    return Hold(Cause.MEMORY, text, (Unblocker.CONFIGURATION, Unblocker.HELPER_JOINS), (), ())


def _place(job: Job, tenant: Tenant, ledger: Ledger, wanted: list[tuple[GpuSpec, Profile]]) -> list[Hold]:
    """Every legal start of every profile that fits, and the leases that block it."""
    geometries = {gpu.gpu: GpuGeometry(gpu) for gpu, _ in wanted}
    for lease in ledger.leases.values():
        for gpu in lease.view.gpus:
            geometry = geometries.get(gpu)
            profile = geometry.spec.profile(lease.view.profile) if geometry is not None else None
            if geometry is not None and profile is not None:
                geometry.take(lease.view.lease, profile, lease.view.start)
    rooms = {
        slice_: other.spec.name for other in ledger.backlogged.values() if other is not tenant for slice_ in other.room
    }
    starts = [_start(geometries[gpu.gpu], profile, start, rooms) for gpu, profile in wanted for start in profile.starts]
    if any(not each.leases and not each.reserved_for for each in starts):
        wait = ledger.settings.grow_after_ns / MS
        text = f"there is room for a further lease; it is opened when the backlog has lasted {wait:g} ms"
        return [Hold(Cause.GROWTH, text, (Unblocker.TIME, Unblocker.JOB_ENDS), (), ())]
    blocking = [ledger.leases[lease] for lease in sorted({lease for each in starts for lease in each.leases})]
    others = [lease for lease in blocking if lease.view.tenant != tenant.spec.name]
    holds = []
    waits_for = sorted({each.reserved_for for each in starts} - {""})
    foreign = {lease.view.lease for lease in others}
    if any(foreign & set(each.leases) or each.reserved_for for each in starts):
        named = [_held(lease) for lease in others] + [
            f"slices are being cleared for tenant {name}" for name in waits_for
        ]
        text = f"suitable capacity is held by others: {'; '.join(named)}"
        freed = (Unblocker.LEASE_CLOSES, Unblocker.HELPER_JOINS)
        holds.append(Hold(Cause.TENANT_CLASH, text, freed, tuple(map(holder_of, others)), tuple(starts)))
    if _is_fragmented(geometries, wanted) or any(set(each.leases) - foreign for each in starts):
        unblockers = (Unblocker.LEASE_CLOSES, Unblocker.HELPER_JOINS, Unblocker.OTHER_REQUEST)
        text = f"no legal place for {' or '.join(dict.fromkeys(p.name for _, p in wanted))}: {_starts_text(starts)}"
        own = tuple(holder_of(lease) for lease in blocking)
        holds.append(Hold(Cause.GEOMETRY, text, unblockers, own, tuple(starts)))
    return holds


def _start(geometry: GpuGeometry, profile: Profile, start: int, rooms: dict[Slice, str]) -> BlockedStart:
    """Find the leases that must close before the profile may start there."""
    held, spec = geometry.held, geometry.spec
    end = start + profile.memory_slices
    in_way = {lease for lease, one in held.items() if start < one.start + one.profile.memory_slices and one.start < end}
    if sum(one.profile.compute_slices for lease, one in held.items() if lease not in in_way) > (
        spec.compute_slices - profile.compute_slices
    ):
        in_way = set(held)
    alike = [lease for lease, one in held.items() if one.profile.name == profile.name]
    if len(alike) >= profile.max_instances and not in_way & set(alike):
        in_way |= set(alike)
    reserved = next((rooms[(spec.gpu, n)] for n in range(start, end) if (spec.gpu, n) in rooms), "")
    return BlockedStart(spec.gpu, profile.name, start, tuple(sorted(in_way)), reserved)


def _is_fragmented(geometries: dict[str, GpuGeometry], wanted: list[tuple[GpuSpec, Profile]]) -> bool:
    """True if enough slices are free, but not where the profile may start."""
    for gpu, profile in wanted:
        held = geometries[gpu.gpu].held.values()
        memory = gpu.memory_slices - sum(one.profile.memory_slices for one in held)
        compute = gpu.compute_slices - sum(one.profile.compute_slices for one in held)
        if memory >= profile.memory_slices and compute >= profile.compute_slices:
            return True
    return False


def _held(lease: Lease) -> str:
    view = lease.view
    return (
        f"lease {view.lease} of tenant {view.tenant} has {view.profile} at {view.start} of {view.gpu} "
        f"({lease.state.value}, {len(lease.jobs)} jobs)"
    )


def _starts_text(starts: list[BlockedStart]) -> str:
    parts = []
    for each in starts[:12]:
        why = [f"lease {lease}" for lease in each.leases]
        if each.reserved_for:
            why.append("slices being cleared")
        parts.append(f"{each.profile} at {each.start} is blocked by {', '.join(why)}")
    return "; ".join(parts)
