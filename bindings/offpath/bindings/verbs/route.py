"""The route to one remote memory: a queue pair, what is in flight on it, and what waits for capacity.

A copy is split into messages of the device's limit at most, so that a copy may exceed the send queue and no copy waits
for another lane's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from offpath.bindings.errors import DeviceError, PeerGone
from offpath.bindings.transfer import Copy, SegmentedRoute
from offpath.bindings.verbs.domain import Region
from offpath.bindings.verbs.queue import QueuePair, WriteSegment


class LocalRange(NamedTuple):
    """Bytes in a registered local memory."""

    region: Region
    offset: int
    nbytes: int

    def within(self, offset: int, nbytes: int) -> LocalRange:
        """See `Range.within`."""
        return LocalRange(self.region, self.offset + offset, nbytes)


class RemoteRange(NamedTuple):
    """Bytes at the peer, under one key."""

    address: int
    rkey: int
    nbytes: int

    def within(self, offset: int, nbytes: int) -> RemoteRange:
        """See `Range.within`."""
        return RemoteRange(self.address + offset, self.rkey, nbytes)


class Segment(NamedTuple):
    """One message; both ranges have the same length. ``is_read``: from the peer, otherwise to it."""

    copy: Copy
    is_read: bool
    local: LocalRange
    remote: RemoteRange


class Route(SegmentedRoute[Segment, RemoteRange]):
    """Made by `VerbsCopyEngine.import_memory`. ``release`` closes the queue pair."""

    def __init__(self, queue: QueuePair, remote: Sequence[RemoteRange], release: Callable[[], None]) -> None:
        super().__init__(remote, release)
        self.queue = queue

    def take(self) -> list[Copy]:
        """Copies that have ended since the last call. Does not block."""
        if self.failure:
            return []
        ended: list[Copy] = []
        try:
            completions = self.queue.poll()
        except (DeviceError, PeerGone) as fault:
            return self.give_up(str(fault))
        for completion in completions:
            if completion.error is not None:  # one failure stands for all that follow
                return ended + self.give_up(str(completion.error))
            if completion.token is not None:
                ended += self._landed(self._in_flight.pop(completion.token).copy)
        ended += self._advance()
        self._release_if_done()
        return ended

    # -- within -------------------------------------------------------------------------------------------------------
    def _submit(self, serial: int, segment: Segment) -> bool:
        _, is_read, local, remote = segment
        post = self.queue.read if is_read else self.queue.write
        return post(serial, [WriteSegment(*local, remote.address)], remote.rkey)

    def _refused(self, copy: Copy, fault: DeviceError) -> list[Copy]:
        return self.give_up(str(fault))
