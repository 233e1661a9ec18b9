"""Workers learn of sequences that ended, also those whose queue was full or that were not back yet."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from offpath.bindings.wire import control
from offpath.dpu_daemon.hosts.ended_sequences import EndedSequences
from offpath.sched.jobs import commands


class Lanes:
    """The part of `offpath.dpu_daemon.hosts.lanes.Lanes` that it uses."""

    def __init__(self) -> None:
        self.links: dict[tuple[int, int], Any] = {}
        self.gone: set[tuple[int, int, int]] = set()
        self.room = 10
        self.sent: list[control.SequenceEnded] = []

    def to_worker(self, link: Any, message: bytes) -> bool:
        if not self.room:
            return False
        self.room -= 1
        sent = control.decode(control.DAEMON_TO_HOST, message)
        assert isinstance(sent, control.SequenceEnded)
        self.sent.append(sent)
        return True

    def is_gone(self, *place: int) -> bool:
        return place in self.gone

    def connect(self, lease: int, lane: int) -> None:
        self.links[lease, lane] = SimpleNamespace(lease=lease, lane=lane, memory=object())


def made(lanes: Lanes) -> tuple[EndedSequences, Callable[[commands.EndSequence], None]]:
    handlers: dict[type, Callable[[Any], None]] = {}
    loop: Any = SimpleNamespace(on=handlers.__setitem__)
    ended = EndedSequences(loop, lanes)  # type: ignore[arg-type]
    return ended, handlers[commands.EndSequence]


def test_a_worker_is_told_at_once() -> None:
    lanes = Lanes()
    lanes.connect(1, 0)
    ended, end = made(lanes)
    end(commands.EndSequence(1, 0, 7, 42))
    assert lanes.sent == [control.SequenceEnded(lease=1, lane=0, sequence=42)]
    assert not ended.unsent


def test_what_a_full_queue_did_not_take_is_sent_in_order_before_the_next() -> None:
    lanes = Lanes()
    lanes.connect(1, 0)
    ended, end = made(lanes)
    lanes.room = 0
    for number in (1, 2):
        end(commands.EndSequence(1, 0, 7, number))
    assert ended.unsent == {(1, 0, 7): [1, 2]}
    lanes.room = 2
    end(commands.EndSequence(1, 0, 7, 3))
    assert ended.unsent == {(1, 0, 7): [3]}
    lanes.room = 1
    ended.flush((1, 0, 7))
    assert [each.sequence for each in lanes.sent] == [1, 2, 3]
    assert not ended.unsent


def test_a_worker_that_is_awaited_learns_it_before_its_next_launch() -> None:
    lanes = Lanes()
    ended, end = made(lanes)
    end(commands.EndSequence(1, 0, 7, 42))
    assert not lanes.sent
    lanes.connect(1, 0)
    ended.flush((1, 0, 7))
    assert [each.sequence for each in lanes.sent] == [42]


def test_nothing_is_kept_for_a_worker_that_is_gone() -> None:
    lanes = Lanes()
    ended, end = made(lanes)
    end(commands.EndSequence(1, 0, 7, 42))
    lanes.gone.add((1, 0, 7))
    lanes.connect(2, 0)
    end(commands.EndSequence(2, 0, 8, 43))
    assert not ended.unsent
