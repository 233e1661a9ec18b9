"""One NVML session: GPUs, their profiles, and the instances that exist.

Handles are looked up by UUID in every call. Handles of MIG devices that another process destroyed stay usable in a
session and lie (NVIDIA/libcudacxx#224), so instances are listed by profile, and MIG device handles give UUIDs only.
"""

from __future__ import annotations

import ctypes
from collections.abc import Collection
from typing import Any, Final

from offpath.bindings.errors import DeviceGone, NvmlError
from offpath.bindings.nvml import _check
from offpath.bindings.nvml.load import load
from offpath.bindings.nvml.records import GpuInfo, GpuInstance, MigMode, MigProfileInfo

_PROFILES: Final = 32
"""Enumerators asked for; NVML reports INVALID_ARGUMENT behind its last one."""
_COMPUTE_PROFILES: Final = 16
_MOST_PLACEMENTS: Final = 64
_MOST_INSTANCES: Final = 64
_LISTINGS: Final = 3
_MOST_GPUS: Final = 64
_MIB: Final = 1 << 20
_PREFIX: Final = "MIG "


class Nvml:
    """A session. NVML counts the sessions of a process: ending one leaves the others. Any thread may call."""

    def __init__(self, path: str = "") -> None:
        """``path``: see `load`. Raises: NvmlMissing, DriverMissing, DriverMismatch, NvmlError."""
        self.module: Any = load(path)
        self._profiles: dict[str, tuple[MigProfileInfo, ...]] = {}
        self._is_open = False
        self.call("nvmlInitWithFlags", 0)
        self._is_open = True
        try:
            self.driver: str = self.call("nvmlSystemGetDriverVersion")
        except BaseException:
            self.close()
            raise

    def call(self, name: str, *arguments: Any) -> Any:
        """Call a function of nvidia-ml-py. Raises: NvmlError with its code, or another DeviceError; see `failure`."""
        try:
            return getattr(self.module, name)(*arguments)
        except self.module.NVMLError as fault:
            raise _check.failure(name, int(fault.value), str(fault)) from None
        except AttributeError:
            raise NvmlError(name, "not in the installed nvidia-ml-py", check="install a later one") from None

    def device(self, gpu: str) -> Any:
        """A handle of the GPU with this UUID. Raises: DeviceGone: there is none, or it was lost."""
        try:
            return self.call("nvmlDeviceGetHandleByUUID", gpu)
        except NvmlError as fault:
            if fault.code in (_check.NOT_FOUND, _check.INVALID_ARGUMENT):
                raise DeviceGone(f"{gpu}: the driver lists no such GPU") from None
            raise

    def gpus(self) -> list[GpuInfo]:
        """All GPUs that answer, in NVML's order. A lost one is left out. Raises: DriverMissing, NvmlError."""
        found = []
        for index in range(min(self.call("nvmlDeviceGetCount"), _MOST_GPUS)):
            try:
                found.append(self._describe(index, self.call("nvmlDeviceGetHandleByIndex", index)))
            except DeviceGone:
                continue
        return found

    def gpu(self, gpu: str) -> GpuInfo:
        """The GPU with this UUID. Raises: DeviceGone."""
        handle = self.device(gpu)
        return self._describe(self.call("nvmlDeviceGetIndex", handle), handle)

    def profiles(self, gpu: str) -> tuple[MigProfileInfo, ...]:
        """The GPU's profiles with their placements, none while MIG is off. Raises: DeviceError."""
        if known := self._profiles.get(gpu):
            return known
        handle = self.device(gpu)
        found = (self._profile(handle, number) for number in range(_PROFILES))
        self._profiles[gpu] = tuple(each for each in found if each is not None)
        return self._profiles[gpu]

    def instances(self, gpu: str) -> list[GpuInstance]:
        """The GPU instances that exist, by start. Raises: DeviceError."""
        for _ in range(_LISTINGS - 1):
            try:
                return self._instances(gpu)
            except NvmlError as fault:
                # Somebody else destroyed an instance between its listing and a question about it.
                if fault.code not in (_check.INVALID_ARGUMENT, _check.NOT_FOUND):
                    raise
        return self._instances(gpu)

    def _instances(self, gpu: str) -> list[GpuInstance]:
        handle = self.device(gpu)
        found: list[GpuInstance] = []
        for profile in self.profiles(gpu):
            for instance in self._listed(
                "nvmlDeviceGetGpuInstances", "c_nvmlGpuInstance_t", handle, profile.profile_id
            ):
                info = self.call("nvmlGpuInstanceGetInfo", instance)
                place = info.placement
                computes = tuple(sorted(number for number, _ in self.compute_instances(instance)))
                found.append(GpuInstance(int(info.id), profile.name, int(place.start), int(place.size), computes))
        return sorted(found, key=lambda each: (each.start, each.gpu_instance))

    def instance(self, gpu: str, gpu_instance: int) -> Any:
        """A handle of a GPU instance. Raises: NvmlError: there is none."""
        return self.call("nvmlDeviceGetGpuInstanceById", self.device(gpu), gpu_instance)

    def compute_profiles(self, instance: Any) -> list[tuple[int, int]]:
        """(compute slices, profile id) of the compute instances that the instance can have."""
        found = []
        for number in range(_COMPUTE_PROFILES):
            info = self.optional("nvmlGpuInstanceGetComputeInstanceProfileInfo", instance, number, 0)
            if info is not None:
                found.append((int(info.sliceCount), int(info.id)))
        return found

    def compute_instances(self, instance: Any) -> list[tuple[int, Any]]:
        """(id, handle) of each compute instance of an instance."""
        found = []
        for _, profile_id in self.compute_profiles(instance):
            for each in self._listed(
                "nvmlGpuInstanceGetComputeInstances", "c_nvmlComputeInstance_t", instance, profile_id
            ):
                found.append((int(self.call("nvmlComputeInstanceGetInfo_v2", each).id), each))
        return found

    def close(self) -> None:
        """End the session. Idempotent."""
        if self._is_open:
            self._is_open = False
            try:
                self.call("nvmlShutdown")
            except (DeviceGone, NvmlError):
                return  # the driver is gone: there is no session to end

    def _describe(self, index: int, handle: Any) -> GpuInfo:
        pci = self.call("nvmlDeviceGetPciInfo", handle)
        return GpuInfo(
            index=int(index),
            uuid=self.call("nvmlDeviceGetUUID", handle),
            name=self.call("nvmlDeviceGetName", handle),
            pci=pci.busId.decode() if isinstance(pci.busId, bytes) else str(pci.busId),
            pci_device_id=int(pci.pciDeviceId),
            minor=int(self.call("nvmlDeviceGetMinorNumber", handle)),
            mode=self._mode(handle),
            memory_mib=int(self.call("nvmlDeviceGetMemoryInfo", handle).total) // _MIB,
        )

    def _mode(self, handle: Any) -> MigMode:
        found = self.optional("nvmlDeviceGetMigMode", handle)
        if found is None:
            return MigMode.UNSUPPORTED
        current, pending = found
        if current != pending:
            return MigMode.PENDING
        return MigMode.ON if current else MigMode.OFF

    def _profile(self, handle: Any, number: int) -> MigProfileInfo | None:
        info = self.optional("nvmlDeviceGetGpuInstanceProfileInfo", handle, number)
        if info is None:
            return None
        starts, size = self._placements(handle, int(info.id))
        if not starts:
            return None
        name = info.name.decode() if isinstance(info.name, bytes) else str(info.name)
        return MigProfileInfo(
            name=name.removeprefix(_PREFIX),
            number=number,
            profile_id=int(info.id),
            compute_slices=int(info.sliceCount),
            memory_slices=size,
            multiprocessors=int(info.multiprocessorCount),
            memory_mib=int(info.memorySizeMB),
            starts=starts,
            max_instances=int(info.instanceCount),
        )

    def _placements(self, handle: Any, profile_id: int) -> tuple[tuple[int, ...], int]:
        """The legal starts, ascending, and the size in memory slices."""
        places = (self.module.c_nvmlGpuInstancePlacement_t * _MOST_PLACEMENTS)()
        count = ctypes.c_uint(_MOST_PLACEMENTS)
        self.call("nvmlDeviceGetGpuInstancePossiblePlacements", handle, profile_id, places, ctypes.byref(count))
        used = places[: min(count.value, _MOST_PLACEMENTS)]
        return tuple(sorted(int(each.start) for each in used)), max((int(each.size) for each in used), default=0)

    def _listed(self, call: str, kind: str, parent: Any, profile_id: int) -> list[Any]:
        handles = (getattr(self.module, kind) * _MOST_INSTANCES)()
        count = ctypes.c_uint(_MOST_INSTANCES)
        self.call(call, parent, profile_id, handles, ctypes.byref(count))
        return list(handles[: min(count.value, _MOST_INSTANCES)])

    def optional(
        self, call: str, *arguments: Any, absent: Collection[int] = (_check.NOT_SUPPORTED, _check.INVALID_ARGUMENT)
    ) -> Any:
        """The call's value; None: NVML reports a code of ``absent``. Raises: DeviceError: any other failure."""
        try:
            return self.call(call, *arguments)
        except NvmlError as fault:
            if fault.code in absent:
                return None
            raise
