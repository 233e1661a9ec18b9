"""Which connection holds which lease, and how long a lease has been without one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

ITSELF: Final = 0
"""The number of no connection: migd's own."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Who sent a request: uid by the kernel's record, and the connection's number. ``is_alive``: it has not ended."""

    uid: int
    connection: int
    is_operator: bool
    is_alive: Callable[[], bool]


class Holders:
    """A lease is held by the connection that created it or held it again. When that connection ends, the lease is
    unheld. Calls may come from any thread."""

    def __init__(self, now_ns: Callable[[], int]) -> None:
        self._now_ns = now_ns
        self._lock = threading.Lock()
        self._holder: dict[str, int] = {}
        self._unheld_since: dict[str, int] = {}

    def take(self, handle: str, caller: Caller) -> bool:
        """Hold the lease. False: another living connection holds it. A caller that ended meanwhile leaves it unheld."""
        with self._lock:
            if self._holder.get(handle, caller.connection) != caller.connection:
                return False
            self._holder[handle] = caller.connection
            self._unheld_since.pop(handle, None)
        if not caller.is_alive():
            self.leave(caller.connection)
        return True

    def start(self, handles: Iterable[str]) -> None:
        """After migd's own start: nobody holds these leases yet."""
        with self._lock:
            self._unheld_since |= dict.fromkeys(handles, self._now_ns())

    def forget(self, handle: str) -> None:
        """The lease ended. Idempotent."""
        with self._lock:
            self._holder.pop(handle, None)
            self._unheld_since.pop(handle, None)

    def leave(self, connection: int) -> None:
        """A connection ended."""
        with self._lock:
            now = self._now_ns()
            for handle in [each for each, holder in self._holder.items() if holder == connection]:
                del self._holder[handle]
                self._unheld_since[handle] = now

    def take_expired(self, handle: str, after_ms: int) -> bool:
        """Hold a lease for migd itself, if nobody has held it for ``after_ms``: no client can take it any more. Then
        `forget` it, or give it back with `leave` of `ITSELF`."""
        with self._lock:
            since = self._unheld_since.get(handle)
            if since is None or (self._now_ns() - since) // 1_000_000 < after_ms:
                return False
            self._holder[handle] = ITSELF
            del self._unheld_since[handle]
            return True

    def unheld_ms(self, handle: str) -> int:
        """How long nobody has held the lease; -1: a connection holds it, or it ended."""
        with self._lock:
            since = self._unheld_since.get(handle)
        return -1 if since is None else (self._now_ns() - since) // 1_000_000
