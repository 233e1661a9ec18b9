"""The host's end: a DEALER, with its own context, for the supervisor and for each worker.

libzmq's sockets are not thread-safe: a lock serialises the owner and the attendant thread (`ZmqEnd.attend`).

A connection is one TCP (or IPC) connection and one session. libzmq's reconnecting is off, because its queued messages
would reach a daemon that does not know the session. A process that lost its connection makes a new one.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import select
import threading
import time
import weakref
from dataclasses import dataclass
from typing import Final

from offpath.bindings.channel.session import (
    BYE,
    CREDIT,
    DATA,
    END,
    OPEN,
    OPENED,
    SESSION_BYTES,
    Session,
    check_message,
    parse,
)
from offpath.bindings.errors import HostMessageError, KeyNotListed, PeerGone
from offpath.bindings.zeromq.keys import read_public, read_secret
from offpath.bindings.zeromq.library import HOST, Pace, has_news, monitored, next_event, set_limits, unmonitored, zmq

_LINGER_MS: Final = 1000
_READ_AT_ONCE: Final = 256
ATTEND_S: Final = 30.0
"""A listener probes a silent peer after minutes, and disconnects it after an hour (`zeromq.watch`)."""
_LOST: Final = (zmq.EVENT_DISCONNECTED, zmq.EVENT_CLOSED)
_REFUSED: Final = (
    zmq.EVENT_HANDSHAKE_FAILED_AUTH,
    zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL,
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL,
)


class ZmqEnd:
    """Implements `offpath.bindings.ports.HostEnd`. Usable at once: messages wait for the handshake."""

    peer_pid = 0
    peer = "the daemon"
    is_self_probe = False

    def __init__(
        self, address: str, server_key: bytes, secret: bytes, *, pace: Pace = HOST,
        context: zmq.Context[zmq.Socket[bytes]] | None = None,
    ) -> None:  # fmt: skip
        """``context``: a shared one, which its owner terminates; None: a private one, with its threads."""
        self._context = context if context is not None else zmq.Context(1)
        self._is_own = context is None
        self._is_closed = False
        self._sock = self._context.socket(zmq.DEALER)
        set_limits(self._sock, pace)
        self._sock.setsockopt(zmq.RECONNECT_IVL, -1)
        self._sock.setsockopt(zmq.LINGER, _LINGER_MS)  # set now: after a loss, closing would otherwise block for ever
        self._sock.setsockopt(zmq.CURVE_SERVERKEY, server_key)
        self._sock.setsockopt(zmq.CURVE_PUBLICKEY, zmq.curve_public(secret))
        self._sock.setsockopt(zmq.CURVE_SECRETKEY, secret)
        self._monitor = monitored(self._sock)
        self._session = Session(secrets.token_bytes(SESSION_BYTES))
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._is_awake = False
        self._poll = select.epoll(select.EPOLL_CLOEXEC)
        for fd in (int(self._sock.FD), int(self._monitor.FD), self._wake):
            self._poll.register(fd, select.EPOLLIN)
        self.is_opened = False
        """The daemon has accepted the session."""
        self.why_refused = ""
        """The daemon refused this key as not listed."""
        self.why_broken = ""
        """The handshake failed without such a refusal."""
        self._lock = threading.RLock()
        self._ended = threading.Event()
        try:
            self._sock.connect(address)
        except zmq.ZMQError as fault:
            self.close()
            raise PeerGone(f"no daemon at {address}: {fault.strerror}") from None
        self._send_frame(OPEN)

    def send(self, message: bytes, fds: tuple[int, ...] = ()) -> bool:
        """See `HostConnection.send`. Descriptors raise HostMessageError."""
        check_message(message, fds)
        with self._lock:
            if self._is_closed or self._session.is_over:
                raise PeerGone("host channel closed")
            if not self._session.has_room:
                self._pump()  # may receive credits
            return self._session.has_room and self._send_frame(DATA, message)

    def _send_frame(self, kind: int, body: bytes = b"") -> bool:
        try:
            self._sock.send(self._session.frame(kind, body), zmq.NOBLOCK)
        except zmq.Again:  # no room, or no connection, which the monitor reports
            return False
        self._session.on_sent(kind)
        if has_news(self._sock):  # sending may consume the descriptor's edge
            self._pump()
        return True

    def _pump(self) -> None:
        """Process what was received. Both descriptors are edge-triggered: read them to the end, or raise the own
        descriptor."""
        session = self._session
        is_lost = False
        while (event := next_event(self._monitor)) is not None:
            if event[0] == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
                self.why_refused = f"handshake refused ({event[1]})"
            elif event[0] in _REFUSED:
                self.why_broken = "the handshake was aborted; the daemon's public key may be wrong"
            is_lost = is_lost or event[0] in _LOST or event[0] in _REFUSED
        is_rest = True
        try:
            for _ in range(_READ_AT_ONCE):
                frame = parse(self._sock.recv(zmq.NOBLOCK))
                self.is_opened = self.is_opened or frame.kind == OPENED
                session.on_received(frame)
        except zmq.Again:
            is_rest = False
        except HostMessageError as fault:
            session.broke(fault)
        session.is_over = session.is_over or is_lost
        if session.is_probed and not session.is_over:
            session.is_probed = False  # `_send_frame` may re-enter here
            self._send_frame(CREDIT)
        self._show(session.is_readable or is_rest)

    def _show(self, is_readable: bool) -> None:
        if is_readable is not self._is_awake:
            self._is_awake = is_readable
            (os.eventfd_write if is_readable else _eventfd_clear)(self._wake, 1)

    def receive(self) -> tuple[bytes, tuple[int, ...]] | None:
        """See `HostConnection.receive`."""
        message = self.receive_message()
        return None if message is None else (message, ())

    def receive_message(self) -> bytes | None:
        """See `HostConnection.receive_message`."""
        with self._lock:
            if self._is_closed:
                raise PeerGone("host channel closed")
            if not self._session.inbox:
                self._pump()
            message = self._session.take()
            if self._session.owes_credit:
                self._send_frame(CREDIT)
            if not self._session.is_readable:
                self._pump()
            return message

    def wait_message(self) -> bytes:
        """See `HostEnd.wait_message`."""
        while (message := self.receive_message()) is None:
            self._poll.poll()
        return message

    def wait_opened(self, timeout_s: float) -> None:
        """Block until the daemon has accepted the session. Raises: PeerGone, KeyNotListed."""
        end = time.monotonic() + timeout_s
        while not self.is_opened:
            with self._lock:
                self._pump()
            if self.is_opened:
                return
            if self.why_refused:
                raise KeyNotListed(f"the daemon refused this host's key: {self.why_refused}")
            if self._session.is_over:
                raise PeerGone(self.why_broken or "no listener, or it hung up")
            if (left := end - time.monotonic()) <= 0:
                raise PeerGone(f"no answer in {timeout_s:g} s")
            self._poll.poll(left)

    def fileno(self) -> int:
        """Readable when a message waits or the peer hung up."""
        return self._poll.fileno() if not self._poll.closed else -1

    def death_fileno(self) -> int:
        """Unknown: the daemon is on another machine."""
        return -1

    def has_ended(self) -> bool:
        """See `HostConnection.has_ended`."""
        with self._lock:
            if not self._is_closed:
                self._pump()
            return self._session.is_over and not self._session.inbox

    def attend(self) -> None:
        """Start a thread that reads what was received every `ATTEND_S`, until `close`. It answers probes while the
        owner runs a kernel, unless the kernel holds the GIL all the time."""
        attendant = threading.Thread(target=_attend, args=(weakref.ref(self), self._ended), name="zmq", daemon=True)
        with contextlib.suppress(RuntimeError):  # no thread can be started: only a kernel of an hour needs it
            attendant.start()

    def look(self) -> None:
        """Process what was received, unless another thread is using the connection."""
        if self._lock.acquire(blocking=False):
            try:
                if not self._is_closed:
                    self._pump()
            finally:
                self._lock.release()

    def finish(self) -> None:
        """See `HostConnection.finish`."""
        with self._lock:
            if not self._is_closed and not self._session.is_over:
                self._send_frame(END)

    def close(self, *, at_once: bool = False) -> None:
        """Hang up. Waits at most a second until what was sent has left; ``at_once``: does not wait. Idempotent."""
        self._ended.set()
        with self._lock:
            if self._is_closed:
                return
            is_over = self._session.is_over or at_once
            if not is_over:
                self._send_frame(BYE)
            self._session.is_over = True
            unmonitored(self._sock, self._monitor)
            self._sock.close(0 if is_over else _LINGER_MS)
            self._is_closed = True
            if self._is_own:
                self._context.term()
            self._poll.close()
            os.close(self._wake)


def _attend(reference: weakref.ref[ZmqEnd], ended: threading.Event) -> None:
    while not ended.wait(ATTEND_S):
        end = reference()
        if end is None:
            return
        end.look()
        del end


def _eventfd_clear(fd: int, _: int) -> None:
    os.eventfd_read(fd)


@dataclass(frozen=True, slots=True)
class ZmqConnector:
    """Implements `offpath.bindings.ports.HostConnector`: the daemon's address and public key, the host's secret key.

    The files are read at each connection, so a new key pair takes effect with the next one.
    """

    address: str
    key_file: str
    server_key_file: str
    starts_threads = True

    def check(self) -> None:
        """Raises: KeyFileRefused: a key is unusable."""
        read_secret(self.key_file)
        read_public(self.server_key_file)

    def connect(self, timeout_s: float = 5.0) -> ZmqEnd:
        """See `HostConnector.connect`. Raises: PeerGone, KeyNotListed, KeyFileRefused."""
        end = ZmqEnd(self.address, read_public(self.server_key_file), read_secret(self.key_file))
        try:
            end.wait_opened(timeout_s)
        except PeerGone as gone:
            end.close()
            raise type(gone)(f"no daemon at {self.address}: {gone}") from None
        except BaseException:
            end.close()
            raise
        end.attend()
        return end
