"""Measures the pattern of a job's steps from its all-reduces (MINA §II-C): their bytes and their earliest starts.

A step begins when the last operation of the previous one is complete. From there until its own last operation is
issued, the time is computation, so the pattern does not depend on the network's speed.

DDP changes its buckets after the first step, so the first two are left out. Different byte counts (other buckets,
`no_sync`) start a new pattern.
"""

from __future__ import annotations

import statistics
from typing import Final

from offpath.sched.ina.patterns import MOST_OPERATIONS, AllReduce, Pattern

STEPS: Final = 8
"""Steps with the same byte counts before there is a pattern."""
LEFT_OUT: Final = 3
"""The first call ends no step; the next two steps are left out."""


class Collector:
    """Receives each operation; times are ns of any one clock. ``is_watching``: completions must be reported too."""

    def __init__(self, job: str) -> None:
        self._job = job
        self._bytes: list[int] = []
        self._issued: list[int] = []
        self._key: tuple[int, ...] = ()
        self._begun = self._ended = 0
        """The start of this step, and the completion of the latest operation."""
        self._number = 0
        self._steps: list[tuple[int, list[int]]] = []
        self.is_watching = True

    def step(self) -> Pattern | None:
        """Begin a step; returns a pattern when the last step completed it."""
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
        """An all-reduce was issued."""
        self._bytes.append(nbytes)
        if self.is_watching:
            self._issued.append(now)

    def complete(self, now: int) -> None:
        """An all-reduce is complete; may be called in any thread."""
        self._ended = now

    def _pattern(self) -> Pattern:
        starts = [round(statistics.median(each)) for each in zip(*(starts for _, starts in self._steps), strict=True)]
        duration = round(statistics.median(duration for duration, _ in self._steps))
        operations = tuple(AllReduce(start, nbytes) for start, nbytes in zip(starts, self._key, strict=True))
        return Pattern(self._job, operations, max(1, duration))
