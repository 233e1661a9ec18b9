"""Who leaves when more connect than may stay unidentified."""

from __future__ import annotations

import pytest

from offpath.dpu_daemon.listening import accepting
from offpath.dpu_daemon.listening.accepting import Unidentified


class Crowd:
    """Connections by number, in virtual time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, most: int) -> None:
        monkeypatch.setattr(accepting, "cap", lambda most: most)
        self.now_s = 0.0
        self.left: list[int] = []
        self.waiting = Unidentified(most, clock=lambda: self.now_s)
        self._count = 0

    def come(self, number: int, address: str) -> None:
        for _ in range(number):
            self._count += 1
            self.waiting.add(self._count, address, lambda who=self._count: self.left.append(who))  # type: ignore[misc]


def test_a_burst_of_one_address_stays_as_long_as_all_have_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job of 160 processes connects at once; their handshakes take a while."""
    crowd = Crowd(monkeypatch, 256)
    crowd.come(160, "a job's host")
    assert crowd.left == []
    assert len(crowd.waiting) == 160


def test_one_address_keeps_a_quarter_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    crowd = Crowd(monkeypatch, 256)
    crowd.come(64, "silent")
    crowd.come(1, "other")
    crowd.now_s = 10.0
    crowd.come(3, "silent")
    assert crowd.left == [1, 2, 3]
    assert len(crowd.waiting) == 65


def test_a_burst_beyond_all_bounds_costs_its_own_address(monkeypatch: pytest.MonkeyPatch) -> None:
    crowd = Crowd(monkeypatch, 256)
    crowd.come(2, "first")
    crowd.come(1000, "flood")
    crowd.come(2, "last")
    assert len(crowd.waiting) == 256
    assert crowd.left == list(range(3, 3 + 1004 - 256))
    assert 1 in crowd.waiting
