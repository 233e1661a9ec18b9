"""The daemon's end: one ROUTER for all host processes, and a connection object for each session on it.

It has no thread. The owner watches the listener's descriptor as long as connections exist, and `accept` dispatches what
they received. Each turn reads to the end, or keeps the listener's own descriptor readable until the rest is read, see
`Router`.

libzmq's monitor reports the end of a connection by its TCP descriptor, which the first frame maps to a session.
"""

from __future__ import annotations

import contextlib
import os
from collections import deque
from collections.abc import Mapping
from typing import Final

from offpath.bindings.channel.session import (
    BYE,
    CREDIT,
    DATA,
    END,
    OPEN,
    OPENED,
    Frame,
    Session,
    check_message,
    parse,
)
from offpath.bindings.errors import HostMessageError, PeerGone
from offpath.bindings.zeromq.authority import OURSELVES
from offpath.bindings.zeromq.connection import ZmqEnd
from offpath.bindings.zeromq.library import HOST, Pace, zmq
from offpath.bindings.zeromq.router import Router
from offpath.bindings.zeromq.watch import MOST_BYTES

MAX_CONNECTIONS: Final = 1024
_READ_AT_ONCE: Final = 64
_LINGER_MS: Final = 500
_PATIENCE: Final = MAX_CONNECTIONS * 4
"""Turns after which a lost peer's frames count as read, although other peers never stop sending."""


class ZmqHostConnection:
    """Implements `offpath.bindings.ports.HostConnection`. Made by the listener only."""

    peer_pid = 0

    def __init__(self, listener: ZmqListener, routing_id: bytes, key: str, peer: str, session: Session) -> None:
        self._listener = listener
        self._routing_id = routing_id
        self._session = session
        self.key, self.peer = key, peer
        self.tcp_fd = -1
        """The TCP descriptor, which libzmq owns; -1: it was closed before the session began."""
        self.is_self_probe = peer == OURSELVES
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._is_awake = False

    def send(self, message: bytes, fds: tuple[int, ...] = ()) -> bool:
        """See `HostConnection.send`. Descriptors raise HostMessageError."""
        check_message(message, fds)
        if self._wake < 0 or self._session.is_over:
            raise PeerGone("host channel closed")
        if not self._session.has_room:
            self._listener.pump()  # may receive credits
        if not self._session.has_room:
            return False
        sent = self._send_frame(DATA, message)
        if not sent and self._session.is_over:
            raise PeerGone("host channel: its connection is lost")
        return sent

    def _send_frame(self, kind: int, body: bytes = b"") -> bool:
        try:
            if not self._listener.send_to(self._routing_id, self._session.frame(kind, body)):
                return False
        except PeerGone:
            self.lost()
            return False
        self._session.on_sent(kind)
        return True

    def on_received(self, frame: Frame | HostMessageError) -> None:
        """Called by the listener: a frame for this session, or why it was invalid."""
        if isinstance(frame, HostMessageError):
            self._session.broke(frame)
        else:
            with contextlib.suppress(HostMessageError):  # `receive` reports it, in order
                self._session.on_received(frame)
        self._show()

    def lost(self) -> None:
        """Called by the listener: the connection is closed, and all its frames were dispatched."""
        self._session.is_over = True
        self._show()

    def _show(self) -> None:
        is_readable = self._session.is_readable
        if is_readable is not self._is_awake and self._wake >= 0:
            self._is_awake = is_readable
            if is_readable:
                os.eventfd_write(self._wake, 1)
            else:
                os.eventfd_read(self._wake)

    def receive(self) -> tuple[bytes, tuple[int, ...]] | None:
        """See `HostConnection.receive`."""
        message = self.receive_message()
        return None if message is None else (message, ())

    def receive_message(self) -> bytes | None:
        """See `HostConnection.receive_message`."""
        if self._wake < 0:
            raise PeerGone("host channel closed")
        if not self._session.is_readable:
            self._listener.pump()
        try:
            return self._session.take()
        finally:
            if self._session.owes_credit:
                self._send_frame(CREDIT)
            self._show()

    def fileno(self) -> int:
        """Readable when the listener has dispatched a message, or the peer hung up."""
        return self._wake

    def death_fileno(self) -> int:
        """Unknown: the process may be on another machine."""
        return -1

    def has_ended(self) -> bool:
        """See `HostConnection.has_ended`."""
        if self._wake >= 0 and not self._session.is_readable:
            self._listener.pump()
        return self._session.is_over and not self._session.inbox

    def finish(self) -> None:
        """See `HostConnection.finish`."""
        if self._wake >= 0 and not self._session.is_over:
            self._send_frame(END)

    def cut(self, fault: HostMessageError) -> None:
        """End the session as on a protocol violation."""
        self._session.broke(fault)
        self._show()

    def probe(self) -> None:
        """Send a frame that the peer answers, even while its owner is busy."""
        if self._wake >= 0 and not self._session.is_over:
            self._send_frame(CREDIT)

    def close(self) -> None:
        """Hang up. Idempotent."""
        if self._wake < 0:
            return
        self._send_frame(BYE)  # also after a protocol violation; a lost peer does not receive it
        os.close(self._wake)
        self._wake = -1
        self._session.is_over = True
        self._listener.forget(self._routing_id)


