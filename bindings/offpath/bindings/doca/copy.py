"""Copy engine `doca`: payloads from slots into lanes, results back, by the BlueField's own DMA.

Memory of ours is registered when it is first copied; a lane is imported from what its worker exported
(`offpath.bindings.doca.lane`). Each lane has a context of its own on one progress engine, so that one that fails ends
nobody else's copies. Ran on an emulator of DOCA's interface, never on a BlueField.
"""

from __future__ import annotations

import ctypes
import logging
import os
import select
import time
from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Final

from offpath.bindings.doca.buffers import Inventory
from offpath.bindings.doca.device import Device
from offpath.bindings.doca.dma import Dma, Place
from offpath.bindings.doca.ends import Half, described
from offpath.bindings.doca.engine import LONG_NS, Engine
from offpath.bindings.doca.memory import Mmap
from offpath.bindings.doca.route import Copy, Part, Route, Stretch
from offpath.bindings.errors import DeviceError, RegionError, ResourceClosed
from offpath.bindings.memory.region import Region
from offpath.bindings.memory.registry import Closable, Registration, Registry
from offpath.bindings.ports import CopyCompletion, Invitation, Memory, MemoryExport

logger = logging.getLogger(__name__)
IN_PLACE_BYTES: Final = 64 << 10
"""Between two memories of ours, up to this, the processor copies: a task costs more."""
_CLOSE_S: Final = 5.0
_NAP_S: Final = 1e-3

_stranded: Final[list[Device]] = []
"""What a device still had under way when it was given up: it may write there yet, so its memory stays mapped."""


class _Known:
    """A memory of ours that the device knows."""

    def __init__(self, mmap: Mmap) -> None:
        self.mmap = mmap

    def close(self) -> None:
        _give_back(self.mmap)


