"""The one place that calls the CUDA driver, through cuda-bindings.

Importing it loads no driver library and starts no thread. The library is loaded at the first call: from the folder in
``OFFPATH_GPU_PATH`` (the GPU emulator, docs/hardware.md), or from where the system has it. Only functions whose ABI has
not changed since CUDA 12.0 are called, because a newer cuda-bindings does not notice an older driver.
"""

from __future__ import annotations

import ctypes
import importlib
import os
from contextlib import suppress
from functools import cache
from typing import Any, Final
from uuid import UUID

from offpath.bindings.errors import CudaError, CudaLost, CudaMissing
from offpath.bindings.gpu_folder import PATH_VARIABLE, gpu_folder

VISIBLE_VARIABLE: Final = "CUDA_VISIBLE_DEVICES"
LIBRARY: Final = "libcuda.so.1"
NOT_INITIALIZED: Final = 3
NOT_SUPPORTED: Final = 801
OUT_OF_MEMORY: Final = 2
STICKY: Final = frozenset({46, 214, 220, 226, 700, 702, 710, *range(714, 720), 721, 806, 810, 999})
"""Results after which every call of the process fails: contained and other memory errors, faults and time-outs of
kernels, an MPS server that is gone, a terminated MPS client, an unavailable device (CUDA driver API, CUresult)."""


class Driver:
    """The CUDA driver library of this process."""

    def __init__(self, functions: Any, library: ctypes.CDLL) -> None:
        self.api = functions
        self._host_address: Any = getattr(library, "cuda_emulator_host_address", None)
        if self._host_address is not None:
            self._host_address.restype, self._host_address.argtypes = ctypes.c_uint64, (ctypes.c_uint64,)

    @property
    def is_emulated(self) -> bool:
        """The library is offpath's emulator: its device memory is host memory, and its kernels are none."""
        return self._host_address is not None

    def host_address(self, pointer: int) -> int:
        """Where the host sees the emulator's device memory. Only if `is_emulated`."""
        return int(self._host_address(pointer))

    def call(self, name: str, *arguments: Any) -> Any:
        """Call a function; returns what it returns beside its result, None if nothing.

        Raises: CudaLost: the process cannot use its GPU any more. CudaError: any other result than success.
        CudaMissing: this driver lacks the function.
        """
        try:
            result = getattr(self.api, name)(*arguments)
        except (AttributeError, RuntimeError) as fault:  # cuda-bindings' errors for a missing library or function
            raise CudaMissing(name, str(fault)) from fault
        if code := int(result[0]):
            raise self._error(name, code)
        return result[1] if len(result) == 2 else result[1:] or None

    def uuid(self, device: Any) -> UUID:
        """The UUID of a device; under MIG, of the instance. Raises: CudaError, CudaLost."""
        # The second version, which names a MIG instance, has the suffix _v2 in cuda-bindings 12 and none in 13.
        name = "cuDeviceGetUuid_v2" if hasattr(self.api, "cuDeviceGetUuid_v2") else "cuDeviceGetUuid"
        return UUID(bytes=bytes(self.call(name, device).bytes))

    def attribute(self, device: Any, number: int) -> int:
        """A device attribute. 0: this driver does not know it. Raises: CudaError, CudaLost."""
        try:
            return int(self.call("cuDeviceGetAttribute", self.api.CUdevice_attribute(number), device))
        except ValueError:  # an attribute newer than cuda-bindings
            return 0
        except CudaError as fault:
            if fault.code == 1:  # INVALID_VALUE: an attribute newer than the driver
                return 0
            raise

    def _error(self, call: str, code: int) -> CudaError | CudaLost:
        failed, name = self.api.cuGetErrorName(self.api.CUresult(code)) if code in _known(self.api) else (1, None)
        text = name.decode() if not int(failed) and name else f"result {code}"
        return CudaLost(call, text, code) if code in STICKY else CudaError(call, text, code)


def preload() -> None:
    """Import cuda-bindings, if it is installed, so that forked processes need not: it takes 0.1 s and 14 MiB. Loads no
    driver and starts no thread."""
    with suppress(ImportError):
        importlib.import_module("cuda.bindings.driver")


@cache
def _known(api: Any) -> frozenset[int]:
    return frozenset(int(each) for each in api.CUresult)


@cache
def load() -> Driver:
    """The driver. Raises: CudaMissing: cuda-bindings or the driver's library cannot be loaded."""
    try:
        functions = importlib.import_module("cuda.bindings.driver")
    except ImportError as fault:
        raise CudaMissing("import cuda.bindings", f"{fault}: pip install 'offpath[gpu]'") from fault
    folder = gpu_folder()
    try:
        # By its name both this and cuda-bindings then find the same library, wherever it came from.
        library = ctypes.CDLL(os.path.join(folder, LIBRARY), os.RTLD_NOW | os.RTLD_GLOBAL)
    except OSError as fault:
        where = f"in {folder}, which {PATH_VARIABLE} names" if folder else "of an NVIDIA driver"
        raise CudaMissing(f"load {LIBRARY}", f"no such library {where}: {fault}") from fault
    return Driver(functions, library)