class ZmqListener:
    """Implements `offpath.bindings.ports.HostListener` at ``address`` (tcp://HOST:PORT or ipc://PATH).

    ``allowed``: public key → name, see `keys.read_allowed`. Raises: NobodyAllowed: it is empty. PlaceUnusable.
    """

    def __init__(
        self, address: str, secret: bytes, allowed: Mapping[bytes, str], domain: str = "offpath", pace: Pace = HOST
    ) -> None:
        self._public = zmq.curve_public(secret)
        self._own_public, self._own_secret = zmq.curve_keypair()
        self._connections: dict[bytes, ZmqHostConnection] = {}
        self._waiting: deque[ZmqHostConnection] = deque()
        self._open: set[int] = set()
        """TCP descriptors of open connections, as far as the monitor was read."""
        self._by_fd: dict[int, ZmqHostConnection] = {}
        self._parted: list[tuple[int, ZmqHostConnection]] = []
        """Closed connections whose frames may be unread, each with the turn in which the close was seen."""
        self._turn = 0
        self._is_listening = False
        self._router = Router(secret, self._listed(allowed), domain, self._is_full, pace, ((zmq.LINGER, _LINGER_MS),))
        self._sock, self._parts = self._router.sock, self._router.parts
        self.address = self._router.bind(address)
        self._is_listening = True

    # -- connections ----------------------------------------------------------------------------------------------
    def fileno(self) -> int:
        """See `HostListener.fileno`."""
        return self._router.fileno()

    def accept(self) -> ZmqHostConnection | None:
        """See `HostListener.accept`."""
        if not self._waiting and not self._router.is_closed:
            self.pump()
        connection = self._waiting.popleft() if self._waiting else None
        self._router.show(bool(self._waiting) or self._router.is_awake)
        return connection

    def allow(self, allowed: Mapping[bytes, str]) -> None:
        """Replace the list. Ends the sessions of keys that are no longer listed. Raises: NobodyAllowed."""
        self._router.authority.allow(self._listed(allowed))
        for connection in list(self._connections.values()):
            if self._router.authority.name_of(connection.key) != connection.peer:
                connection.cut(HostMessageError("key", f"the key of {connection.peer} is no longer listed"))

    def self_connect(self) -> ZmqEnd:
        """See `HostListener.self_connect`."""
        end = ZmqEnd(self.address, self._public, self._own_secret)
        end.finish()
        return end

    @property
    def refused(self) -> int:
        """Handshakes that the allow-list refused."""
        return self._router.authority.refused

    def _listed(self, allowed: Mapping[bytes, str]) -> dict[bytes, str]:
        return {**allowed, self._own_public: OURSELVES} if allowed else {}

    def _is_full(self) -> bool:
        return len(self._open) >= MAX_CONNECTIONS

    # -- receiving ------------------------------------------------------------------------------------------------
    def pump(self) -> None:
        """Dispatch received frames, up to a bound; does not block. Afterwards nothing is left, or `fileno` stays
        readable."""
        if self._router.is_closed:
            return
        self._turn += 1
        is_rest = self._router.authority.serve()
        self._watch()
        for _ in range(_READ_AT_ONCE):
            if not self._read_one():
                self._part(self._turn)
                break
        else:
            is_rest = True
            self._part(self._turn - _PATIENCE)
        if self._parts.is_due():
            self._look_at_parts()
        self._router.show(is_rest or bool(self._waiting))

    def _watch(self) -> None:
        """Process the monitor's events: connections opened and closed."""
        while (event := self._router.next_event()) is not None:
            kind, fd = event
            if kind == zmq.EVENT_ACCEPTED:
                self._open.add(fd)
                self._parts.came(fd)
            elif kind == zmq.EVENT_DISCONNECTED:
                self._open.discard(fd)
                self._parts.left(fd)
                if (gone := self._by_fd.pop(fd, None)) is not None:
                    self._parted.append((self._turn, gone))

    def _look_at_parts(self) -> None:
        """Probe peers that send parts without a whole message, and disconnect them before they fill memory."""
        found = self._parts.look()
        for fd in found.quiet:
            if (connection := self._by_fd.get(fd)) is not None:
                connection.probe()
        for fd in found.over:
            self._parts.cut(fd)
            if (connection := self._by_fd.get(fd)) is not None:
                connection.cut(HostMessageError("endless", f"more than {MOST_BYTES} bytes without a whole message"))

    @property
    def cut_off(self) -> int:
        """Connections that were closed because their parts made no whole message."""
        return self._parts.cut_off

    def _part(self, turn: int) -> None:
        """Mark connections closed by that turn as lost: all their frames were read."""
        if self._parted:
            for at, gone in self._parted:
                if at <= turn:
                    gone.lost()
            self._parted = [entry for entry in self._parted if entry[0] > turn]

    def _read_one(self) -> bool:
        """Dispatch one frame. False: none is waiting."""
        try:
            routing_id = self._sock.recv(zmq.NOBLOCK)
        except zmq.Again:
            return False
        message = self._sock.recv(zmq.NOBLOCK, copy=False, track=False)
        is_whole = not self._sock.RCVMORE
        while self._sock.RCVMORE:
            self._sock.recv(zmq.NOBLOCK)
        try:
            frame: Frame | HostMessageError = parse(message.bytes)
            if not is_whole:
                raise HostMessageError("frame", "a message of several parts")
        except HostMessageError as fault:
            frame = fault
        connection = self._connections.get(routing_id)
        if connection is not None:
            if isinstance(frame, Frame):
                self._parts.on_received(connection.tcp_fd)
            connection.on_received(frame)
        elif isinstance(frame, Frame) and frame.kind == OPEN and self._is_listening:
            self._opened(routing_id, frame, str(message.get("User-Id")), int(message.get(zmq.SRCFD)))
        return True  # frames of no session are dropped

    def _opened(self, routing_id: bytes, frame: Frame, key: str, fd: int) -> None:
        """Begin a session. Its connection may be closed already, and its descriptor reused. That is detected: the
        monitor reports the close before the new connection can deliver anything, and sending to a closed one fails."""
        peer = self._router.authority.name_of(key)
        if peer is None:  # it was listed when it connected
            self._parts.cut(fd)
            return
        connection = ZmqHostConnection(self, routing_id, key, peer, session := Session(frame.session))
        self._connections[routing_id] = connection
        self._watch()
        try:
            is_there = self.send_to(routing_id, session.frame(OPENED)) and fd in self._open
        except PeerGone:
            is_there = False
        if is_there:
            self._by_fd[fd] = connection
            connection.tcp_fd = fd
            self._parts.on_received(fd)
        else:
            self._parted.append((self._turn, connection))
        self._waiting.append(connection)

    # -- sending --------------------------------------------------------------------------------------------------
    def send_to(self, routing_id: bytes, frame: bytes) -> bool:
        """Send a frame to one peer. False: its queue is full. Raises: PeerGone: its connection is closed."""
        try:
            self._router.send(routing_id, frame)
        except zmq.Again:
            return False
        except zmq.ZMQError as fault:
            raise PeerGone(f"host channel: {fault.strerror}") from None
        return True

    def forget(self, routing_id: bytes) -> None:
        """Remove a closed session; its later frames are dropped."""
        gone = self._connections.pop(routing_id)
        self._by_fd = {fd: connection for fd, connection in self._by_fd.items() if connection is not gone}
        self._parted = [entry for entry in self._parted if entry[1] is not gone]
        self._end_if_alone()

    def _end_if_alone(self) -> None:
        if not self._is_listening and not self._connections:
            self._router.close()

    def close(self) -> None:
        """See `HostListener.close`. Idempotent."""
        if not self._is_listening:
            return
        self._is_listening = False
        self._sock.unbind(self.address)
        while self._waiting:
            self._waiting.popleft().close()
        self._end_if_alone()
