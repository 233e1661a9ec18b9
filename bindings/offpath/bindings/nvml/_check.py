"""Converts an NVML return code into an exception that says what to check."""

from __future__ import annotations

from typing import Final

from offpath.bindings.errors import (
    DeviceError,
    DeviceGone,
    DriverMismatch,
    DriverMissing,
    InstanceInUse,
    NvmlDenied,
    NvmlError,
    NvmlMissing,
)

INVALID_ARGUMENT: Final = 2
NOT_SUPPORTED: Final = 3
NOT_FOUND: Final = 6
TIMEOUT: Final = 10
LIBRARY_NOT_FOUND: Final = 12
FUNCTION_NOT_FOUND: Final = 13
IN_USE: Final = 19
INSUFFICIENT_RESOURCES: Final = 23
_NO_PERMISSION: Final = 4
_DRIVER_NOT_LOADED: Final = 9
_GPU_IS_LOST: Final = 15
_RESET_REQUIRED: Final = 16
_OPERATING_SYSTEM: Final = 17
_VERSION_MISMATCH: Final = 18
_GONE: Final = {
    _GPU_IS_LOST: "the GPU left the bus: see the kernel's log",
    _RESET_REQUIRED: "an operator must reset the GPU; offpath never does",
}
_CHECKS: Final = {
    NOT_SUPPORTED: "MIG mode is off, or the GPU or its driver lacks the feature",
    FUNCTION_NOT_FOUND: "the installed driver is older than this function",
    IN_USE: "end the processes that use the instance; monitoring agents hold instances too",
    _NO_PERMISSION: "the process must be able to open the nvidia-caps node mig/config",
    _OPERATING_SYSTEM: "the unit's DeviceAllow= must permit the NVIDIA device nodes",
    25: "nvidia-ml-py and the driver disagree on a structure's version",
}


def failure(call: str, code: int, text: str) -> DeviceError:
    """The exception for a return code other than success. ``text``: NVML's text of it."""
    detail = f"{call}: {text} (NVML code {code})"
    if code == _DRIVER_NOT_LOADED:
        return DriverMissing(f"{detail}: load the NVIDIA kernel module; `nvidia-smi` must list the GPUs")
    if code == _VERSION_MISMATCH:
        return DriverMismatch(f"{detail}: reload the NVIDIA kernel modules, or restart the machine")
    if code in _GONE:
        return DeviceGone(f"{detail}: {_GONE[code]}")
    kinds: dict[int, type[NvmlError]] = {
        LIBRARY_NOT_FOUND: NvmlMissing,
        IN_USE: InstanceInUse,
        _NO_PERMISSION: NvmlDenied,
        _OPERATING_SYSTEM: NvmlDenied,
    }
    return kinds.get(code, NvmlError)(call, text, code, _CHECKS.get(code, ""))
