"""A rank's connection to a tree of emulated switches: one stream socket, one thread, limited to the link's rate.

Chunks are sent, and results read, at the link's rate. A refusal stops the sending at the next frame. A switch without
progress for `PATIENCE_S` while an operation is in progress counts as lost: it must not block a training job.
"""

from __future__ import annotations

import contextlib
import select
import socket
import time
from collections import deque
from dataclasses import dataclass
from typing import Final

from offpath.bindings.errors import InaFrameError, ResourceClosed
from offpath.bindings.ina import frames
from offpath.bindings.ina.address import begin_connecting, parse_address
from offpath.bindings.ina.frames import CHUNK_BYTES, DTYPES, Kind
from offpath.bindings.ina.port import TreeAttached, TreeEvent, TreeLost, TreeRefused, TreeResult
from offpath.bindings.ina.rate_limiter import Direction, RateLimiter

PATIENCE_S: Final = 5.0
MOST_REFUSED_AHEAD: Final = 1024
"""Refusals stored for operations that this rank has not issued. Ranks are at most one operation apart."""


class SwitchFabric:
    """Implements `offpath.bindings.ports.InaFabric` over emulated switches. ``link``: the rank's only link."""

    def __init__(self, link: RateLimiter, patience_s: float = PATIENCE_S) -> None:
        self.link = link
        self._patience_s = patience_s

    def attach(
        self, address: str, *, job: str, incarnation: int, stamp: int, rank: int, ranks: int, token: str
    ) -> TreeConnection:
        """See `InaFabric.attach`."""
        hello = frames.Attach(rank, ranks, job, incarnation, stamp, token)
        return TreeConnection(address, hello, self.link, self._patience_s)


@dataclass(slots=True)
class _Running:
    index: int
    source: memoryview
    target: memoryview
    sent: int = 0
    received: int = 0


