"""Polling interval of what has no notifications: continuous after activity, then increasingly rare."""

from __future__ import annotations

from typing import Final

SPIN_NS: Final = 50_000
SHORTEST_NS: Final = 50_000
LONGEST_NS: Final = 1_000_000


class Pace:
    """Reads no clock; callers pass the time."""

    def __init__(self, now_ns: int) -> None:
        self._moved_ns = now_ns
        self._nap_ns = SHORTEST_NS

    def moved(self, now_ns: int) -> None:
        """There was activity: more may follow at once."""
        self._moved_ns = now_ns
        self._nap_ns = SHORTEST_NS

    def nap_ns(self, now_ns: int) -> int:
        """Time to wait before the next poll: 0 shortly after activity, then longer each time."""
        if now_ns - self._moved_ns < SPIN_NS:
            return 0
        nap_ns = self._nap_ns
        self._nap_ns = min(LONGEST_NS, 2 * nap_ns)
        return nap_ns
