"""migd's socket: accepts clients, checks their uid, and runs one request of each at a time.

The loop itself makes no NVML call. Requests run in threads, one for each connection with a request in progress; the
service makes requests for one GPU wait for each other. Xid events come from a thread of their own.
"""

from __future__ import annotations

import logging
import os
import select
import socket
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from offpath.bindings.errors import ProtocolError
from offpath.bindings.sockets import peer_credentials
from offpath.bindings.wire.control import decode, encode
from offpath.host_helper.migd import protocol
from offpath.host_helper.migd.config import MigdConfig
from offpath.host_helper.migd.holders import Caller
from offpath.host_helper.migd.service import MigService

logger = logging.getLogger(__name__)
MAX_CONNECTIONS: Final = 64
MAX_CONNECTIONS_OF_UID: Final = 32
_EXPIRY_S: Final = 10.0
_IDLE: Final = select.EPOLLIN | select.EPOLLRDHUP
_BUSY: Final = select.EPOLLRDHUP
_GONE: Final = select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR


@dataclass(slots=True)
class _Connection:
    number: int
    sock: socket.socket
    uid: int
    is_busy: bool = False
    is_watching: bool = False
    is_open: bool = True


class MigdServer:
    """Serves the clients of a listening socket, which it owns, until `stop`."""

    def __init__(self, config: MigdConfig, service: MigService, listener: socket.socket) -> None:
        self._config = config
        self._service = service
        self._listener = listener
        self._connections: dict[int, _Connection] = {}
        self._numbers = 0
        self._finished: deque[Callable[[], None]] = deque()
        self._running = 0
        self._is_expiring = False
        self._stopping = threading.Event()
        self._wake_read, self._wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._epoll = select.epoll()
        self._epoll.register(self._wake_read, select.EPOLLIN)
        self._epoll.register(listener.fileno(), select.EPOLLIN)
        self._threads = ThreadPoolExecutor(MAX_CONNECTIONS + 1, "migd")

    def stop(self) -> None:
        """End `run` once the requests in progress are answered; may be called from a signal handler."""
        self._stopping.set()
        self._wake()

    def run(self) -> None:
        """Serve. Blocks until `stop`. Instances stay as they are."""
        try:
            while not self._stopping.is_set() or self._running:
                for fd, events in self._epoll.poll(_EXPIRY_S):
                    self._attend(fd, events)
                self._finish()
                self._expire()
        finally:
            self._threads.shutdown()
            for connection in list(self._connections.values()):
                self._close(connection)
            self._listener.close()
            self._epoll.close()

    def close(self) -> None:
        """After `run`, and once no other thread calls `publish` or `stop`."""
        os.close(self._wake_read)
        os.close(self._wake_write)

    def publish(self, event: protocol.Xid, owner_uid: int | None) -> None:
        """Send an event to all that watch; the handle only to the owner of the instance and to operators. May be called
        from any thread."""
        self._from_thread(lambda: self._publish(event, owner_uid))

    # -- the loop -----------------------------------------------------------------------------------------------------
    def _attend(self, fd: int, events: int) -> None:
        if fd == self._wake_read:
            os.read(fd, 4096)
        elif fd == self._listener.fileno():
            self._accept()
        elif (connection := self._connections.get(fd)) is not None:
            if events & select.EPOLLIN and not connection.is_busy:
                self._receive(connection)
            elif events & _GONE:
                self._close(connection)

    def _accept(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except OSError as fault:
            logger.warning("migd: a connection cannot be accepted: %s", fault)
            return
        sock.setblocking(False)
        uid = peer_credentials(sock)[1]
        refusal = self._refusal(uid)
        if refusal is not None or self._stopping.is_set():
            if refusal is not None:
                _send(sock, refusal)
            sock.close()
            return
        self._numbers += 1
        self._connections[sock.fileno()] = _Connection(self._numbers, sock, uid)
        self._epoll.register(sock.fileno(), _IDLE)

    def _refusal(self, uid: int) -> protocol.Failed | None:
        if not self._config.may_connect(uid):
            logger.warning("migd: uid %s is not served", uid)
            return protocol.failed("denied", f"uid {uid} may not use migd")
        same = sum(each.uid == uid for each in self._connections.values())
        if len(self._connections) >= MAX_CONNECTIONS or same >= MAX_CONNECTIONS_OF_UID:
            return protocol.failed("too_many", f"{len(self._connections)} connections, {same} of uid {uid}")
        return None

    def _receive(self, connection: _Connection) -> None:
        try:
            body, _, flags, _ = connection.sock.recvmsg(protocol.MAX_REQUEST_BYTES)
        except BlockingIOError:
            return
        except OSError:
            self._close(connection)
            return
        if not body:  # the peer hung up; an empty packet looks the same, and is no message
            self._close(connection)
            return
        if flags & socket.MSG_TRUNC:
            self._refuse(connection, f"longer than {protocol.MAX_REQUEST_BYTES} bytes")
            return
        try:
            request = decode(protocol.REQUESTS, body)
        except ProtocolError as fault:
            self._refuse(connection, str(fault))
        else:
            self._start(connection, request)

    def _refuse(self, connection: _Connection, why: str) -> None:
        """Bytes that are no request end the connection."""
        _send(connection.sock, protocol.failed("message", why))
        self._close(connection)

    def _start(self, connection: _Connection, request: protocol.Request) -> None:
        caller = Caller(
            connection.uid, connection.number, self._config.is_operator(connection.uid), lambda: connection.is_open
        )

        def work() -> None:
            reply: protocol.Reply
            try:
                reply = self._service.handle(request, caller)
            except Exception:
                logger.exception("migd: a request failed: report it as a bug")
                reply = protocol.failed("device", "an error in migd; see its log")
            self._from_thread(lambda: self._answer(connection, request, reply))

        connection.is_busy = True
        self._running += 1
        self._epoll.modify(connection.sock.fileno(), _BUSY)
        self._threads.submit(work)

    def _answer(self, connection: _Connection, request: protocol.Request, reply: protocol.Reply) -> None:
        self._running -= 1
        connection.is_busy = False
        if not connection.is_open:
            return
        if not _send(connection.sock, reply):
            self._close(connection)
            return
        connection.is_watching |= isinstance(request, protocol.Watch)
        self._epoll.modify(connection.sock.fileno(), _IDLE)

    def _publish(self, event: protocol.Xid, owner_uid: int | None) -> None:
        for connection in list(self._connections.values()):
            if connection.is_watching:
                is_owner = connection.uid == owner_uid or self._config.is_operator(connection.uid)
                message = event if is_owner else event.model_copy(update={"handle": ""})
                if not _send(connection.sock, message):
                    self._close(connection)

    def _close(self, connection: _Connection) -> None:
        if connection.is_open:
            connection.is_open = False
            self._epoll.unregister(connection.sock.fileno())
            del self._connections[connection.sock.fileno()]
            connection.sock.close()
            self._service.holders.leave(connection.number)

    def _expire(self) -> None:
        if self._is_expiring or self._stopping.is_set() or not self._service.has_unheld():
            return

        def work() -> None:
            try:
                self._service.expire()
            finally:
                self._from_thread(self._expired)

        self._is_expiring = True
        self._running += 1
        self._threads.submit(work)

    def _expired(self) -> None:
        self._running -= 1
        self._is_expiring = False

    # -- between threads ----------------------------------------------------------------------------------------------
    def _from_thread(self, step: Callable[[], None]) -> None:
        """Have the loop run a step."""
        self._finished.append(step)
        self._wake()

    def _finish(self) -> None:
        while self._finished:
            self._finished.popleft()()

    def _wake(self) -> None:
        try:
            os.write(self._wake_write, b"x")
        except BlockingIOError:
            return  # it is readable already


def _send(sock: socket.socket, message: protocol.Reply) -> bool:
    """False: the peer is gone, or does not read."""
    body = encode(message)
    if len(body) > protocol.MAX_REPLY_BYTES:
        body = encode(protocol.failed("device", f"the reply has {len(body)} bytes"))
    try:
        sock.send(body)
    except OSError:
        return False
    return True
