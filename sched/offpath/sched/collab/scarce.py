"""The policy `venn`: one order of all jobs, by demand, by how scarce their devices are, and by who waits for the same.

A device goes to the eligible job with the least D·|S| / m: D the devices of its whole request, |S| the check-ins of a
day that its group can use, m the jobs of the group that wait. m / |S| is what algorithm 1 compares groups by (Venn
§4.2.2); here it weighs jobs, and no group has to win or lose all of an intersection at once.

D is that of the whole request, not what remains of it. Jobs repeat their requests: with what remains, two equal jobs
take turns, and both end late. So a job that has been served is served again as soon as it asks.
"""

from __future__ import annotations

import heapq
from bisect import insort
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from offpath.sched.collab.lines import Entry, Line
from offpath.sched.collab.port import Waiting


@dataclass(slots=True)
class _Group:
    """``size``: check-ins that it can use, at least 1. ``head``: its first job, weighed; None: not in the order."""

    size: int
    line: Line = field(default_factory=Line)
    head: Entry | None = None

    def weighed(self, entry: Entry) -> Entry:
        """The entry with the key by which jobs of different groups are compared."""
        return entry[0] * self.size / len(self.line), entry[1], entry[2]


class Scarcest:
    """A job that comes or goes costs O(jobs of its group + groups); new supply O(atoms · groups); a device O(groups),
    and O(1) if its atom has been asked for since the last change."""

    is_steady = True
    has_tiers = False

    def __init__(self, name: str = "venn") -> None:
        self.name = name
        self._supply: Mapping[int, int] = {}
        self._sizes: dict[int, int] = {}
        self._groups: dict[int, _Group] = {}
        self._waiting: dict[str, tuple[int, Entry]] = {}
        self._order: list[tuple[Entry, int]] = []
        """Heads of the groups, and their bits."""
        self._best: dict[int, int | None] = {}
        """By atom the group whose head gets its devices."""

    def opened(self, job: str, bit: int) -> None:
        """See `CollabPolicy`."""

    def closed(self, job: str) -> None:
        """See `CollabPolicy`."""

    def waits(self, waiting: Waiting) -> None:
        """See `CollabPolicy`."""
        entry = (float(waiting.demand or waiting.remaining), waiting.arrived_ns, waiting.job)
        known = self._waiting.get(waiting.job)
        if known == (waiting.bit, entry):
            return
        self.left(waiting.job)
        self._waiting[waiting.job] = waiting.bit, entry
        if waiting.bit not in self._groups:
            self._groups[waiting.bit] = _Group(self._size(waiting.bit))
        group = self._groups[waiting.bit]
        group.line.add(entry)
        self._placed(waiting.bit, group)

    def left(self, job: str) -> None:
        """See `CollabPolicy`."""
        known = self._waiting.pop(job, None)
        if known is None:
            return
        bit, entry = known
        group = self._groups[bit]
        group.line.remove(entry)
        self._placed(bit, group)
        if not len(group.line):
            del self._groups[bit]

    def supplied(self, supply: Mapping[int, int]) -> None:
        """See `CollabPolicy`."""
        self._supply = dict(supply)
        self._sizes.clear()
        for bit, group in self._groups.items():
            group.size = self._size(bit)
            self._placed(bit, group)

    def candidates(self, atom: int) -> Iterator[str]:
        """See `CollabPolicy`."""
        if atom not in self._best:
            self._best[atom] = next((bit for _, bit in self._order if atom >> bit & 1), None)
        best = self._best[atom]
        if best is None:
            return
        first = self._groups[best].line.first[2]
        yield first
        for entry in heapq.merge(*(_weighed(group) for bit, group in self._groups.items() if atom >> bit & 1)):
            if entry[2] != first:
                yield entry[2]

    def _size(self, bit: int) -> int:
        if bit not in self._sizes:
            self._sizes[bit] = max(1, sum(count for atom, count in self._supply.items() if atom >> bit & 1))
        return self._sizes[bit]

    def _placed(self, bit: int, group: _Group) -> None:
        """The group's head, its queue or its size has changed."""
        if group.head is not None:
            self._order.remove((group.head, bit))
        group.head = group.weighed(group.line.first) if len(group.line) else None
        if group.head is not None:
            insort(self._order, (group.head, bit))
        self._best.clear()


def _weighed(group: _Group) -> Iterable[Entry]:
    return map(group.weighed, group.line)
