"""Gangs: leases on several whole GPUs of one helper, for jobs with R = 100·n (n GPUs of one model).

The job book plans and routes them itself. A policy only learns which GPUs such a lease takes. So every policy, a
plug-in too, serves gangs, and none has to know them. Of the free GPUs of a helper those with the most NVLinks between
them are taken; MIG instances of several GPUs cannot form a gang, because CUDA does not let them reach each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from offpath.sched.gpu.geometry import GpuSpec, Profile
from offpath.sched.gpu.policy import (
    Demand,
    LeasePlan,
    Obstacle,
    Opening,
    Placement,
    Refusal,
    Unblocker,
    share_in,
)
from offpath.sched.jobs.records import Lease, Tenant
from offpath.sched.jobs.states import LeaseState

MOST_GPUS: Final = 16
"""The largest gang, as large as a host's offer."""
_NO_LEASE: Final = Refusal((Obstacle.NO_LEASE,), (Unblocker.LEASE_OPENS,))
_LANES: Final = Refusal((Obstacle.LANES,), (Unblocker.JOB_ENDS, Unblocker.LEASE_OPENS))
_NO_GPU: Final = Refusal((Obstacle.NO_GPU,), (Unblocker.HELPER_JOINS,))
_NO_GANG: Final = Refusal((Obstacle.NO_PROFILE,), (Unblocker.HELPER_JOINS, Unblocker.CONFIGURATION))
_TAKEN: Final = Refusal((Obstacle.GEOMETRY, Obstacle.TENANT_CLASH), (Unblocker.LEASE_CLOSES, Unblocker.HELPER_JOINS))


def gang_of(demand: Demand, model: str) -> int:
    """GPUs of this model that the job needs; 0: it needs no gang of them."""
    share = demand.share_on(model)
    return share // 100 if share > 100 else 0


def gangs(gpus: Iterable[GpuSpec], demand: Demand, lease_bytes: int) -> list[tuple[int, list[GpuSpec]]]:
    """For each helper and model of which the job can have a gang: its number of GPUs, and those to choose from."""
    groups: dict[tuple[str, str], list[GpuSpec]] = {}
    for gpu in gpus:
        if gpu.whole is not None and (not demand.helpers or gpu.helper in demand.helpers):
            groups.setdefault((gpu.helper, gpu.model), []).append(gpu)
    found = []
    for (_, model), group in groups.items():
        count = gang_of(demand, model)
        fitting = [gpu for gpu in group if (whole := gpu.whole) and _holds(whole, count, demand, lease_bytes)]
        if 0 < count <= len(fitting):
            found.append((count, fitting))
    return found


def _holds(whole: Profile, count: int, demand: Demand, lease_bytes: int) -> bool:
    return whole.memory_bytes >= lease_bytes and count * whole.job_bytes >= demand.memory_bytes


def plan(
    gpus: Sequence[GpuSpec], demand: Demand, opening: Opening, leases: Iterable[Lease], most: int
) -> LeasePlan | Refusal:
    """The GPUs of the next lease for the job: the best connected free ones of the first helper that has enough, with a
    model of which the tenant may hold that many. ``most``: the share that it may still take, in percent."""
    if not gpus:
        return _NO_GPU
    possible = gangs(gpus, demand, opening.lease_bytes)
    taken = {gpu for held in leases if held.view.lease not in opening.assume_free for gpu in held.view.gpus}
    taken |= {gpu for gpu, _ in opening.reserved}
    for count, group in possible:
        free = [gpu for gpu in group if gpu.gpu not in taken]
        if len(free) >= count and 100 * count <= most:
            first, *others = chosen(free, count)
            assert first.whole is not None
            start = first.whole.starts[0]
            return LeasePlan(first.gpu, first.whole.name, start, 100 * count, tuple(gpu.gpu for gpu in others))
    return _TAKEN if possible else _NO_GANG


def chosen(free: Sequence[GpuSpec], count: int) -> list[GpuSpec]:
    """The ``count`` GPUs with the most NVLinks between them, in their order: from each GPU, the set that grows by the
    best connected one; the best of these sets."""
    links = {gpu.gpu: dict(gpu.links) for gpu in free}
    best: list[GpuSpec] = []
    most = -1
    for first in free:
        gang, rest, total = [first], [gpu for gpu in free if gpu is not first], 0
        while len(gang) < count:
            gains = [sum(links[each.gpu].get(other.gpu, 0) for each in gang) for other in rest]
            at = gains.index(max(gains))
            total += gains[at]
            gang.append(rest.pop(at))
        if total > most:
            best, most = gang, total
    order = {gpu.gpu: number for number, gpu in enumerate(free)}
    return sorted(best, key=lambda gpu: order[gpu.gpu])


def place(demand: Demand, tenant: Tenant) -> Placement | Refusal:
    """Take a lane of the tenant's first gang lease that can hold the job: of an idle one, or else of one whose job
    still runs, so that this one is copied meanwhile."""
    warm = [held for held in tenant.leases.values() if held.state is LeaseState.WARM and share_in(demand, held.view)]
    if not warm:
        return _NO_LEASE
    free = [held for held in warm if held.free_lanes]
    if not free:
        return _LANES
    lease = min(free, key=lambda held: len(held.jobs))
    return Placement(lease.view.lease, lease.free_lanes.pop(), bool(lease.jobs))
