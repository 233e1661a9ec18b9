"""Children of demo and benchmarks: they end with their parent, and `python -m offpath.cli.child ARGS…` is `offpath
ARGS…` that does."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from typing import Final

_PR_SET_PDEATHSIG: Final = 1


def end_with_parent() -> None:
    """SIGTERM when the parent dies, however it dies."""
    parent = os.environ.get("OFFPATH_PARENT", "")
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM))
    if parent and os.getppid() != int(parent):
        sys.exit(1)  # it was gone before we could ask


if __name__ == "__main__":
    end_with_parent()
    from offpath.cli.main import main

    sys.exit(main())
