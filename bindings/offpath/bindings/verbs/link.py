"""A session's queue pair with counted doorbells: neither end rings more often than the other has receives for.

Each end announces how many doorbells it accepts. When half of them are taken, it grants as many again. The requester
sends first, so that the daemon sends nothing before its peer can receive.
"""

from __future__ import annotations

import os
import secrets
import select
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from offpath.bindings.errors import DeviceError, PeerGone
from offpath.bindings.ports import IMM_SLOT_MASK, immediate
from offpath.bindings.verbs.domain import Device, Domain, Region, Window
from offpath.bindings.verbs.queue import PSN_MASK, Address, QueuePair, WriteSegment

IMM_ROOM: Final = 255
"""An immediate's kind that is internal to the fabric; the low 24 bits are the number of doorbells granted."""
_ROOM_MESSAGES: Final = 4  # receives beyond the doorbells: at most two such messages are in flight
_HANG_UP: Final = select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR


@dataclass(frozen=True, slots=True)
class End:
    """One end of a session, for the other end: its queue pair, how many doorbells it accepts, and where the other may
    write, with the key for it."""

    address: Address
    doorbells: int
    memory: int
    rkey: int


class LivenessChannel(NamedTuple):
    """The connection over which the ends were exchanged. If it or the queue pair fails, both end: a reliable connection
    alone detects a dead peer only when it sends. The owner keeps the descriptor."""

    fd: int
    hang_up: Callable[[], None]


