"""Validates a helper's GPU offers."""

from __future__ import annotations

from offpath.bindings.errors import ProtocolError
from offpath.bindings.wire import control
from offpath.sched.gpu.geometry import GpuSpec, Profile


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
        Profile(p.name, p.compute_slices, p.memory_slices, p.memory_bytes, tuple(p.starts), p.max_instances)
        for p in offer.profiles
    )
    gpu = identity(helper, offer.uuid)
    return GpuSpec(gpu, offer.model, offer.compute_slices, offer.memory_slices, profiles, helper)
