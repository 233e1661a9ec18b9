"""A daemon, a helper and its worker on the whole GPU, with kernels that are launches of the driver: setting 4."""

from __future__ import annotations

import ctypes
import json
import signal
import statistics
import time
from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from offpath.bindings.cuda.driver import load
from offpath.bindings.cuda.instance import CudaInstance
from offpath.bindings.cuda.whole import Visible, WholeGpu
from offpath.bindings.wire import admin
from offpath.cli.admin_client import AdminClient
from offpath.cli.bench.daemon_process import DaemonProcess
from offpath.cli.bench.gpu.kernels import SPIN, DeviceCode, Kernel
from offpath.cli.bench.gpu.setting import Setting
from offpath.cli.bench.measure import children, end, fork
from offpath.host_helper.helper import Helper
from offpath.host_helper.requester import Requester
from offpath.host_helper.tensors import LaneTensor

KERNEL_MS: Final = (0, 1, 4)
_TENANT: Final = "check"
_TIMEOUT_S: Final = 60.0
_SLACK_BYTES: Final = 1 << 16
_MS: Final = 1_000_000


class SpinningGpu(WholeGpu):
    """A whole GPU whose workers poll while they wait for it."""

    def open_instance(self, instance: int) -> CudaInstance:
        """See `Gpu.open_instance`."""
        self._check(instance)
        return CudaInstance(self.uuid, is_spinning=True)


class Serving:
    """One lane of one lease. The process that makes it must not have used CUDA: it forks the helper."""

    def __init__(
        self, setting: Setting, payload_bytes: int, *, is_spinning: bool = False, engine: str = "loopback"
    ) -> None:
        """``engine``: the daemon's copy engine. Raises: OffpathError: daemon or helper do not start."""
        tables = (
            f"[leasing]\nlanes = 1\nmax_lanes = 1\nkeep_warm_ms = 600000\nlanding_bytes = {payload_bytes}\n"
            f'result_bytes = {_SLACK_BYTES}\n[datapath]\ncopy_engine = "{engine}"\n'
        )
        self._daemon = DaemonProcess({_TENANT: ""}, tables, core=None)
        channel = self._daemon.host_socket
        self.helper = fork(None, lambda: _serve(channel, setting, is_spinning))
        self._requester: Requester | None = None
        try:
            self._requester = self._daemon.connect(_TENANT, 1, payload_bytes, _SLACK_BYTES)
            self.submit("k0", np.zeros(64, np.uint8))
        except BaseException:
            self.close()
            raise

    def submit(self, kernel: str, payload: NDArray[np.uint8]) -> NDArray[Any]:
        """A request and its answer. Raises: OffpathError."""
        assert self._requester is not None
        answer: NDArray[Any] = self._requester.submit(kernel, [payload], timeout=_TIMEOUT_S).array
        return answer

    def times_us(self, kernel: str, payload: NDArray[np.uint8], count: int) -> list[float]:
        """Latencies of ``count`` requests, one after the other."""
        taken = []
        for _ in range(count):
            began = time.perf_counter_ns()
            self.submit(kernel, payload)
            taken.append((time.perf_counter_ns() - began) / 1e3)
        return taken

    def calls(self) -> dict[str, int]:
        """How often the worker has called each function of the driver. Only on the emulator, which counts."""
        found: dict[str, int] = json.loads(self.submit("calls", np.zeros(64, np.uint8)).tobytes())
        return found

    def bytes_by_cpu(self) -> int:
        """Bytes of payloads and results that the daemon's CPU has copied."""
        with AdminClient(self._daemon.runtime) as client:
            return client.query(admin.StatisticsRequest(), admin.Statistics).counters["cpu_copied_bytes"]

    def workers(self) -> list[int]:
        """Pids of the helper's workers."""
        return children(self.helper)

    def close(self) -> None:
        """End requester, helper and daemon."""
        if self._requester is not None:
            self._requester.close()
        end(self.helper, signal.SIGTERM, 20.0)
        self._daemon.close()


def median(values: list[float]) -> float:
    """Of times, rounded to what they can say."""
    return round(statistics.median(values), 2)


