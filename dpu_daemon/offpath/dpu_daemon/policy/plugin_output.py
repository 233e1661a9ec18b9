"""What a policy plug-in prints goes to the daemon's log, at a bounded rate.

The plug-in's standard output and error are a pipe. What is beyond the rate stays in the pipe, and when that is full the
plug-in waits: it misses the time for its reply, and is quarantined like any that does.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
import time
from typing import Final

BURST_BYTES: Final = 65_536
"""Printed at once."""
PER_SECOND: Final = 16_384
_PART: Final = 4_096
_LOOK_S: Final = 0.5
"""How soon the end is seen while a child of the plug-in keeps the pipe open."""


class PluginOutput:
    """A pipe, and a thread that empties it into ``into``."""

    def __init__(self, into: int = 2) -> None:
        """Raises: OSError: no descriptor is left."""
        self._into = into
        self._from, self._to = os.pipe()
        self._is_over = threading.Event()

    @property
    def fd(self) -> int:
        """For the plug-in's process."""
        return self._to

    def begin(self) -> None:
        """The process has the pipe: empty it until the last of its processes has ended, or until `end`."""
        os.close(self._to)
        threading.Thread(target=self._run, name="plugin-output", daemon=True).start()

    def abandon(self) -> None:
        """No process has the pipe."""
        os.close(self._to)
        os.close(self._from)

    def end(self) -> None:
        """The plug-in is gone. What its last words are is still written."""
        self._is_over.set()

    def _run(self) -> None:
        room, at_s = float(BURST_BYTES), time.monotonic()
        try:
            while True:
                now_s = time.monotonic()
                room, at_s = min(BURST_BYTES, room + (now_s - at_s) * PER_SECOND), now_s
                if room < _PART:
                    if self._is_over.wait((_PART - room) / PER_SECOND):
                        return
                    continue
                is_over = self._is_over.is_set()
                if not select.select([self._from], [], [], 0 if is_over else _LOOK_S)[0]:
                    if is_over:
                        return
                    continue
                data = os.read(self._from, _PART)
                if not data:
                    return
                room -= len(data)
                with contextlib.suppress(OSError):  # nobody reads the log
                    os.write(self._into, data)
        finally:
            os.close(self._from)
