"""Orders workers to drop the states of sequences that have ended without their last request."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from pydantic import BaseModel

from offpath.bindings.wire import control
from offpath.dpu_daemon.hosts.lanes import Lanes
from offpath.dpu_daemon.requests.book_loop import BookLoop
from offpath.dpu_daemon.requests.inflight import LaneConnection
from offpath.sched.jobs import commands

_Place = tuple[int, int, int]
"""Lease, lane and generation."""
_LAST: Final = (1 << 64) - 1
_AGAIN_S: Final = 1.0


@dataclass(slots=True)
class _Unsent:
    """What a worker has not got yet. ``ended``: numbers of states. ``listed``: it gets the list of the states from this
    number on that it keeps, before those; None: it needs none."""

    ended: list[int] = field(default_factory=list)
    listed: int | None = None


class EndedSequences:
    """Handles `EndSequence`. A worker whose queue is full, or that is awaited after a restart, gets the message before
    the next one of these, before its next launch, or a second later."""

    def __init__(self, book_loop: BookLoop, lanes: Lanes, later: Callable[[float, Callable[[], None]], object]) -> None:
        """``later``: calls a function after so many seconds."""
        self.unsent: dict[_Place, _Unsent] = {}
        """The states take memory of the worker until it gets this."""
        self._lanes = lanes
        self._later = later
        self._is_armed = False
        self._book = book_loop.book
        book_loop.on(commands.EndSequence, self._end)

    def _end(self, command: commands.EndSequence) -> None:
        place = command.lease, command.lane, command.generation
        self.unsent.setdefault(place, _Unsent()).ended.append(command.sequence)
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
        has there. Of an earlier release, which does not know the message, is no helper that takes sequences."""
        ledger = self._book.ledger
        lease = ledger.lease_of(link.lease, link.generation)
        if lease is None:
            return
        helper = next(
            (each for each in ledger.helpers.connected if each.number == self._book.leasing.helper_of(lease)), None
        )
        if helper is not None and any(kernel.sequences for kernel in helper.kernels):
            place = link.lease, link.lane, link.generation
            self.unsent.setdefault(place, _Unsent()).listed = 0
            self._send(place)

    def flush(self, place: _Place) -> None:
        """Send what this worker has not got yet, if it takes messages."""
        unsent = self.unsent.get(place)
        link = self._lanes.links.get(place[:2])
        if unsent is None or link is None or link.memory is None:
            return
        while unsent.listed is not None:
            kept, last = self._kept(place, unsent.listed)
            if not self._to_worker(link, control.SequencesKept, first=unsent.listed, last=last, kept=kept):
                return
            unsent.listed = last + 1 if last < _LAST else None
        while unsent.ended:
            if not self._to_worker(link, control.SequenceEnded, sequence=unsent.ended[0]):
                return
            del unsent.ended[0]
        del self.unsent[place]

    def _kept(self, place: _Place, first: int) -> tuple[list[int], int]:
        """The states that the worker has, as the book has it now: those from ``first`` on that go into one message, and
        the last number for which that message holds."""
        ledger = self._book.ledger
        lease = ledger.lease_of(place[0], place[2])
        numbers = lease.sequences.get(place[1], ()) if lease is not None else ()
        states = [ledger.sequences[number].state for number in numbers if ledger.sequences[number].has_state]
        kept = sorted(state for state in states if state >= first)[: control.MAX_KEPT]
        return kept, kept[-1] if len(kept) == control.MAX_KEPT else _LAST

    def _to_worker(self, link: LaneConnection, kind: type[BaseModel], **fields: Any) -> bool:
        return self._lanes.to_worker(link, control.encode(kind(lease=link.lease, lane=link.lane, **fields)))
