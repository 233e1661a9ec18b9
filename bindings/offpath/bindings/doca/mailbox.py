"""A queue from a polling thread to a thread that waits on a descriptor; keeps items whole and in order."""

from __future__ import annotations

import os
import threading
from collections import deque
from typing import Generic, TypeVar

from offpath.bindings.errors import OffpathError

T = TypeVar("T")


class Mailbox(Generic[T]):
    """One thread puts, another takes and closes. ``most``: the capacity."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._items: deque[T] = deque()
        self._lock = threading.Lock()
        self._fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._is_raised = False
        self.is_lost = False
        """Nothing more arrives; queued items can be taken."""
        self.fault: OffpathError | None = None
        """Why it is lost."""

    def fileno(self) -> int:
        """Readable when there are items or the mailbox is lost, as of the last `settle`; -1: closed."""
        return self._fd

    def __len__(self) -> int:
        return len(self._items)

    def put(self, item: T) -> bool:
        """False: full or closed."""
        with self._lock:
            if self._fd < 0 or len(self._items) >= self._most:
                return False
            self._items.append(item)
            self._raise(True)
        return True

    def lose(self, fault: OffpathError) -> None:
        """Mark it as lost: nothing more arrives."""
        with self._lock:
            self.fault = self.fault or fault
            self.is_lost = True
            self._raise(True)

    def take(self) -> T | None:
        """The oldest item, or None."""
        return self._items.popleft() if self._items else None

    def settle(self, *, is_readable: bool) -> None:
        """Make the descriptor readable if the taker requests it, or if items arrived meanwhile."""
        with self._lock:
            self._raise(is_readable or bool(self._items) or self.is_lost)

    def _raise(self, is_raised: bool) -> None:
        if is_raised is not self._is_raised and self._fd >= 0:
            self._is_raised = is_raised
            if is_raised:
                os.eventfd_write(self._fd, 1)
            else:
                os.eventfd_read(self._fd)

    def close(self) -> None:
        """Called by the taker. Idempotent."""
        with self._lock:
            if self._fd >= 0:
                os.close(self._fd)
            self._fd = -1
