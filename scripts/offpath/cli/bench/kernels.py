"""The benchmarks' kernel: it reads one byte, then idles like a host whose GPU computes."""

from __future__ import annotations

import time

import numpy as np
from numpy.typing import NDArray

from offpath.host_helper.helper import Helper


def compute(view: memoryview | NDArray[np.uint8], kernel_ms: int) -> int:
    """Read one byte, which must have arrived, then take the GPU's time, during which the host idles."""
    first = view[0]
    if kernel_ms:
        time.sleep(kernel_ms / 1e3)
    return int(first)


def register_kernel(helper: Helper, kernel_ms: int) -> None:
    """Register ``k<ms>`` with the helper."""

    @helper.kernel(f"k{kernel_ms}", demand=14)
    def run(view: NDArray[np.uint8]) -> NDArray[np.uint8]:
        return np.array([compute(view, kernel_ms)], np.uint8)
