"""One heap of timers for the whole book: job deadlines, idle leases, aging needs."""

from __future__ import annotations

import heapq
from collections.abc import Callable

Key = tuple[str, int | str]


class Timers:
    """Times in ns. An obsolete entry (``is_live`` is false) is dropped when it surfaces or when such entries are the
    majority, so that jobs with distant deadlines cannot fill memory."""

    __slots__ = ("_is_live", "entries", "limit", "sequence")

    def __init__(self, is_live: Callable[[Key, int], bool]) -> None:
        self.entries: list[tuple[int, int, Key]] = []
        self.sequence = 0
        self._is_live = is_live
        self.limit = 256

    def __len__(self) -> int:
        return len(self.entries)

    def arm(self, when_ns: int, key: Key) -> None:
        """Fire ``key`` at ``when_ns``, or as soon after as the shell calls."""
        self.sequence += 1
        heapq.heappush(self.entries, (when_ns, self.sequence, key))
        if len(self.entries) > self.limit:
            self.entries = [e for e in self.entries if self._is_live(e[2], e[0])]
            heapq.heapify(self.entries)
            self.limit = max(256, 2 * len(self.entries))

    def restore(self, entries: list[tuple[int, int, Key]], sequence: int, limit: int) -> None:
        """Restore saved timers."""
        heapq.heapify(entries)
        self.entries, self.sequence, self.limit = entries, sequence, limit

    def forget(self, kinds: frozenset[str]) -> None:
        """Drop every entry of these kinds; their owner arms them again."""
        self.entries = [entry for entry in self.entries if entry[2][0] not in kinds]
        heapq.heapify(self.entries)

    def next_ns(self) -> int | None:
        """Time of the shell's next call, or None."""
        return self.entries[0][0] if self.entries else None

    def are_due(self, now_ns: int) -> bool:
        """True if `due` would return an entry."""
        entries = self.entries
        return bool(entries) and entries[0][0] <= now_ns

    def due(self, now_ns: int) -> Key | None:
        """Remove and return the next due entry, or None."""
        if self.entries and self.entries[0][0] <= now_ns:
            return heapq.heappop(self.entries)[2]
        return None
