"""One connection of the fabric in an event loop: frames in, bytes out, told when to read.

Bytes go to the kernel at once where it takes them, so that a fault that is armed "after delivery" means what it says.
"""

from __future__ import annotations

import asyncio
import contextlib
import select
import socket
import time
from collections import deque
from collections.abc import Callable
from typing import Final

from offpath.bindings.errors import InaFrameError
from offpath.bindings.ina.address import tune
from offpath.bindings.ina.frames import Frame, Reader, Reason

HIGH_BYTES: Final = 256 * 1024
LOW_BYTES: Final = 64 * 1024
"""Who is owed more than `HIGH_BYTES` stops those that cause it to be read, until it is owed less than `LOW_BYTES`."""


class Stream:
    """Implements `part.Peer`. ``heard``: one frame came, may raise InaFrameError; ``closed``: called once, with why;
    ``drained``: what was queued fell below `LOW_BYTES`."""

    def __init__(
        self,
        sock: socket.socket,
        on_frame: Callable[[Stream, Frame], None],
        closed: Callable[[Stream, Reason, str], None],
        drained: Callable[[Stream], None],
        *,
        is_connecting: bool = False,
    ) -> None:
        sock.setblocking(False)
        tune(sock)
        self._sock = sock
        self._on_frame, self._closed, self._drained = on_frame, closed, drained
        self._loop = asyncio.get_running_loop()
        self._reader = Reader()
        self._queue: deque[tuple[memoryview, Callable[[], None] | None]] = deque()
        self.queued = 0
        """Bytes that the kernel has not taken."""
        self.moved_at = self.made_at = time.monotonic()
        """When bytes left last, or nothing was queued."""
        self.is_open = True
        self._is_connecting = is_connecting
        self.is_reading = self._is_writing = False
        self._is_finishing = False
        if is_connecting:
            self._watch_writing(True)
        self.read(True)

    def read(self, wanted: bool) -> None:
        """Whether what comes is taken in."""
        if wanted == self.is_reading or not self.is_open:
            return
        self.is_reading = wanted
        if wanted:
            self._loop.add_reader(self._sock.fileno(), self._on_readable)
        else:
            self._loop.remove_reader(self._sock.fileno())

    def send(self, data: bytes, sent: Callable[[], None] | None = None) -> None:
        """See `Peer.send`."""
        if not self.is_open or self._is_finishing:
            return
        if not self._queue:
            self.moved_at = time.monotonic()
        self._queue.append((memoryview(data), sent))
        self.queued += len(data)
        if not self._is_writing:
            self._flush()

    def finish(self) -> None:
        """See `Peer.finish`."""
        self._is_finishing = True
        if self.is_open and not self._queue:
            self._loop.call_soon(self.close, Reason.LOST, "we hung up")

    def close(self, reason: Reason, why: str) -> None:
        """Hang up now; what was queued is lost. Repeating it is harmless."""
        if not self.is_open:
            return
        self.read(False)
        self._watch_writing(False)
        self.is_open = False
        self._sock.close()
        self._queue.clear()
        self.queued = 0
        self._closed(self, reason, why)

    def is_hung_up(self) -> bool:
        """The peer is gone, although what it sent before is not read yet. Always known of a Unix socket; of TCP once
        the kernel has taken in all that was sent."""
        if not self.is_open:
            return True
        poller = select.poll()
        poller.register(self._sock, select.POLLRDHUP)
        return bool(poller.poll(0))

    # -- the loop's -----------------------------------------------------------------------------------------------
    def _watch_writing(self, wanted: bool) -> None:
        if wanted == self._is_writing:
            return
        self._is_writing = wanted
        if wanted:
            self._loop.add_writer(self._sock.fileno(), self._on_writable)
        else:
            self._loop.remove_writer(self._sock.fileno())

    def _on_readable(self) -> None:
        try:
            count = self._sock.recv_into(self._reader.room())
        except (BlockingIOError, InterruptedError):
            return
        except OSError as fault:
            self.close(Reason.UNREACHABLE if self._is_connecting else Reason.LOST, fault.strerror or str(fault))
            return
        if not count:
            self.close(Reason.LOST, "it hung up")
            return
        try:
            for frame in self._reader.received(count):
                if not self.is_open:
                    return
                self._on_frame(self, frame)
        except InaFrameError as fault:
            self.close(Reason.RULES, str(fault))
        except OSError as injected:  # a fault that is armed to raise: this member is dropped
            self.close(Reason.LOST, str(injected))

    def _on_writable(self) -> None:
        if self._is_connecting:
            error = self._sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if error:
                self.close(Reason.UNREACHABLE, OSError(error).strerror or str(error))
                return
            self._is_connecting = False
        was_high = self.queued > LOW_BYTES
        self._flush()
        if self.is_open and was_high and self.queued <= LOW_BYTES:
            self._drained(self)

    def _flush(self) -> None:
        try:
            while self._queue and not self._is_connecting:
                data, sent = self._queue[0]
                count = self._sock.send(data)
                self.queued -= count
                self.moved_at = time.monotonic()
                if count < len(data):
                    self._queue[0] = data[count:], sent
                    continue
                self._queue.popleft()
                if sent is not None:
                    sent()
        except (BlockingIOError, InterruptedError):
            pass
        except OSError as fault:
            self._watch_writing(False)
            self._loop.call_soon(self.close, Reason.LOST, fault.strerror or str(fault))  # not within our caller's work
            return
        self._watch_writing(bool(self._queue) or self._is_connecting)
        if self._is_finishing and not self._queue:
            with contextlib.suppress(OSError):
                self._sock.shutdown(socket.SHUT_WR)
            self._loop.call_soon(self.close, Reason.LOST, "we hung up")
