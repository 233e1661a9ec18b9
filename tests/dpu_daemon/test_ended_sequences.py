"""Workers learn of sequences that ended, also those whose queue was full or that were not back yet."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

import pytest

from offpath.bindings.wire import control, host
from offpath.bindings.wire.header import FLAG_SEQUENCE_START
from offpath.dpu_daemon.hosts.ended_sequences import EndedSequences
from offpath.host_helper.sequences import SequenceStates
from offpath.sched.jobs import commands


class Lanes:
    """The part of `offpath.dpu_daemon.hosts.lanes.Lanes` that it uses."""

    def __init__(self) -> None:
        self.links: dict[tuple[int, int], Any] = {}
        self.gone: set[tuple[int, int, int]] = set()
        self.room = 10
        self.later: list[Callable[[], None]] = []
        self.sent: list[control.SequenceEnded | control.SequencesKept] = []

    def to_worker(self, link: Any, message: bytes) -> bool:
        if not self.room:
            return False
        self.room -= 1
        sent = control.decode(control.DAEMON_TO_HOST, message)
        assert isinstance(sent, control.SequenceEnded | control.SequencesKept)
        self.sent.append(sent)
        return True

    def is_gone(self, *place: int) -> bool:
        return place in self.gone

    def connect(self, lease: int, lane: int) -> None:
        self.links[lease, lane] = SimpleNamespace(lease=lease, lane=lane, generation=7, memory=object())


UNBEGUN = 11
"""A sequence whose first request was not launched yet."""


def made(
    lanes: Lanes, states: Iterable[int] = (), takes_sequences: bool = True
) -> tuple[EndedSequences, Callable[[commands.EndSequence], None]]:
    handlers: dict[type, Callable[[Any], None]] = {}
    lease = SimpleNamespace(sequences={0: set(states)})
    bound = {state: SimpleNamespace(state=state, has_state=state != UNBEGUN) for state in states}
    helper = SimpleNamespace(number=4, kernels=[SimpleNamespace(sequences=takes_sequences)])
    other = SimpleNamespace(number=5, kernels=[SimpleNamespace(sequences=True)])
    ledger = SimpleNamespace(
        helpers=SimpleNamespace(connected=[other, helper]), sequences=bound, lease_of=lambda *_: lease
    )
    book = SimpleNamespace(ledger=ledger, leasing=SimpleNamespace(helper_of=lambda _: 4))
    loop: Any = SimpleNamespace(on=handlers.__setitem__, book=book)
    ended = EndedSequences(loop, lanes, lambda _, function: lanes.later.append(function))  # type: ignore[arg-type]
    return ended, handlers[commands.EndSequence]


def numbers(lanes: Lanes) -> list[int]:
    return [each.sequence for each in lanes.sent if isinstance(each, control.SequenceEnded)]


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
    assert ended.unsent[1, 0, 7].ended == [1, 2]
    lanes.room = 2
    end(commands.EndSequence(1, 0, 7, 3))
    assert ended.unsent[1, 0, 7].ended == [3]
    lanes.room = 1
    ended.flush((1, 0, 7))
    assert numbers(lanes) == [1, 2, 3]
    assert not ended.unsent


def test_what_a_full_queue_did_not_take_is_sent_a_second_later_too() -> None:
    lanes = Lanes()
    lanes.connect(1, 0)
    ended, end = made(lanes)
    lanes.room = 0
    for number in (1, 2):
        end(commands.EndSequence(1, 0, 7, number))
    (again,) = lanes.later
    lanes.room = 1
    again()
    assert numbers(lanes) == [1]
    lanes.room = 1
    lanes.later[1]()
    assert numbers(lanes) == [1, 2]
    assert len(lanes.later) == 2  # and then nothing is looked for any more
    assert not ended.unsent


def test_a_worker_that_is_awaited_learns_it_before_its_next_launch() -> None:
    lanes = Lanes()
    ended, end = made(lanes)
    end(commands.EndSequence(1, 0, 7, 42))
    assert not lanes.sent
    lanes.connect(1, 0)
    ended.flush((1, 0, 7))
    assert numbers(lanes) == [42]


def test_nothing_is_kept_for_a_worker_that_is_gone() -> None:
    lanes = Lanes()
    ended, end = made(lanes)
    end(commands.EndSequence(1, 0, 7, 42))
    lanes.gone.add((1, 0, 7))
    lanes.connect(2, 0)
    end(commands.EndSequence(2, 0, 8, 43))
    assert not ended.unsent


@pytest.mark.parametrize("count", [0, 1, 256, 257, 1000])
def test_a_worker_that_is_back_keeps_exactly_the_states_of_the_book(count: int) -> None:
    lanes = Lanes()
    lanes.connect(1, 0)
    kept = set(range(10, 10 + 3 * count, 3))
    ended, _ = made(lanes, kept | {UNBEGUN})
    ended.back(lanes.links[1, 0])
    states = SequenceStates()
    for number in (1, *range(10, 20 + 3 * count), (1 << 64) - 1):
        states.enter(host.Launch(1, 1, 14, 1, FLAG_SEQUENCE_START, 0, 0, b"", number, 9))
    for order in lanes.sent:
        states.obey(order)
    assert set(states._by_number) == kept
    assert not ended.unsent


def begin(ended: EndedSequences, number: int) -> None:
    """A sequence begins on the lane: the book has launched its first request."""
    ledger: Any = ended._book.ledger
    ledger.sequences[number] = SimpleNamespace(state=number, has_state=True)
    ledger.lease_of(1, 7).sequences[0].add(number)


@pytest.mark.parametrize("room", [0, 1, 2])
@pytest.mark.parametrize("number", [5, 700, 5_000])
def test_a_state_that_begins_before_a_late_list_is_kept(room: int, number: int) -> None:
    """The queue takes only so many messages at first; the launch of another sequence comes before the rest."""
    lanes = Lanes()
    lanes.connect(1, 0)
    before = set(range(10, 2_000, 2))
    ended, _ = made(lanes, before)
    lanes.room = room
    ended.back(lanes.links[1, 0])
    states = SequenceStates()
    for each in (*before, 11):
        states.enter(host.Launch(1, 1, 14, 1, FLAG_SEQUENCE_START, 0, 0, b"", each, 9))
    sent = 0
    for order in lanes.sent:
        states.obey(order)
        sent += 1
    begin(ended, number)
    states.enter(host.Launch(1, 1, 14, 1, FLAG_SEQUENCE_START, 0, 0, b"", number, 9))
    lanes.room = 99
    lanes.later[0]()
    for order in lanes.sent[sent:]:
        states.obey(order)
    assert set(states._by_number) == before | {number}
    assert not ended.unsent


def test_what_was_to_be_sent_to_a_worker_is_sent_behind_the_list_that_it_gets_when_it_is_back() -> None:
    lanes = Lanes()
    ended, end = made(lanes, [43])
    end(commands.EndSequence(1, 0, 7, 42))
    lanes.connect(1, 0)
    lanes.room = 0
    ended.back(lanes.links[1, 0])
    lanes.room = 9
    ended.flush((1, 0, 7))
    kept = control.SequencesKept(lease=1, lane=0, first=0, last=(1 << 64) - 1, kept=[43])
    assert lanes.sent == [kept, control.SequenceEnded(lease=1, lane=0, sequence=42)]


def test_a_worker_of_a_helper_without_sequences_gets_no_list() -> None:
    """It may be of an earlier release."""
    lanes = Lanes()
    lanes.connect(1, 0)
    ended, _ = made(lanes, takes_sequences=False)
    ended.back(lanes.links[1, 0])
    assert not lanes.sent
