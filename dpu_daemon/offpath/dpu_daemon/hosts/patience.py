"""Computes how long a restarted daemon waits for its former helper and workers.

The wait starts again at each contact, up to a bound. No clock is read: times are arguments, in s of any monotonic
clock.
"""

from __future__ import annotations


class Patience:
    """Waits ``each_s`` from the start and from each contact; in all at most ``most_s`` from the start, or
    ``each_s`` if that is longer."""

    def __init__(self, now_s: float, each_s: float, most_s: float) -> None:
        self._each_s = each_s
        self._last_s = now_s + max(each_s, most_s)
        self.until_s = now_s + each_s
        self._is_warned = False

    def seen(self, now_s: float) -> None:
        """Record a contact: a connection, a hello or an offer of an awaited peer."""
        self._is_warned = False
        self.until_s = max(self.until_s, min(now_s + self._each_s, self._last_s))

    def next_look_s(self, now_s: float) -> float | None:
        """The time to wait before the next check; None: the wait is over.

        The wait ends only at a second check. A process that was not scheduled may find its time used up while contacts
        are still unread; it reads them between the two checks.
        """
        if now_s < self.until_s:
            self._is_warned = False
            return self.until_s - now_s
        if self._is_warned:
            return None
        self._is_warned = True
        return 0.0
