"""Aggregators of a statistical switch as a state machine: no I/O, no clock (NetPack §2.2, ATP).

Packets go in, packets go out. An aggregator is found by hash modulo their number and serves first come, first served:

    FREE ── first DATA of a (job, PSN) ──▶ FILLING ── last worker's DATA: the sum goes to the PS ──▶ SENT
      ▲                                       │                                                      │
      └── RESULT of its PSN · flush ──────────┴──────────────────────────────────────────────────────┘

A *flush* sends what the aggregator holds to the PS and frees it. It happens on a retransmission of its PSN, on the PS's
FLUSH, and when another packet wants an aggregator that nothing has touched for `stale_ns`. So neither a worker that
fell back to the PS while others did not, nor a lost packet, nor a job that died holds an aggregator for ever.

What a packet carries is summed at most once: a worker's bit is set when it is summed, and the PS drops a partial sum
with a bit that it has.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

import numpy as np
from numpy.typing import NDArray

from offpath.bindings.ina.packets import Flag, Packet, PacketKind

MOST_AGGREGATORS: Final = 1 << 20


class State(Enum):
    """Of an aggregator that is taken."""

    FILLING = 1
    SENT = 2


@dataclass(slots=True)
class Aggregator:
    """One that is taken by (job, psn). ``total``: int32, wraps; ``touched_ns``: the last packet summed or sent."""

    job: int
    psn: int
    workers: int
    bitmap: int
    flags: int
    hash: int
    total: NDArray[np.int32]
    touched_ns: int
    state: State = State.FILLING


@dataclass(slots=True)
class JobCounters:
    """A job's packets at a switch. Every DATA packet that may be aggregated is in ``aggregated``, ``fallback``,
    ``duplicates`` or ``mismatched``, or still in an aggregator."""

    data: int = 0
    """DATA packets received."""
    aggregated: int = 0
    """Summed with another worker's before they went on."""
    fallback: int = 0
    """Went on alone: a collision, a retransmission that met no aggregator, or a flush before the others came."""
    collisions: int = 0
    retransmitted: int = 0
    duplicates: int = 0
    mismatched: int = 0
    """Dropped: of another length or number of workers than the packets before of the PSN."""
    unaggregated: int = 0
    """Sent with aggregation off."""
    flushes: int = 0
    """Aggregators freed by a flush."""
    results: int = 0