class DocaCopyEngine:
    """Implements `offpath.bindings.ports.CopyEngine`. Not for several threads."""

    def __init__(self, device: Device) -> None:
        """Owns ``device``, also on failure. Raises: DocaError, DeviceGone."""
        self.bytes_copied = 0
        self._device = device
        self._routes: list[Route] = []
        self._landed: deque[tuple[Route, int, bool]] = deque()
        self._own: Route | None = None
        self._registry: Registry[Closable] = Registry(self._register)
        self._done: deque[CopyCompletion] = deque()
        self._is_marked = False
        self._wants_turn = False
        self._broken = ""
        self._closed = False
        with ExitStack() as made:
            made.callback(_close_device, device)
            self._engine = Engine(device.doca, device)
            made.callback(_give_back, self._engine)
            self._checks = Inventory(device.doca, 1, device)
            made.callback(_give_back, self._checks)
            self._epoll = select.epoll()
            made.callback(self._epoll.close)
            self._mark = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
            made.callback(os.close, self._mark)
            self._epoll.register(self._mark, select.EPOLLIN)
            self._epoll.register(self._engine.fileno(), select.EPOLLIN)
            self._undo = made.pop_all()

    # -- linking ------------------------------------------------------------------------------------------------------
    def invite(self) -> Invitation | None:
        """See `CopyEngine.invite`: an export is all that is needed."""
        return None

    def import_memory(self, export: MemoryExport, invitation: Invitation | None = None) -> Memory:
        """See `CopyEngine.import_memory`. An exporter that has ended may show only when it is copied."""
        for fd in export.fds:
            os.close(fd)
        if self._closed or self._broken:
            raise RegionError(f"the copy engine is closed: {self._broken}".rstrip(" :"))
        halves = described(export.descriptor)
        maps: list[Mmap] = []
        try:
            far = [self._stretch(half, maps) for half in halves if half.nbytes]
            return self._route(far)
        except BaseException as fault:
            for mmap in maps:
                _give_back(mmap)
            if isinstance(fault, DeviceError):
                raise RegionError(f"the exported memory cannot be reached: {fault}") from None
            raise

    def reaches(self, memory: Memory) -> bool:
        """See `CopyEngine.reaches`."""
        return not (isinstance(memory, Route) and memory.failure)

    # -- copies -------------------------------------------------------------------------------------------------------
    def post(
        self, token: int, source: Memory, source_offset: int, target: Memory, target_offset: int, nbytes: int
    ) -> CopyCompletion | None:
        """See `CopyEngine.post`. The first copy with a memory of ours registers it, which takes its time.

        A lane that was given up, a memory that cannot be registered: the copy completes at once, with an error.
        """
        if self._closed:
            raise ResourceClosed("copy engine")
        _check(source, source_offset, nbytes)
        _check(target, target_offset, nbytes)
        if isinstance(source, Route) and isinstance(target, Route):
            raise RegionError("one side of a copy is memory of ours")
        if not nbytes:
            return CopyCompletion(token, None)
        if isinstance(source, Region) and isinstance(target, Region) and nbytes <= IN_PLACE_BYTES:
            ctypes.memmove(target.address + target_offset, source.address + source_offset, nbytes)
            self.bytes_copied += nbytes
            return CopyCompletion(token, None)
        held: list[Registration[Closable]] = []
        try:
            if self._broken:
                return CopyCompletion(token, self._broken)
            route = self._way(source, target)
            copy = Copy(token, nbytes, held)
            sources = self._stretches(source, source_offset, nbytes, held, is_written=False)
            targets = self._stretches(target, target_offset, nbytes, held, is_written=True)
            self._engine.request()  # before there is anything to tell, so that it is told
            ended = route.start(self._parts(copy, sources, targets))
        except DeviceError as fault:
            for registration in held:
                registration.release()
            return CopyCompletion(token, str(fault))
        self._end(ended)
        return None

    def fileno(self) -> int:
        """See `CopyEngine.fileno`."""
        return self._epoll.fileno()

    def poll(self) -> list[CopyCompletion]:
        """Take the finished copies; after `close` too, what was still in flight then."""
        if not self._closed:
            self._turn()
        done = list(self._done)
        self._done.clear()
        self._set_mark()
        return done

    def is_working(self) -> bool:
        """See `CopyEngine.is_working`: a lane's failure is not the engine's."""
        return not self._closed and not self._broken

    def close(self) -> None:
        """See `CopyEngine.close`."""
        if self._closed:
            return
        self._epoll.unregister(self._mark)  # what is done waits to be taken, and must not keep us awake
        until = time.monotonic() + _CLOSE_S
        while any(route.is_busy for route in self._routes) and (left := until - time.monotonic()) > 0:
            self._epoll.poll(min(left, _NAP_S) if self._wants_turn else left)
            self._turn()
        for route in list(self._routes):
            self._end(route.give_up("the copy engine was closed"))
        self._closed = True
        self._undo.close()

    # -- within -------------------------------------------------------------------------------------------------------
    def _stretch(self, half: Half, maps: list[Mmap]) -> Stretch:
        """Raises: DocaError, DeviceGone, RegionError."""
        maps.append(mmap := Mmap.imported(self._device, half.export))
        if mmap.nbytes and not mmap.address <= half.address <= mmap.address + mmap.nbytes - half.nbytes:
            raise RegionError(f"{half.nbytes} bytes at {half.address:#x} do not lie in what was exported")
        # Where DOCA does not tell the range, it still refuses a buffer that leaves it.
        buffer = self._checks.by_addr(mmap, half.address, half.nbytes)
        if buffer is None:
            raise RegionError("no buffer to check the export with")
        self._checks.release(buffer)
        return Stretch(mmap, half.address, half.nbytes)

    def _route(self, far: Sequence[Stretch]) -> Route:
        """Raises: DocaError, DeviceGone."""
        route = Route(
            lambda ended: Dma(self._device, self._engine, ended), far, self._landed.append, self._part
        )  # fmt: skip
        self._routes.append(route)
        return route

    def _part(self, route: Route) -> None:
        """It is done with: its context, then what was imported."""
        self._routes.remove(route)
        _give_back(route.dma)
        for stretch in route.far:
            if route.dma.is_closed:
                _give_back(stretch.mmap)
        if not route.dma.is_closed:
            self._wants_turn = True

    def _way(self, source: Memory, target: Memory) -> Route:
        """Between memories of ours, a context of its own. Raises: DocaError, DeviceGone."""
        for side in (source, target):
            if isinstance(side, Route):
                if side.failure:
                    raise DeviceError(side.failure)
                return side
        if self._own is None or self._own.failure:
            self._own = self._route(())
        return self._own

    def _stretches(
        self, memory: Memory, offset: int, nbytes: int, held: list[Registration[Closable]], *, is_written: bool
    ) -> list[Stretch]:
        """Where a range lies, as DOCA knows it. Raises: DocaError, DeviceGone."""
        if isinstance(memory, Route):
            return memory.stretches(offset, nbytes)
        assert isinstance(memory, Region)
        registration = self._registry.use(memory, is_written=is_written)
        held.append(registration)
        known = registration.region
        assert isinstance(known, _Known)
        return [Stretch(known.mmap, memory.address + offset, nbytes)]

    def _parts(self, copy: Copy, sources: Sequence[Stretch], targets: Sequence[Stretch]) -> list[Part]:
        """Cut where a stretch ends on either side, and at what the device takes in one task."""
        most = self._device.info.copy_bytes
        parts, from_, into = [], deque(sources), deque(targets)
        while from_:
            source, target = from_.popleft(), into.popleft()
            nbytes = min(source.nbytes, target.nbytes, most)
            parts.append(Part(copy, Place(source.mmap, source.address), Place(target.mmap, target.address), nbytes))
            for side, stretch in ((from_, source), (into, target)):
                if stretch.nbytes > nbytes:
                    side.appendleft(Stretch(stretch.mmap, stretch.address + nbytes, stretch.nbytes - nbytes))
        return parts

    def _register(self, memory: Region, is_written: bool) -> _Known:
        return _Known(Mmap.ours(self._device, memory.view, is_written=is_written))

    def _turn(self) -> None:
        """Take in what has completed, until nothing has and a notification will tell of the next."""
        more, until_ns = not self._broken, time.monotonic_ns() + LONG_NS
        try:
            while more:
                if self._is_busy():
                    more = self._engine.turn(until_ns)
                else:
                    more = self._engine.clear() | self._engine.drain(until_ns)
                self._settle()
                if time.monotonic_ns() > until_ns:
                    break
        except DeviceError as fault:  # nothing would tell of completions any more
            self._break(str(fault))
            more = False
        self._wants_turn = more or any(route.wants_turn for route in self._routes)
        self._set_mark()

    def _is_busy(self) -> bool:
        return any(route.is_busy for route in self._routes)

    def _settle(self) -> None:
        while self._landed:
            route, serial, is_good = self._landed.popleft()
            self._end(route.take(serial, is_good))
        for route in list(self._routes):
            self._end(route.settle())
            if route.is_lost:
                self._break(route.failure or "the device was lost")
                return

    def _break(self, why: str) -> None:
        """The device, or what tells of it, is lost: all copies end."""
        if self._broken:
            return
        self._broken = why
        logger.error("the copy engine works no more: %s", why)
        self._epoll.unregister(self._engine.fileno())
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
        """What no completion shows keeps our descriptor readable."""
        wanted = bool(self._done) or self._wants_turn
        if wanted is not self._is_marked and not self._closed:
            self._is_marked = wanted
            if wanted:
                os.eventfd_write(self._mark, 1)
            else:
                os.eventfd_read(self._mark)


def _give_back(handle: Engine | Mmap | Dma | Inventory) -> None:
    """What DOCA refuses to take back is tried again when its device is closed."""
    try:
        handle.close()
    except DeviceError as fault:
        logger.warning("not given back to DOCA: %s", fault)


def _close_device(device: Device) -> None:
    """With all that was not given back before, of this engine and of those before it."""
    _stranded.append(device)
    for each in list(_stranded):
        try:
            each.close()
        except DeviceError as fault:
            logger.warning("the DOCA device stays open: %s", fault)
        else:
            _stranded.remove(each)


def _check(memory: Memory, offset: int, nbytes: int) -> None:
    if not isinstance(memory, (Region, Route)):
        raise RegionError("the engine copies between regions and what it imported")
    if memory.closed if isinstance(memory, Region) else memory.is_closed:
        raise RegionError("copy with a closed region")
    if nbytes < 0 or offset < 0 or offset + nbytes > memory.nbytes:
        raise RegionError(f"copy of {nbytes} bytes leaves a region")
