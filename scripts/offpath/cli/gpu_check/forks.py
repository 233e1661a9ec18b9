"""Check 3: CUDA beside fork. The helper relies on it: it imports CUDA's packages, forks, and only then uses it."""

from __future__ import annotations

import os
from typing import Any

from offpath.bindings.cuda.driver import NOT_INITIALIZED, load
from offpath.cli.bench.gpu.device import Device, code_of
from offpath.cli.bench.gpu.setting import Setting
from offpath.cli.gpu_check.figures import Figures


def forks(setting: Setting, figures: Figures) -> None:
    """Import, then fork, works; use, then fork, does not, and says so by a code that the worker explains."""
    load()
    figures.add("libcuda is loaded before the fork", _is_loaded())
    found = figures.attempt("a child of a process that only loaded the library", lambda: _kernel_runs(setting))
    figures.expect("a child of a process that only loaded the library runs a kernel", found is True)
    codes: dict[str, Any] = figures.attempt("a child of a process that used CUDA", lambda: _after_use(setting)) or {}
    figures.add("codes in a child of a process that used CUDA", codes)
    figures.expect("cuInit there is NOT_INITIALIZED", codes.get("cuInit") == NOT_INITIALIZED, codes)


def _kernel_runs(setting: Setting) -> bool:
    device = Device(setting)
    device.kernel("offpath_empty").launch()
    device.wait()
    return True


def _after_use(setting: Setting) -> dict[str, int]:
    """Use CUDA, fork, and collect what the child's calls return."""
    device = Device(setting)
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            call = device.driver.call
            codes = {
                "cuInit": code_of(lambda: call("cuInit", 0)),
                "cuDeviceGetCount": code_of(lambda: call("cuDeviceGetCount")),
                "cuMemGetInfo": code_of(lambda: call("cuMemGetInfo")),
            }
            os.write(writing, " ".join(f"{name}={code}" for name, code in codes.items()).encode())
        finally:
            os._exit(0)
    os.close(writing)
    text = b""
    while part := os.read(reading, 4096):
        text += part
    os.close(reading)
    os.waitpid(pid, 0)
    pairs = (word.split("=") for word in text.decode().split())
    return {name: int(code) for name, code in pairs}


def _is_loaded() -> bool:
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as file:
        return "libcuda.so" in file.read()
