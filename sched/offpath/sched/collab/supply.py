"""How many devices of each atom check in: averaged over a day, because their number follows the hour (Venn §4.4).

Counts are kept by properties, not by atom: a new requirement splits atoms, and what they had is still known. A device
that sends properties nobody has sent before cannot make the table grow without end: beyond `MOST_KINDS` it counts for
the first kind with the same atom, else for nobody.

A plan does not follow each check-in. It takes new counts when the hour changes, and until there are a day's, when they
have doubled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from offpath.sched.collab.requirements import MOST_KINDS, Properties

HOUR_NS: Final = 3_600 * 10**9
HOURS: Final = 24


class Supply:
    """Check-ins of the last 24 full hours and the present one. No clock: a time before the last one counts as that."""

    def __init__(self) -> None:
        self._hours: dict[int, dict[Properties, int]] = {}
        self._total: dict[Properties, int] = {}
        """Without the present hour."""
        self.hour = -1
        """The present one; -1: nobody has checked in."""
        self._now: dict[Properties, int] = {}
        self.left = 0
        """Check-ins until counts have doubled."""

    def seen(self, device: Properties, now_ns: int, atom: Callable[[Properties], int]) -> bool:
        """A device checked in. True: a plan should take new counts."""
        hour = now_ns // HOUR_NS
        is_due = hour > self.hour
        if is_due:
            self._begin(hour)
        count = self._now.get(device)
        if count is None:
            known = self._known(device, atom)
            if known is None:
                return is_due
            device, count = known, self._now.get(known, 0)
        self._now[device] = count + 1
        self.left -= 1
        return is_due or self.left == 0

    def add(self, device: Properties, count: int) -> None:
        """``count`` check-ins in the present hour, fewer than `left`: what `seen` counts one by one."""
        self._now[device] = self._now.get(device, 0) + count
        self.left -= count

    def by_atom(self, atom: Callable[[Properties], int]) -> dict[int, int]:
        """Atom → check-ins in the window, for a plan: `seen` says when the next plan is due."""
        found: dict[int, int] = {}
        for device, count in self.counts():
            mask = atom(device)
            found[mask] = found.get(mask, 0) + count
        self.left = max(1, sum(found.values()))
        return found

    def counts(self) -> Iterator[tuple[Properties, int]]:
        """Kinds of devices with their check-ins in the window; a kind may come twice."""
        yield from self._total.items()
        yield from self._now.items()

    @property
    def kinds(self) -> int:
        """Different kinds of devices in the window."""
        return len(self._total.keys() | self._now.keys())

    def _known(self, device: Properties, atom: Callable[[Properties], int]) -> Properties | None:
        if device in self._total or len(self._total) + len(self._now) < MOST_KINDS:
            return device
        mask = atom(device)
        return next((each for counts in (self._total, self._now) for each in counts if atom(each) == mask), None)

    def _begin(self, hour: int) -> None:
        if self._now:
            self._hours[self.hour] = self._now
            for device, count in self._now.items():
                self._total[device] = self._total.get(device, 0) + count
        self.hour, self._now = hour, {}
        for old in [each for each in self._hours if each < hour - HOURS]:
            for device, count in self._hours.pop(old).items():
                self._total[device] -= count
                if not self._total[device]:
                    del self._total[device]