# -- the helper's process ---------------------------------------------------------------------------------------------
def _serve(channel: str, setting: Setting, is_spinning: bool) -> None:
    helper = Helper()
    for kernel_ms in KERNEL_MS:
        _register_spin(helper, kernel_ms)

    @helper.kernel("echo", demand=14, tensors="pointer")
    def echo(tensor: LaneTensor) -> LaneTensor:
        return tensor

    @helper.kernel("calls", demand=14, tensors="pointer")
    def calls(tensor: LaneTensor) -> NDArray[np.uint8]:
        return np.frombuffer(json.dumps(_counts()).encode(), np.uint8)

    found = Visible(
        uuid=setting.uuid, name=setting.name, nbytes=setting.nbytes, is_emulated=setting.is_emulated
    )  # fmt: skip
    helper.run(channel, gpus=[SpinningGpu(found) if is_spinning else WholeGpu(found)])


def _register_spin(helper: Helper, kernel_ms: int) -> None:
    """``k<ms>``: one launch that takes this long on the lane's stream."""
    made: list[Kernel] = []

    @helper.kernel(f"k{kernel_ms}", demand=14, tensors="pointer")
    def spin(tensor: LaneTensor) -> NDArray[np.uint8]:
        if not made:  # the first launch: only in the worker is there a context
            driver = load()
            stream = driver.api.CUstream(tensor.stream)
            made.append(DeviceCode(driver).kernel(SPIN, kernel_ms * _MS, stream=stream))
        made[0].launch()
        return _DONE


_DONE: Final[NDArray[np.uint8]] = np.ones(1, np.uint8)
COUNTED: Final = {
    "allocations": (
        "cuMemAlloc_v2", "cuMemFree_v2", "cuMemAllocHost_v2", "cuMemFreeHost", "cuMemHostRegister_v2",
        "cuMemHostUnregister", "cuMemGetHandleForAddressRange",
    ),
    "contexts": (
        "cuInit", "cuCtxSetCurrent", "cuDevicePrimaryCtxRetain", "cuDevicePrimaryCtxRelease_v2",
        "cuDevicePrimaryCtxSetFlags_v2",
    ),
    "objects": (
        "cuStreamCreate", "cuStreamDestroy_v2", "cuEventCreate", "cuEventDestroy_v2", "cuModuleLoadData",
        "cuModuleLoadDataEx", "cuModuleUnload", "cuModuleGetFunction",
    ),
    "copies": (
        "cuMemcpyHtoD_v2", "cuMemcpyDtoH_v2", "cuMemcpyDtoD_v2", "cuMemcpyHtoDAsync_v2", "cuMemcpyDtoHAsync_v2",
        "cuMemcpyDtoDAsync_v2", "cuMemsetD8_v2", "cuMemsetD8Async", "cuMemsetD32Async",
    ),
    "launches": ("cuLaunchKernel", "cuLaunchHostFunc"),
    "waits": (
        "cuStreamSynchronize", "cuStreamQuery", "cuStreamWaitEvent", "cuEventRecord", "cuEventQuery",
        "cuEventSynchronize", "cuCtxSynchronize", "cuFlushGPUDirectRDMAWrites",
    ),
    "queries": (
        "cuMemGetInfo_v2", "cuDeviceGetAttribute", "cuDeviceGet", "cuDeviceGetCount", "cuPointerGetAttribute",
        "cuPointerSetAttribute", "cuMemGetAddressRange_v2", "cuCtxGetCurrent", "cuCtxGetDevice", "cuGetErrorName",
    ),
}  # fmt: skip
"""Functions of the driver by kind, for counts of calls."""


def _counts() -> dict[str, int]:
    count = _counter()
    return {name: int(count(name.encode())) for names in COUNTED.values() for name in names}


def _counter() -> Callable[[bytes], int]:
    function: Any = ctypes.CDLL("libcuda.so.1").cuda_emulator_calls  # loaded already, by its path
    function.restype, function.argtypes = ctypes.c_uint64, (ctypes.c_char_p,)
    counter: Callable[[bytes], int] = function
    return counter
