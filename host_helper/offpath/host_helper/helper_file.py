"""Loads the Python file that a helper serves, at its start and again for a reload.

The file is a module under its own name, so that pickle, pools of processes and checkpoints find its classes; those that
a script has saved look for them in ``__main__``, and find them there too.

A reload executes the file anew, and with it the modules beside it: those whose .py file is in the file's folder or
below, installed packages (site-packages) and offpath excepted. Other modules stay loaded as they are.
"""

from __future__ import annotations

import importlib
import importlib.util
import linecache
import os
import sys
import traceback
from collections.abc import Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import ModuleType
from typing import Any, Final

from offpath.bindings.errors import OffpathError
from offpath.host_helper.forks import end_if_forked
from offpath.host_helper.helper import Helper
from offpath.host_helper.raised import summary

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
    sys.meta_path.insert(0, fresh := _FromSource(folder))
    try:
        return load_helper(path)
    except BaseException:
        for name in _beside(folder):
            del sys.modules[name]
        sys.modules.update(former)
        raise
    finally:
        sys.meta_path.remove(fresh)


def _beside(folder: str) -> dict[str, ModuleType]:
    """The modules by name that a reload executes anew."""
    modules = list(sys.modules.items())
    return {name: module for name, module in modules if _is_beside(name, getattr(module, "__file__", None), folder)}


def _is_beside(name: str, file: object, folder: str) -> bool:
    if not isinstance(file, str) or not file.endswith(".py") or name.partition(".")[0] in ("offpath", "__main__"):
        return False
    inside = os.path.relpath(os.path.realpath(file), folder).split(os.sep)
    return inside[0] != os.pardir and not any(part in _INSTALLED for part in inside)


class _NoBytecode(SourceFileLoader):
    """Compiles the source. Cached bytecode is found by the source's time in whole seconds and by its size, and a quick
    change may keep both."""

    def path_stats(self, path: str) -> Mapping[str, Any]:
        """Raises: OSError: always; without a time the cache is neither read nor written."""
        raise OSError(f"{path}: its bytecode is not cached")


class _FromSource(MetaPathFinder):
    """Finds the modules beside the file, and only them, as Python would, but loads them without cached bytecode."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """None: it is not one of them, or has no source."""
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is None or not isinstance(spec.loader, SourceFileLoader):
            return None
        if not _is_beside(fullname, spec.origin, self._folder):
            return None
        spec.loader = _NoBytecode(spec.loader.name, spec.loader.path)
        return spec


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
    name = _name_of(path)
    spec = importlib.util.spec_from_loader(name, _NoBytecode(name, path))
    assert spec is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    process = os.getpid()
    try:
        assert spec.loader is not None
        spec.loader.exec_module(module)
        end_if_forked(process)
    except (Exception, SystemExit) as fault:  # boundary to user code
        end_if_forked(process, fault)
        del sys.modules[name]
        trace = fault.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename != path:
            trace = trace.tb_next
        traceback.print_exception(type(fault), fault, trace)
        raise OffpathError(f"{path} cannot be loaded: {summary(fault)}") from None
    _show_in_main(module)
    return vars(module)


def _name_of(path: str) -> str:
    """The file's name without its ending, unless that is another module's."""
    stem = os.path.splitext(os.path.basename(path))[0]
    name = stem if stem.isidentifier() else "served"
    other = sys.modules.get(name)
    if (other is not None and getattr(other, "__file__", None) != path) or name in sys.builtin_module_names:
        name = f"{name}_served"
    return name


def _show_in_main(module: ModuleType) -> None:
    """Classes and functions that the file defines are in ``__main__`` too, unless others of their names are."""
    main = sys.modules["__main__"]
    for name, value in vars(module).items():
        present = getattr(main, name, None)
        is_ours = getattr(value, "__module__", None) == module.__name__
        if is_ours and (present is None or getattr(present, "__module__", None) == module.__name__):
            setattr(main, name, value)
