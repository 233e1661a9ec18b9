"""Copy engine `cuda`, for a daemon on the GPU's host: the worker copies each payload from the slot to its GPU.

Only the worker has a context on its GPU or MIG instance. So the engine sends it the session's memory once, which the
worker maps and pins, and then the place of each payload. The worker starts the copy on its lane's stream, where the
kernel follows. A copy is complete for the engine once its message is in the channel: whatever the worker does next on
the lane, a launch, a scrub or the end, comes after the copy in the order of channel and stream. Nobody waits for it;
that it has ended is known with the kernel's result. Copy and launch usually travel in one packet, which wakes the
worker once.

Large results are copied out of the lane's result half, which the worker brings to host memory, as `loopback` does: a
descriptor of the answers would give a worker the answers of all slots, also after a request has expired.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from functools import partial
from itertools import count

from offpath.bindings.errors import OffpathError, PeerGone, RegionError, ResourceClosed
from offpath.bindings.loopback.channel import LoopbackConnection
from offpath.bindings.loopback.copy import INLINE_BYTES, LoopbackCopyEngine
from offpath.bindings.memory.region import Region
from offpath.bindings.ports import CopyCompletion, HostConnection, Invitation, Memory, MemoryExport
from offpath.bindings.wire import regions
from offpath.bindings.wire.host import MAX_MESSAGE_BYTES


class WorkerLane:
    """Implements `Memory`: the landing buffer, which only the worker reaches, and behind it the result half."""

    def __init__(self, results: Region, *, is_writable: bool) -> None:
        """``is_writable``: the worker must map the requesters' memory writable to pin it."""
        self.results = results
        self.landing_bytes = 0
        self.is_writable = is_writable
        self.connection: LoopbackConnection | None = None
        self.held: OrderedDict[int, int] = OrderedDict()
        """Bytes of the regions that the worker holds, by number; the last used one is the last."""
        self.failure = ""
        self.is_closed = False

    @property
    def nbytes(self) -> int:
        """See `Memory.nbytes`."""
        return self.landing_bytes + self.results.nbytes

    def close(self) -> None:
        """See `Memory.close`. The worker keeps what it was sent until its channel closes."""
        self.is_closed = True
        self.held.clear()
        self.results.close()

    def hold(self, message: bytes) -> None:
        """Put ``message`` in front of the next one to the worker. What does not fit one message is sent before.

        Raises: PeerGone: as `send`."""
        connection = self._worker()
        if len(connection.held) + len(message) > MAX_MESSAGE_BYTES:
            held, connection.held = connection.held, b""
            self.send(held)
        connection.held += message

    def flush(self) -> None:
        """Send what is held. What a full queue does not take stays held, for the next message."""
        if self.connection is not None and not self.is_closed and not self.failure:
            try:
                self.connection.flush()
            except (PeerGone, OSError) as fault:
                self.failure = str(fault)

    def _worker(self) -> LoopbackConnection:
        """Raises: PeerGone."""
        if self.failure or self.connection is None:
            raise PeerGone(self.failure or "the lane has no worker")
        return self.connection

    def send(self, message: bytes, fds: tuple[int, ...] = ()) -> None:
        """Raises: PeerGone: the worker is gone or has stopped reading; it is not reached any more. OSError: ``fds``
        could not be sent."""
        connection = self._worker()
        try:
            if connection.send(message, fds):
                return
            self.failure = "the worker reads nothing"
        except PeerGone as gone:
            self.failure = str(gone)
        except OSError as fault:
            if fds:
                raise
            self.failure = str(fault)
        raise PeerGone(self.failure)


