"""Detects a lost helper by pings and the time since its last message.

The helper's supervisor has one thread: it is silent while it opens or closes an instance, which may include a scrub.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from offpath.bindings.wire import control
from offpath.dpu_daemon.config import LimitsTable

_PINGS_PER_LIMIT: Final = 5


class Heartbeat:
    """Monitors one helper. ``send`` sends a ping, ``is_at_work`` returns whether an order is open, ``lost`` is called
    once, with the reason."""

    def __init__(
        self,
        limits: Callable[[], LimitsTable],
        send: Callable[[control.Ping], None],
        is_at_work: Callable[[], bool],
        lost: Callable[[str], None],
    ) -> None:
        self._limits = limits
        self._send = send
        self._is_at_work = is_at_work
        self._lost = lost
        self._loop = asyncio.get_running_loop()
        self._received_s = self._loop.time()
        self._limit_ms = limits().helper_ms
        self._number = 0
        self._is_answered = True
        self._beat_at(self._loop.time() + self._interval_s())

    def _interval_s(self) -> float:
        return self._limits().helper_ms / 1e3 / _PINGS_PER_LIMIT

    def _beat_at(self, due_s: float) -> None:
        self._due_s = due_s
        self._timer = self._loop.call_later(max(due_s - self._loop.time(), 0.0), self._beat)

    def on_message(self) -> None:
        """The helper sent a message of any kind."""
        self._received_s = self._loop.time()

    def answered(self, pong: control.Pong) -> None:
        """Allow the next ping. At most one is in flight, so that pings cannot fill the channel."""
        self._is_answered = self._is_answered or pong.number == self._number

    def _beat(self) -> None:
        now_s, limits = self._loop.time(), self._limits()
        late_s = max(0.0, now_s - self._due_s)
        self._received_s = min(
            now_s, self._received_s + late_s
        )  # the loop was late; that time does not count as the helper's silence
        allowed_ms = max(limits.helper_ms, limits.scrub_ms) if self._is_at_work() else limits.helper_ms
        silent_ms = (now_s - self._received_s) * 1e3
        self._beat_at(now_s + self._interval_s())
        if silent_ms > allowed_ms:
            self.stop()
            self._lost(f"silent for {silent_ms:.0f} ms")
        elif self._is_answered:
            self._is_answered = False
            self._number += 1
            self._send(control.Ping(number=self._number))

    def look_again(self) -> None:
        """The limits changed: the next check is by the new ones, but no later than it was to be. Else reloads more
        often than pings would put all of them off. A shorter limit starts now: the helper was pinged less often."""
        now_s, interval_s, limit_ms = self._loop.time(), self._interval_s(), self._limits().helper_ms
        if limit_ms < self._limit_ms:
            self._received_s = max(self._received_s, now_s - interval_s)
        self._limit_ms = limit_ms
        self._timer.cancel()
        self._beat_at(min(self._due_s, now_s + interval_s))

    def stop(self) -> None:
        """Stop pinging. Idempotent."""
        self._timer.cancel()
