"""A job's parameter server (PS) as a state machine: no I/O, no clock (NetPack §2.2, ATP).

It adds what the switch did not add. A PSN is complete when every worker's bit is in; then its result goes to all
workers, and again to those that still send it. A result is kept until all workers must have it: a worker sends PSN p
only after it has all results up to p - ``ring``.

A packet that fell back can be one of several whose others wait in an aggregator. So the PS sends a FLUSH for a PSN that
stays incomplete, again and again with doubled pauses; a worker's retransmission flushes too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from offpath.bindings.ina.packets import MOST_WORKERS, Flag, Packet, PacketKind

_MOST_DOUBLINGS: Final = 8


@dataclass(slots=True)
class ServerCounters:
    """What a PS received and did."""

    data: int = 0
    summed: int = 0
    """DATA packets added to a sum."""
    duplicates: int = 0
    """Dropped: all their workers are in already."""
    overlapping: int = 0
    """Dropped: some of their workers are in already. Those that are not send again."""
    outside: int = 0
    """Dropped: a PSN that no worker can send now, or another length than the packets before of the PSN."""
    results: int = 0
    repeated: int = 0
    """Results sent again."""
    flushes: int = 0


@dataclass(slots=True)
class _Sum:
    """A PSN. ``flush_ns``: when to send the next FLUSH."""

    bitmap: int
    flags: int
    hash: int
    total: NDArray[np.int32]
    flush_ns: int
    flushes: int = 0
    is_complete: bool = False


class ParameterServer:
    """One job's. Not thread-safe. ``ring``: the widest window of its workers; ``flush_ns``: how long a PSN may be
    incomplete before the first FLUSH."""

    def __init__(self, job: int, workers: int, ring: int, flush_ns: int) -> None:
        if not 0 < workers <= MOST_WORKERS or ring < 1 or flush_ns < 1:
            raise ValueError(f"{workers} workers, ring {ring}, flush after {flush_ns} ns: out of range")
        self.counters = ServerCounters()
        self._job, self._workers, self._ring, self._flush_ns = job, workers, ring, flush_ns
        self._full = (1 << workers) - 1
        self._sums: dict[int, _Sum] = {}
        self._incomplete: dict[int, _Sum] = {}
        self._highest = [-1] * workers
        """Of each worker, the highest PSN seen."""
        self._first_kept = 0

    @property
    def held(self) -> int:
        """PSNs in memory; at most twice the ring, and one."""
        return len(self._sums)

    def data(self, packet: Packet, now_ns: int) -> list[Packet]:
        """A DATA packet; returns the results to send."""
        self.counters.data += 1
        psn = packet.psn
        if (
            packet.job != self._job or packet.workers != self._workers
            or not self._first_kept <= psn <= self._first_kept + 2 * self._ring
        ):  # fmt: skip
            self.counters.outside += 1
            return []
        found = self._sums.get(psn)
        if found is not None and found.total.nbytes != len(packet.payload):
            self.counters.outside += 1
            return []
        self._saw(packet)
        if found is None:
            found = self._sums[psn] = self._incomplete[psn] = _Sum(
                0, 0, packet.hash, np.zeros(len(packet.payload) // 4, "<i4"), now_ns + self._flush_ns
            )
        if found.is_complete:
            self.counters.duplicates += 1
            self.counters.repeated += 1
            return [self._result(psn, found, packet.bitmap)]
        self._add(found, packet)
        if found.bitmap != self._full:
            return []
        found.is_complete = True
        del self._incomplete[psn]
        self.counters.results += 1
        return [self._result(psn, found, self._full)]

    def due(self, now_ns: int) -> list[Packet]:
        """The FLUSHes to send now."""
        found = []
        for psn, each in self._incomplete.items():
            if each.flush_ns <= now_ns and not each.flags & Flag.UNAGGREGATED:
                each.flushes = min(_MOST_DOUBLINGS, each.flushes + 1)
                each.flush_ns = now_ns + (self._flush_ns << each.flushes)
                self.counters.flushes += 1
                found.append(Packet(PacketKind.FLUSH, self._job, psn, self._workers, hash=each.hash))
        return found

    def deadline_ns(self) -> int | None:
        """When `due` must be called at the latest."""
        waiting = [each.flush_ns for each in self._incomplete.values() if not each.flags & Flag.UNAGGREGATED]
        return min(waiting, default=None)

    # -- parts --------------------------------------------------------------------------------------------------------
    def _saw(self, packet: Packet) -> None:
        """Learn how far the workers are, and drop the results that all have."""
        for rank in range(self._workers):
            if packet.bitmap >> rank & 1 and packet.psn > self._highest[rank]:
                self._highest[rank] = packet.psn
        first_kept = max(0, min(self._highest) - self._ring + 1)
        while self._first_kept < first_kept:
            self._sums.pop(self._first_kept, None)
            self._incomplete.pop(self._first_kept, None)
            self._first_kept += 1

    def _add(self, found: _Sum, packet: Packet) -> None:
        common = found.bitmap & packet.bitmap
        found.flags |= packet.flags & (Flag.CONGESTED | Flag.COLLIDED | Flag.UNAGGREGATED)
        values = np.frombuffer(packet.payload, "<i4")
        if common == packet.bitmap:
            self.counters.duplicates += 1
        elif common == found.bitmap:  # it has all that is here, and more; nothing is here at first
            found.total[:] = values if common else found.total + values
            found.bitmap = packet.bitmap
            self.counters.summed += 1
        elif common:
            self.counters.overlapping += 1
        else:
            found.total += values
            found.bitmap |= packet.bitmap
            self.counters.summed += 1

    def _result(self, psn: int, found: _Sum, to: int) -> Packet:
        return Packet(
            PacketKind.RESULT, self._job, psn, self._workers, to, found.flags & (Flag.CONGESTED | Flag.COLLIDED),
            found.hash, found.total.tobytes(),
        )  # fmt: skip
