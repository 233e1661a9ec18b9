"""Another clock for a process of a test: a time namespace, entered by executing the same program again."""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

CLOCK = "OFFPATH_TEST_CLOCK"
"""Names a file with the seconds by which the process's monotonic and boot-time clocks are ahead (negative: behind)."""
_CLONE_NEWTIME = 0x80


def shift_clocks() -> None:
    """Does nothing unless `CLOCK` is set. Raises: OSError: no permission for a time namespace."""
    file = os.environ.pop(CLOCK, "")
    if not file:
        return
    if ctypes.CDLL(None, use_errno=True).unshare(_CLONE_NEWTIME):
        raise OSError(ctypes.get_errno(), "unshare(CLONE_NEWTIME)")
    offset_s = int(Path(file).read_text())
    Path("/proc/self/timens_offsets").write_text(f"monotonic {offset_s} 0\nboottime {offset_s} 0\n")
    os.execv(sys.executable, [sys.executable, "-W", "always", *sys.argv])
