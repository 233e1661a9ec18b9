"""The progress engine: completions come from `progress`, and a descriptor says when to call it.

On a loop: `request`, wait until `fileno` is readable, `clear`, then `progress` until nothing is left. What completes
before a request need not make its notification, so whoever requests looks once more before he waits; `turn` does all
that. A context of Comch has no notifications: its engine is polled.
"""

from __future__ import annotations

import select
import time
from collections.abc import Callable
from ctypes import byref
from typing import Any, Final, TypeVar

from offpath.bindings.doca._abi_types import HANDLE, INT, SIZE
from offpath.bindings.doca.handles import Handle
from offpath.bindings.doca.load import Library

F = TypeVar("F", bound=Callable[..., None])
LONG_NS: Final = 200_000
"""A device that never stops does not hold the loop for longer."""


class Engine(Handle):
    """Contexts are connected to it for their whole lives, and are closed with it. Not for several threads."""

    def __init__(self, doca: Library, *parents: Handle) -> None:
        """Raises: DocaError."""
        made = HANDLE()
        doca.call("doca_pe_create", byref(made))
        super().__init__(doca, "progress engine", made.value, "doca_pe_destroy", *parents)
        self._fd = -1
        self._waiting = select.poll()
        self._is_requested = False
        self._raised: list[BaseException] = []

    # -- completions --------------------------------------------------------------------------------------------------
    def guarded(self, callback: F) -> Callable[..., None]:
        """``callback`` for DOCA to call: what it raises would vanish in C, so it is kept, and raised by `progress`."""

        def guard(*arguments: Any) -> None:
            try:
                callback(*arguments)
            except BaseException as fault:
                self._raised.append(fault)

        return guard

    def raise_kept(self) -> None:
        """Raises: what a callback raised, all of it as a group if there were several."""
        if not self._raised:
            return
        raised, self._raised = self._raised, []
        if len(raised) == 1:
            raise raised[0]
        raise BaseExceptionGroup("several callbacks of DOCA's raised", raised)

    def progress(self) -> bool:
        """Run callbacks of what has completed. False: nothing had. Never from within a callback. Does not block."""
        moved = bool(self.doca.value("doca_pe_progress", self.pointer))
        if self._raised:
            self.raise_kept()
        return moved

    def drain(self, until_ns: int = 0) -> bool:
        """`progress` until nothing is left, or the monotonic clock says ``until_ns`` (0: soon). False: there was
        nothing."""
        until_ns = until_ns or time.monotonic_ns() + LONG_NS
        moved = False
        while self.progress():
            moved = True
            if time.monotonic_ns() > until_ns:
                break
        return moved

    def in_flight(self) -> int:
        """Tasks that were submitted and have not completed. Raises: DocaError."""
        count = SIZE()
        self.doca.call("doca_pe_get_num_inflight_tasks", self.pointer, byref(count))
        return count.value

    # -- notifications ------------------------------------------------------------------------------------------------
    def fileno(self) -> int:
        """Readable after something completed that a notification was requested for. DOCA's: not to be closed.

        Raises: DocaError: a context of the engine has no notifications.
        """
        if self._fd < 0:
            handle = INT(-1)
            self.doca.call("doca_pe_get_notification_handle", self.pointer, byref(handle))
            self._fd = handle.value
            self._waiting.register(self._fd, select.POLLIN)
        return self._fd

    @property
    def is_requested(self) -> bool:
        """The next completion makes `fileno` readable."""
        return self._is_requested

    def request(self) -> None:
        """Have the next completion told. Raises: DocaError."""
        if not self._is_requested:
            self.doca.call("doca_pe_request_notification", self.pointer)
            self._is_requested = True

    def clear(self) -> bool:
        """Take the notification in, if there is one. Does not block. Raises: DocaError."""
        if not (self._is_requested and self._waiting.poll(0)):
            return False
        self.doca.call("doca_pe_clear_notification", self.pointer, self._fd)
        self._is_requested = False
        return True

    def turn(self, until_ns: int) -> bool:
        """Take in what has completed. False: nothing has, and when something does, `fileno` will say so."""
        self.clear()
        if self.drain(until_ns):
            return True
        if self._is_requested:
            return False
        self.request()
        return self.drain(until_ns)
