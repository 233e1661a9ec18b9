"""Polls for the next event for a short time before the event loop sleeps: ``datapath.spin_us``.

A request wakes the daemon three times, and each wake-up from sleep takes 10 to 20 µs. While requests come, the spinner
polls the loop's epoll descriptor for up to ``spin_us`` after each event; the loop then finds the next event without
having slept. A kernel that takes longer than that is waited for in the same way: a timer wakes the loop shortly before
the kernel's expected end. An idle daemon sleeps as before.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import time
from typing import Any, Final, cast

from offpath.bindings import native
from offpath.bindings.waiting import FineTimer

logger = logging.getLogger(__name__)
LEAD_NS: Final = 50_000
"""How long before a kernel's expected end the loop wakes."""
MOST_EXPECTED: Final = 256
"""Expected ends that are remembered; beyond, the loop sleeps through them."""


class Spinner:
    """Keeps one event loop awake. Off until `limit` is called with a time. Counts ``spins`` and ``spin_hits``."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.spin_ns = 0
        """0: off."""
        self.spins = 0
        self.hits = 0
        self._fd = -1
        """The loop's epoll descriptor."""
        self._timer: FineTimer | None = None
        self._expected: list[int] = []
        """Times at which the loop is to be awake, a heap."""
        self._is_due = False
        self._events = 0
        self._seen = 0

    def limit(self, spin_us: int) -> None:
        """Spin for at most ``spin_us`` from now on; 0: never. A loop without an epoll descriptor does not spin, and a
        warning says so."""
        if spin_us and self._timer is None:
            self._fd = _epoll_fd(self._loop)
            if self._fd < 0:
                logger.warning("datapath.spin_us has no effect: this event loop has no epoll descriptor")
                return
            self._timer = FineTimer()
            self._loop.add_reader(self._timer.fileno(), self._time_came)
        self.spin_ns = spin_us * 1000

    def worked(self) -> None:
        """An event of the request path was handled: another one may follow soon."""
        self._events += 1
        if self.spin_ns and not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._turn)

    def expect(self, when_ns: int) -> None:
        """A kernel is expected to end at ``when_ns`` of the monotonic clock."""
        timer, wake_ns = self._timer, when_ns - LEAD_NS
        if timer is None or not self.spin_ns or len(self._expected) >= MOST_EXPECTED:
            return
        if wake_ns - time.monotonic_ns() <= self.spin_ns:
            return  # it ends while the loop still spins after the launch
        if not self._expected or wake_ns < self._expected[0]:
            timer.arm(wake_ns)
        heapq.heappush(self._expected, wake_ns)

    def close(self) -> None:
        """Stop. Idempotent."""
        self.spin_ns = 0
        if self._timer is not None:
            self._loop.remove_reader(self._timer.fileno())
            self._timer.close()
            self._timer = None

    def _turn(self) -> None:
        """Spin after a turn of the loop that brought no event. A busy loop finds events without that."""
        if self._events != self._seen:
            self._seen = self._events
            self._loop.call_soon(self._turn)
            return
        self._is_due = False
        if self.spin_ns:
            self.spins += 1
            self.hits += native.spin(self._fd, self.spin_ns)

    def _time_came(self) -> None:
        if self._timer is None:
            return
        self._timer.clear()
        now_ns = time.monotonic_ns()
        while self._expected and self._expected[0] <= now_ns:
            heapq.heappop(self._expected)
        if self._expected:
            self._timer.arm(self._expected[0])
        self.worked()


def _epoll_fd(loop: asyncio.AbstractEventLoop) -> int:
    """The descriptor on which the loop waits, or -1. uvloop has a method for it, asyncio's loop a selector."""
    loop_of_either_kind = cast(Any, loop)
    try:
        if hasattr(loop, "_get_backend_id"):
            return int(loop_of_either_kind._get_backend_id())
        return int(loop_of_either_kind._selector.fileno())
    except (AttributeError, ValueError):
        return -1
