"""How often to poll what has no notifications: all the time after something moved, then ever more rarely."""

from __future__ import annotations

from typing import Final

SPIN_NS: Final = 50_000
SHORTEST_NS: Final = 50_000
LONGEST_NS: Final = 1_000_000


class Pace:
    """No clock of its own."""

    def __init__(self, now_ns: int) -> None:
        self._moved_ns = now_ns
        self._nap_ns = SHORTEST_NS

    def moved(self, now_ns: int) -> None:
        """Something happened: more may follow at once."""
        self._moved_ns = now_ns
        self._nap_ns = SHORTEST_NS

    def nap_ns(self, now_ns: int) -> int:
        """How long to wait before the next look; each time longer, 0 while something moved just now."""
        if now_ns - self._moved_ns < SPIN_NS:
            return 0
        nap_ns = self._nap_ns
        self._nap_ns = min(LONGEST_NS, 2 * nap_ns)
        return nap_ns
