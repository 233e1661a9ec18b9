"""Checks 9 and 10: what a launch costs, directly and through a worker, and what stands between empty kernels."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import numpy as np

from offpath.bindings.errors import CudaMissing
from offpath.cli.bench.gpu.device import Device
from offpath.cli.bench.gpu.direct import BAR, direct_us
from offpath.cli.bench.gpu.kernels import EMPTY
from offpath.cli.bench.gpu.serving import KERNEL_MS, Serving, median
from offpath.cli.bench.gpu.setting import Setting, in_child
from offpath.cli.gpu_check.figures import Figures

_WARM: Final = 20
_LIMIT_S: Final = 60.0
_PAYLOAD: Final = np.zeros(4096, np.uint8)
_SYNC_SPIN: Final = 1
_CUDA_13_1: Final = 13_010
_GEQ: Final = 0


# -- check 9 ----------------------------------------------------------------------------------------------------------
def launch(setting: Setting, figures: Figures) -> None:
    """A kernel of 0, 1 and 4 ms: launched and awaited directly, and as a request of 4 KiB. Quick: without polling."""
    counts = {kernel_ms: setting.count(400 if kernel_ms else 2000, 10) for kernel_ms in KERNEL_MS}
    for is_spinning in (False,) if setting.is_quick else (False, True):
        word = "spinning" if is_spinning else "blocking"
        direct = in_child("direct launches", partial(direct_us, setting, counts, is_spinning=is_spinning), _LIMIT_S)
        serving = Serving(setting, 1 << 20, is_spinning=is_spinning)
        try:
            for kernel_ms, count in counts.items():
                serving.times_us(f"k{kernel_ms}", _PAYLOAD, min(count, _WARM))
                taken = median(serving.times_us(f"k{kernel_ms}", _PAYLOAD, count))
                over = taken / direct[str(kernel_ms)]
                figures.add(f"{word}: direct, {kernel_ms} ms", direct[str(kernel_ms)], "µs")
                figures.add(f"{word}: request, {kernel_ms} ms", taken, "µs")
                figures.add(f"{word}: request over direct, {kernel_ms} ms", over)
                if kernel_ms == max(KERNEL_MS) and not setting.is_emulated:
                    figures.expect(f"{word}: at most {BAR} of a direct launch at {kernel_ms} ms", over <= BAR, over)
        finally:
            serving.close()


# -- check 10 ---------------------------------------------------------------------------------------------------------
def empty_kernels(setting: Setting, figures: Figures) -> None:
    """Time per empty kernel: alone, and with something between each two."""
    figures.add("MINA, figure of the paper: with a host function", 43.8, "µs")
    figures.add("MINA, figure of the paper: alone", 2.23, "µs")
    for name, (full, body) in _SERIES.items():
        count = setting.count(full, 100)
        taken = figures.attempt(name, partial(_measure, setting, body, count), _LIMIT_S)
        if isinstance(taken, float):
            figures.add(f"{name}, n={count}", round(taken, 3), "µs each")
        elif taken is not None:
            figures.add(name, f"not possible: {taken}")


def _measure(setting: Setting, body: Callable[[Device, int], None], count: int) -> float | str:
    device = Device(setting)
    device.kernel(EMPTY).launch()
    try:
        body(device, min(count, _WARM))
        return device.timed(lambda: body(device, count)) / count * 1e6
    except CudaMissing as fault:
        return str(fault)


def _alone(device: Device, count: int) -> None:
    device.kernel(EMPTY).launch_many(count)


def _beside(device: Device, count: int, function: int, name: str = "cuLaunchHostFunc", *more: Any) -> None:
    """After each kernel a host function at this address."""
    kernel, call = device.kernel(EMPTY), device.call
    host = device.driver.api.CUhostFn(function)
    for _ in range(count):
        kernel.launch()
        call(name, device.stream, host, 0, *more)


def _with_c(device: Device, count: int) -> None:
    """`free(NULL)`: a function in C that does nothing."""
    _beside(device, count, _address(ctypes.CDLL(None).free))


def _with_python(device: Device, count: int) -> None:
    _beside(device, count, _address(_nothing))


def _with_spin(device: Device, count: int) -> None:
    """The form of CUDA 13.1 that polls instead of blocking."""
    if device.call("cuDriverGetVersion") < _CUDA_13_1:
        raise CudaMissing("cuLaunchHostFunc_v2", "the driver is older than CUDA 13.1")
    _beside(device, count, _address(ctypes.CDLL(None).free), "cuLaunchHostFunc_v2", _SYNC_SPIN)


def _with_memory(device: Device, count: int) -> None:
    """A write of a counter by the stream, and a wait for it, in the place of the host function."""
    kernel, call = device.kernel(EMPTY), device.call
    word = device.allocate(8)
    call("cuMemsetD8", word, 0, 8)
    for number in range(1, count + 1):
        kernel.launch()
        call("cuStreamWriteValue64", device.stream, word, number, 0)
        call("cuStreamWaitValue64", device.stream, word, number, _GEQ)
    device.wait()
    call("cuMemFree", word)


def _address(function: Any) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def _return(_: int | None) -> None:
    """A host function that does nothing."""


_nothing = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(_return)
_SERIES: Final[dict[str, tuple[int, Callable[[Device, int], None]]]] = {
    "empty kernels alone": (1_000_000, _alone),
    "with a host function in C": (200_000, _with_c),
    "with a host function in Python": (50_000, _with_python),
    "with a polling host function (CUDA 13.1)": (200_000, _with_spin),
    "with a write and a wait in memory": (200_000, _with_memory),
}
