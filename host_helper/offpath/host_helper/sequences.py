"""The states of a worker's sequences: what a kernel that takes sequences keeps between their requests."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from offpath.bindings.wire import control
from offpath.bindings.wire.header import FLAG_SEQUENCE_END, FLAG_SEQUENCE_START
from offpath.bindings.wire.host import Launch


@dataclass(slots=True)
class SequenceContext:
    """The sequence of a kernel's request: its argument ``sequence``.

    ``state``: the kernel's own, empty at the start, the same object for all requests of the sequence; dropped when the
    sequence ends, for whatever reason. ``id``: the client's; two clients may use one id. ``number``: the daemon's, of
    the state; no other state has it.
    """

    id: int
    number: int
    is_start: bool = False
    is_end: bool = False
    state: dict[Any, Any] = field(default_factory=dict)


class SequenceStates:
    """The sequences that have run on this worker and have not ended."""

    def __init__(self) -> None:
        self._by_number: dict[int, SequenceContext] = {}

    def __len__(self) -> int:
        return len(self._by_number)

    def begin(self, launch: Launch) -> None:
        """A launch that starts its sequence ends the former state, also if its kernel does not run."""
        if launch.flags & FLAG_SEQUENCE_START:
            self.ended(launch.sequence)

    def enter(self, launch: Launch) -> SequenceContext:
        """The sequence of a launch. A request that starts it gets an empty state.

        Raises: LookupError: it is of none, or of one that has no state here.
        """
        if not launch.sequence:
            raise LookupError("the kernel takes requests of sequences only")
        is_start = bool(launch.flags & FLAG_SEQUENCE_START)
        if is_start:
            self._by_number[launch.sequence] = SequenceContext(launch.sequence_id, launch.sequence)
        found = self._by_number.get(launch.sequence)
        if found is None:
            raise LookupError(f"sequence {launch.sequence_id} has no state in this worker")
        found.is_start, found.is_end = is_start, bool(launch.flags & FLAG_SEQUENCE_END)
        return found

    def left(self, launch: Launch) -> None:
        """The launch has ended. After the last one of a sequence the state is dropped."""
        if launch.flags & FLAG_SEQUENCE_END:
            self.ended(launch.sequence)

    def ended(self, number: int) -> None:
        """A sequence ended; it need not have run here."""
        self._by_number.pop(number, None)

    def obey(self, order: control.SequenceEnded | control.SequencesKept) -> None:
        """Drop the state that has ended, or those of a range of numbers that are not to be kept."""
        if isinstance(order, control.SequenceEnded):
            self.ended(order.sequence)
            return
        kept = frozenset(order.kept)
        for number in [each for each in self._by_number if order.first <= each <= order.last and each not in kept]:
            del self._by_number[number]

    def clear(self) -> None:
        """Drop all states: the lane is being scrubbed."""
        self._by_number.clear()
