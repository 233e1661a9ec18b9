"""One heap of timers for the whole book: job deadlines, idle leases, needs that grow old."""

from __future__ import annotations

import heapq
from collections.abc import Callable

Key = tuple[str, int | str]


class Timers:
    """Times in ns. An entry that no longer means anything is dropped when it surfaces, or when such entries are the
    majority (``is_live`` tells), so that jobs with far deadlines cannot fill memory."""

    __slots__ = ("_is_live", "entries", "limit", "sequence")

    def __init__(self, is_live: Callable[[Key, int], bool]) -> None:
        self.entries: list[tuple[int, int, Key]] = []
        self.sequence = 0
        self._is_live = is_live
        self.limit = 256

    def __len__(self) -> int:
        return len(self.entries)

    def arm(self, when_ns: int, key: Key) -> None:
        """Fire ``key`` at ``when_ns`` or as soon after as the shell looks."""
        self.sequence += 1
        heapq.heappush(self.entries, (when_ns, self.sequence, key))
        if len(self.entries) > self.limit:
            self.entries = [e for e in self.entries if self._is_live(e[2], e[0])]
            heapq.heapify(self.entries)
            self.limit = max(256, 2 * len(self.entries))

    def restore(self, entries: list[tuple[int, int, Key]], sequence: int, limit: int) -> None:
        """Go on as the timers that had these."""
        heapq.heapify(entries)
        self.entries, self.sequence, self.limit = entries, sequence, limit

    def next_ns(self) -> int | None:
        """When the shell should look again, or None."""
        return self.entries[0][0] if self.entries else None

    def due(self, now_ns: int) -> Key | None:
        """Take the next entry that is due, or None."""
        if self.entries and self.entries[0][0] <= now_ns:
            return heapq.heappop(self.entries)[2]
        return None
