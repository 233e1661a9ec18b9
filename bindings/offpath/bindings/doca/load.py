"""Loads DOCA's libraries, determines their release, and looks functions up on first use.

Releases differ in their functions and libraries. A missing one is an error of the call that needs it.
"""

from __future__ import annotations

import ctypes
import os
import platform
from collections.abc import Collection, Sequence
from functools import cache
from typing import Any, Final

from offpath.bindings.doca import (
    _abi_buf,
    _abi_comch,
    _abi_ctx,
    _abi_dev,
    _abi_dma,
    _abi_errors,
    _abi_gpu,
    _abi_mmap,
    _abi_pe,
)
from offpath.bindings.doca._abi_types import Function
from offpath.bindings.doca._check import check
from offpath.bindings.errors import DocaMissing, DocaTooOld

PATH_VARIABLE: Final = "OFFPATH_DOCA_PATH"
INSTALLED: Final = f"/opt/mellanox/doca/lib/{platform.machine()}-linux-gnu"
EMULATED: Final = "-emulated"
_SUFFIXES: Final = (".so.2", ".so.3", ".so")  # no 3.x is proven
_COMMON: Final = "common"
_GROUPS: Final[dict[str, tuple[tuple[Function, ...], ...]]] = {
    _COMMON: (
        _abi_errors.FUNCTIONS, _abi_dev.FUNCTIONS, _abi_mmap.FUNCTIONS, _abi_buf.FUNCTIONS, _abi_pe.FUNCTIONS,
        _abi_ctx.FUNCTIONS,
    ),
    "dma": (_abi_dma.FUNCTIONS,),
    "comch": (_abi_comch.FUNCTIONS,),
    "gpunetio": (_abi_gpu.FUNCTIONS,),
}  # fmt: skip
FUNCTIONS: Final[dict[str, Function]] = {
    function.name: function for tables in _GROUPS.values() for table in tables for function in table
}
"""All declared functions, by name."""
_LIBRARY_OF: Final = {
    function.name: library for library, tables in _GROUPS.items() for table in tables for function in table
}


class Library:
    """One installation. Obtained by `load`. Never unloaded, because the driver below keeps state."""

    def __init__(self, folder: str, suffix: str, common: ctypes.CDLL) -> None:
        self.folder = folder
        """Empty: the system's loader found it."""
        self._suffix = suffix
        self._libraries = {_COMMON: common}
        self._functions: dict[str, Any] = {}

    @property
    def called(self) -> Collection[str]:
        """The functions used since it was loaded."""
        return self._functions.keys()

    @property
    def version(self) -> str:
        """The libraries' own version, e.g. 3.0.0058; empty: they do not report one."""
        try:
            text = self.value("doca_version_runtime")
        except DocaTooOld:
            return ""
        return text.decode("ascii", "replace") if text else ""

    @property
    def is_emulated(self) -> bool:
        """The library is offpath's emulator: there is no device."""
        return self.version.endswith(EMULATED)

    def call(self, name: str, *arguments: Any, expect: Collection[int] = ()) -> int:
        """Call a function that returns a status: 0, or one of ``expect``. Raises: DocaError, DeviceGone."""
        status: int = self._function(name)(*arguments)
        if status and status not in expect:
            check(status, name, self.describe)
        return status

    def value(self, name: str, *arguments: Any) -> Any:
        """Call a function that cannot fail, or that returns another object's status, and return its value."""
        return self._function(name)(*arguments)

    def describe(self, status: int) -> tuple[str, str]:
        """DOCA's name and description of a status, including statuses of later releases."""
        name, text = (self.value(f"doca_error_get_{part}", status) for part in ("name", "descr"))
        return (name or b"").decode("ascii", "replace"), (text or b"").decode("utf-8", "replace")

    def has(self, name: str) -> bool:
        """Whether this release has the function."""
        try:
            self._symbol(name)
        except (DocaMissing, DocaTooOld):
            return False
        return True

    def _function(self, name: str) -> Any:
        found = self._functions.get(name)
        if found is None:
            declared = FUNCTIONS[name]
            found = self._symbol(name)
            found.restype, found.argtypes = declared.restype, declared.argtypes
            self._functions[name] = found
        return found

    def _symbol(self, name: str) -> Any:
        library = _LIBRARY_OF[name]
        if library not in self._libraries:
            self._libraries[library] = _open(self.folder, library, self._suffix)
        try:
            return self._libraries[library][name]
        except AttributeError:
            here = self.version if name != "doca_version_runtime" else ""
            raise DocaTooOld(
                name, f"not in DOCA {here or 'of an unknown release'}: added in {FUNCTIONS[name].since}",
                check="install a later DOCA",
            ) from None  # fmt: skip


def load(path: str = "") -> Library:
    """Load DOCA from the folder ``path``, or else from the environment's folder, its packages' folder, or the system's
    search path. Raises: DocaMissing."""
    given = path or os.environ.get(PATH_VARIABLE, "")
    return _load(given)


@cache
def _load(given: str) -> Library:
    if given:
        return _first([given])
    folders = [INSTALLED] if os.path.isdir(INSTALLED) else []
    return _first([*folders, ""])


def _first(folders: Sequence[str]) -> Library:
    why: DocaMissing | None = None
    for folder in folders:
        for suffix in _SUFFIXES:
            try:
                return Library(folder, suffix, _open(folder, _COMMON, suffix))
            except DocaMissing as fault:
                why = why or fault  # the first is the most specific: it names the folder
    assert why is not None
    raise why


def _open(folder: str, library: str, suffix: str) -> ctypes.CDLL:
    """Without a folder, by its bare name. The others find libdoca_common by name, because it is already loaded."""
    name = f"libdoca_{library}{suffix}"
    path = os.path.join(folder, name)
    try:
        return ctypes.CDLL(path)
    except OSError as fault:
        where = f"in {folder}" if folder else f"in {INSTALLED}, nor where the system looks"
        missing = folder and not os.path.exists(path)
        detail = f"not {where}" if missing or not folder else str(fault)
        raise DocaMissing(
            name, detail, check=f"install DOCA, or name the folder of its libraries in {PATH_VARIABLE}"
        ) from None
