"""Loads the Python file that a helper serves, at its start and again for a reload.

A reload executes the file anew, and with it the modules beside it: those whose .py file is in the file's folder or
below, installed packages (site-packages) and offpath excepted. Other modules stay loaded as they are.
"""

from __future__ import annotations

import importlib
import linecache
import os
import runpy
import sys
import traceback
from types import ModuleType
from typing import Any, Final

from offpath.bindings.errors import OffpathError
from offpath.host_helper.helper import Helper

_INSTALLED: Final = ("site-packages", "dist-packages")


def load_helper(path: str) -> Helper:
    """The helper that the file defines. Raises: OffpathError: it has none, or none with kernels."""
    helper = _load(path).get("helper")
    if not isinstance(helper, Helper):
        raise OffpathError(f"{path} defines no `helper = Helper()`")
    if not helper.kernels:
        raise OffpathError(f"{path} registers no kernel with @helper.kernel(...)")
    return helper


def reload_helper(path: str) -> Helper:
    """As `load_helper`, with the modules beside the file executed anew. If it raises anything, they are as before."""
    folder = os.path.dirname(os.path.realpath(path))
    former = _beside(folder)
    for name in former:
        del sys.modules[name]
    importlib.invalidate_caches()
    linecache.checkcache()
    # Cached bytecode is found by the source's time in whole seconds and by its size: a quick change may keep both.
    writes, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        return load_helper(path)
    except BaseException:
        for name in _beside(folder):
            del sys.modules[name]
        sys.modules.update(former)
        raise
    finally:
        sys.dont_write_bytecode = writes


def _beside(folder: str) -> dict[str, ModuleType]:
    """The modules by name that a reload executes anew."""
    return {name: module for name, module in list(sys.modules.items()) if _is_beside(name, module, folder)}


def _is_beside(name: str, module: ModuleType, folder: str) -> bool:
    file = getattr(module, "__file__", None)
    if not isinstance(file, str) or not file.endswith(".py") or name.partition(".")[0] in ("offpath", "__main__"):
        return False
    inside = os.path.relpath(os.path.realpath(file), folder).split(os.sep)
    return inside[0] != os.pardir and not any(part in _INSTALLED for part in inside)


def _load(path: str) -> dict[str, Any]:
    """The names that the file defines. Like a script, it can import from its own folder.

    Raises: OffpathError: it cannot be read, or raises; then its traceback, without offpath's frames, was printed.
    """
    try:
        with open(path, "rb"):
            pass
    except OSError as fault:
        raise OffpathError(f"{path}: {fault.strerror or fault}") from None
    if (folder := os.path.dirname(os.path.abspath(path))) not in sys.path:
        sys.path.insert(0, folder)
    try:
        return runpy.run_path(path)
    except Exception as fault:  # boundary to user code
        trace = fault.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename != path:
            trace = trace.tb_next
        traceback.print_exception(type(fault), fault, trace)
        raise OffpathError(f"{path} cannot be loaded: {type(fault).__name__}") from None
