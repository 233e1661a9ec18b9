"""An emulated link: a queue with a rate, an ECN threshold and a limit. No I/O, no clock.

First in, first out, so a packet's departure is known when it arrives. Times are the emulation's, not those at which a
busy process comes to handle a packet: lateness does not add up.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

_NS: Final = 1_000_000_000


@dataclass(slots=True)
class LinkCounters:
    """What a link carried."""

    packets: int = 0
    nbytes: int = 0
    marked: int = 0
    dropped: int = 0


@dataclass(slots=True)
class Link:
    """One direction of a link. ``mark_bytes``: a packet that finds more before it is marked (ECN); ``drop_bytes``: one
    that finds more is dropped. ``delay_ns``: from its last bit sent to its arrival."""

    rate_bps: float
    mark_bytes: float
    drop_bytes: float
    delay_ns: int = 0
    free_ns: int = 0
    """When all that is queued has been sent."""
    counters: LinkCounters = field(default_factory=LinkCounters)

    def offer(self, nbytes: int, now_ns: int) -> tuple[int, bool] | None:
        """A packet arrives. Returns when it arrives at the other end, and whether it is marked; None: it is dropped."""
        waiting = self.queued_bytes(now_ns)
        if waiting > self.drop_bytes:
            self.counters.dropped += 1
            return None
        is_marked = waiting > self.mark_bytes
        self.counters.packets += 1
        self.counters.nbytes += nbytes
        self.counters.marked += is_marked
        self.free_ns = max(self.free_ns, now_ns) + round(nbytes * 8 * _NS / self.rate_bps)
        return self.free_ns + self.delay_ns, is_marked

    def queued_bytes(self, now_ns: int) -> float:
        """Bytes that wait or are being sent."""
        return max(0, self.free_ns - now_ns) * self.rate_bps / (8 * _NS)
