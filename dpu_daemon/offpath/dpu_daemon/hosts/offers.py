"""Validates what a helper offers: its GPUs, and what its kernels need."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from offpath.bindings.errors import ProtocolError
from offpath.bindings.wire import control
from offpath.bindings.wire.fields import MAX_OFFERED_MODELS
from offpath.bindings.wire.signatures import MAX_DECLARED, KernelSignature, has_a_name_twice, joined
from offpath.sched.gpu.geometry import GpuSpec, Profile
from offpath.sched.jobs import events


def identity(helper: str, uuid: str) -> str:
    """The GPU's name in the daemon: hosts may name their GPUs alike."""
    return f"{helper}/{uuid}"


def owner(gpu: str) -> str:
    """The name of the helper in a GPU's `identity`."""
    return gpu.partition("/")[0]


def own_name(gpu: str) -> str:
    """The GPU's name on its host."""
    return gpu.partition("/")[2]


def gpu_spec(offer: control.GpuOffer, helper: str, known: list[GpuSpec]) -> GpuSpec:
    """The offer of this helper as a `GpuSpec`. Raises: ProtocolError: no GPU can have this geometry; it could not be
    tracked."""
    if any(own_name(gpu.gpu) == offer.uuid for gpu in known):
        raise ProtocolError("gpu_offer", f"{offer.uuid} was offered before")
    if len({p.name for p in offer.profiles}) < len(offer.profiles):
        raise ProtocolError("gpu_offer", "two profiles of one name")
    for p in offer.profiles:
        if p.compute_slices > offer.compute_slices or any(s + p.memory_slices > offer.memory_slices for s in p.starts):
            raise ProtocolError("gpu_offer", f"{p.name} is larger than its GPU")
    profiles = tuple(
        Profile(
            p.name, p.compute_slices, p.memory_slices, p.memory_bytes, tuple(p.starts), p.max_instances, p.rated_bytes
        )
        for p in offer.profiles
    )
    if len({link.uuid for link in offer.linked} | {offer.uuid}) <= len(offer.linked):
        raise ProtocolError("gpu_offer", f"{offer.uuid} names a link twice, or one to itself")
    links = tuple((identity(helper, link.uuid), link.links) for link in offer.linked)
    gpu = identity(helper, offer.uuid)
    return GpuSpec(gpu, offer.model, offer.compute_slices, offer.memory_slices, profiles, helper, links)


_Announced = TypeVar("_Announced", control.HelperHello, control.KernelsReloaded)


def with_more(announced: _Announced, more: control.MoreKernels) -> _Announced:
    """The message with further kernels that it announced. Raises: ProtocolError: it announced fewer, or two have one
    name."""
    left = announced.more_kernels - len(more.kernels)
    if left < 0:
        raise ProtocolError("more_kernels", f"{-left} more than were announced")
    kernels = [*announced.kernels, *more.kernels]
    if len({offer.name for offer in kernels}) < len(kernels):
        raise ProtocolError("more_kernels", "two kernels of one name")
    return announced.model_copy(update={"kernels": kernels, "more_kernels": left})


KernelDetails = control.KernelNeeds | KernelSignature
"""What a helper says of one kernel besides its name and R."""
KernelMessage = control.MoreKernels | KernelDetails
"""What follows the first message about its kernels."""


def take_detail(
    detail: KernelDetails,
    offers: Sequence[control.KernelOffer],
    needs: dict[str, control.KernelNeeds],
    signatures: dict[str, KernelSignature],
) -> None:
    """Record what was said of a kernel. Raises: ProtocolError: it is not the helper's, is described twice, names one
    thing twice, or all declare too many tensors."""
    if detail.name not in {offer.name for offer in offers}:
        raise wrong_detail(detail, "is not among the helper's kernels")
    if isinstance(detail, KernelSignature):
        _take_signature(detail, signatures)
        return
    if detail.name in needs:
        raise wrong_detail(detail, "was described before")
    _check_needs(detail)
    if sum(len(each.models) for each in needs.values()) + len(detail.models) > MAX_OFFERED_MODELS:
        raise wrong_detail(detail, f"is beyond the {MAX_OFFERED_MODELS} GPU models that a helper's kernels may name")
    needs[detail.name] = detail


def _take_signature(part: KernelSignature, signatures: dict[str, KernelSignature]) -> None:
    """Record a signature, or the next part of one."""
    former = signatures.get(part.name)
    if former is not None and not former.has_more:
        raise wrong_detail(part, "was described before")
    if part.has_more and not part.tensor_count:
        raise wrong_detail(part, "has a part without tensors")
    if sum(each.tensor_count for each in signatures.values()) + part.tensor_count > MAX_DECLARED:
        raise wrong_detail(part, f"is beyond the {MAX_DECLARED} tensors that a helper may declare")
    try:
        whole = part if former is None else joined(former, part)
    except ValueError as fault:
        raise wrong_detail(part, str(fault)) from None
    if has_a_name_twice(whole):
        raise wrong_detail(part, "has two tensors or labels of one name")
    signatures[part.name] = whole


def are_whole(signatures: Mapping[str, KernelSignature], count: int) -> bool:
    """Whether so many have arrived, each with all its parts."""
    return len(signatures) >= count and not any(each.has_more for each in signatures.values())


def wrong_detail(detail: KernelDetails, why: str) -> ProtocolError:
    """The error of a message about a kernel."""
    if isinstance(detail, KernelSignature):
        return ProtocolError("kernel_signature", f"{detail.name} {why}")
    return ProtocolError("kernel_needs", f"{detail.name} {why}")


def _check_needs(needs: control.KernelNeeds) -> None:
    if len({each.model for each in needs.models}) < len(needs.models):
        raise ProtocolError("kernel_needs", f"{needs.name} names a GPU model twice")
    if needs.streams and needs.max_batch > 1:
        raise ProtocolError("kernel_needs", f"{needs.name} streams and batches")
    sizes = needs.preferred_batch_sizes
    if sizes != sorted(set(sizes)) or max(sizes, default=0) > needs.max_batch:
        raise ProtocolError("kernel_needs", f"{needs.name} prefers batches of {sizes} rows, of {needs.max_batch}")
    if needs.sequences and needs.max_batch > 1:
        raise ProtocolError("kernel_needs", f"{needs.name} takes sequences, whose requests share no launch")


def check_held(held: control.InstanceHeld) -> None:
    """Raises: ProtocolError: a lane is named twice, or not each lane has its number of renewals."""
    if len(set(held.lanes)) < len(held.lanes):
        raise ProtocolError("instance_held", f"lease {held.lease} names a lane twice")
    if len(held.renewals) not in (0, len(held.lanes)):
        raise ProtocolError("instance_held", f"{len(held.renewals)} renewals for {len(held.lanes)} lanes")


def kernel_of(offer: control.KernelOffer, needs: control.KernelNeeds | None, number: int) -> events.Kernel:
    """The kernel as the job book knows it. R by model replaces the offer's R."""
    if needs is None:
        return events.Kernel(number, offer.demand, offer.name)
    models = tuple(sorted((each.model, each.demand) for each in needs.models))
    share = min((each.demand for each in needs.models), default=offer.demand)
    batching = _batching_of(needs)
    return events.Kernel(
        number, share, offer.name, models, needs.memory_bytes, batching, needs.sequences, needs.streams
    )  # fmt: skip


def _batching_of(needs: control.KernelNeeds) -> events.Batching | None:
    if needs.max_batch < 2:
        return None
    return events.Batching(needs.max_batch, needs.max_queue_delay_us * 1_000, tuple(needs.preferred_batch_sizes))
