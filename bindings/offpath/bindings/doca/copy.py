"""Copy engine `doca`: payloads from slots into lanes, and results back, by the BlueField's own DMA.

Local memory is registered at its first copy. A lane is imported from its worker's export
(`offpath.bindings.doca.lane`). Each lane has its own context on one progress engine, so that its failure ends no other
lane's copies. Run on an emulator of DOCA's interface, never on a BlueField.
"""

from __future__ import annotations

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
from offpath.bindings.doca.dma import Dma
from offpath.bindings.doca.ends import Half, described
from offpath.bindings.doca.engine import LONG_NS, Engine
from offpath.bindings.doca.memory import Mmap
from offpath.bindings.doca.route import MappedRange, Route, Segment
from offpath.bindings.errors import DeviceError, RegionError
from offpath.bindings.memory.region import Region
from offpath.bindings.memory.registry import Registry
from offpath.bindings.ports import Invitation, Memory, MemoryExport
from offpath.bindings.transfer import Copy, SegmentedCopyEngine, cut

logger = logging.getLogger(__name__)
_NAP_S: Final = 1e-3

_stranded: Final[list[Device]] = []
"""Devices that were abandoned with copies in flight. They may still write, so their memory stays mapped."""


class _Known:
    """A local memory that is registered with the device."""

    def __init__(self, mmap: Mmap) -> None:
        self.mmap = mmap

    def close(self) -> None:
        _give_back(self.mmap)


class DocaCopyEngine(SegmentedCopyEngine[Route]):
    """Implements `offpath.bindings.ports.CopyEngine`. Not thread-safe."""

    ends_in_use: Final = None

    def __init__(self, device: Device) -> None:
        """Owns ``device``, also on failure. Raises: DocaError, DeviceGone."""
        super().__init__(Route)
        self._device = device
        self._landed: deque[tuple[Route, int, bool]] = deque()
        self._own: Route | None = None
        self._registry: Registry[_Known] = Registry(self._register)
        with ExitStack() as made:
            made.callback(_close_device, device)
            self._engine = Engine(device.doca, device)
            made.callback(_give_back, self._engine)
            self._checks = Inventory(device.doca, 1, device)
            made.callback(_give_back, self._checks)
            self._open_descriptor(made)
            self._epoll.register(self._engine.fileno(), select.EPOLLIN)
            self._undo = made.pop_all()

    # -- linking ------------------------------------------------------------------------------------------------------
    def invite(self) -> Invitation | None:
        """See `CopyEngine.invite`: the export suffices."""
        return None

    def import_memory(self, export: MemoryExport, invitation: Invitation | None = None) -> Memory:
        """See `CopyEngine.import_memory`. The end of an exporter may be detected only by a copy."""
        for fd in export.fds:
            os.close(fd)
        if self._closed or self._broken:
            raise RegionError(f"the copy engine is closed: {self._broken}".rstrip(" :"))
        halves = described(export.descriptor)
        maps: list[Mmap] = []
        try:
            return self._route([self._range(half, maps) for half in halves if half.nbytes])
        except BaseException as fault:
            for mmap in maps:
                _give_back(mmap)
            if isinstance(fault, DeviceError):
                raise RegionError(f"the exported memory cannot be reached: {fault}") from None
            raise

    # -- within -------------------------------------------------------------------------------------------------------
    def _range(self, half: Half, maps: list[Mmap]) -> MappedRange:
        """Raises: DocaError, DeviceGone, RegionError."""
        maps.append(mmap := Mmap.imported(self._device, half.export))
        if mmap.nbytes and not mmap.address <= half.address <= mmap.address + mmap.nbytes - half.nbytes:
            raise RegionError(f"{half.nbytes} bytes at {half.address:#x} do not lie in the exported memory")
        # Where DOCA does not report the range, it still refuses a buffer that exceeds it.
        buffer = self._checks.by_addr(mmap, half.address, half.nbytes)
        if buffer is None:
            raise RegionError("no buffer is free to check the export")
        self._checks.release(buffer)
        return MappedRange(mmap, half.address, half.nbytes)

    def _route(self, remote: Sequence[MappedRange]) -> Route:
        """Raises: DocaError, DeviceGone."""

        def release() -> None:
            self._release(route)

        route = Route(lambda ended: Dma(self._device, self._engine, ended), remote, self._landed.append, release)
        self._routes.append(route)
        return route

    def _release(self, route: Route) -> None:
        """Close its context, then its imports."""
        self._routes.remove(route)
        _give_back(route.dma)
        for each in route.remote:
            if route.dma.is_closed:
                _give_back(each.mmap)
        if not route.dma.is_closed:
            self._wants_turn = True

    def _start(self, copy: Copy, source: Memory, source_offset: int, target: Memory, target_offset: int) -> list[Copy]:
        if self._broken:
            raise DeviceError(self._broken)
        route = self._way(source, target)
        sources = self._ranges(copy, source, source_offset, is_written=False)
        targets = self._ranges(copy, target, target_offset, is_written=True)
        self._engine.request()  # before the submission, so that its completion is signalled
        return route.start([Segment(copy, *pair) for pair in cut(sources, targets, self._device.info.copy_bytes)])

    def _way(self, source: Memory, target: Memory) -> Route:
        """The route of a copy; a shared one between two local memories. Raises: DocaError, DeviceGone."""
        for side in (source, target):
            if not isinstance(side, Region):
                assert isinstance(side, Route)
                if side.failure:
                    raise DeviceError(side.failure)
                return side
        if self._own is None or self._own.failure:
            self._own = self._route(())
        return self._own

    def _ranges(self, copy: Copy, memory: Memory, offset: int, *, is_written: bool) -> list[MappedRange]:
        """DOCA's ranges of the copied bytes. Raises: DocaError, DeviceGone."""
        if isinstance(memory, Region):
            known = copy.use(self._registry, memory, is_written=is_written)
            return [MappedRange(known.mmap, memory.address + offset, copy.nbytes)]
        assert isinstance(memory, Route)
        return memory.ranges(offset, copy.nbytes)

    def _register(self, memory: Region, is_written: bool) -> _Known:
        return _Known(Mmap.ours(self._device, memory.view, is_written=is_written))

    def _turn(self, timeout_s: float) -> None:
        """Process completions until none is left and a notification is requested for the next."""
        if timeout_s:
            self._epoll.poll(min(timeout_s, _NAP_S) if self._wants_turn else timeout_s)
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
        except DeviceError as fault:  # completions would no longer be signalled
            self._break(str(fault))
            more = False
        self._wants_turn = more or any(route.wants_turn for route in self._routes)
        self._set_mark()

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
        """The device or its notifications are lost: end all copies."""
        if self._broken:
            return
        self._broken = why
        logger.error("copy engine failed: %s", why)
        self._epoll.unregister(self._engine.fileno())
        self._give_up(why)


def _give_back(handle: Engine | Mmap | Dma | Inventory) -> None:
    """Close a handle. If DOCA refuses, closing the device tries again."""
    try:
        handle.close()
    except DeviceError as fault:
        logger.warning("could not return an object to DOCA: %s", fault)


def _close_device(device: Device) -> None:
    """Close the device with all handles left open, and retry devices of earlier engines."""
    _stranded.append(device)
    for each in list(_stranded):
        try:
            each.close()
        except DeviceError as fault:
            logger.warning("could not close the DOCA device: %s", fault)
        else:
            _stranded.remove(each)
