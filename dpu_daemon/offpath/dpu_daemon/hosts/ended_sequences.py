"""Orders workers to drop the states of sequences that have ended without their last request."""

from __future__ import annotations

from offpath.bindings.wire import control
from offpath.dpu_daemon.hosts.lanes import Lanes
from offpath.dpu_daemon.requests.book_loop import BookLoop
from offpath.sched.jobs import commands

_Place = tuple[int, int, int]
"""Lease, lane and generation."""


class EndedSequences:
    """Handles `EndSequence`. A worker whose queue is full, or that is awaited after a restart, gets the message before
    the next one of these, or before its next launch."""

    def __init__(self, book_loop: BookLoop, lanes: Lanes) -> None:
        self.unsent: dict[_Place, list[int]] = {}
        """Numbers of sequences, whose states take memory of the worker until it gets them."""
        self._lanes = lanes
        book_loop.on(commands.EndSequence, self._end)

    def _end(self, command: commands.EndSequence) -> None:
        place = command.lease, command.lane, command.generation
        self.unsent.setdefault(place, []).append(command.sequence)
        self.flush(place)
        for other in [other for other in self.unsent if self._lanes.is_gone(*other)]:
            del self.unsent[other]

    def flush(self, place: _Place) -> None:
        """Send what this worker has not got yet, if it takes messages."""
        numbers = self.unsent.get(place)
        link = self._lanes.links.get(place[:2])
        if numbers is None or link is None or link.memory is None:
            return
        while numbers:
            message = control.SequenceEnded(lease=link.lease, lane=link.lane, sequence=numbers[0])
            if not self._lanes.to_worker(link, control.encode(message)):
                return
            del numbers[0]
        del self.unsent[place]
