"""A worker's sender as a state machine: no I/O, no clock (NetPack §2.2, ATP).

It keeps a window of packets in flight. A result without a mark widens the window by 1 / window, so by one packet a
round trip; a mark (ECN) or a loss halves it, once a window. A packet counts as lost when a packet sent two round trips
later has its result (as RACK, RFC 8985, does), or after a time-out; the retransmission is flagged, so that the switch
flushes the packet's aggregator.

*Rehash* (ATP): PSN p has the aggregator of its position p mod ``ring``. When a result says that its packet collided,
the position gets another one from then on. A packet is sent only after the result of the packet one ring before it, so
all workers use the same hash for it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final

from offpath.bindings.ina.packets import MOST_PSN, MOST_WORKERS, Flag, Packet, PacketKind, aggregator_hash

MOST_RING: Final = 4096
_FIRST_RTO_NS: Final = 1_000_000_000
_REORDERING_RTTS: Final = 2
_MOST_BACKOFF: Final = 64


@dataclass(frozen=True, slots=True)
class Window:
    """Limits of a window, in packets. ``decrease``: what remains of the window after a mark or a loss."""

    least: float = 2.0
    first: float = 8.0
    most: int = 64
    decrease: float = 0.5

    def __post_init__(self) -> None:
        """Raises: ValueError."""
        if not (1 <= self.least <= self.first <= self.most <= MOST_RING and 0 < self.decrease < 1):
            raise ValueError(f"{self}: want 1 <= least <= first <= most <= {MOST_RING}, and 0 < decrease < 1")


@dataclass(slots=True)
class SenderCounters:
    """What a sender did."""

    sent: int = 0
    retransmitted: int = 0
    marked: int = 0
    """Results with an ECN mark."""
    decreases: int = 0
    rehashed: int = 0


@dataclass(slots=True)
class _InFlight:
    payload: bytes
    hash: int
    sent_ns: int
    is_repeated: bool = False


class Sender:
    """Not thread-safe. ``window``: how many packets, ``least_rto_ns``: the shortest time-out."""

    def __init__(
        self, job: int, rank: int, workers: int, window: Window, *, uses_ina: bool = True, rehashes: bool = True,
        least_rto_ns: int = 200_000_000,
    ) -> None:  # fmt: skip
        if not 0 <= rank < workers <= MOST_WORKERS:
            raise ValueError(f"rank {rank} of {workers}: want fewer than {MOST_WORKERS} workers")
        self.counters = SenderCounters()
        self.window = float(window.first)
        self.rtt_ns = 0
        """Smoothed; 0: none measured yet."""
        self._job, self._rank, self._workers, self._limits = job, rank, workers, window
        self._uses_ina, self._rehashes, self._least_rto_ns = uses_ina, rehashes, least_rto_ns
        self._ring = window.most
        self._salts = [0] * self._ring
        self._waiting: deque[bytes] = deque()
        self._in_flight: dict[int, _InFlight] = {}
        """By PSN, in the order of sending."""
        self._next_psn = self._base = 0
        self._recovery_psn = 0
        """A mark or loss of a packet below does not narrow the window again."""
        self._variance_ns = 0
        self._backoff = 1
        self._is_limited = False
        """Whether the window kept something from being sent."""
        self._newest_ns = 0
        """When the latest packet with a result was sent."""

    @property
    def is_idle(self) -> bool:
        """Whether all that was offered has its result."""
        return not self._waiting and not self._in_flight

    def offer(self, payload: bytes) -> int:
        """A packet to send; returns its PSN. Raises: OverflowError: the job has used all PSNs."""
        psn = self._next_psn + len(self._waiting)
        if psn > MOST_PSN:
            raise OverflowError("the job has used all packet numbers")
        self._waiting.append(payload)
        return psn

    def packets(self, now_ns: int) -> list[Packet]:
        """What to send now: lost packets first, then new ones as the window allows."""
        found = [self._again(psn, now_ns) for psn in self._lost(now_ns)]
        while self._waiting and len(self._in_flight) < int(self.window) and self._next_psn < self._base + self._ring:
            psn = self._next_psn
            sent = _InFlight(self._waiting.popleft(), self._hash(psn), now_ns)
            self._in_flight[psn] = sent
            self._next_psn += 1
            self.counters.sent += 1
            found.append(self._packet(psn, sent, 0))
        self._is_limited = bool(self._waiting)
        return found

    def receive(self, packet: Packet, now_ns: int) -> bool:
        """A RESULT; whether it is the first of its PSN, whose sum the caller then takes."""
        sent = self._in_flight.get(packet.psn)
        if sent is None or packet.job != self._job or not packet.bitmap >> self._rank & 1:
            return False
        if len(packet.payload) != len(sent.payload):
            return False
        del self._in_flight[packet.psn]
        self._base = min(self._in_flight, default=self._next_psn) if packet.psn == self._base else self._base
        self._backoff = 1
        if not sent.is_repeated:
            self._measure(now_ns - sent.sent_ns)
            self._newest_ns = max(self._newest_ns, sent.sent_ns)
        if packet.flags & Flag.COLLIDED and self._rehashes:
            self._salts[packet.psn % self._ring] += 1
            self.counters.rehashed += 1
        if packet.flags & Flag.CONGESTED:
            self.counters.marked += 1
            self._narrow(packet.psn)
        elif self._is_limited:  # a sender with nothing to send learns nothing about the network
            self.window = min(self._limits.most, self.window + 1 / self.window)
        return True

    def deadline_ns(self) -> int | None:
        """When `packets` must be called at the latest; None: not before the next result."""
        oldest = next(iter(self._in_flight.values()), None)
        return None if oldest is None else oldest.sent_ns + self._rto_ns()

    # -- parts --------------------------------------------------------------------------------------------------------
    def _hash(self, psn: int) -> int:
        if not self._rehashes:
            return aggregator_hash(self._job, psn)
        position = psn % self._ring
        return aggregator_hash(self._job, position, self._salts[position])

    def _packet(self, psn: int, sent: _InFlight, flags: int) -> Packet:
        flags |= 0 if self._uses_ina else Flag.UNAGGREGATED
        return Packet(
            PacketKind.DATA, self._job, psn, self._workers, 1 << self._rank, flags, sent.hash, sent.payload
        )  # fmt: skip

    def _lost(self, now_ns: int) -> list[int]:
        late_ns = self._newest_ns - _REORDERING_RTTS * self.rtt_ns if self.rtt_ns else -1
        out_ns = now_ns - self._rto_ns()
        lost = []
        for psn, sent in self._in_flight.items():
            if sent.sent_ns > max(late_ns, out_ns):
                break
            if sent.sent_ns <= out_ns or sent.sent_ns < late_ns:
                lost.append(psn)
        if lost and self._in_flight[lost[0]].sent_ns <= out_ns:
            self._backoff = min(_MOST_BACKOFF, 2 * self._backoff)
        return lost

    def _again(self, psn: int, now_ns: int) -> Packet:
        sent = self._in_flight.pop(psn)
        sent.sent_ns, sent.is_repeated = now_ns, True
        self._in_flight[psn] = sent
        self.counters.retransmitted += 1
        self._narrow(psn)
        return self._packet(psn, sent, Flag.RETRANSMITTED)

    def _narrow(self, psn: int) -> None:
        if psn < self._recovery_psn:
            return
        self._recovery_psn = self._next_psn
        self.window = max(self._limits.least, self.window * self._limits.decrease)
        self.counters.decreases += 1

    def _measure(self, took_ns: int) -> None:
        """Jacobson's estimator (RFC 6298)."""
        if self.rtt_ns == 0:
            self.rtt_ns, self._variance_ns = max(1, took_ns), took_ns // 2
            return
        self._variance_ns += (abs(took_ns - self.rtt_ns) - self._variance_ns) // 4
        self.rtt_ns = max(1, self.rtt_ns + (took_ns - self.rtt_ns) // 8)

    def _rto_ns(self) -> int:
        measured = self.rtt_ns + 4 * self._variance_ns if self.rtt_ns else _FIRST_RTO_NS
        return max(self._least_rto_ns, measured) * self._backoff
