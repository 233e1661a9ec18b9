"""The event core: runs due actions in order of time, then of scheduling. Only it advances time."""

from __future__ import annotations

import heapq
from collections.abc import Callable


class EventCore:
    """Virtual time in ns. Deterministic: the same calls in the same order give the same run."""

    def __init__(self, now_ns: int = 0) -> None:
        self.now_ns = now_ns
        self.happened = 0
        self._due: list[tuple[int, int, Callable[[], None]]] = []
        self._scheduled = 0

    def at(self, when_ns: int, action: Callable[[], None]) -> None:
        """Schedule ``action`` at ``when_ns``, or now if that has passed."""
        self._scheduled += 1
        heapq.heappush(self._due, (max(when_ns, self.now_ns), self._scheduled, action))

    def after(self, wait_ns: int, action: Callable[[], None]) -> None:
        """Schedule ``action`` after ``wait_ns``."""
        self.at(self.now_ns + wait_ns, action)

    def run(self, until_ns: int | None = None) -> None:
        """Run until no action is left, or until all that are due by ``until_ns`` have run, and set the time to that."""
        due = self._due
        while due and (until_ns is None or due[0][0] <= until_ns):
            self.now_ns, _, action = heapq.heappop(due)
            self.happened += 1
            action()
        if until_ns is not None:
            self.now_ns = max(self.now_ns, until_ns)
