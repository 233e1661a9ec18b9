"""Who may use a session: the process that opened it, and one of its threads at a time."""

from __future__ import annotations

import os
import threading
from types import TracebackType

from offpath.host_helper.errors import RequesterShared


class Owner:
    """As a context: the block is the caller's alone. A thread may enter a block within its own."""

    __slots__ = ("_pid", "_turn")

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._turn = threading.RLock()

    @property
    def is_here(self) -> bool:
        """Whether this process opened the session; False in a process that was forked from it."""
        return os.getpid() == self._pid

    def check_process(self) -> None:
        """Raises: RequesterShared: another process opened the session."""
        if not self.is_here:
            raise RequesterShared(
                f"process {self._pid} opened this session, and a forked process cannot use it: open one per process"
            )

    def __enter__(self) -> None:
        """Raises: RequesterShared."""
        self.check_process()
        if not self._turn.acquire(blocking=False):
            raise RequesterShared("another thread is using this requester: open one per thread")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._turn.release()
