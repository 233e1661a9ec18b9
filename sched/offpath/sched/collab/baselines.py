"""What Venn is compared with: an order of all jobs, and random matching as in three published systems (§2.2, §5.1)."""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from enum import Enum, auto
from itertools import accumulate
from typing import Final

from offpath.sched.collab.lines import Entry, Line
from offpath.sched.collab.port import Draw, Waiting


class By(Enum):
    """What jobs are sorted by: the least goes first."""

    ARRIVAL = auto()
    REMAINING = auto()
    RANK = auto()


_KEYS: Final[dict[By, Callable[[Waiting], float]]] = {
    By.ARRIVAL: lambda each: each.arrived_ns,
    By.REMAINING: lambda each: each.remaining,
    By.RANK: lambda each: each.rank,
}


class Ordered:
    """One order of all jobs: a device gets the first one that it can run."""

    is_steady = True

    def __init__(self, name: str, by: By, *, has_tiers: bool = False) -> None:
        self.name, self.has_tiers, self.by, self._key = name, has_tiers, by, _KEYS[by]
        self._lines: dict[int, Line] = {}
        self._waiting: dict[str, tuple[int, Entry]] = {}

    def opened(self, job: str, bit: int) -> None:
        """See `CollabPolicy`."""

    def closed(self, job: str) -> None:
        """See `CollabPolicy`."""

    def waits(self, waiting: Waiting) -> None:
        """See `CollabPolicy`."""
        entry = (self._key(waiting), waiting.arrived_ns, waiting.job)
        known = self._waiting.get(waiting.job)
        if known is not None and known[0] == waiting.bit:
            self._lines[waiting.bit].replace(known[1], entry)
        else:
            self.left(waiting.job)
            self._lines.setdefault(waiting.bit, Line()).add(entry)
        self._waiting[waiting.job] = waiting.bit, entry

    def left(self, job: str) -> None:
        """See `CollabPolicy`."""
        known = self._waiting.pop(job, None)
        if known is None:
            return
        bit, entry = known
        self._lines[bit].remove(entry)
        if not len(self._lines[bit]):
            del self._lines[bit]

    def supplied(self, supply: Mapping[int, int]) -> None:
        """See `CollabPolicy`. The order does not depend on it."""

    def candidates(self, atom: int) -> Iterator[str]:
        """See `CollabPolicy`."""
        lines = [line for bit, line in self._lines.items() if atom >> bit & 1]
        for entry in heapq.merge(*lines):
            yield entry[2]


class Sampled:
    """A device gets one eligible job at random, and nothing if that one does not need it.

    ``among_open``: it samples from all open jobs, not only from those that wait for devices. ``weight``: of a job.
    """

    has_tiers = False
    is_steady = False

    def __init__(self, name: str, draw: Draw, weight: Callable[[int], int], *, among_open: bool) -> None:
        self.name, self._draw, self._weight, self._among_open = name, draw, weight, among_open
        self._bits: dict[str, int] = {}
        self._remaining: dict[str, tuple[int, int]] = {}

    def opened(self, job: str, bit: int) -> None:
        """See `CollabPolicy`."""
        self._bits[job] = bit

    def closed(self, job: str) -> None:
        """See `CollabPolicy`."""
        self._bits.pop(job, None)

    def waits(self, waiting: Waiting) -> None:
        """See `CollabPolicy`."""
        self._remaining[waiting.job] = waiting.bit, waiting.remaining

    def left(self, job: str) -> None:
        """See `CollabPolicy`."""
        self._remaining.pop(job, None)

    def supplied(self, supply: Mapping[int, int]) -> None:
        """See `CollabPolicy`. The chances do not depend on it."""

    def candidates(self, atom: int) -> Iterator[str]:
        """See `CollabPolicy`. One at most."""
        if self._among_open:
            jobs = [(job, 1) for job, bit in self._bits.items() if atom >> bit & 1]
        else:
            jobs = [(job, self._weight(left)) for job, (bit, left) in self._remaining.items() if atom >> bit & 1]
        if not jobs:
            return
        sums = list(accumulate(weight for _, weight in jobs))
        yield jobs[bisect_right(sums, self._draw(sums[-1]))][0]


def apple(draw: Draw) -> Sampled:
    """Driven by clients: each samples from the jobs that it can run, and learns only then whether the job needs it."""
    return Sampled("random-apple", draw, lambda left: 1, among_open=True)


def meta(draw: Draw) -> Sampled:
    """Central: each client gets one eligible job that needs it, all with equal chances."""
    return Sampled("random-meta", draw, lambda left: 1, among_open=False)


def google(draw: Draw) -> Sampled:
    """Driven by jobs: each samples from the available clients as many as it needs, independently of the others. In a
    large pool the chance that a client is a job's is in proportion to what the job needs."""
    return Sampled("random-google", draw, lambda left: left, among_open=False)
