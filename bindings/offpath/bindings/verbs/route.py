"""The way to one far memory: a queue pair, what is under way on it, and what waits for room.

A copy goes as messages of the device's limit at most, so that one larger than the whole send queue passes too, and none
waits for another lane's.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from offpath.bindings.errors import DeviceError, PeerGone
from offpath.bindings.memory.registry import Registration
from offpath.bindings.verbs.domain import Region
from offpath.bindings.verbs.queue import Part, QueuePair


class Stretch(NamedTuple):
    """Bytes at the far side that one key opens."""

    address: int
    rkey: int
    nbytes: int


@dataclass(slots=True, eq=False)
class Copy:
    """A copy under way. ``held``: what it uses of ours."""

    token: int
    nbytes: int
    is_read: bool
    held: Sequence[Registration[Region]]
    messages: int = 0
    """That have not completed yet."""
    error: str | None = None

    def release(self) -> None:
        """It has ended."""
        for registration in self.held:
            registration.release()
        self.held = ()


class _Message(NamedTuple):
    copy: Copy
    part: Part
    rkey: int


class Route:
    """Implements `offpath.bindings.ports.Memory`: ``far`` as one range. Made by `VerbsCopyEngine.import_memory`.

    ``part``: called once, when the queue pair is to be given back: it failed, or the memory is closed and no copy is
    under way.
    """

    def __init__(self, queue: QueuePair, message_bytes: int, far: Sequence[Stretch], part: Callable[[], None]) -> None:
        self.queue = queue
        self.failure = ""
        """Why nothing goes any more; empty: it does."""
        self.is_closed = False
        self._message_bytes = message_bytes
        self._far = far
        self._part = part
        self._has_parted = False
        self._waiting: deque[_Message] = deque()
        self._flying: deque[_Message] = deque()

    @property
    def nbytes(self) -> int:
        """See `Memory.nbytes`."""
        return sum(stretch.nbytes for stretch in self._far)

    @property
    def is_busy(self) -> bool:
        """A copy is under way."""
        return bool(self._flying or self._waiting)

    def close(self) -> None:
        """See `Memory.close`. Copies under way go on to their end."""
        self.is_closed = True
        self._part_if_done()

    def stretches(self, offset: int, nbytes: int) -> list[Stretch]:
        """Where a range of it lies."""
        found = []
        for address, rkey, room in self._far:
            part = min(nbytes, room - offset)
            if part > 0:
                found.append(Stretch(address + offset, rkey, part))
                nbytes -= part
            offset = max(0, offset - room)
        return found

    def start(self, copy: Copy, near: Registration[Region], at: int, far: Sequence[Stretch]) -> list[Copy]:
        """Copy between ``near`` from ``at`` on and ``far``. Returns copies that ended by it: it can fail at once."""
        for stretch in far:
            for done in range(0, stretch.nbytes, self._message_bytes):
                nbytes = min(self._message_bytes, stretch.nbytes - done)
                part = Part(near.region, at + done, nbytes, stretch.address + done)
                self._waiting.append(_Message(copy, part, stretch.rkey))
                copy.messages += 1
            at += stretch.nbytes
        return self._advance()

    def take(self) -> list[Copy]:
        """Copies that have ended since. Does not block."""
        if self.failure:
            return []
        ended: list[Copy] = []
        try:
            completions = self.queue.poll()
        except (DeviceError, PeerGone) as fault:
            return self.fail(str(fault))
        for completion in completions:
            if completion.error is not None:  # one stands for all that follow
                return ended + self.fail(str(completion.error))
            if completion.token is not None:
                copy = self._flying.popleft().copy  # a reliable connection completes in order
                copy.messages -= 1
                if not copy.messages:
                    ended.append(copy)
        ended += self._advance()
        self._part_if_done()
        return ended

    def fail(self, why: str) -> list[Copy]:
        """End all copies. The queue pair is given back first: what its device had not done yet, it does no more."""
        self.failure = why
        ended = list(dict.fromkeys(message.copy for message in (*self._flying, *self._waiting)))
        for copy in ended:
            copy.error = why
        self._flying.clear()
        self._waiting.clear()
        self._part_now()
        return ended

    def _advance(self) -> list[Copy]:
        """Post what there is room for."""
        try:
            while self._waiting and self._posted(self._waiting[0]):
                self._flying.append(self._waiting.popleft())
        except DeviceError as fault:
            return self.fail(str(fault))
        return []

    def _posted(self, message: _Message) -> bool:
        copy, part, rkey = message
        post = self.queue.read if copy.is_read else self.queue.write
        return post(copy.token, [part], rkey)

    def _part_if_done(self) -> None:
        if self.is_closed and not self.is_busy:
            self._part_now()

    def _part_now(self) -> None:
        if not self._has_parted:
            self._has_parted = True
            self._part()
