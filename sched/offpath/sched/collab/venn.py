"""Venn as a policy: algorithm 1 across groups, remaining demand within a group, tiers (§4.3) in the book."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from offpath.sched.collab import irs
from offpath.sched.collab.fairness import demand, queue
from offpath.sched.collab.lines import Entry, Line
from offpath.sched.collab.port import Waiting


@dataclass(slots=True)
class _Group:
    """``alone_ns``, ``served_ns``: sums over its jobs."""

    line: Line = field(default_factory=Line)
    alone_ns: int = 0
    served_ns: int = 0


class Venn:
    """``epsilon``: fairness (§4.4); 0: none. A device that its owner does not need goes to the scarcest group that can
    use it."""

    is_steady = True

    def __init__(
        self,
        name: str = "venn-paper",
        *,
        epsilon: float = 0.0,
        reading: irs.Reading = irs.PAPER,
        has_tiers: bool = True,
    ) -> None:
        self.name, self.has_tiers = name, has_tiers
        self.irs = irs.Irs(reading)
        self.epsilon = epsilon
        self._groups: dict[int, _Group] = {}
        self._waiting: dict[str, tuple[Waiting, Entry]] = {}

    def opened(self, job: str, bit: int) -> None:
        """See `CollabPolicy`."""

    def closed(self, job: str) -> None:
        """See `CollabPolicy`."""

    def waits(self, waiting: Waiting) -> None:
        """See `CollabPolicy`."""
        entry = (demand(waiting.remaining, waiting.standing, self.epsilon), waiting.arrived_ns, waiting.job)
        known = self._waiting.get(waiting.job)
        if known is not None and known[0].bit == waiting.bit:
            group = self._groups[waiting.bit]
            self._waiting[waiting.job] = waiting, entry
            group.line.replace(known[1], entry)
            if known[0].standing is not waiting.standing:
                group.alone_ns += waiting.standing.alone_ns - known[0].standing.alone_ns
                group.served_ns += waiting.standing.served_ns - known[0].standing.served_ns
                self._queued(waiting.bit, group)
            return
        self.left(waiting.job)
        self._waiting[waiting.job] = waiting, entry
        group = self._groups.setdefault(waiting.bit, _Group())
        group.line.add(entry)
        group.alone_ns += waiting.standing.alone_ns
        group.served_ns += waiting.standing.served_ns
        self._queued(waiting.bit, group)

    def left(self, job: str) -> None:
        """See `CollabPolicy`."""
        known = self._waiting.pop(job, None)
        if known is None:
            return
        waiting, entry = known
        group = self._groups[waiting.bit]
        group.line.remove(entry)
        group.alone_ns -= waiting.standing.alone_ns
        group.served_ns -= waiting.standing.served_ns
        self._queued(waiting.bit, group)
        if not len(group.line):
            del self._groups[waiting.bit]

    def supplied(self, supply: Mapping[int, int]) -> None:
        """See `CollabPolicy`."""
        self.irs.supplied(supply)

    def candidates(self, atom: int) -> Iterator[str]:
        """See `CollabPolicy`. A plan that is stale is made first."""
        owner = self.irs.owner(atom)
        if owner is None:
            return
        for entry in self._groups[owner].line:
            yield entry[2]
        for bit in self.irs.order:
            if bit != owner and atom >> bit & 1:
                for entry in self._groups[bit].line:
                    yield entry[2]

    def _queued(self, bit: int, group: _Group) -> None:
        self.irs.queued(bit, queue(len(group.line), group.alone_ns, group.served_ns, self.epsilon))
