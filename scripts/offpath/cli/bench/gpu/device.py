"""CUDA in one process of a check: the context, its kernels, and waits."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from offpath.bindings.cuda.context import Context
from offpath.bindings.errors import CudaError, CudaLost
from offpath.cli.bench.gpu.kernels import DeviceCode, Kernel
from offpath.cli.bench.gpu.setting import Setting


class Device:
    """The checked GPU in this process, which must have been forked for it."""

    def __init__(self, setting: Setting, *, is_spinning: bool = False) -> None:
        """Raises: DeviceError, CudaError: see `Context`; no PTX is compiled."""
        self.context = Context(setting.uuid, is_spinning=is_spinning)
        self.driver = self.context.driver
        self.call = self.driver.call
        self.code = DeviceCode(self.driver)
        self.stream: Any = self.call("cuStreamCreate", 0)

    def kernel(self, name: str, *values: Any) -> Kernel:
        """An entry on this device's stream."""
        return self.code.kernel(name, *values, stream=self.stream)

    def allocate(self, nbytes: int) -> int:
        """Device memory. Raises: CudaError."""
        return int(self.call("cuMemAlloc", nbytes))

    def wait(self) -> None:
        """Until the stream's work is done. Raises: CudaLost."""
        self.call("cuStreamSynchronize", self.stream)

    def timed(self, submit: Callable[[], object]) -> float:
        """Seconds from the submission to the end of the work."""
        self.wait()
        began = time.perf_counter()
        submit()
        self.wait()
        return time.perf_counter() - began


def code_of(action: Callable[[], object]) -> int:
    """The code that a call ends with; 0: success."""
    try:
        action()
    except (CudaError, CudaLost) as fault:
        return fault.code
    return 0