class Link:
    """One end's queue pair, in its own protection domain. `connect` or `close` it."""

    def __init__(self, device: Device, *, doorbells: int, writes: int) -> None:
        """Raises: VerbsError: the device's resources are exhausted."""
        self.domain = Domain(device)
        try:
            self._queue = QueuePair(
                self.domain, psn=secrets.randbits(24) & PSN_MASK, writes=writes + _ROOM_MESSAGES,
                immediates=doorbells + _ROOM_MESSAGES,
            )  # fmt: skip
        except BaseException:
            self.domain.close()
            raise
        self._doorbells = doorbells
        self._waiting: deque[int] = deque()
        self._credits = self._most_credits = 0
        self._taken = 0
        self._gone = ""
        self._is_marked = False
        self._mark = -1
        self._liveness: LivenessChannel | None = None
        self._epoll: select.epoll | None = None
        self.peer: End | None = None

    def bind(self, region: Region) -> Window:
        """See `QueuePair.bind`: after `connect`, before the peer knows this end. Raises: VerbsError."""
        return self._queue.bind(region)

    def end(self, writable: Region | Window) -> End:
        """This end, with ``writable`` as the memory that the peer may write."""
        return End(self._queue.address, self._doorbells, writable.address, writable.rkey)

    def connect(self, peer: End, liveness: LivenessChannel, *, opens: bool) -> None:
        """Connect the queue pair. ``opens``: this end sends first, which lets the other end send. Raises:
        VerbsError."""
        self._queue.connect(peer.address)
        self.peer, self._liveness = peer, liveness
        self._most_credits = peer.doorbells
        self._epoll = select.epoll()
        self._mark = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._epoll.register(self._queue.fileno(), select.EPOLLIN)
        self._epoll.register(self._mark, select.EPOLLIN)
        self._epoll.register(liveness.fd, _HANG_UP)
        if opens:
            self._credits = peer.doorbells
            self._queue.ring(None, immediate(IMM_ROOM, self._doorbells))

    def fileno(self) -> int:
        """Readable when doorbells wait or the peer is gone."""
        return self._epoll.fileno() if self._epoll is not None else -1

    def send(self, parts: Sequence[WriteSegment], imm: int) -> bool:
        """Write and ring. False: no credits, or too many requests in flight. Raises: PeerGone."""
        if self._gone:
            raise PeerGone(self._gone)
        if not self._credits:
            return False
        assert self.peer is not None, "only a connected end rings"
        try:
            sent = self._queue.write(None, parts, self.peer.rkey, imm) if parts else self._queue.ring(None, imm)
        except DeviceError as fault:
            raise PeerGone(str(fault)) from None
        self._credits -= sent
        return sent

    def take(self) -> int | None:
        """The oldest doorbell, or None. Does not block. Raises: PeerGone: no doorbell is left."""
        if not self._waiting and not self._gone:
            self._look()
        imm = self._waiting.popleft() if self._waiting else None
        if imm is not None:
            self._taken += 1
        if self._taken * 2 >= self._doorbells and not self._gone:
            self._send_room()
        self._set_mark()
        if imm is None and self._gone:
            raise PeerGone(self._gone)
        return imm

    def take_all(self) -> list[int]:
        """All waiting doorbells; otherwise as `take`."""
        found: list[int] = []
        try:
            while (imm := self.take()) is not None:
                found.append(imm)
        except PeerGone:
            if not found:
                raise
        return found

    def wait(self, timeout_s: float | None) -> None:
        """Block until `take` has something, or the time is over."""
        if self._epoll is not None:
            self._epoll.poll(timeout_s)

    def wait_for_room(self, timeout_s: float) -> None:
        """Block until the queue pair or the liveness channel has an event, or the time is over. Doorbells stay
        queued."""
        if self._liveness is not None:
            waiting = select.poll()
            waiting.register(self._queue.fileno(), select.POLLIN)
            waiting.register(self._liveness.fd, select.POLLRDHUP)
            waiting.poll(timeout_s * 1e3)
            self._look()
            self._set_mark()

    def flush(self, within_s: float) -> None:
        """Block until no request is in flight, or the time is over."""
        until_s = time.monotonic() + within_s
        waiting = select.poll()
        waiting.register(self._queue.fileno(), select.POLLIN)
        while not self.is_quiet() and (left_s := until_s - time.monotonic()) > 0:
            waiting.poll(left_s * 1e3)

    def has_arrived(self) -> bool:
        """True: no request is in flight, so the peer has what was sent, or never will. Queues doorbells that arrive
        meanwhile. While it is False, `fileno` becomes readable when requests complete."""
        if not self._gone:
            try:
                self._queue.fence()
            except DeviceError as fault:
                self._gone = str(fault)
            self._look()
            self._set_mark()
        return bool(self._gone) or not self._queue.in_flight

    # -- the end --------------------------------------------------------------------------------------------------
    def hang_up(self) -> None:
        """Close the liveness channel; receive and send no more. What was sent may still arrive: see `is_quiet`.
        Idempotent."""
        self._gone = self._gone or "this end hung up"
        self._waiting.clear()
        if self._epoll is not None:
            self._epoll.close()
            os.close(self._mark)
            self._epoll = None
        if self._liveness is not None:
            liveness, self._liveness = self._liveness, None
            liveness.hang_up()

    def is_quiet(self) -> bool:
        """No request is in flight: all arrived, or the queue pair failed."""
        if self._queue.has_failed:
            return True
        try:
            self._queue.fence()
            self._queue.poll()
        except DeviceError:  # nothing is left to wait for
            return True
        return not self._queue.in_flight

    def close(self) -> None:
        """Hang up; then close queue pair, regions and domain. Idempotent."""
        self.hang_up()
        self._queue.close()
        self.domain.close()

    # -- within ---------------------------------------------------------------------------------------------------
    def _look(self) -> None:
        """Process completions, then check the liveness channel."""
        if self._epoll is None:
            return
        ready = {fd for fd, _ in self._epoll.poll(0)}
        if self._queue.fileno() in ready:
            self._poll_messages()
        if self._liveness is not None and self._liveness.fd in ready and not self._gone:
            self._gone = "the peer hung up"

    def _poll_messages(self) -> None:
        try:
            completions = self._queue.poll()
        except DeviceError as fault:
            self._gone = str(fault)
            return
        for each in completions:
            if each.error is not None:
                self._gone = str(each.error)
            elif each.imm is not None:
                self._on_immediate(each.imm)

    def _on_immediate(self, imm: int) -> None:
        """Ends the connection on protocol violations: a grant that exceeds the doorbells used, or more doorbells than
        granted."""
        if imm >> 24 == IMM_ROOM:
            room = imm & IMM_SLOT_MASK
            if not room or self._credits + room > self._most_credits:
                self._gone = f"the peer granted {room} doorbells, with {self._credits} of {self._most_credits} left"
            self._credits += room
        else:
            self._waiting.append(imm)
            if len(self._waiting) + self._taken > self._doorbells:
                self._gone = f"the peer rang more than the {self._doorbells} doorbells granted"

    def _send_room(self) -> None:
        try:
            if self._queue.ring(None, immediate(IMM_ROOM, self._taken)):
                self._taken = 0
        except DeviceError as fault:
            self._gone = str(fault)

    def _set_mark(self) -> None:
        """Keep `fileno` readable while received doorbells have not been taken."""
        wanted = bool(self._waiting or self._gone)
        if wanted is not self._is_marked and self._epoll is not None:
            self._is_marked = wanted
            if wanted:
                os.eventfd_write(self._mark, 1)
            else:
                os.eventfd_read(self._mark)
