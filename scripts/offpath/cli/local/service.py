"""An `offpath` command that serves until it is ended, in a process of its own: for demonstrations and tests."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from offpath.bindings.errors import PeerGone
from offpath.cli.local.child import COMMAND_LINE, start

_END_S: Final = 15.0


class Service:
    """``name``: its log says "NAME ready" at each start. ``log``: the file. ``start_s``: how long a start may take."""

    def __init__(self, name: str, log: Path, start_s: float) -> None:
        self._name, self._log, self._start_s = name, log, start_s
        self._process: subprocess.Popen[bytes] | None = None
        self._starts = 0

    @property
    def log(self) -> str:
        """What it has logged, over all starts."""
        return self._log.read_text(encoding="utf-8", errors="replace") if self._log.exists() else ""

    def start(self, *words: str, more: Mapping[str, str] | None = None) -> None:
        """Run `offpath -v WORDS`, with ``more`` environment, and wait until it serves. Raises: PeerGone: it ended, or
        the time has passed."""
        with open(self._log, "ab") as log:
            self._process = start(COMMAND_LINE, "-v", *words, more=more, stdout=log, stderr=log)
        self._starts += 1
        until = time.monotonic() + self._start_s
        while self.log.count(f"{self._name} ready") < self._starts:
            if self._process.poll() is not None or time.monotonic() > until:
                raise PeerGone(f"the {self._name} did not start: see {self._log}")
            time.sleep(0.02)

    def kill(self) -> None:
        """Kill it with SIGKILL, as a crash would."""
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def close(self) -> None:
        """End it. Idempotent."""
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(_END_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None
