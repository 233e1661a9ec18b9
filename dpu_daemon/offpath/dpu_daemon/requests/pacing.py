"""Enforces fair use of the event loop: the sessions of a tenant that exceeds its share are not read for a while.

`offpath.sched.loop_share` decides; this module enforces. The first doorbell of a session of a paused tenant removes the
session from the loop. After the pause, the tenant's sessions are polled in turn, in slices between which the loop
serves other tenants; a session without a doorbell returns to the loop. A pause therefore costs the loop one timer,
however many sessions wait.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Final, Protocol

from offpath.sched.loop_share import LoopShares, Share

logger = logging.getLogger(__name__)
_LEAST_PAUSE_S: Final = 0.001
"""Resolution of the loop's timers."""
LOG_EVERY_NS: Final = 10_000_000_000
LEAST_LOGGED_NS: Final = 100_000_000
"""Pauses since the last log line; a shorter total is not logged."""


class Waiting(Protocol):
    """A session that the loop does not watch while its tenant is paused."""

    number: int
    is_parked: bool

    def take_doorbell(self) -> bool:
        """Handle one doorbell; this may clear ``is_parked``. False: there is none."""

    def unpark(self) -> None:
        """Have the loop watch the session again."""


class Turns:
    """One tenant's use of the loop. Code that works for a tenant calls `charge` with the work's start time; where a
    call is too slow, it adds to ``share`` directly and calls `settle` at the limit."""

    __slots__ = ("_log_due_ns", "_logged_ns", "_loop", "_parked", "_paused_since_ns", "_shares", "_timer", "is_paused",
                 "now_ns", "paused_ns", "share", "tenant")  # fmt: skip

    def __init__(self, tenant: str, shares: LoopShares, share: Share, now_ns: Callable[[], int]) -> None:
        self.tenant = tenant
        self.share = share
        self.is_paused = False
        """Sessions of this tenant are parked at their next doorbell."""
        self.paused_ns = 0
        """Total of all finished pauses."""
        self.now_ns = now_ns
        self._shares = shares
        self._loop = asyncio.get_running_loop()
        self._parked: OrderedDict[int, Waiting] = OrderedDict()
        self._timer: asyncio.Handle | None = None
        self._paused_since_ns = 0
        self._log_due_ns = 0
        self._logged_ns = 0

    def charge(self, since_ns: int) -> None:
        """The loop worked for this tenant from ``since_ns`` until now."""
        share = self.share
        now_ns = self.now_ns()
        share.used_ns += now_ns - since_ns
        if share.used_ns >= share.limit_ns:
            self.settle(now_ns)

    def settle(self, now_ns: int) -> None:
        """The share's limit is reached: pause if due."""
        if self._timer is None:
            due_ns = self._shares.settle(self.share, now_ns)
            if due_ns > now_ns:
                self._pause(now_ns, due_ns)

    def park(self, session: Waiting) -> None:
        """Add a session that rang while the tenant is paused; the loop no longer watches it."""
        session.is_parked = True
        self._parked[session.number] = session

    def forget(self, session: Waiting) -> None:
        """Remove a session; it is not served after the pause."""
        session.is_parked = False
        self._parked.pop(session.number, None)

    def close(self) -> None:
        """Cancel the timer. Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _pause(self, now_ns: int, due_ns: int) -> None:
        self.is_paused = True
        self._paused_since_ns = now_ns
        self._timer = self._loop.call_later(max(_LEAST_PAUSE_S, (due_ns - now_ns) / 1e9), self._resume)

    def _resume(self) -> None:
        now_ns = self.now_ns()
        self.paused_ns += now_ns - self._paused_since_ns
        if now_ns >= self._log_due_ns and self.paused_ns - self._logged_ns >= LEAST_LOGGED_NS:
            logger.warning(
                "tenant %s exceeds its share of the event loop: its doorbells waited for %d ms", self.tenant,
                (self.paused_ns - self._logged_ns) // 1_000_000,
                extra={"code": "tenant_paced"},
            )  # fmt: skip
            self._log_due_ns = now_ns + LOG_EVERY_NS
            self._logged_ns = self.paused_ns
        self._serve()

    def _serve(self) -> None:
        """Run one slice: the parked sessions in turn, one doorbell each."""
        self._timer = None
        parked, share, clock = self._parked, self.share, self.now_ns
        since_ns = clock()
        while parked:
            number, session = parked.popitem(last=False)
            rang = session.take_doorbell()
            if session.is_parked:
                if rang:
                    parked[number] = session
                else:
                    session.is_parked = False
                    session.unpark()
            now_ns = clock()
            share.used_ns += now_ns - since_ns
            since_ns = now_ns
            if share.used_ns >= share.limit_ns:
                due_ns = self._shares.settle(share, now_ns)
                if due_ns > now_ns:
                    self._pause(now_ns, due_ns)
                else:
                    self._timer = self._loop.call_soon(self._serve)
                return
        self.is_paused = False


class Pacing:
    """The `Turns` of all tenants. Create it inside a running loop."""

    def __init__(self, now_ns: Callable[[], int]) -> None:
        self._now_ns = now_ns
        self._shares = LoopShares()
        self._weights: dict[str, int] = {}
        self.turns: dict[str, Turns] = {}

    def of(self, tenant: str) -> Turns:
        """The tenant's `Turns`, created for its first session."""
        turns = self.turns.get(tenant)
        if turns is None:
            share = self._shares.join(self._weights.get(tenant, 1))
            turns = self.turns[tenant] = Turns(tenant, self._shares, share, self._now_ns)
        return turns

    def weigh(self, weights: Iterable[tuple[str, int]]) -> None:
        """Set the configured weights."""
        self._weights = dict(weights)
        for tenant, turns in self.turns.items():
            turns.share.weight = self._weights.get(tenant, turns.share.weight)

    def tenant_gone(self, tenant: str) -> None:
        """Remove the tenant."""
        turns = self.turns.pop(tenant, None)
        if turns is not None:
            turns.close()
            self._shares.leave(turns.share)

    def close(self) -> None:
        """Cancel all timers."""
        for turns in self.turns.values():
            turns.close()
