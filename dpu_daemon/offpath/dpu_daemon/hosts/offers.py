"""Validates a helper's GPU offers."""

from __future__ import annotations

from offpath.bindings.errors import ProtocolError
from offpath.bindings.wire import control
from offpath.sched.gpu.geometry import GpuSpec, Profile


def gpu_spec(offer: control.GpuOffer, known: list[GpuSpec]) -> GpuSpec:
    """The offer as a `GpuSpec`. Raises: ProtocolError: no GPU can have this geometry; it could not be tracked."""
    if any(gpu.gpu == offer.uuid for gpu in known):
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
    return GpuSpec(offer.uuid, offer.model, offer.compute_slices, offer.memory_slices, profiles)
