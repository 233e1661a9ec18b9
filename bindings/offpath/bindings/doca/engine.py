"""The progress engine: `progress` runs completions, and a descriptor signals when to call it.

In an event loop: `request`, wait until `fileno` is readable, `clear`, then `progress` until nothing is left. A
completion before a request may not raise its notification, so check once more before waiting; `turn` does all that. A
Comch context has no notifications: its engine is polled.
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
"""Limit of one drain, so that a device that never stops does not block the loop."""


class Engine(Handle):
    """Contexts stay connected to it for their whole lives, and are closed with it. Not thread-safe."""

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
        """Wrap ``callback`` for DOCA: an exception would be lost in C, so it is stored, and `progress` raises it."""

        def guard(*arguments: Any) -> None:
            try:
                callback(*arguments)
            except BaseException as fault:
                self._raised.append(fault)

        return guard

    def raise_kept(self) -> None:
        """Raise the stored exceptions of callbacks, several as a group."""
        if not self._raised:
            return
        raised, self._raised = self._raised, []
        if len(raised) == 1:
            raise raised[0]
        raise BaseExceptionGroup("several DOCA callbacks raised", raised)

    def progress(self) -> bool:
        """Run the callbacks of completed tasks. False: none had completed. Never call it from a callback. Does not
        block."""
        moved = bool(self.doca.value("doca_pe_progress", self.pointer))
        if self._raised:
            self.raise_kept()
        return moved

    def drain(self, until_ns: int = 0) -> bool:
        """`progress` until nothing is left, or until ``until_ns`` on the monotonic clock (0: `LONG_NS` from now).
        False: nothing had completed."""
        until_ns = until_ns or time.monotonic_ns() + LONG_NS
        moved = False
        while self.progress():
            moved = True
            if time.monotonic_ns() > until_ns:
                break
        return moved

    def in_flight(self) -> int:
        """Submitted tasks that have not completed. Raises: DocaError."""
        count = SIZE()
        self.doca.call("doca_pe_get_num_inflight_tasks", self.pointer, byref(count))
        return count.value

    # -- notifications ------------------------------------------------------------------------------------------------
    def fileno(self) -> int:
        """Readable after a completion for which a notification was requested. DOCA owns it: do not close.

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
        """Request a notification for the next completion. Raises: DocaError."""
        if not self._is_requested:
            self.doca.call("doca_pe_request_notification", self.pointer)
            self._is_requested = True

    def clear(self) -> bool:
        """Consume a pending notification. Does not block. Raises: DocaError."""
        if not (self._is_requested and self._waiting.poll(0)):
            return False
        self.doca.call("doca_pe_clear_notification", self.pointer, self._fd)
        self._is_requested = False
        return True

    def turn(self, until_ns: int) -> bool:
        """Process completions. False: there were none, and the next makes `fileno` readable."""
        self.clear()
        if self.drain(until_ns):
            return True
        if self._is_requested:
            return False
        self.request()
        return self.drain(until_ns)
