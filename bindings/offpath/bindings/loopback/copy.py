"""Copy engine `loopback`: copies small ranges in place, and large ones in a thread with the GIL released.

Up to ``inline_bytes`` (1 MiB) a copy costs less than waking a thread. Above, ``ctypes.memmove`` in a thread keeps the
event loop free; a memoryview copy would hold the GIL (observed).
"""

from __future__ import annotations

import ctypes
import os
import queue
import threading
from collections import deque
from typing import Final

from offpath.bindings.errors import RegionError, ResourceClosed
from offpath.bindings.memory.region import Region
from offpath.bindings.native import copy
from offpath.bindings.ports import CopyCompletion, HostConnection, Invitation, Memory, MemoryExport

INLINE_BYTES: Final = 1 << 20


class LoopbackCopyEngine:
    """Implements `offpath.bindings.ports.CopyEngine`. ``bytes_copied`` counts the emulated DMA."""

    ends_in_use: Final = None
    keeps_back: bool = False
    """See `CopyEngine.keeps_back`."""

    def __init__(self, inline_bytes: int = INLINE_BYTES) -> None:
        self._inline_bytes = inline_bytes
        self._done: deque[CopyCompletion] = deque()
        self._event = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._work: queue.SimpleQueue[tuple[int, memoryview, int, memoryview, int, int] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._closed = False
        self.bytes_copied = 0

    @property
    def bytes_by_cpu(self) -> int:
        """See `CopyEngine.bytes_by_cpu`: all of them."""
        return self.bytes_copied

    def invite(self) -> Invitation | None:
        """See `CopyEngine.invite`: the descriptor suffices."""
        return None

    def attach(self, memory: Memory, connection: HostConnection, landing_bytes: int) -> None:
        """See `CopyEngine.attach`: a mapping needs no worker."""

    def flush(self) -> None:
        """See `CopyEngine.flush`: nothing is kept back."""

    def reaches(self, memory: Memory) -> bool:
        """See `CopyEngine.reaches`: mappings do not fail."""
        return True

    def import_memory(self, export: MemoryExport, invitation: Invitation | None = None) -> Memory:
        """Map the exported range. Raises: RegionError; the descriptors are then closed."""
        descriptor = export.descriptor
        offset, nbytes = descriptor.get("offset"), descriptor.get("nbytes")
        if len(export.fds) != 1 or not isinstance(offset, int) or not isinstance(nbytes, int):
            for fd in export.fds:
                os.close(fd)
            raise RegionError("a loopback export is one descriptor with offset and nbytes")
        return Region(export.fds[0], offset, nbytes)

    def post(
        self, token: int, source: Memory, source_offset: int, target: Memory, target_offset: int, nbytes: int
    ) -> CopyCompletion | None:
        """See `CopyEngine.post`."""
        if self._closed:
            raise ResourceClosed("copy engine")
        if not isinstance(source, Region) or not isinstance(target, Region):
            raise RegionError("the loopback engine copies between its own regions")
        if (
            nbytes <= self._inline_bytes
            and not (source.closed or target.closed)
            and copy(source.view, source_offset, target.view, target_offset, nbytes)
        ):
            self.bytes_copied += nbytes
            return CopyCompletion(token, None)
        if (
            nbytes < 0
            or source_offset < 0
            or target_offset < 0
            or source_offset + nbytes > source.nbytes
            or target_offset + nbytes > target.nbytes
        ):
            raise RegionError(f"copy of {nbytes} bytes leaves a region")
        if source.closed or target.closed:
            raise RegionError("copy with a closed region")
        self.bytes_copied += nbytes
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="offpath-copy", daemon=True)
            self._thread.start()
        # The views keep both mappings alive until the copy has ended, even if a region is closed meanwhile.
        self._work.put(
            (
                token,
                source.view[:],
                source.address + source_offset,
                target.view[:],
                target.address + target_offset,
                nbytes,
            )
        )
        return None

    def fileno(self) -> int:
        """See `CopyEngine.fileno`."""
        return self._event

    def poll(self) -> list[CopyCompletion]:
        """Take the finished copies; after `close` also those that were in flight then."""
        if not self._closed:
            try:
                os.eventfd_read(self._event)
            except BlockingIOError:
                return []
        done = []
        while self._done:
            done.append(self._done.popleft())
        return done

    def is_working(self) -> bool:
        """False after `close`, or when the thread for large copies has died."""
        return not self._closed and (self._thread is None or self._thread.is_alive())

    def close(self) -> None:
        """Wait for the copies in flight, then close."""
        if self._closed:
            return
        self._closed = True
        if self._thread is not None:
            self._work.put(None)
            self._thread.join()
        os.close(self._event)
        self._event = -1

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            token, source_view, source, target_view, target, nbytes = work
            ctypes.memmove(target, source, nbytes)
            source_view.release()
            target_view.release()
            del work, source_view, target_view  # not kept alive while waiting for the next one
            self._done.append(CopyCompletion(token, None))
            os.eventfd_write(self._event, 1)
