"""Creates and destroys MIG instances, one NVML step in each function. Nothing here changes MIG mode or resets a GPU.

The steps are separate because the caller records each of them before and after (see `offpath.host_helper.migd`).
"""

from __future__ import annotations

import ctypes
from typing import Final

from offpath.bindings.errors import DeviceError, InstanceInUse, NvmlError, PlacementTaken
from offpath.bindings.nvml import _check
from offpath.bindings.nvml.records import MigProfileInfo
from offpath.bindings.nvml.session import Nvml

_TAKEN: Final = (_check.INVALID_ARGUMENT, _check.INSUFFICIENT_RESOURCES)
_MOST_PIDS: Final = 64


def create_gpu_instance(nvml: Nvml, gpu: str, profile: MigProfileInfo, start: int) -> int:
    """Create a GPU instance at ``start`` and return its id, which NVML reuses. Not idempotent.

    Raises: PlacementTaken: an illegal start, or slices in use. DeviceError.
    """
    place = nvml.module.c_nvmlGpuInstancePlacement_t(start, profile.memory_slices)
    try:
        made = nvml.call(
            "nvmlDeviceCreateGpuInstanceWithPlacement", nvml.device(gpu), profile.profile_id, ctypes.byref(place)
        )
    except NvmlError as fault:
        if fault.code in _TAKEN:
            raise PlacementTaken(f"{profile.name} at {start} on {gpu}: {fault}") from None
        raise
    try:
        return int(nvml.call("nvmlGpuInstanceGetInfo", made).id)
    except DeviceError:
        nvml.call("nvmlGpuInstanceDestroy", made)  # an instance without an id would stay behind
        raise


def create_compute_instance(nvml: Nvml, gpu: str, gpu_instance: int) -> int:
    """Create the compute instance that has all slices of a GPU instance, and return its id. Raises: DeviceError."""
    instance = nvml.instance(gpu, gpu_instance)
    profiles = nvml.compute_profiles(instance)
    if not profiles:
        raise NvmlError("nvmlGpuInstanceGetComputeInstanceProfileInfo", f"GPU instance {gpu_instance} offers none")
    _, widest = max(profiles)
    made = nvml.call("nvmlGpuInstanceCreateComputeInstance", instance, widest)
    return int(nvml.call("nvmlComputeInstanceGetInfo_v2", made).id)


def mig_uuid(nvml: Nvml, gpu: str, gpu_instance: int, compute_instance: int) -> str:
    """UUID of the MIG device of a compute instance. The same place has the same UUID each time it is cut.

    Raises: NvmlError: NVML lists no such MIG device.
    """
    parent = nvml.device(gpu)
    for index in range(nvml.call("nvmlDeviceGetMaxMigDeviceCount", parent)):
        try:
            device = nvml.call("nvmlDeviceGetMigDeviceHandleByIndex", parent, index)
        except NvmlError as fault:
            if fault.code in (_check.NOT_FOUND, _check.INVALID_ARGUMENT):
                continue  # a hole in the numbers
            raise
        found = (nvml.call("nvmlDeviceGetGpuInstanceId", device), nvml.call("nvmlDeviceGetComputeInstanceId", device))
        if found == (gpu_instance, compute_instance):
            uuid: str = nvml.call("nvmlDeviceGetUUID", device)
            return uuid
    raise NvmlError(
        "nvmlDeviceGetMigDeviceHandleByIndex", f"no MIG device for instance {gpu_instance}/{compute_instance}",
        _check.NOT_FOUND,
    )  # fmt: skip


def destroy_compute_instances(nvml: Nvml, gpu: str, gpu_instance: int) -> None:
    """Destroy all compute instances of a GPU instance. Idempotent. Raises: InstanceInUse, DeviceError."""
    for _, instance in nvml.compute_instances(nvml.instance(gpu, gpu_instance)):
        try:
            nvml.call("nvmlComputeInstanceDestroy", instance)
        except InstanceInUse as fault:
            raise _with_holders(nvml, gpu, gpu_instance, fault) from None


def destroy_gpu_instance(nvml: Nvml, gpu: str, gpu_instance: int) -> None:
    """Destroy a GPU instance that has no compute instance. Raises: InstanceInUse, DeviceError."""
    try:
        nvml.call("nvmlGpuInstanceDestroy", nvml.instance(gpu, gpu_instance))
    except InstanceInUse as fault:
        raise _with_holders(nvml, gpu, gpu_instance, fault) from None


def holders(nvml: Nvml, gpu: str, gpu_instance: int | None = None) -> tuple[int, ...]:
    """Ids of the processes that compute on a GPU instance, at most 64; None: on the whole GPU. NVML does not report
    holders of another kind, e.g. exports. Raises: DeviceError."""
    running = nvml.call("nvmlDeviceGetComputeRunningProcesses_v3", nvml.device(gpu))
    pids = {int(each.pid) for each in running if gpu_instance is None or each.gpuInstanceId == gpu_instance}
    return tuple(sorted(pids)[:_MOST_PIDS])


def _with_holders(nvml: Nvml, gpu: str, gpu_instance: int, fault: InstanceInUse) -> InstanceInUse:
    try:
        pids = holders(nvml, gpu, gpu_instance)
    except NvmlError:
        pids = ()
    named = f"processes {', '.join(map(str, pids))}" if pids else "no process that NVML names"
    where = f"instance {gpu_instance} of {gpu} is in use by {named}"
    return InstanceInUse(fault.call, where, fault.code, fault.check, pids)
