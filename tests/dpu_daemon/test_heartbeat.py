"""The watch over a silent helper, in a time of its own."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from offpath.bindings.wire import control
from offpath.dpu_daemon.hosts import heartbeat as pulse_module
from offpath.dpu_daemon.hosts.heartbeat import Heartbeat

LIMIT_S = 1.0


class Clock:
    """A loop of one timer."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._due: tuple[float, Callable[[], None]] = (0.0, lambda: None)

    def time(self) -> float:
        return self.now_s

    def call_later(self, seconds: float, then: Callable[[], None]) -> Any:
        self._due = self.now_s + seconds, then
        return SimpleNamespace(cancel=lambda: None)

    def beat(self, late_s: float = 0.0) -> None:
        self.now_s = self._due[0] + late_s
        self._due[1]()


@pytest.mark.parametrize("pause_s", [0.0, 30.0])
def test_a_pause_of_ours_excuses_only_the_silence_of_that_time(pause_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """We stand still, hear the helper as soon as we can, and then it is silent: it has its one second from there."""
    clock = Clock()
    monkeypatch.setattr(pulse_module.asyncio, "get_running_loop", lambda: clock)
    lost: list[str] = []
    pings: list[control.Ping] = []
    limits: Any = SimpleNamespace(helper_ms=LIMIT_S * 1e3, scrub_ms=0)
    heartbeat = Heartbeat(lambda: limits, pings.append, lambda: False, lost.append)
    clock.beat()
    clock.now_s += pause_s
    heartbeat.on_message()
    received_s = clock.now_s
    clock.beat(late_s=pause_s)
    assert not lost
    while not lost and clock.now_s < received_s + 10 * LIMIT_S:
        clock.beat()
    assert len(lost) == 1
    assert LIMIT_S < clock.now_s - received_s <= 2 * LIMIT_S