class CudaCopyEngine(LoopbackCopyEngine):
    """Implements `offpath.bindings.ports.CopyEngine`. Copies that involve no landing buffer are those of
    `LoopbackCopyEngine`."""

    keeps_back = True
    """See `CopyEngine.keeps_back`."""

    def __init__(self, inline_bytes: int = INLINE_BYTES) -> None:
        super().__init__(inline_bytes)
        self._held_back: list[WorkerLane] = []
        self._bytes_by_workers = 0
        self._numbers = count(1)
        self._regions: dict[Region, int] = {}
        """Number of each region that was sent to a worker, until it is closed. Numbers do not repeat."""
        self._lanes: list[WorkerLane] = []

    @property
    def bytes_by_cpu(self) -> int:
        """See `CopyEngine.bytes_by_cpu`: results."""
        return self.bytes_copied - self._bytes_by_workers

    def import_memory(self, export: MemoryExport, invitation: Invitation | None = None) -> Memory:
        """See `CopyEngine.import_memory`: the result half of a lane, exported by `ResultExporter`."""
        slots = export.descriptor.get("slots")
        if slots not in (regions.READ_SLOTS, regions.WRITE_SLOTS):
            for fd in export.fds:
                os.close(fd)
            raise RegionError("no lane whose worker copies")
        results = super().import_memory(export)
        assert isinstance(results, Region)
        lane = WorkerLane(results, is_writable=slots == regions.WRITE_SLOTS)
        self._lanes = [each for each in self._lanes if not each.is_closed]
        self._lanes.append(lane)
        return lane

    def attach(self, memory: Memory, connection: HostConnection, landing_bytes: int) -> None:
        """See `CopyEngine.attach`."""
        if isinstance(memory, WorkerLane) and isinstance(connection, LoopbackConnection):
            memory.connection = connection
            memory.landing_bytes = landing_bytes

    def flush(self) -> None:
        """See `CopyEngine.flush`. A worker that is gone is found by the next message to it, or by its connection."""
        held_back, self._held_back = self._held_back, []
        for lane in held_back:
            lane.flush()

    def reaches(self, memory: Memory) -> bool:
        """See `CopyEngine.reaches`."""
        return not (isinstance(memory, WorkerLane) and memory.failure)

    def post(
        self, token: int, source: Memory, source_offset: int, target: Memory, target_offset: int, nbytes: int
    ) -> CopyCompletion | None:
        """See `CopyEngine.post`. A copy to a lane completes at once; one that cannot be sent fails by `poll`, so that
        the caller learns of a lost lane before it handles the copy's end."""
        if not isinstance(target, WorkerLane):
            if isinstance(source, WorkerLane):
                source, source_offset = _results_of(source, source_offset)
            return super().post(token, source, source_offset, target, target_offset, nbytes)
        if self._closed:
            raise ResourceClosed("copy engine")
        _check(source, source_offset, nbytes, target, target_offset)
        assert isinstance(source, Region)
        if nbytes:
            try:
                self._order(source, source_offset, target, target_offset, nbytes)
            except (OffpathError, OSError) as fault:
                self._done.append(CopyCompletion(token, str(fault)))
                os.eventfd_write(self._event, 1)
                return None
            self.bytes_copied += nbytes
            self._bytes_by_workers += nbytes
        return CopyCompletion(token, None)

    def _order(self, source: Region, source_offset: int, target: WorkerLane, at: int, nbytes: int) -> None:
        """Raises: PeerGone. OSError: no descriptor is left."""
        number = self._regions.get(source)
        if number is None:
            number = self._regions[source] = next(self._numbers)
            source.on_close.append(partial(self._dropped, source))
        if number in target.held:
            target.held.move_to_end(number)
        else:
            self._offer(source, number, target)
        target.hold(regions.pack_copy(number, source_offset, at, nbytes))
        self._held_back.append(target)

    def _offer(self, source: Region, number: int, target: WorkerLane) -> None:
        """Send the memory, after those that were not used for longest if the worker holds too much."""
        held = target.held
        while held and (
            len(held) >= regions.MOST_REGIONS or sum(held.values()) + source.nbytes > regions.MOST_PINNED_BYTES
        ):
            oldest, _ = held.popitem(last=False)
            target.send(regions.pack_drop(oldest))
        message = regions.pack_region(number, source.nbytes, target.is_writable)
        if target.is_writable:
            target.send(message, (source.fd,))
        else:
            fd = os.open(f"/proc/self/fd/{source.fd}", os.O_RDONLY | os.O_CLOEXEC)
            try:
                target.send(message, (fd,))
            finally:
                os.close(fd)
        held[number] = source.nbytes

    def _dropped(self, source: Region) -> None:
        """A session's memory is closed: its workers unmap it."""
        number = self._regions.pop(source)
        for lane in self._lanes:
            if lane.held.pop(number, None) is not None and not lane.failure:
                try:
                    lane.send(regions.pack_drop(number))
                except PeerGone:
                    continue  # its loss is reported by its connection


def _results_of(lane: WorkerLane, offset: int) -> tuple[Region, int]:
    """The memory of a lane that the daemon maps, and where ``offset`` of the lane is in it. Raises: RegionError."""
    if lane.is_closed:
        raise RegionError("copy with a closed region")
    if offset < lane.landing_bytes:
        raise RegionError("only the worker reads the landing buffer")
    return lane.results, offset - lane.landing_bytes


def _check(source: Memory, source_offset: int, nbytes: int, target: WorkerLane, at: int) -> None:
    """Raises: RegionError."""
    if not isinstance(source, Region):
        raise RegionError("payloads are copied out of local memory")
    if source.closed or target.is_closed:
        raise RegionError("copy with a closed region")
    if (
        nbytes < 0
        or source_offset < 0
        or at < 0
        or source_offset + nbytes > source.nbytes
        or at + nbytes > target.landing_bytes
    ):
        raise RegionError(f"copy of {nbytes} bytes leaves a region")
