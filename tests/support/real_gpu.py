"""Is there a real NVIDIA GPU on this machine? Tests marked `gpu` that can do so then use it."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Final

from offpath.bindings.cuda.driver import LIBRARY
from offpath.bindings.cuda.whole import Visible, visible
from offpath.bindings.errors import DeviceError
from offpath.bindings.gpu_folder import PATH_VARIABLE

from .doca import environment

SYSTEM: Final = {PATH_VARIABLE: ""}
"""Environment of processes that use the system's libraries."""


@cache
def real_gpu() -> Visible | None:
    """The first device that the system's libcuda shows."""
    try:
        ctypes.CDLL(LIBRARY)
    except OSError:
        return None
    try:
        with environment(**SYSTEM):
            found = [each for each in visible() if not each.is_emulated]
    except DeviceError:
        return None
    return found[0] if found else None
