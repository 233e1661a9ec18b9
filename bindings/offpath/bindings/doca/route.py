"""The way to one far memory: a context of its own, what is under way on it, and what waits for room.

A task that fails stops its context, and with it all that was under way there: so each memory has one, and nobody else's
copies end. The context is started again; one that is stopped so time after time is given up.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Final, NamedTuple

from offpath.bindings.doca._abi_ctx import State
from offpath.bindings.doca.dma import Dma, Place
from offpath.bindings.doca.memory import Mmap
from offpath.bindings.errors import DeviceError, DeviceGone, DocaError
from offpath.bindings.memory.registry import Closable, Registration

STOPS: Final = 2
"""So often in a row its context may be stopped by failures."""


class Stretch(NamedTuple):
    """Bytes at the far side, in a map of theirs."""

    mmap: Mmap
    address: int
    nbytes: int


@dataclass(slots=True, eq=False)
class Copy:
    """A copy under way. ``held``: what it uses of ours."""

    token: int
    nbytes: int
    held: Sequence[Registration[Closable]]
    parts: int = 0
    """That have not ended yet."""
    error: str | None = None

    def release(self) -> None:
        """It has ended."""
        for registration in self.held:
            registration.release()
        self.held = ()


class Part(NamedTuple):
    """What one task copies."""

    copy: Copy
    source: Place
    target: Place
    nbytes: int


class Route:
    """Implements `offpath.bindings.ports.Memory`: ``far`` as one range. Made by `DocaCopyEngine.import_memory`.

    ``make`` makes its context, given whom to tell of tasks that ended: the route itself and what the context says.
    ``part`` is called once, when all can be given back: it was given up, or it is closed and no copy is under way.
    """

    def __init__(
        self,
        make: Callable[[Callable[[int, bool], None]], Dma],
        far: Sequence[Stretch],
        landed: Callable[[tuple[Route, int, bool]], None],
        part: Callable[[Route], None],
    ) -> None:
        """Raises: DocaError, DeviceGone: no context for it."""
        self.far = far
        self.failure = ""
        """Why nothing goes any more; empty: it does."""
        self.is_closed = False
        self.is_lost = False
        """The device was, and not this memory alone."""
        self._part = part
        self._has_parted = False
        self._serials = count(1)
        self._waiting: deque[Part] = deque()
        self._flying: dict[int, Part] = {}
        self._is_stopping = False
        self._stops = 0
        self._why = ""
        self.dma = make(lambda serial, is_good: landed((self, serial, is_good)))

    @property
    def nbytes(self) -> int:
        """See `Memory.nbytes`."""
        return sum(stretch.nbytes for stretch in self.far)

    @property
    def is_busy(self) -> bool:
        """A copy is under way."""
        return bool(self._flying or self._waiting)

    @property
    def wants_turn(self) -> bool:
        """Its context is to be brought to IDLE, of which no completion tells."""
        return self._is_stopping and not self._flying and not self.failure

    def close(self) -> None:
        """See `Memory.close`. Copies under way go on to their end."""
        self.is_closed = True
        self._part_if_done()

    def stretches(self, offset: int, nbytes: int) -> list[Stretch]:
        """Where a range of it lies."""
        found = []
        for mmap, address, room in self.far:
            part = min(nbytes, room - offset)
            if part > 0:
                found.append(Stretch(mmap, address + offset, part))
                nbytes -= part
            offset = max(0, offset - room)
        return found

    def start(self, parts: Sequence[Part]) -> list[Copy]:
        """Do them, all of one copy. Returns copies that ended by it: it can fail at once."""
        for part in parts:
            part.copy.parts += 1
            self._waiting.append(part)
        return self._advance()

    def take(self, serial: int, is_good: bool) -> list[Copy]:
        """A task has ended. Returns copies that ended with it."""
        if serial not in self._flying:  # it was given up, and all its copies with it
            return []
        copy = self._flying.pop(serial).copy
        fault = self.dma.finish(serial, is_good)
        copy.parts -= 1
        if fault is not None:
            self.is_lost = self.is_lost or isinstance(fault, DeviceGone)
            if self.dma.is_running:
                return self._fail(copy, str(fault))
            self._why = self._why or str(fault)  # the first to fail; the others came back unasked
            return self._fail(copy, self._why)
        self._stops = 0
        return [copy] if not copy.parts else []

    def settle(self) -> list[Copy]:
        """After tasks were taken: start what there is room for, and the context again if it stopped by itself."""
        if self._has_parted:
            return []
        ended: list[Copy] = []
        # One that just stopped says why with the tasks that come back, which may be in the next turn.
        if not self.dma.is_running and not self._is_stopping and (self._why or not self._flying):
            self._is_stopping = True
            self._why = self._why or "its context stopped"
            for copy in self._copies():
                ended += self._fail(copy, self._why)
        if self._is_stopping and not self._flying:
            self._start_again()
        if self.failure:  # what was posted while the context was on its way to IDLE
            for copy in self._copies():
                ended += self._fail(copy, self.failure)
        ended += self._advance()
        self._part_if_done()
        return ended

    def give_up(self, why: str) -> list[Copy]:
        """End all copies now. What the device has under way is brought to its end first, for a bounded time."""
        self.failure = self.failure or why
        ended = self._copies()
        for copy in ended:
            copy.error = copy.error or why
            copy.parts = 0
        self._waiting.clear()
        self._flying.clear()
        self._part_now()
        return ended

    # -- within -------------------------------------------------------------------------------------------------------
    def _copies(self) -> list[Copy]:
        return list(dict.fromkeys(part.copy for part in (*self._flying.values(), *self._waiting)))

    def _fail(self, copy: Copy, why: str) -> list[Copy]:
        """It has ended once its tasks under way have: until then they may land."""
        copy.error = copy.error or why
        kept = deque(part for part in self._waiting if part.copy is not copy)
        copy.parts -= len(self._waiting) - len(kept)
        self._waiting = kept
        return [copy] if not copy.parts else []

    def _advance(self) -> list[Copy]:
        """Submit what there is room for."""
        ended: list[Copy] = []
        while self._waiting and self.dma.is_running and not self._is_stopping:
            part, serial = self._waiting[0], next(self._serials)
            try:
                if not self.dma.submit(serial, part.source, part.target, part.nbytes):
                    if self._flying:
                        break
                    raise DocaError("a copy", "no room for a task although none is under way")
            except DeviceError as fault:
                self.is_lost = self.is_lost or isinstance(fault, DeviceGone)
                ended += self._fail(part.copy, str(fault))
                continue
            self._waiting.popleft()
            self._flying[serial] = part
        return ended

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

    def _part_if_done(self) -> None:
        if (self.is_closed or self.failure) and not self.is_busy:
            self._part_now()

    def _part_now(self) -> None:
        if not self._has_parted:
            self._has_parted = True
            self._part(self)
