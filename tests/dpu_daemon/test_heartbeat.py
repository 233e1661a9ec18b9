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


class Monitored:
    """A helper that answers each ping at once, and its heartbeat."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, limit_s: float = LIMIT_S) -> None:
        self.clock = Clock()
        monkeypatch.setattr(pulse_module.asyncio, "get_running_loop", lambda: self.clock)
        self.limits: Any = SimpleNamespace(helper_ms=limit_s * 1e3, scrub_ms=0)
        self.lost: list[str] = []
        self.pings = 0
        self.is_there = True
        self.heartbeat = Heartbeat(lambda: self.limits, self._pinged, lambda: False, self.lost.append)

    def _pinged(self, ping: control.Ping) -> None:
        self.pings += 1
        if self.is_there:
            self.heartbeat.on_message()
            self.heartbeat.answered(control.Pong(number=ping.number))

    def run(self, seconds: float, reload_every_s: float) -> None:
        end_s = self.clock.now_s + seconds
        reload_s = self.clock.now_s
        while self.clock.now_s < end_s and not self.lost:
            reload_s += reload_every_s
            while self.clock._due[0] <= reload_s and not self.lost:
                self.clock.beat()
            self.clock.now_s = reload_s
            self.heartbeat.look_again()


@pytest.mark.parametrize("every_s", [0.001, 0.03, 0.19, 0.5])
def test_reloads_put_no_ping_off(every_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pings are due each 0.2 s, however often the configuration is read."""
    one = Monitored(monkeypatch)
    one.run(20.0, every_s)
    assert one.lost == []
    assert 90 <= one.pings <= 101
    one.is_there = False
    one.run(20.0, every_s)
    assert len(one.lost) == 1, "a silent helper is found beside reloads too"


def test_a_shorter_limit_counts_from_the_reload(monkeypatch: pytest.MonkeyPatch) -> None:
    """The helper was pinged each two seconds: until the first ping of the new limit its silence proves nothing."""
    one = Monitored(monkeypatch, 10.0)
    one.clock.beat()
    one.clock.now_s += 1.9
    one.limits.helper_ms = 1000.0
    one.heartbeat.look_again()
    for _ in range(20):
        one.clock.beat()
    assert one.lost == []
    one.is_there = False
    began_s = one.clock.now_s
    while not one.lost:
        one.clock.beat()
    assert one.clock.now_s - began_s <= 1.5


def test_a_loop_that_is_late_at_a_reload_does_not_count_that_as_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    one = Monitored(monkeypatch)
    one.clock.beat()
    one.clock.now_s += 30.0
    one.heartbeat.look_again()
    one.clock.beat()
    assert one.lost == []
