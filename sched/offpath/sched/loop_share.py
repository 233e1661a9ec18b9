"""Shares one thread's time between tenants: delays a tenant that exceeds its part while others want the thread.

The caller adds the time of each piece of work to its tenant's `Share.used_ns`, and calls `LoopShares.settle` when that
reaches `Share.limit_ns`. All else is decided here, at most once per `SLICE_NS` of work, so that the cost per piece of
work is an addition and a comparison.

A tenant that is alone is never delayed. If others were active in the last window, a tenant is entitled to its part by
weight, or to what the others leave of `CEILING` if that is more: a busy tenant beside a nearly idle one is slowed down
little. Use is charged against that rate by a leaky bucket (the generic cell rate algorithm of ITU-T I.371, in units of
time): ``due_ns`` is the time at which the use so far would have been earned.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

SLICE_NS: Final = 50_000
"""A tenant's use is settled at the latest after this much more of it; other tenants run in between."""
MOST_CHARGED_NS: Final = 250_000
"""Maximum charge per settlement: time in which the machine did not schedule the thread is not a tenant's use."""
BURST_NS: Final = 10_000_000
"""A tenant that used less than its part may use this much at once."""
WINDOW_NS: Final = 100_000_000
"""Interval at which the active tenants and their use are evaluated."""
FIRST_WINDOW_NS: Final = 10_000_000
"""Without a recent evaluation nothing is known; the first one then comes this soon."""
CEILING: Final = 0.6
"""Part of the thread's time for all tenants together while more than one is active: the rest keeps queues short."""


@dataclass(slots=True, eq=False)
class Share:
    """One tenant's use of the thread, in ns of the thread's time. The caller compares ``used_ns`` with ``limit_ns``."""

    weight: int = 1
    used_ns: int = 0
    limit_ns: int = SLICE_NS
    settled_ns: int = 0
    looked_ns: int = 0
    """``used_ns`` at the last evaluation."""
    due_ns: int = 0
    rate: float = 1.0
    """Part of the thread's time that the tenant is entitled to; 1: all."""


class LoopShares:
    """The tenants of one thread. No I/O, no clock."""

    def __init__(self) -> None:
        self._shares: list[Share] = []
        self._looked_ns = 0
        self._look_ns = 0

    def join(self, weight: int) -> Share:
        """Add a tenant with its weight (at least 1), which may be changed later."""
        share = Share(weight)
        self._shares.append(share)
        return share

    def leave(self, share: Share) -> None:
        """Remove the tenant."""
        self._shares.remove(share)

    def settle(self, share: Share, now_ns: int) -> int:
        """Charge a tenant's use against its rate; the next settlement is due at ``share.limit_ns``.

        Returns: when the tenant may continue, in ns of the caller's clock; at most ``now_ns`` if it may now.
        """
        if now_ns >= self._look_ns:
            self._look(now_ns)
        used_ns = min(share.used_ns - share.settled_ns, MOST_CHARGED_NS)
        share.settled_ns = share.used_ns
        share.limit_ns = share.used_ns + SLICE_NS
        if share.rate >= 1.0:
            share.due_ns = 0
        else:
            share.due_ns = max(share.due_ns, now_ns - BURST_NS) + round(used_ns / share.rate)
        return share.due_ns

    def _look(self, now_ns: int) -> None:
        """Find the tenants active since the last evaluation, and set each one's rate until the next."""
        passed_ns = now_ns - self._looked_ns
        is_known = passed_ns < 2 * WINDOW_NS
        self._looked_ns = now_ns
        self._look_ns = now_ns + (WINDOW_NS if is_known else FIRST_WINDOW_NS)
        busy_ns = weights = 0
        for share in self._shares:
            if share.used_ns > share.looked_ns:
                busy_ns += share.used_ns - share.looked_ns
                weights += share.weight
        for share in self._shares:
            own_ns = share.used_ns - share.looked_ns
            share.looked_ns = share.used_ns
            everyone = weights if own_ns else weights + share.weight
            if not is_known or everyone == share.weight:
                share.rate = 1.0
            else:
                share.rate = max(share.weight / everyone, CEILING - (busy_ns - own_ns) / passed_ns)
