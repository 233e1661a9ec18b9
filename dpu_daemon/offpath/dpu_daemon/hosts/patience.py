"""How long a restarted daemon waits for its former helper and workers: while evidence of life comes in, up to a bound.

No clock: times are arguments, in s of any clock that does not go back.
"""

from __future__ import annotations


class Patience:
    """``each_s`` from the start and from each piece of evidence, ``most_s`` from the start in all, or ``each_s`` if
    that is more."""

    def __init__(self, now_s: float, each_s: float, most_s: float) -> None:
        self._each_s = each_s
        self._last_s = now_s + max(each_s, most_s)
        self.until_s = now_s + each_s
        self._is_warned = False

    def seen(self, now_s: float) -> None:
        """A piece of evidence: a connection, a hello, an offer of what is awaited."""
        self._is_warned = False
        self.until_s = max(self.until_s, min(now_s + self._each_s, self._last_s))

    def next_look_s(self, now_s: float) -> float | None:
        """How long to wait before the next look; None: it is over.

        The end is reached only by a second look: a process that was not scheduled finds its time gone and the
        evidence still unread, and reads it between the two.
        """
        if now_s < self.until_s:
            self._is_warned = False
            return self.until_s - now_s
        if self._is_warned:
            return None
        self._is_warned = True
        return 0.0
