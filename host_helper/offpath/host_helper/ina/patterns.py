"""What a job's steps look like, as seen from its own all-reduces (MINA §II-C): their bytes and their earliest starts.

A step begins when the last operation of the one before is complete: what follows, to the moment when its own last
operation is issued, is computation. So the figures are the same whether the network is fast or slow.

DDP cuts its buckets anew after the first step, so the first two are left out; other bytes than before (another bucket,
`no_sync`) are another pattern, and begin again.
"""

from __future__ import annotations

import statistics
from typing import Final

from offpath.sched.ina.patterns import MOST_OPERATIONS, AllReduce, Pattern

STEPS: Final = 8
"""Of one sequence of bytes, before there is a pattern."""
LEFT_OUT: Final = 3
"""The call that begins the first step ends none; then two steps."""


class Collector:
    """Told of each operation; times are ns of any one clock. ``is_watching``: it wants to hear when they complete."""

    def __init__(self, job: str) -> None:
        self._job = job
        self._bytes: list[int] = []
        self._issued: list[int] = []
        self._key: tuple[int, ...] = ()
        self._begun = self._ended = 0
        """When this step began, when the last operation so far was complete."""
        self._number = 0
        self._steps: list[tuple[int, list[int]]] = []
        self.is_watching = True

    def step(self) -> Pattern | None:
        """A step begins; a pattern, when the last one made it whole."""
        key, found = tuple(self._bytes), None
        self._number += 1
        if key != self._key:
            self._key, self._steps, self.is_watching = key, [], True
        elif self.is_watching and self._number > LEFT_OUT and 0 < len(key) == len(self._issued) <= MOST_OPERATIONS:
            starts = [max(0, at - self._begun) for at in self._issued]
            self._steps.append((starts[-1], starts))
            if len(self._steps) == STEPS:
                found, self.is_watching = self._pattern(), False
        self._begun = max(self._ended, self._issued[-1] if self._issued else 0)
        self._bytes, self._issued = [], []
        return found

    def issued(self, nbytes: int, now: int) -> None:
        """An all-reduce was asked for."""
        self._bytes.append(nbytes)
        if self.is_watching:
            self._issued.append(now)

    def complete(self, now: int) -> None:
        """One is complete; in whatever thread."""
        self._ended = now

    def _pattern(self) -> Pattern:
        starts = [round(statistics.median(each)) for each in zip(*(starts for _, starts in self._steps), strict=True)]
        duration = round(statistics.median(duration for duration, _ in self._steps))
        operations = tuple(AllReduce(start, nbytes) for start, nbytes in zip(starts, self._key, strict=True))
        return Pattern(self._job, operations, max(1, duration))
