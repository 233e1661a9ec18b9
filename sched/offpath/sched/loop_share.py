"""How tenants share one thread's time: who has used more than its part while others wanted the thread too.

The user adds the time of each piece of work to its tenant's `Share.used_ns`, and calls `LoopShares.settle` when that
has reached `Share.limit_ns`. All else is decided here, at most once for each `SLICE_NS` of work, so that the cost per
piece is an addition and a comparison.

A tenant alone is never held back. Where others were active in the last window, a tenant is entitled to its weight's
part, or to what the others leave of `CEILING` if that is more: a busy tenant beside a nearly idle one is slowed down
little. What it uses is held against that rate by a leaky bucket (the generic cell rate algorithm of ITU-T I.371, in
units of time): ``due_ns`` is when its use so far would have been earned.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

SLICE_NS: Final = 50_000
"""A tenant's use is settled at the latest after so much more of it, and others get their turn in between."""
MOST_CHARGED_NS: Final = 250_000
"""By one settlement: a thread that the machine kept from running for long was not at work for anybody."""
BURST_NS: Final = 10_000_000
"""A tenant that used less than its part may use so much at once."""
WINDOW_NS: Final = 100_000_000
"""Who is active, and how much each uses, is looked up once in so long."""
FIRST_WINDOW_NS: Final = 10_000_000
"""After a time without looking nothing is known; the first look then comes soon."""
CEILING: Final = 0.6
"""Of the thread's time, all together, while more than one tenant is active: what is left keeps queues short."""


@dataclass(slots=True, eq=False)
class Share:
    """One tenant's use of the thread, in ns of the thread's time. ``limit_ns`` is for the user to compare with."""

    weight: int = 1
    used_ns: int = 0
    limit_ns: int = SLICE_NS
    settled_ns: int = 0
    looked_ns: int = 0
    """``used_ns`` at the last look."""
    due_ns: int = 0
    rate: float = 1.0
    """Part of the thread's time that it is entitled to; 1: all."""


class LoopShares:
    """The tenants of one thread. No I/O, no clock."""

    def __init__(self) -> None:
        self._shares: list[Share] = []
        self._looked_ns = 0
        self._look_ns = 0

    def join(self, weight: int) -> Share:
        """A tenant, with its weight (at least 1), which may be changed later."""
        share = Share(weight)
        self._shares.append(share)
        return share

    def leave(self, share: Share) -> None:
        """The tenant is no more."""
        self._shares.remove(share)

    def settle(self, share: Share, now_ns: int) -> int:
        """Hold what a tenant has used against its rate; the next settlement is due at ``share.limit_ns``.

        Returns: when the tenant may go on, in ns of the caller's clock; at most ``now_ns`` if it may now.
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
        """Who was active since the last look, and what each is entitled to until the next."""
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
