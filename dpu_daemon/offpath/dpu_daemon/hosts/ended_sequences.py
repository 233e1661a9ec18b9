"""Orders workers to drop the states of sequences that have ended without their last request."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from offpath.bindings.wire import control
from offpath.dpu_daemon.hosts.lanes import Lanes
from offpath.dpu_daemon.requests.book_loop import BookLoop
from offpath.dpu_daemon.requests.inflight import LaneConnection
from offpath.sched.jobs import commands

_Place = tuple[int, int, int]
"""Lease, lane and generation."""
_LAST: Final = (1 << 64) - 1
_AGAIN_S: Final = 1.0


class EndedSequences:
    """Handles `EndSequence`. A worker whose queue is full, or that is awaited after a restart, gets the message before
    the next one of these, before its next launch, or a second later."""

    def __init__(self, book_loop: BookLoop, lanes: Lanes, later: Callable[[float, Callable[[], None]], object]) -> None:
        """``later``: calls a function after so many seconds."""
        self.unsent: dict[_Place, list[bytes]] = {}
        """Messages about states, which take memory of the worker until it gets them."""
        self._lanes = lanes
        self._later = later
        self._is_armed = False
        self._ledger = book_loop.book.ledger
        book_loop.on(commands.EndSequence, self._end)

    def _end(self, command: commands.EndSequence) -> None:
        place = command.lease, command.lane, command.generation
        message = control.SequenceEnded(lease=command.lease, lane=command.lane, sequence=command.sequence)
        self.unsent.setdefault(place, []).append(control.encode(message))
        self._send(place)

    def _send(self, place: _Place) -> None:
        self.flush(place)
        for other in [other for other in self.unsent if self._lanes.is_gone(*other)]:
            del self.unsent[other]
        if self.unsent and not self._is_armed:
            self._is_armed = True
            self._later(_AGAIN_S, self._again)

    def _again(self) -> None:
        self._is_armed = False
        for place in list(self.unsent):
            self._send(place)

    def back(self, link: LaneConnection) -> None:
        """The worker reattached after a restart, which may have lost an order: it keeps only the states that the book
        has there. A worker of an earlier release does not know the message, but serves no kernel that takes
        sequences."""
        ledger = self._ledger
        lease = ledger.lease_of(link.lease, link.generation)
        if lease is None or not any(kernel.sequences for kernel in ledger.kernels.values()):
            return
        bound = [ledger.sequences[number] for number in lease.sequences.get(link.lane, ())]
        states = [each.state for each in bound if each.has_state]
        place = link.lease, link.lane, link.generation
        self.unsent[place] = [
            control.encode(
                control.SequencesKept(lease=link.lease, lane=link.lane, first=first, last=last, kept=list(kept))
            )
            for first, last, kept in _ranges(sorted(states))
        ]
        self._send(place)

    def flush(self, place: _Place) -> None:
        """Send what this worker has not got yet, if it takes messages."""
        messages = self.unsent.get(place)
        link = self._lanes.links.get(place[:2])
        if messages is None or link is None or link.memory is None:
            return
        while messages:
            if not self._lanes.to_worker(link, messages[0]):
                return
            del messages[0]
        del self.unsent[place]


def _ranges(states: list[int]) -> list[tuple[int, int, list[int]]]:
    """First and last number of each message, and the states between them. Together they cover all numbers."""
    parts = [states[at : at + control.MAX_KEPT] for at in range(0, len(states), control.MAX_KEPT)] or [[]]
    ends = [part[-1] for part in parts[:-1]] + [_LAST]
    starts = [0] + [end + 1 for end in ends[:-1]]
    return list(zip(starts, ends, parts, strict=True))
