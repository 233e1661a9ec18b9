"""What MPS of a helper has left on this machine: processes and directories."""

from __future__ import annotations

import os
import signal
from pathlib import Path


def control_daemons(root: Path) -> list[int]:
    """Processes of MPS that were started with a pipe directory in ``root``."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                is_ours = f"CUDA_MPS_PIPE_DIRECTORY={root}/".encode() in (entry / "environ").read_bytes()
                if is_ours and b"nvidia-cuda-mps-" in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


def folders(root: Path) -> list[Path]:
    """Directories of helpers and, below them, of leases."""
    return [path for path in (*root.glob("*"), *root.glob("*/*")) if path.is_dir()]


def end_all(root: Path) -> list[int]:
    """Kill what a failed test has left; which processes that were."""
    left = control_daemons(root)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    return left


def daemon_of(root: Path, lease: int) -> int:
    """The control daemon of a lease."""
    wanted = f"/{lease}-".encode()
    (found,) = [pid for pid in control_daemons(root) if wanted in Path(f"/proc/{pid}/environ").read_bytes()]
    return found


def ended(pid: int) -> bool:
    """Whether a process is no more, or only waits to be reaped by one that is not this test's."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return True
    return state in "ZX" and os.getpid() != pid
