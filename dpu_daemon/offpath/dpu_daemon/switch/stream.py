"""A fabric connection in an event loop: parses received frames, queues sent bytes, pauses reading on request.

Bytes go to the kernel immediately if it accepts them, so that a fault armed "after delivery" fires after delivery.
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
"""Backpressure: with more than `HIGH_BYTES` queued for a peer, its sources are not read until less than `LOW_BYTES`
remain."""


class Stream:
    """Implements `job_at_switch.Peer`. ``on_frame`` gets each frame and may raise InaFrameError. ``closed`` is called
    once, with the reason. ``drained``: the queue fell below `LOW_BYTES`."""

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
        """Bytes that the kernel has not accepted."""
        self.moved_at = self.made_at = time.monotonic()
        """When bytes were last sent, or the queue was last empty."""
        self.is_open = True
        self._is_connecting = is_connecting
        self.is_reading = self._is_writing = False
        self._is_finishing = False
        if is_connecting:
            self._watch_writing(True)
        self.read(True)

    def read(self, wanted: bool) -> None:
        """Enable or disable reading."""
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
            self._loop.call_soon(self.close, Reason.LOST, "closed by this end")

    def close(self, reason: Reason, why: str) -> None:
        """Close immediately and drop the queue. Idempotent."""
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
        """Whether the peer has disconnected, even if received data is unread. Always known for a Unix socket; for TCP
        once the kernel has received everything that was sent."""
        if not self.is_open:
            return True
        poller = select.poll()
        poller.register(self._sock, select.POLLRDHUP)
        return bool(poller.poll(0))

    # -- callbacks of the loop ------------------------------------------------------------------------------------
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
        except OSError as injected:  # raised by an armed fault: drop this member
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
            self._loop.call_soon(self.close, Reason.LOST, fault.strerror or str(fault))  # not within the caller
            return
        self._watch_writing(bool(self._queue) or self._is_connecting)
        if self._is_finishing and not self._queue:
            with contextlib.suppress(OSError):
                self._sock.shutdown(socket.SHUT_WR)
            self._loop.call_soon(self.close, Reason.LOST, "closed by this end")