class TreeConnection:
    """Implements `offpath.bindings.ports.TreeSession`. Made by `SwitchFabric.attach`."""

    def __init__(self, address: str, hello: frames.Attach, link: RateLimiter, patience_s: float) -> None:
        parse_address(address)
        self.rank, self.stamp = hello.rank, hello.stamp
        self._link = link
        self._patience_s = patience_s
        self._reader = frames.Reader()
        self._events: deque[TreeEvent] = deque()
        self._out: list[memoryview] = [memoryview(frames.pack(hello))]
        """Sent before anything else: the rest of a frame, and frames without a chunk."""
        self._running: _Running | None = None
        self._refused: set[int] = set()
        self._issued = -1
        self._is_attached = False
        self._moved_at = time.monotonic()
        self._fault = ""
        """Why the switch accepts no more bytes; its earlier frames are still read."""
        self._sock: socket.socket | None = None
        try:
            self._sock = begin_connecting(address)
        except OSError:
            self._lose("unreachable")

    @property
    def is_over(self) -> bool:
        """The session is lost or closed."""
        return self._sock is None

    def fileno(self) -> int:
        """See `TreeSession.fileno`."""
        return self._sock.fileno() if self._sock is not None else -1

    def start(
        self, index: int, dtype: str, source: memoryview, target: memoryview, *, is_last: bool = False
    ) -> None:  # fmt: skip
        """See `TreeSession.start`."""
        if self._sock is None:
            raise ResourceClosed("the tree is lost")
        if not self._is_attached:
            raise ValueError("not attached yet")
        if self._running is not None or index <= self._issued:
            raise ValueError(f"operation {index} while another is in progress, or after operation {self._issued}")
        if dtype not in DTYPES or not source.nbytes or source.nbytes % DTYPES[dtype][1]:
            raise ValueError(f"{source.nbytes} bytes of {dtype}")
        if target.nbytes != source.nbytes or target.readonly:
            raise ValueError("the target must be writable, and as long as the source")
        self._issued = index
        if index in self._refused:
            self._refused = {later for later in self._refused if later > index}
            self._events.append(TreeRefused(index))
            return
        self._refused = {later for later in self._refused if later > index}
        self._running = _Running(index, source.cast("B"), target.cast("B"))
        self._link.begin()
        self._moved_at = time.monotonic()
        self._send_frame(frames.Operation(self.rank, index, self.stamp, source.nbytes, dtype, is_last))
        self._write()

    def poll(self, timeout_s: float) -> TreeEvent | None:
        """See `TreeSession.poll`."""
        until = time.monotonic() + timeout_s
        while True:
            self._move()
            if self._events:
                return self._events.popleft()
            left = until - time.monotonic()
            if left <= 0 or self._sock is None:
                return None
            self._wait(left)

    def close(self) -> None:
        """See `TreeSession.close`."""
        if self._sock is not None:
            with contextlib.suppress(OSError):
                self._flush()  # the last "delivered", which frees the tree's place a little earlier
            self._sock.close()
        self._sock = self._running = None
        self._events.clear()

    # -- moving bytes -------------------------------------------------------------------------------------------------
    def _move(self) -> None:
        """Send and receive without waiting, in turns: receiving must not wait until all is sent."""
        while self._sock is not None and not self._events:
            has_moved = self._write()
            has_moved |= self._read()
            self._finish()
            if not has_moved:
                break
        if self._fault and self._sock is not None and not self._events:
            self._lose(self._fault)
        self._look_at_the_clock()

    def _wait(self, left_s: float) -> None:
        """Block until the socket, the link's rate or a timeout allows progress."""
        assert self._sock is not None
        mask, wait_s = 0, left_s
        held_s = self._link.wait_s(Direction.IN) if self._running is not None else 0.0
        if held_s:
            wait_s = min(wait_s, held_s)
        else:
            mask |= select.POLLIN
        if self._out:
            mask |= select.POLLOUT
        elif self._running is not None and self._running.sent < len(self._running.source):
            held_s = self._link.wait_s(Direction.OUT)
            if held_s:
                wait_s = min(wait_s, held_s)
            else:
                mask |= select.POLLOUT
        if self._is_waiting:
            wait_s = min(wait_s, max(0.0, self._moved_at + self._patience_s - time.monotonic()))
        poller = select.poll()
        poller.register(self._sock, mask)
        poller.poll(max(0.0, wait_s) * 1000)

    @property
    def _is_waiting(self) -> bool:
        """Something must be received or sent soon."""
        return self._running is not None or not self._is_attached or bool(self._out)

    def _look_at_the_clock(self) -> None:
        now = time.monotonic()
        running = self._running
        is_held = running is not None and (
            self._link.wait_s(Direction.IN) > 0
            or (running.sent < len(running.source) and self._link.wait_s(Direction.OUT) > 0)
        )
        if not self._is_waiting or is_held:  # a slow link is not the switch's fault
            self._moved_at = now
        elif self._sock is not None and now - self._moved_at > self._patience_s:
            self._lose("no progress")

    def _write(self) -> bool:
        """True if bytes were sent."""
        assert self._sock is not None
        if self._fault:
            return False
        try:
            if self._out:
                return self._flush()
            running = self._running
            if running is None or running.sent >= len(running.source) or self._link.wait_s(Direction.OUT):
                return False
            chunk = running.source[running.sent : running.sent + CHUNK_BYTES]
            head = frames.chunk_head(Kind.DATA, self.rank, running.index, running.sent, len(chunk))
            self._out = [memoryview(head), chunk]
            running.sent += len(chunk)
            self._link.take(Direction.OUT, len(chunk))
            return self._flush()
        except BlockingIOError:
            return False
        except OSError as fault:
            self._fault = self._why(fault)
            return False

    def _flush(self) -> bool:
        """Raises: OSError."""
        assert self._sock is not None
        if not self._out:
            return False
        sent = self._sock.sendmsg(self._out)
        while self._out and sent >= len(self._out[0]):
            sent -= len(self._out.pop(0))
        if sent:
            self._out[0] = self._out[0][sent:]
        self._moved_at = time.monotonic()
        return True

    def _read(self) -> bool:
        """True if bytes were received."""
        is_held = self._running is not None and not self._fault and self._link.wait_s(Direction.IN)
        if self._sock is None or is_held:
            return False
        try:
            count = self._sock.recv_into(self._reader.room(CHUNK_BYTES))
        except BlockingIOError:
            return False
        except OSError as fault:
            self._lose(self._why(fault))
            return False
        if not count:
            self._lose("hung up")
            return False
        self._moved_at = time.monotonic()
        try:
            for frame in self._reader.received(count):
                self._on_frame(frame)
                self._finish()  # before the next frame, which may report the tree as lost
                if self.is_over:
                    break
        except InaFrameError as fault:
            self._lose(str(fault))
        return True

    def _why(self, fault: OSError) -> str:
        return "hung up" if self._is_attached else f"unreachable: {fault.strerror or fault}"

    # -- frames from the switch ---------------------------------------------------------------------------------------
    def _on_frame(self, frame: frames.Frame) -> None:
        """Raises: InaFrameError: the frame is not allowed here."""
        running = self._running
        match frame:
            case frames.Result() if running is not None and frame.index == running.index:
                self._take(running, frame)
            case frames.Refused():
                self._refuse(frame.index)
            case frames.Attached() if frame.rank == self.rank and not self._is_attached:
                self._is_attached = True
                self._events.append(TreeAttached())
            case frames.AttachRefused() if frame.rank == self.rank and not self._is_attached:
                self._lose(frame.reason.name.lower())
            case frames.Abort() if frame.stamp == self.stamp:
                self._lose(frame.reason.name.lower())
            case _:
                raise InaFrameError("out_of_turn", type(frame).__name__)

    def _take(self, running: _Running, frame: frames.Result) -> None:
        end = frame.offset + len(frame.payload)
        if frame.offset != running.received or end > len(running.target):
            raise InaFrameError("out_of_turn", f"a result at {frame.offset}, not at {running.received}")
        running.target[frame.offset : end] = frame.payload
        running.received = end
        self._link.take(Direction.IN, len(frame.payload))
        if end == len(running.target) and running.sent < len(running.source):
            raise InaFrameError("out_of_turn", "a complete sum before all chunks were sent")

    def _finish(self) -> None:
        """Complete the operation once its whole result was received and the link's rate allows it."""
        running = self._running
        if running is None or running.received < len(running.target) or self._link.wait_s(Direction.IN):
            return
        self._running = None
        self._send_frame(frames.Delivered(self.rank, running.index))
        self._events.append(TreeResult(running.index))
        self._write()  # now: the place in the tree is held until the root has received it

    def _refuse(self, index: int) -> None:
        if self._running is not None and index == self._running.index:
            if self._running.received:
                raise InaFrameError("out_of_turn", "refused after its result began")
            self._running = None
            self._link.stop(Direction.OUT)
            self._events.append(TreeRefused(index))
        elif index > self._issued:
            self._refused.add(index)
            if len(self._refused) > MOST_REFUSED_AHEAD:
                raise InaFrameError("out_of_turn", "too many refusals of operations that were not issued")

    def _send_frame(self, frame: frames.Frame) -> None:
        self._out.append(memoryview(frames.pack(frame)))

    def _lose(self, reason: str) -> None:
        if self._sock is not None:
            self._sock.close()
        self._sock = self._running = None
        self._events.append(TreeLost(reason))
