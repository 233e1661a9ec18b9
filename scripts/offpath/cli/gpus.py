"""GPUs of the geometry table as the scheduler's records, for commands that simulate."""

from __future__ import annotations

from offpath.bindings.mig import gpu_model
from offpath.sched.gpu.geometry import GpuSpec, Profile


def gpu_spec(gpu: str, model: str) -> GpuSpec:
    """A GPU named ``gpu``, with MIG's real placement rules. Raises: DeviceError: unknown model."""
    found = gpu_model(model)
    profiles = tuple(
        Profile(p.name, p.compute_slices, p.memory_slices, p.memory_bytes, p.starts, p.max_instances)
        for p in found.profiles
    )
    return GpuSpec(gpu, found.name, found.compute_slices, found.memory_slices, profiles)
