"""Whether this process has initialised CUDA: its children could then not use a GPU."""

from __future__ import annotations

import ctypes
import os
from typing import Final

_NOT_INITIALIZED: Final = 3
"""CUDA_ERROR_NOT_INITIALIZED, which every call but cuInit returns before cuInit."""


def is_initialised() -> bool:
    """True if the driver's library is loaded and cuInit was called. Loads nothing."""
    try:
        driver = ctypes.CDLL("libcuda.so.1", mode=os.RTLD_NOLOAD | os.RTLD_NOW)
    except OSError:
        return False
    return int(driver.cuDeviceGetCount(ctypes.byref(ctypes.c_int()))) != _NOT_INITIALIZED
