"""Checks 1 and 4: what NVML and CUDA report about the GPU, beside the table of MIG geometry."""

from __future__ import annotations

import ctypes
import os
import platform
from typing import Any, Final

from offpath.bindings.cuda.driver import load
from offpath.bindings.errors import DeviceError, NvmlError, OffpathError
from offpath.bindings.mig import GpuModel, gpu_models
from offpath.bindings.nvml.session import Nvml
from offpath.cli.bench.gpu.device import Device, code_of
from offpath.cli.bench.gpu.setting import Setting
from offpath.cli.gpu_check.figures import Figures, NotPossible

_PROFILES: Final = 32
_MOST_PLACEMENTS: Final = 64
_PREFIX: Final = "MIG "
_MIB: Final = 1 << 20
_VERSIONS: Final = ("GpuInstanceProfileInfo", "GpuInstanceProfileInfoV")
_SYSTEM: Final = (
    "/proc/driver/nvidia/version",
    "/proc/driver/nvidia/params",
    "/proc/driver/nvidia-caps/mig-minors",
)

ATTRIBUTES: Final = {
    "multiprocessors": 16, "ecc_enabled": 32, "unified_addressing": 41, "capability_major": 75, "capability_minor": 76,
    "can_flush_remote_writes": 98, "vmm_supported": 102, "posix_fd_handles": 103, "rdma_with_vmm": 110,
    "gpu_direct_rdma": 116, "flush_writes_options": 117, "writes_ordering": 118, "stream_mem_ops_64": 122,
    "dma_buf": 124, "mps_enabled": 133, "host_alloc_dma_buf": 146, "dma_buf_mmap": 152,
}  # fmt: skip
"""Name -> CUdevice_attribute."""


# -- check 1 ----------------------------------------------------------------------------------------------------------
def inventory(setting: Setting, figures: Figures) -> None:
    """Versions, GPUs, and every MIG profile with its id, size and placements, also while MIG is off."""
    figures.add("kernel", platform.release())
    figures.add("user id", os.geteuid())
    for path in _SYSTEM:
        figures.add(path, _first_line(path))
    figures.add("device nodes", sorted(name for name in os.listdir("/dev") if name.startswith("nvidia")))
    figures.attempt("CUDA driver", lambda: _cuda_versions(figures))
    try:
        nvml = Nvml()
    except DeviceError as fault:
        raise NotPossible(f"NVML: {fault}") from fault
    figures.add("driver", nvml.driver)
    for gpu in nvml.gpus():
        figures.add(
            f"GPU {gpu.index}",
            {
                "uuid": gpu.uuid, "name": gpu.name, "pci": gpu.pci, "pci_device_id": f"0x{gpu.pci_device_id:08X}",
                "minor": gpu.minor, "mig": gpu.mode.value, "memory_mib": gpu.memory_mib,
            },
        )  # fmt: skip
        _profiles(nvml, gpu.uuid, _model(gpu.name, gpu.memory_mib), figures)
    nvml.close()


def _cuda_versions(figures: Figures) -> None:
    driver = load()
    figures.add("cuDriverGetVersion", int(driver.call("cuDriverGetVersion")))
    figures.add("cuInit", code_of(lambda: driver.call("cuInit", 0)))


def _profiles(nvml: Nvml, gpu: str, model: GpuModel | None, figures: Figures) -> None:
    """Every enumerator by both functions, their codes where they refuse, and the table's differences."""
    handle = nvml.device(gpu)
    figures.add("model of the table", model.name if model else "none")
    codes: dict[str, dict[int, int]] = {version: {} for version in _VERSIONS}
    found: dict[str, dict[str, Any]] = {}
    for number in range(_PROFILES):
        infos = [_info(nvml, version, handle, number, codes[version]) for version in _VERSIONS]
        info = next((each for each in infos if each is not None), None)
        if info is not None:
            name, facts = _facts(nvml, handle, number, info, model)
            found[name] = facts
            figures.add(f"profile {name}", facts)
    for version, refused in codes.items():
        figures.add(f"codes of {version}", {str(number): code for number, code in refused.items() if code})
    if found and model:
        differences = list(_differences(found, model))
        figures.add("differences from mig_profiles.json", differences)


def _info(nvml: Nvml, version: str, handle: Any, number: int, codes: dict[int, int]) -> Any:
    """A profile, or None with its code noted. `…V` exists under the plain name too: nvidia-ml-py decides by version."""
    try:
        if version.endswith("V"):
            made = nvml.module.c_nvmlGpuInstanceProfileInfo_v2_t()
            function = nvml.module._nvmlGetFunctionPointer("nvmlDeviceGetGpuInstanceProfileInfoV")
            codes[number] = int(function(handle, ctypes.c_uint(number), ctypes.byref(made)))
            return None if codes[number] else made
        return nvml.call("nvmlDeviceGetGpuInstanceProfileInfo", handle, number)
    except NvmlError as fault:
        codes[number] = fault.code
    except nvml.module.NVMLError as fault:  # the library lacks `…V`
        codes[number] = int(fault.value)
    return None