class Aggregators:
    """All aggregators of one switch. Not thread-safe."""

    def __init__(self, count: int, stale_ns: int) -> None:
        """``count``: 0 to `MOST_AGGREGATORS`; 0: it aggregates nothing. ``stale_ns``: above the longest time from the
        first packet of a PSN to its result."""
        if not 0 <= count <= MOST_AGGREGATORS or stale_ns < 1:
            raise ValueError(f"{count} aggregators, stale after {stale_ns} ns: out of range")
        self.count, self.stale_ns = count, stale_ns
        self.taken: dict[int, Aggregator] = {}
        """By index; an index that is not in it is free."""
        self.counters: dict[int, JobCounters] = {}
        """By job; see `forget`."""

    def data(self, packet: Packet, now_ns: int) -> list[Packet]:
        """A worker's DATA, with one bit set; returns what goes to parameter servers, in order.

        A packet of another job can be among them: the stale aggregator that this one takes over.
        """
        counters = self._counters(packet.job)
        counters.data += 1
        if packet.flags & Flag.UNAGGREGATED:
            counters.unaggregated += 1
            return [packet]
        counters.retransmitted += packet.flags & Flag.RETRANSMITTED
        if self.count == 0:
            counters.fallback += 1
            return [packet]
        index = packet.hash % self.count
        found = self.taken.get(index)
        if found is None:
            return self._first(packet, index, now_ns)
        if (found.job, found.psn) == (packet.job, packet.psn):
            return self._same(packet, index, found, now_ns)
        if now_ns - found.touched_ns < self.stale_ns:
            counters.collisions += 1
            counters.fallback += 1
            return [replace(packet, flags=packet.flags | Flag.COLLIDED)]
        return [*self._flushed(index), *self._first(packet, index, now_ns)]

    def result(self, packet: Packet) -> None:
        """A RESULT on its way back releases its PSN's aggregator."""
        counters = self._counters(packet.job)
        counters.results += 1
        index = self._holder(packet)
        if index is not None:
            found = self.taken.pop(index)
            self._count_leaving(found, is_first=found.state is State.FILLING)

    def flush(self, packet: Packet) -> list[Packet]:
        """The PS's FLUSH; returns what its PSN's aggregator held."""
        index = self._holder(packet)
        return self._flushed(index) if index is not None else []

    def flush_stale(self, now_ns: int) -> list[Packet]:
        """Flush every aggregator that nothing has touched for `stale_ns`."""
        stale = [index for index, each in self.taken.items() if now_ns - each.touched_ns >= self.stale_ns]
        return [packet for index in stale for packet in self._flushed(index)]

    def forget(self, job: int) -> None:
        """Drop all of a job that has left: its aggregators, without sending them on, and its counters."""
        for index in [index for index, each in self.taken.items() if each.job == job]:
            del self.taken[index]
        self.counters.pop(job, None)

    # -- one aggregator -----------------------------------------------------------------------------------------------
    def _first(self, packet: Packet, index: int, now_ns: int) -> list[Packet]:
        """The aggregator is free."""
        if packet.flags & Flag.RETRANSMITTED or packet.workers == 1:
            # the others' packets of a retransmitted PSN may have passed: it could wait for ever
            self._counters(packet.job).fallback += 1
            return [packet]
        self.taken[index] = Aggregator(
            packet.job, packet.psn, packet.workers, packet.bitmap, packet.flags, packet.hash,
            np.frombuffer(packet.payload, "<i4").copy(), now_ns,
        )  # fmt: skip
        return []

    def _same(self, packet: Packet, index: int, found: Aggregator, now_ns: int) -> list[Packet]:
        """The aggregator is this PSN's."""
        counters = self._counters(packet.job)
        if packet.workers != found.workers or len(packet.payload) != found.total.nbytes:
            counters.mismatched += 1
            return []
        if packet.bitmap & found.bitmap:
            counters.duplicates += 1
        else:
            found.total += np.frombuffer(packet.payload, "<i4")
            found.bitmap |= packet.bitmap
            found.flags |= packet.flags & Flag.CONGESTED
            found.touched_ns = now_ns
        if packet.flags & Flag.RETRANSMITTED:
            return self._flushed(index)
        if found.state is State.FILLING and found.bitmap == (1 << found.workers) - 1:
            found.state = State.SENT
            self._count_leaving(found)
            return [_sum_of(found)]
        return []

    def _flushed(self, index: int) -> list[Packet]:
        found = self.taken.pop(index)
        self._counters(found.job).flushes += 1
        self._count_leaving(found, is_first=found.state is State.FILLING)
        return [_sum_of(found)]

    def _count_leaving(self, found: Aggregator, *, is_first: bool = True) -> None:
        """Count its packets as aggregated or not, when they leave for the first time."""
        counters = self._counters(found.job)
        summed = found.bitmap.bit_count()
        if is_first and summed > 1:
            counters.aggregated += summed
        elif is_first:
            counters.fallback += summed

    def _holder(self, packet: Packet) -> int | None:
        """Index of the aggregator that the packet's PSN has."""
        index = packet.hash % self.count if self.count else 0
        found = self.taken.get(index)
        return index if found is not None and (found.job, found.psn) == (packet.job, packet.psn) else None

    def _counters(self, job: int) -> JobCounters:
        return self.counters.setdefault(job, JobCounters())


def _sum_of(found: Aggregator) -> Packet:
    return Packet(
        PacketKind.DATA, found.job, found.psn, found.workers, found.bitmap, found.flags, found.hash,
        found.total.tobytes(),
    )  # fmt: skip
