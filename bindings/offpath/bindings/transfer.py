"""Segmented device copies: the common part of the copy engines `doca` and `verbs`.

A copy is cut into segments that the device accepts. Each memory has a route with its own queue: segments that exceed
the device's capacity wait there and do not delay the copies of other memories. An adapter submits segments and reports
which ended.
"""

from __future__ import annotations

import ctypes
import os
import select
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Final, Generic, Protocol, Self, TypeVar

from offpath.bindings.errors import DeviceError, RegionError, ResourceClosed
from offpath.bindings.memory.region import Region
from offpath.bindings.memory.registry import Closable, Registration, Registry
from offpath.bindings.ports import CopyCompletion, HostConnection, Memory

IN_PLACE_BYTES: Final = 64 << 10
"""Up to this size the CPU copies between two local memories: a device request costs more."""
_CLOSE_S: Final = 5.0

Known = TypeVar("Known", bound=Closable)


@dataclass(slots=True, eq=False)
class Copy:
    """A copy in flight. ``held``: the registrations that it uses."""

    token: int
    nbytes: int
    held: list[Registration[Any]] = field(default_factory=list)
    segments: int = 0
    """Segments that have not ended."""
    error: str | None = None

    def use(self, registry: Registry[Known], memory: Region, *, is_written: bool) -> Known:
        """The device's registration of ``memory``, held until the copy ends. Raises: as the registry."""
        registration = registry.use(memory, is_written=is_written)
        self.held.append(registration)
        return registration.region

    def release(self) -> None:
        """Release the registrations, after the copy has ended."""
        for registration in self.held:
            registration.release()
        self.held = []


class Range(Protocol):
    """Contiguous bytes, as the device addresses them."""

    @property
    def nbytes(self) -> int:
        """Length in bytes."""

    def within(self, offset: int, nbytes: int) -> Self:
        """A subrange."""


class Segment(Protocol):
    """What the device copies in one request."""

    @property
    def copy(self) -> Copy:
        """The copy that the segment belongs to."""


S = TypeVar("S", bound=Segment)
R = TypeVar("R", bound=Range)
Source = TypeVar("Source", bound=Range)
Target = TypeVar("Target", bound=Range)


def cut(sources: Sequence[Source], targets: Sequence[Target], most_bytes: int) -> list[tuple[Source, Target]]:
    """Split ranges of the same total length into pairs of equal length: at the end of a range on either side, and at
    ``most_bytes``."""
    if len(sources) == len(targets) == 1 and sources[0].nbytes <= most_bytes:  # the common case
        return [(sources[0], targets[0])]
    found, sources_left, targets_left = [], deque(sources), deque(targets)
    while sources_left:
        source, target = sources_left.popleft(), targets_left.popleft()
        nbytes = min(source.nbytes, target.nbytes, most_bytes)
        if source.nbytes > nbytes:
            sources_left.appendleft(source.within(nbytes, source.nbytes - nbytes))
            source = source.within(0, nbytes)
        if target.nbytes > nbytes:
            targets_left.appendleft(target.within(nbytes, target.nbytes - nbytes))
            target = target.within(0, nbytes)
        found.append((source, target))
    return found


