"""The route to one remote memory: its own context, what is in flight on it, and what waits for capacity.

A failed task stops its context and all that is in flight there. So each memory has its own, and other memories' copies
continue. The context is restarted; if failures stop it repeatedly, the route fails.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from offpath.bindings.doca._abi_ctx import State
from offpath.bindings.doca.dma import Dma, Place
from offpath.bindings.doca.memory import Mmap
from offpath.bindings.errors import DeviceError, DeviceGone, DocaError
from offpath.bindings.transfer import Copy, SegmentedRoute

STOPS: Final = 2
"""The route fails when its context is stopped this often in a row."""


class MappedRange(NamedTuple):
    """Bytes in a local or an imported map."""

    mmap: Mmap
    address: int
    nbytes: int

    def within(self, offset: int, nbytes: int) -> MappedRange:
        """See `Range.within`."""
        return MappedRange(self.mmap, self.address + offset, nbytes)


class Segment(NamedTuple):
    """What one task copies; both ranges have the same length."""

    copy: Copy
    source: MappedRange
    target: MappedRange


class Route(SegmentedRoute[Segment, MappedRange]):
    """Made by `DocaCopyEngine.import_memory`. ``make`` makes its context, given the callback for ended tasks.
    ``landed`` receives the route, and the arguments of that callback."""

    def __init__(
        self,
        make: Callable[[Callable[[int, bool], None]], Dma],
        remote: Sequence[MappedRange],
        landed: Callable[[tuple[Route, int, bool]], None],
        release: Callable[[], None],
    ) -> None:
        """Raises: DocaError, DeviceGone: no context could be made."""
        super().__init__(remote, release)
        self.is_lost = False
        """The device was lost, not only this memory."""
        self._is_stopping = False
        self._stops = 0
        self._why = ""
        self.dma = make(lambda serial, is_good: landed((self, serial, is_good)))

    @property
    def wants_turn(self) -> bool:
        """Its context must be brought to IDLE, which no completion signals."""
        return self._is_stopping and not self._in_flight and not self.failure

    def take(self, serial: int, is_good: bool) -> list[Copy]:
        """A task has ended. Returns the copies that this ended."""
        if serial not in self._in_flight:  # the route was aborted with all its copies
            return []
        copy = self._in_flight.pop(serial).copy
        fault = self.dma.finish(serial, is_good)
        ended = self._landed(copy)
        if fault is not None:
            self.is_lost = self.is_lost or isinstance(fault, DeviceGone)
            if self.dma.is_running:
                return self._fail(copy, str(fault))
            self._why = self._why or str(fault)  # the first failure; the other tasks were flushed
            return self._fail(copy, self._why)
        self._stops = 0
        return ended

    def settle(self) -> list[Copy]:
        """After tasks were taken: submit segments, and restart the context if it stopped by itself."""
        if self._is_released:
            return []
        ended: list[Copy] = []
        # A context that just stopped gives the reason with its returned tasks, perhaps only in the next turn.
        if not self.dma.is_running and not self._is_stopping and (self._why or not self._in_flight):
            self._is_stopping = True
            self._why = self._why or "its context stopped"
            for copy in self._copies():
                ended += self._fail(copy, self._why)
        if self._is_stopping and not self._in_flight:
            self._start_again()
        if self.failure:  # posted while the context was on its way to IDLE
            for copy in self._copies():
                ended += self._fail(copy, self.failure)
        ended += self._advance()
        self._release_if_done()
        return ended

    # -- within -------------------------------------------------------------------------------------------------------
    @property
    def _takes_segments(self) -> bool:
        return self.dma.is_running and not self._is_stopping

    def _submit(self, serial: int, segment: Segment) -> bool:
        _, source, target = segment
        places = Place(source.mmap, source.address), Place(target.mmap, target.address)
        if self.dma.submit(serial, *places, source.nbytes):
            return True
        if not self._in_flight:
            raise DocaError("a copy", "no capacity for a task although none is in flight")
        return False

    def _refused(self, copy: Copy, fault: DeviceError) -> list[Copy]:
        self.is_lost = self.is_lost or isinstance(fault, DeviceGone)
        return self._fail(copy, str(fault))

    def _fail(self, copy: Copy, why: str) -> list[Copy]:
        """Fail a copy. It ends once its tasks in flight have ended: until then they may write."""
        copy.error = copy.error or why
        kept = deque(segment for segment in self._waiting if segment.copy is not copy)
        copy.segments -= len(self._waiting) - len(kept)
        self._waiting = kept
        return [copy] if not copy.segments else []

    def _start_again(self) -> None:
        try:
            if self.dma.look() is not State.IDLE:
                return
            self._stops += 1
            if self._stops < STOPS:
                self.dma.start()
                self._is_stopping, self._why = False, ""
                return
        except DeviceError as fault:
            self._why = str(fault)
        self.failure = self._why
