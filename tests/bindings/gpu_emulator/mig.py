"""MIG through pynvml, in the few words that tests need."""

from __future__ import annotations

from ctypes import byref, c_uint
from typing import Any

import pynvml

NUMBERS = range(pynvml.NVML_GPU_INSTANCE_PROFILE_COUNT)


def profiles(device: Any) -> dict[str, Any]:
    """Name → NVML's profile information."""
    found = {}
    for number in NUMBERS:
        try:
            info = pynvml.nvmlDeviceGetGpuInstanceProfileInfo(device, number)
        except pynvml.NVMLError_NotSupported:
            continue
        name = info.name if isinstance(info.name, str) else info.name.decode()
        found[name.removeprefix("MIG ")] = info
    return found


def placements(device: Any, profile_id: int) -> list[tuple[int, int]]:
    """(start, size) of each possible placement."""
    count = c_uint()
    pynvml.nvmlDeviceGetGpuInstancePossiblePlacements(device, profile_id, None, byref(count))
    array = (pynvml.c_nvmlGpuInstancePlacement_t * count.value)()
    pynvml.nvmlDeviceGetGpuInstancePossiblePlacements(device, profile_id, array, byref(count))
    return [(each.start, each.size) for each in array]


def cut(device: Any, name: str, start: int) -> Any:
    """A GPU instance of a profile at a start."""
    profile = profiles(device)[name]
    size = next(size for _, size in placements(device, profile.id))
    placement = pynvml.c_nvmlGpuInstancePlacement_t(start=start, size=size)
    return pynvml.nvmlDeviceCreateGpuInstanceWithPlacement(device, profile.id, byref(placement))


WHOLE = {1: 0, 2: 1, 3: 2, 4: 3, 7: 4}
"""Compute slices → number of the profile of compute instances."""


def fill(device: Any, instance: Any, slices: int | None = None) -> Any:
    """A compute instance, of all slices unless ``slices`` is given."""
    if slices is None:
        slices = next(
            p.sliceCount for p in profiles(device).values() if p.id == pynvml.nvmlGpuInstanceGetInfo(instance).profileId
        )
    return pynvml.nvmlGpuInstanceCreateComputeInstance(instance, WHOLE[slices])


def instances(device: Any) -> dict[int, tuple[str, int]]:
    """Id → (profile, start) of all GPU instances."""
    found = {}
    for name, profile in profiles(device).items():
        array, count = (pynvml.c_nvmlGpuInstance_t * profile.instanceCount)(), c_uint()
        pynvml.nvmlDeviceGetGpuInstances(device, profile.id, array, byref(count))
        for each in array[: count.value]:
            info = pynvml.nvmlGpuInstanceGetInfo(each)
            found[info.id] = (name, info.placement.start)
    return found


def mig_devices(device: Any) -> dict[int, Any]:
    """Index → handle; holes are left out."""
    found = {}
    for index in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(device)):
        try:
            found[index] = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(device, index)
        except pynvml.NVMLError_NotFound:
            continue
    return found


def instance(device: Any, profile: str = "1g.5gb", start: int = 0) -> tuple[Any, Any, str]:
    """A new instance: its two handles, and the UUID of its MIG device."""
    before = set(mig_devices(device))
    gpu_instance = cut(device, profile, start)
    compute = fill(device, gpu_instance)
    ((_, mig),) = [each for each in mig_devices(device).items() if each[0] not in before]
    return gpu_instance, compute, pynvml.nvmlDeviceGetUUID(mig)


def destroy(gpu_instance: Any, compute: Any) -> None:
    """The compute instance, then the GPU instance."""
    pynvml.nvmlComputeInstanceDestroy(compute)
    pynvml.nvmlGpuInstanceDestroy(gpu_instance)