class SegmentedRoute(ABC, Generic[S, R]):
    """Implements `offpath.bindings.ports.Memory`: presents ``remote`` as one range, and runs the copies from and to it.

    ``release`` is called once, when the route can be released: it failed, or it is closed and no copy is in flight.
    """

    def __init__(self, remote: Sequence[R], release: Callable[[], None]) -> None:
        self.remote = remote
        self.failure = ""
        """Why copies have become impossible; empty: copies are possible."""
        self.is_closed = False
        self._release = release
        self._is_released = False
        self._serials = count(1)
        self._waiting: deque[S] = deque()
        self._in_flight: dict[int, S] = {}
        """By serial number, in order of submission."""

    # -- by the adapter -----------------------------------------------------------------------------------------------
    @property
    def _takes_segments(self) -> bool:
        """Segments may be submitted now."""
        return True

    @abstractmethod
    def _submit(self, serial: int, segment: S) -> bool:
        """Submit one segment. False: no capacity now. Does not block. Raises: DeviceError."""

    @abstractmethod
    def _refused(self, copy: Copy, fault: DeviceError) -> list[Copy]:
        """``copy``'s segment at the head of the queue could not be submitted; remove it. Returns the copies that this
        ended."""

    # -- the memory ---------------------------------------------------------------------------------------------------
    @property
    def nbytes(self) -> int:
        """See `Memory.nbytes`."""
        return sum(each.nbytes for each in self.remote)

    @property
    def is_busy(self) -> bool:
        """A copy is in flight."""
        return bool(self._in_flight or self._waiting)

    def close(self) -> None:
        """See `Memory.close`. Copies in flight run to their end."""
        self.is_closed = True
        self._release_if_done()

    def ranges(self, offset: int, nbytes: int) -> list[R]:
        """The parts of ``remote`` that hold ``nbytes`` from ``offset`` on."""
        found = []
        for each in self.remote:
            here = min(nbytes, each.nbytes - offset)
            if here > 0:
                found.append(each.within(offset, here))
                nbytes -= here
            offset = max(0, offset - each.nbytes)
        return found

    # -- copies -------------------------------------------------------------------------------------------------------
    def start(self, segments: Sequence[S]) -> list[Copy]:
        """Queue the segments of one copy. Returns the copies that this ended: a copy can fail at once."""
        for segment in segments:
            segment.copy.segments += 1
            self._waiting.append(segment)
        return self._advance()

    def give_up(self, why: str) -> list[Copy]:
        """Abort all copies. The route is released first, so that the device does nothing more for them."""
        self.failure = self.failure or why
        ended = self._copies()
        for copy in ended:
            copy.error = copy.error or why
            copy.segments = 0
        self._waiting.clear()
        self._in_flight.clear()
        self._release_once()
        return ended

    # -- within -------------------------------------------------------------------------------------------------------
    def _copies(self) -> list[Copy]:
        return list(dict.fromkeys(segment.copy for segment in (*self._in_flight.values(), *self._waiting)))

    def _landed(self, copy: Copy) -> list[Copy]:
        """Count one segment of ``copy`` as ended. Returns the copy if it was the last."""
        copy.segments -= 1
        return [] if copy.segments else [copy]

    def _advance(self) -> list[Copy]:
        """Submit segments while there is capacity. Returns the copies that this ended."""
        ended: list[Copy] = []
        while self._waiting and self._takes_segments:
            segment, serial = self._waiting[0], next(self._serials)
            try:
                if not self._submit(serial, segment):
                    break
            except DeviceError as fault:
                ended += self._refused(segment.copy, fault)
                continue
            self._waiting.popleft()
            self._in_flight[serial] = segment
        return ended

    def _release_if_done(self) -> None:
        if (self.is_closed or self.failure) and not self.is_busy:
            self._release_once()

    def _release_once(self) -> None:
        if not self._is_released:
            self._is_released = True
            self._release()


Route = TypeVar("Route", bound=SegmentedRoute[Any, Any])


