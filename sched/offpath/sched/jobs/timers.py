"""One heap of timers for the whole book: job deadlines, idle leases, needs that grow old."""

from __future__ import annotations

import heapq
from collections.abc import Callable

Key = tuple[str, int | str]


class Timers:
    """Times in ns. An entry that no longer means anything is dropped when it surfaces, or when such entries are the
    majority (``is_live`` tells), so that jobs with far deadlines cannot fill memory."""

    __slots__ = ("_entries", "_is_live", "_limit", "_sequence")

    def __init__(self, is_live: Callable[[Key, int], bool]) -> None:
        self._entries: list[tuple[int, int, Key]] = []
        self._sequence = 0
        self._is_live = is_live
        self._limit = 256

    def __len__(self) -> int:
        return len(self._entries)

    def arm(self, when_ns: int, key: Key) -> None:
        """Fire ``key`` at ``when_ns`` or as soon after as the shell looks."""
        self._sequence += 1
        heapq.heappush(self._entries, (when_ns, self._sequence, key))
        if len(self._entries) > self._limit:
            self._entries = [e for e in self._entries if self._is_live(e[2], e[0])]
            heapq.heapify(self._entries)
            self._limit = max(256, 2 * len(self._entries))

    def forget(self, kinds: frozenset[str]) -> None:
        """Drop every entry of these kinds: their owner arms them anew."""
        self._entries = [entry for entry in self._entries if entry[2][0] not in kinds]
        heapq.heapify(self._entries)

    def next_ns(self) -> int | None:
        """When the shell should look again, or None."""
        return self._entries[0][0] if self._entries else None

    def due(self, now_ns: int) -> Key | None:
        """Take the next entry that is due, or None."""
        if self._entries and self._entries[0][0] <= now_ns:
            return heapq.heappop(self._entries)[2]
        return None
