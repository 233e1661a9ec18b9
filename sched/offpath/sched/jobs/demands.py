"""What a job needs of a GPU: its share R on each model, and its worker's memory. Both are its kernel's.

A request may name another R than its kernel's; that R then holds on every model that the kernel accepts. Memory and
models are never the request's: a requester does not know what the kernel loads.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from offpath.sched.gpu.geometry import GpuSpec
from offpath.sched.gpu.policy import Demand, HelperNames
from offpath.sched.jobs.events import Kernel
from offpath.sched.jobs.settings import BookSettings, TenantSpec
from offpath.sched.jobs.states import EndReason

InstanceKind = tuple[str, int, int]
"""A kind of instance: its GPU's model, its fraction α in percent, its memory in bytes."""
GangKind = tuple[str, int, int]
"""Whole GPUs of one helper: their model, how many of them have at least this memory each, in bytes."""


@dataclass(frozen=True, slots=True)
class Instances:
    """The kinds of instances that leases may have. ``alphas``: their fractions, ascending. ``models``: of all GPUs,
    also of those without such an instance. ``wholes``: GPUs that may form gangs."""

    kinds: tuple[InstanceKind, ...] = ()
    alphas: tuple[int, ...] = ()
    models: tuple[str, ...] = ()
    wholes: tuple[GangKind, ...] = ()

    def least_fraction(self, demand: Demand) -> int:
        """The smallest fraction of an instance that holds the demand, in percent; 0 if none does."""
        if not (demand.models or demand.memory_bytes):  # `is_restricted`, inlined: on every request's way
            at = bisect_left(self.alphas, demand.share)
            if at < len(self.alphas):
                return self.alphas[at]
        if demand.share > 100:
            return self._least_gang(demand)
        holding = [
            alpha
            for model, alpha, nbytes in self.kinds
            if 0 < demand.share_on(model) <= alpha and nbytes >= demand.memory_bytes
        ]
        return min(holding, default=0)

    def _least_gang(self, demand: Demand) -> int:
        """100 percent for each GPU of the smallest gang that holds the demand."""
        holding = [
            share
            for model, count, nbytes in self.wholes
            if 0 < (share := demand.share_on(model)) <= 100 * count and share // 100 * nbytes >= demand.memory_bytes
        ]
        return min(holding, default=0)

    def lacking(self, demand: Demand) -> EndReason:
        """Why none of them holds the demand: the GPU's model, the fraction, the number of GPUs, or the memory."""
        if not any(demand.share_on(model) for model in self.models) and demand.models:
            return EndReason.NO_GPU_MODEL
        if demand.share > 100:
            has_gang = any(0 < demand.share_on(model) <= 100 * count for model, count, _ in self.wholes)
            return EndReason.NO_INSTANCE_MEMORY if has_gang else EndReason.GANG_UNSUPPORTED
        if any(0 < demand.share_on(model) <= alpha for model, alpha, _ in self.kinds):
            return EndReason.NO_INSTANCE_MEMORY
        return EndReason.NO_INSTANCE_FITS


def union(of_helpers: Iterable[Instances]) -> Instances:
    """The instances of several helpers."""
    each = list(of_helpers)
    return Instances(
        tuple(sorted({kind for one in each for kind in one.kinds})),
        tuple(sorted({alpha for one in each for alpha in one.alphas})),
        tuple(sorted({model for one in each for model in one.models})),
        tuple(sorted({whole for one in each for whole in one.wholes})),
    )


def instances_of(gpus: Sequence[GpuSpec], lease_bytes: int) -> Instances:
    """The instances of these GPUs that hold ``lease_bytes`` of lanes."""
    kinds = {
        (gpu.model, gpu.alpha(profile), profile.job_bytes)
        for gpu in gpus
        for profile in gpu.profiles
        if profile.memory_bytes >= lease_bytes
    }
    alphas = {alpha for _, alpha, _ in kinds}
    models = tuple(sorted({gpu.model for gpu in gpus}))
    return Instances(tuple(sorted(kinds)), tuple(sorted(alphas)), models, _wholes(gpus, lease_bytes))


def _wholes(gpus: Sequence[GpuSpec], lease_bytes: int) -> tuple[GangKind, ...]:
    """GPUs of one model may differ by some bytes, since firmware keeps a part: for each size, those at least as
    large."""
    sizes: dict[str, list[int]] = {}
    for gpu in gpus:
        if (profile := gpu.whole) is not None and profile.memory_bytes >= lease_bytes:
            sizes.setdefault(gpu.model, []).append(profile.job_bytes)
    found = {
        (model, sum(other >= nbytes for other in of_model), nbytes)
        for model, of_model in sizes.items()
        for nbytes in of_model
    }
    return tuple(sorted(found))


def demand_of(
    job: int, kernel: Kernel | None, tenant: TenantSpec, settings: BookSettings, asked_share: int, payload_bytes: int,
    helpers: HelperNames = (),
) -> Demand:  # fmt: skip
    """The demand of a job. ``asked_share``: R in the request, 0 for the kernel's. Models on which R exceeds what the
    tenant may request are left out, unless all would be. ``helpers``: the only ones that serve the kernel, if not all
    do."""
    share = asked_share or (kernel.share if kernel is not None else 0)
    if kernel is None or not (kernel.models or kernel.memory_bytes):
        return Demand(job, tenant.name, share, payload_bytes, helpers=helpers)
    models = tuple([(model, asked_share or on_model) for model, on_model in kernel.models])
    allowed = tuple([each for each in models if each[1] <= tenant.max_demand]) or models
    if allowed:
        share = min(on_model for _, on_model in allowed)
    buffers = settings.landing_bytes + settings.result_bytes
    memory_bytes = kernel.memory_bytes + buffers if kernel.memory_bytes else 0
    return Demand(job, tenant.name, share, payload_bytes, allowed, memory_bytes, helpers)
