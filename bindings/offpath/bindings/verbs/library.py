"""Imports pyverbs on first use: 44 (Debian 12) and later, which moved its constants to another module.

A machine without RDMA has no pyverbs; the rest of the package must work without it.
"""

from __future__ import annotations

import errno
import importlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, NoReturn, TypeVar

from offpath.bindings.errors import DeviceGone, VerbsError, VerbsMissing

T = TypeVar("T")

OLDEST: Final = 44
"""The oldest pyverbs that this package was run with."""

_PRIVATE_LIBRARY: Final = re.compile(r"/libibverbs\.so\.1\.\d+\.(\d+)\.(\d+)$", re.MULTILINE)
_CHECK: Final = {
    errno.EPERM: "may this user open /dev/infiniband/uverbs*?",
    errno.EACCES: "may this user open /dev/infiniband/uverbs*?",
    errno.ENOMEM: "raise RLIMIT_MEMLOCK (LimitMEMLOCK= in the unit), or ask for less",
    errno.EINVAL: "the device refuses these attributes: compare them with `ibv_devinfo -v`",
}


@dataclass(frozen=True, slots=True)
class Library:
    """The modules of pyverbs. They have no types: results are checked where they are used."""

    addr: Any
    cq: Any
    device: Any
    enums: Any
    mr: Any
    pd: Any
    qp: Any
    wr: Any
    error: Any


@cache
def library() -> Library:
    """Import pyverbs. Raises: VerbsMissing: not installed for this Python, or incompatible with its libibverbs."""
    try:
        modules = {name: importlib.import_module(f"pyverbs.{name}") for name in ("addr", "cq", "device", "mr", "pd")}
        modules |= {name: importlib.import_module(f"pyverbs.{name}") for name in ("qp", "wr")}
        error = importlib.import_module("pyverbs.pyverbs_error")
        try:
            enums = importlib.import_module("pyverbs.enums")
        except ModuleNotFoundError:
            enums = importlib.import_module("pyverbs.libibverbs_enums")
    except ImportError as fault:
        raise VerbsMissing(f"pyverbs cannot be imported: {fault}") from fault
    return Library(**modules, enums=enums, error=error)


def version() -> tuple[int, int] | None:
    """rdma-core's version; None: its library is not loaded, or has an unusual name.

    pyverbs does not report its version, but it is bound to the private interface of the libibverbs of the same release.
    """
    with open("/proc/self/maps") as file:
        found = _PRIVATE_LIBRARY.search(file.read())
    return (int(found[1]), int(found[2])) if found else None


def attempt(what: str, call: Callable[[], T]) -> T:
    """Call pyverbs. Raises: DeviceGone, VerbsError: with ``what``, and the errno if there was one."""
    error = library().error
    try:
        return call()
    except error.PyverbsRDMAError as fault:
        _refuse(what, str(fault), int(fault.error_code), fault)
    except error.PyverbsError as fault:
        _refuse(what, str(fault), -1, fault)


def _refuse(what: str, message: str, code: int, fault: Exception) -> NoReturn:
    if code in (errno.ENODEV, errno.EIO):
        raise DeviceGone(f"{what}: {message}") from fault
    raise VerbsError(what, message, code, _CHECK.get(code, "")) from fault
