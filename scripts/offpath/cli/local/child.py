"""Starts child processes of demo and benchmarks, which end with their parent.

`python -m offpath.cli.local.child ARGS…` is `offpath ARGS…` in such a process.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from typing import Any, Final

COMMAND_LINE: Final = "local.child"
"""The module of the command line, for `start`."""
ONE_THREAD: Final = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
"""Environment of a process that computes on one core."""
_ARITHMETIC: Final = ("OPENBLAS_", "MKL_", "NPY_")
_PARENT: Final = "OFFPATH_PARENT"
_PR_SET_PDEATHSIG: Final = 1


def command(module: str, *arguments: str) -> list[str]:
    """``python -m offpath.cli.MODULE arguments…`` with this Python."""
    return [sys.executable, "-P", "-m", f"offpath.cli.{module}", *arguments]


def environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """This process's environment with ``more`` and the parent's pid for `end_with_parent`."""
    return {**os.environ, _PARENT: str(os.getpid()), **(more or {})}


def arithmetic() -> dict[str, str]:
    """`ONE_THREAD`, and what this process's environment says of numerical libraries, such as ``OPENBLAS_CORETYPE``.
    Jobs of an engine do not inherit it; with it they compute the same bits as processes that do."""
    return {**{name: value for name, value in os.environ.items() if name.startswith(_ARITHMETIC)}, **ONE_THREAD}


def start(
    module: str, *arguments: str, more: Mapping[str, str] | None = None, **options: Any
) -> subprocess.Popen[bytes]:
    """Run `command` in a process, with ``more`` environment; ``options`` are those of `subprocess.Popen`.

    The child ends with this process if it calls `end_with_parent`, as the `COMMAND_LINE` does. Raises: OSError.
    """
    return subprocess.Popen(command(module, *arguments), env=environment(more), **options)


def end_with_parent() -> None:
    """Request SIGTERM for this process when its parent dies."""
    parent = os.environ.get(_PARENT, "")
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM))
    if parent and os.getppid() != int(parent):
        sys.exit(1)  # the parent died before the prctl


if __name__ == "__main__":
    end_with_parent()
    from offpath.cli.main import main

    sys.exit(main())
