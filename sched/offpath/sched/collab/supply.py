"""How many devices of each atom check in: averaged over a day, because their number follows the hour (Venn §4.4).

Counts are kept by properties, not by atom: a new requirement splits atoms, and what they had is still known. A device
that sends properties nobody has sent before cannot make the table grow without end: beyond `MOST_KINDS` it counts for
the first kind with the same atom, else for nobody.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Final

from offpath.sched.collab.requirements import Properties

HOUR_NS: Final = 3_600 * 10**9
HOURS: Final = 24
MOST_KINDS: Final = 16_384


class Supply:
    """Check-ins of the last 24 full hours and the present one. No clock: times are given, and never go back."""

    def __init__(self) -> None:
        self._hours: dict[int, Counter[Properties]] = {}
        self._total: Counter[Properties] = Counter()
        self._first_ns = -1

    def seen(self, device: Properties, now_ns: int, atom: Callable[[Properties], int]) -> None:
        """A device checked in."""
        if self._first_ns < 0:
            self._first_ns = now_ns
        hour = now_ns // HOUR_NS
        self._forget(hour)
        if device not in self._total and len(self._total) >= MOST_KINDS:
            mask = atom(device)
            known = next((each for each in self._total if atom(each) == mask), None)
            if known is None:
                return
            device = known
        self._hours.setdefault(hour, Counter())[device] += 1
        self._total[device] += 1

    def by_atom(self, atom: Callable[[Properties], int]) -> dict[int, int]:
        """Atom → check-ins in the window."""
        found: dict[int, int] = {}
        for device, count in self._total.items():
            mask = atom(device)
            found[mask] = found.get(mask, 0) + count
        return found

    def window_ns(self, now_ns: int) -> int:
        """What the counts are of: a day, or less if the first device came later."""
        begin = max(self._first_ns, (now_ns // HOUR_NS - HOURS) * HOUR_NS)
        return max(1, now_ns - begin)

    def _forget(self, hour: int) -> None:
        for old in [each for each in self._hours if each < hour - HOURS]:
            self._total.subtract(self._hours.pop(old))
            self._total += Counter()  # drops zeros
