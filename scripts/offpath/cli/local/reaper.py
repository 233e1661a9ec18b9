"""Daemons below a process that reaps and ends them: see `reaper_main`."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from offpath.bindings.errors import PeerGone

_BOUND_S: Final = 20.0


class Reaper:
    """Starts and kills daemons by name; `close` kills all that they left."""

    def __init__(self, log: Path) -> None:
        self.log = log
        self.running: dict[str, int] = {}
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", Path(__file__).with_name("reaper_main.py")],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip

    def start(self, name: str, argv: Sequence[str | Path], env: Mapping[str, str], cwd: Path) -> int:
        """Returns its pid."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        wish = {"argv": [str(word) for word in argv], "env": dict(env), "cwd": str(cwd), "log": str(self.log)}
        self._process.stdin.write(json.dumps(wish) + "\n")
        self._process.stdin.flush()
        self.running[name] = int(self._process.stdout.readline())
        return self.running[name]

    def kill(self, name: str, number: int = signal.SIGKILL) -> None:
        """Ends it, and waits until it is reaped. Raises: PeerGone."""
        pid = self.running.pop(name)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
        ends = time.monotonic() + _BOUND_S
        while os.path.exists(f"/proc/{pid}"):
            if time.monotonic() > ends:
                raise PeerGone(f"{name} does not end")
            time.sleep(0.002)

    def close(self) -> None:
        """Idempotent."""
        with self._process as process:
            assert process.stdin is not None
            process.stdin.close()
            process.wait(_BOUND_S)