def _facts(
    nvml: Nvml, handle: Any, number: int, info: Any, model: GpuModel | None
) -> tuple[str, dict[str, Any]]:  # fmt: skip
    """(name, what NVML says). A profile without a name gets that of the table's profile of its memory."""
    starts, size = _placements(nvml, handle, int(info.id))
    facts = {
        "number": number, "id": int(info.id), "compute_slices": int(info.sliceCount), "memory_slices": size,
        "starts": starts, "max_instances": int(info.instanceCount), "multiprocessors": int(info.multiprocessorCount),
        "memory_mib": int(info.memorySizeMB), "copy_engines": int(info.copyEngineCount),
    }  # fmt: skip
    name = getattr(info, "name", "")
    text = (name.decode() if isinstance(name, bytes) else str(name)).removeprefix(_PREFIX)
    if not text and model:
        text = _nearest(model, facts)
    return text or f"#{number}", facts


def _nearest(model: GpuModel, facts: dict[str, Any]) -> str:
    same = [p for p in model.profiles if p.compute_slices == facts["compute_slices"] and "+" not in p.name]
    near = min(same, key=lambda p: abs(p.memory_bytes // _MIB - facts["memory_mib"]), default=None)
    return f"{near.name} (#{facts['number']})" if near else ""


def _placements(nvml: Nvml, handle: Any, profile_id: int) -> tuple[list[int] | str, int]:
    """Starts and size in memory slices, or the code as text."""
    places = (nvml.module.c_nvmlGpuInstancePlacement_t * _MOST_PLACEMENTS)()
    count = ctypes.c_uint(_MOST_PLACEMENTS)
    try:
        nvml.call("nvmlDeviceGetGpuInstancePossiblePlacements", handle, profile_id, places, ctypes.byref(count))
    except NvmlError as fault:
        return f"code {fault.code}", 0
    used = places[: min(count.value, _MOST_PLACEMENTS)]
    return sorted(int(each.start) for each in used), max((int(each.size) for each in used), default=0)


def _differences(found: dict[str, dict[str, Any]], model: GpuModel) -> list[str]:
    lines = [f"{name}: not in the table" for name in found if name not in {p.name for p in model.profiles}]
    for profile in model.profiles:
        facts = found.get(profile.name)
        if facts is None:
            lines.append(f"{profile.name}: not offered")
            continue
        table = {
            "compute_slices": profile.compute_slices, "memory_slices": profile.memory_slices,
            "starts": list(profile.starts), "max_instances": profile.max_instances,
            "memory_mib": profile.memory_bytes // _MIB,
        }  # fmt: skip
        lines += [
            f"{profile.name}: {key} {facts[key]}, table {value}" for key, value in table.items() if facts[key] != value
        ]
    return lines


def _model(name: str, memory_mib: int) -> GpuModel | None:
    """The table's model of this name with the nearest memory."""
    models = [each for each in gpu_models().values() if each.name.split("-")[0] in name.replace("-", " ").split()]
    return min(models, key=lambda each: abs(_gigabytes(each) * 1024 - memory_mib), default=None)


def _gigabytes(model: GpuModel) -> int:
    return int(model.name.rpartition("-")[2].removesuffix("GB"))


def _first_line(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.readline().strip()[:200]
    except OSError as fault:
        return f"({fault.strerror})"


# -- check 4 ----------------------------------------------------------------------------------------------------------
def attributes(setting: Setting, figures: Figures) -> None:
    """The attributes that decide how `acquire` and the export work, and what one flush costs."""
    figures.attempt("attributes", lambda: _attributes(setting, figures))


def _attributes(setting: Setting, figures: Figures) -> None:
    device = Device(setting)
    handle = device.call("cuDeviceGet", 0)
    for name, number in ATTRIBUTES.items():
        figures.add(f"{name} ({number})", device.driver.attribute(handle, number))
    context = device.context
    figures.add("acquire flushes", context.needs_flush)
    figures.expect("peers' writes can be ordered or flushed", not context.needs_flush or context.can_flush)
    free, total = context.memory()
    figures.add("memory free", free, "bytes")
    figures.add("memory total", total, "bytes")
    api = device.driver.api
    target, scope = api.CUflushGPUDirectRDMAWritesTarget(0), api.CUflushGPUDirectRDMAWritesScope(100)
    code = code_of(lambda: device.call("cuFlushGPUDirectRDMAWrites", target, scope))
    figures.add("code of a flush", code)
    if code == 0:
        count = setting.count(10_000, 100)
        seconds = device.timed(lambda: [api.cuFlushGPUDirectRDMAWrites(target, scope) for _ in range(count)])
        figures.add("one flush", seconds / count * 1e6, "µs")
    try:
        context.flush_peer_writes()
    except OffpathError as fault:
        figures.expect("acquire", False, fault)