class SegmentedCopyEngine(ABC, Generic[Route]):
    """Implements `offpath.bindings.ports.CopyEngine`, except the linking. Not thread-safe.

    `fileno` is an epoll, in which the adapter registers its event sources.
    """

    keeps_back: Final = False
    """See `CopyEngine.keeps_back`."""
    _undo: ExitStack
    """What `close` undoes; set by the adapter."""

    def __init__(self, kind: type[Route]) -> None:
        """``kind``: the class of this engine's routes."""
        self.bytes_copied = 0
        self.bytes_by_cpu = 0
        """See `CopyEngine.bytes_by_cpu`: small copies between local memories."""
        self._kind = kind
        self._routes: list[Route] = []
        self._done: deque[CopyCompletion] = deque()
        self._is_marked = False
        self._wants_turn = False
        """`_turn` has more to do, and no registered descriptor signals it."""
        self._broken = ""
        """Why the device is lost; empty: it is not."""
        self._closed = False

    def _open_descriptor(self, made: ExitStack) -> None:
        """Make the epoll, and in it the eventfd that keeps it readable. Raises: OSError."""
        self._epoll = select.epoll()
        made.callback(self._epoll.close)
        self._mark = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        made.callback(os.close, self._mark)
        self._epoll.register(self._mark, select.EPOLLIN)

    # -- by the adapter -----------------------------------------------------------------------------------------------
    @abstractmethod
    def _start(self, copy: Copy, source: Memory, source_offset: int, target: Memory, target_offset: int) -> list[Copy]:
        """Cut ``copy`` and start its segments. One of the two memories is a `Region`. Returns the copies that this
        ended. Raises: DeviceError: nothing was started."""

    @abstractmethod
    def _turn(self, timeout_s: float) -> None:
        """Process completions; wait at most ``timeout_s`` for the first."""

    # -- the engine ---------------------------------------------------------------------------------------------------
    def attach(self, memory: Memory, connection: HostConnection, landing_bytes: int) -> None:
        """See `CopyEngine.attach`: a device needs no worker."""

    def flush(self) -> None:
        """See `CopyEngine.flush`: nothing is kept back."""

    def reaches(self, memory: Memory) -> bool:
        """See `CopyEngine.reaches`."""
        return not (isinstance(memory, self._kind) and memory.failure)

    def post(
        self, token: int, source: Memory, source_offset: int, target: Memory, target_offset: int, nbytes: int
    ) -> CopyCompletion | None:
        """See `CopyEngine.post`. The first copy with a local memory registers it, which takes time.

        If a lane failed or a memory cannot be registered, the copy completes at once with an error.
        """
        if self._closed:
            raise ResourceClosed("copy engine")
        self._check(source, source_offset, nbytes)
        self._check(target, target_offset, nbytes)
        if not isinstance(source, Region) and not isinstance(target, Region):
            raise RegionError("one side of a copy must be local memory")
        if not nbytes:
            return CopyCompletion(token, None)
        if isinstance(source, Region) and isinstance(target, Region) and nbytes <= IN_PLACE_BYTES:
            ctypes.memmove(target.address + target_offset, source.address + source_offset, nbytes)
            self.bytes_copied += nbytes
            self.bytes_by_cpu += nbytes
            return CopyCompletion(token, None)
        copy = Copy(token, nbytes)
        try:
            ended = self._start(copy, source, source_offset, target, target_offset)
        except DeviceError as fault:
            copy.release()
            return CopyCompletion(token, str(fault))
        self._end(ended)
        return None

    def fileno(self) -> int:
        """See `CopyEngine.fileno`."""
        return self._epoll.fileno()

    def poll(self) -> list[CopyCompletion]:
        """Take the finished copies; after `close` also those that were in flight then."""
        if not self._closed:
            self._turn(0)
        done = list(self._done)
        self._done.clear()
        self._set_mark()
        return done

    def is_working(self) -> bool:
        """See `CopyEngine.is_working`. A failed lane does not count."""
        return not self._closed and not self._broken

    def close(self) -> None:
        """See `CopyEngine.close`."""
        if self._closed:
            return
        self._epoll.unregister(self._mark)  # unread completions must not make the waits below return at once
        until = time.monotonic() + _CLOSE_S
        while self._is_busy() and (left := until - time.monotonic()) > 0:
            self._turn(left)
        self._give_up("the copy engine was closed")
        self._closed = True
        self._undo.close()

    # -- within -------------------------------------------------------------------------------------------------------
    def _check(self, memory: Memory, offset: int, nbytes: int) -> None:
        """Raises: RegionError."""
        if isinstance(memory, Region):
            is_closed = memory.closed
        elif isinstance(memory, self._kind):
            is_closed = memory.is_closed
        else:
            raise RegionError("the engine copies between regions and imported memory")
        if is_closed:
            raise RegionError("copy with a closed region")
        if nbytes < 0 or offset < 0 or offset + nbytes > memory.nbytes:
            raise RegionError(f"copy of {nbytes} bytes leaves a region")

    def _is_busy(self) -> bool:
        return any(route.is_busy for route in self._routes)

    def _give_up(self, why: str) -> None:
        """End all copies."""
        for route in list(self._routes):
            self._end(route.give_up(why))

    def _end(self, copies: list[Copy]) -> None:
        for copy in copies:
            copy.release()
            if copy.error is None:
                self.bytes_copied += copy.nbytes
            self._done.append(CopyCompletion(copy.token, copy.error))
        if copies:
            self._set_mark()

    def _set_mark(self) -> None:
        """Keep the descriptor readable while there is work that no registered descriptor signals."""
        wanted = bool(self._done) or self._wants_turn
        if wanted is not self._is_marked and not self._closed:
            self._is_marked = wanted
            if wanted:
                os.eventfd_write(self._mark, 1)
            else:
                os.eventfd_read(self._mark)
