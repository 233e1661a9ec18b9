"""Loads nvidia-ml-py and the library that it calls. Importing this module loads neither."""

from __future__ import annotations

import ctypes
import importlib
import os
from functools import cache
from typing import Any, Final

from offpath.bindings.errors import NvmlMissing
from offpath.bindings.gpu_folder import PATH_VARIABLE, gpu_folder

LIBRARY: Final = "libnvidia-ml.so.1"


def load(path: str = "") -> Any:
    """The module ``pynvml``, bound to the library in the folder ``path``, else in the environment's folder, else to the
    system's library. Once a library is loaded, the process keeps it. Raises: NvmlMissing."""
    folder = path or gpu_folder()
    if folder:
        _preload(os.path.join(os.path.abspath(folder), LIBRARY))
    return _module()


@cache
def _module() -> Any:
    try:
        return importlib.import_module("pynvml")
    except ImportError as fault:
        raise NvmlMissing("nvidia-ml-py", str(fault), check='install it: pip install "offpath[gpu]"') from None


@cache
def _preload(path: str) -> None:
    """Load it before nvidia-ml-py searches for its name: the loader then returns the library that is present."""
    try:
        ctypes.CDLL(path, mode=os.RTLD_NOW | os.RTLD_GLOBAL)
    except OSError as fault:
        detail = "not there" if not os.path.exists(path) else str(fault)
        raise NvmlMissing(path, detail, check=f"{PATH_VARIABLE} must name the folder with {LIBRARY}") from None
