"""Host channel `loopback`: SOCK_SEQPACKET Unix sockets with whole messages and descriptors, non-blocking."""

from __future__ import annotations

import contextlib
import os
import select
import socket
from dataclasses import dataclass
from typing import Final

from offpath.bindings.errors import HostMessageError, PeerGone
from offpath.bindings.native import end_of, receive_message
from offpath.bindings.sockets import (
    GONE,
    SocketFile,
    listening_socket,
    peer_credentials,
    peer_pidfd,
    receive_with_fds,
    send_with_fds,
)
from offpath.bindings.trust import connect_daemon
from offpath.bindings.wire.host import MAX_MESSAGE_BYTES

_MAX_FDS: Final = 4


class LoopbackConnection:
    """Implements `offpath.bindings.ports.HostEnd` over one connected socket, which it owns. The daemon uses it too."""

    def __init__(self, sock: socket.socket) -> None:
        """Raises: OSError: no descriptor is left for the peer's pidfd; ``sock`` is closed."""
        sock.setblocking(True)  # only wait_message may block: all other calls pass MSG_DONTWAIT
        self._sock = sock
        self._end = end_of(sock)
        """The socket as `offpath.bindings.native` takes it."""
        self.held = b""
        """A message that `send` puts in front of the next one, in one packet, so that the peer wakes up once."""
        try:
            self._pid, self.peer_uid, _ = peer_credentials(sock)
            self._pidfd = peer_pidfd(sock)
        except OSError:
            sock.close()
            raise

    @property
    def peer_pid(self) -> int:
        """The process that connected."""
        return self._pid

    @property
    def peer(self) -> str:
        """See `HostConnection.peer`."""
        return f"uid {self.peer_uid}"

    @property
    def is_self_probe(self) -> bool:
        """See `HostConnection.is_self_probe`."""
        return self._pid == os.getpid()

    def send(self, message: bytes, fds: tuple[int, ...] = ()) -> bool:
        """See `HostConnection.send`."""
        if not message:
            raise HostMessageError("empty", "the peer would read it as a hang-up")
        if len(message) > MAX_MESSAGE_BYTES:
            raise HostMessageError("too_long", str(len(message)))
        if self.held:
            if len(self.held) + len(message) > MAX_MESSAGE_BYTES:
                return self.flush() and self.send(message, fds)
            message, held, self.held = self.held + message, self.held, b""
            try:
                was_sent = self.send(message, fds)
            except BaseException:
                self.held = held
                raise
            if not was_sent:
                self.held = held
            return was_sent
        try:
            if fds:
                send_with_fds(self._sock, message, fds, socket.MSG_DONTWAIT)
            else:
                self._sock.send(message, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError as fault:
            if fault.errno in GONE:
                raise PeerGone(f"host channel: {fault.strerror}") from None
            raise
        return True

    def flush(self) -> bool:
        """Send what is held. False: the peer's queue is full, and it stays held. Raises: PeerGone."""
        message, self.held = self.held, b""
        return not message or self.send(message) or self._hold(message)

    def _hold(self, message: bytes) -> bool:
        self.held = message
        return False

    def receive(self) -> tuple[bytes, tuple[int, ...]] | None:
        """See `HostConnection.receive`."""
        try:
            message, fds, flags = receive_with_fds(self._sock, MAX_MESSAGE_BYTES + 1, _MAX_FDS, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return None
        except OSError as fault:
            if fault.errno in GONE:
                raise PeerGone(f"host channel: {fault.strerror}") from None
            raise
        if not message:
            for fd in fds:
                os.close(fd)
            raise PeerGone("host channel closed")
        if len(message) > MAX_MESSAGE_BYTES or flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
            for fd in fds:
                os.close(fd)
            raise HostMessageError("too_long", str(len(message)))
        return message, tuple(fds)

    def receive_message(self) -> bytes | None:
        """See `HostConnection.receive_message`. Half the cost of `receive`."""
        try:
            message = receive_message(self._end)
        except OSError as fault:
            if fault.errno in GONE:
                raise PeerGone(f"host channel: {fault.strerror}") from None
            raise
        if message is None:
            return None
        if not message:
            raise PeerGone("host channel closed")
        if len(message) > MAX_MESSAGE_BYTES:
            raise HostMessageError("too_long", str(len(message)))
        return message

    def wait_message(self) -> bytes:
        """See `HostEnd.wait_message`."""
        try:
            message = self._sock.recv(MAX_MESSAGE_BYTES + 1)
        except OSError as fault:
            raise PeerGone(f"host channel: {fault.strerror}") from None
        if not message:
            raise PeerGone("host channel closed")
        if len(message) > MAX_MESSAGE_BYTES:
            raise HostMessageError("too_long", str(len(message)))
        return message

    def fileno(self) -> int:
        """Readable when a message waits or the peer hung up."""
        return self._sock.fileno()

    def death_fileno(self) -> int:
        """The peer's pidfd, or -1."""
        return self._pidfd

    def has_ended(self) -> bool:
        """See `HostConnection.has_ended`."""
        if self._pidfd >= 0:
            poll = select.poll()
            poll.register(self._pidfd, select.POLLIN)
            return bool(poll.poll(0))
        try:
            return not self._sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:
            return True

    def finish(self) -> None:
        """See `HostConnection.finish`."""
        with contextlib.suppress(OSError):  # the peer hung up first
            self._sock.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Hang up."""
        self._sock.close()
        self._end = end_of(self._sock)
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1


class LoopbackChannelListener:
    """Implements `offpath.bindings.ports.HostListener`. Accepts only processes of ``allowed_uids``.

    ``inherited``: a socket that already listens at ``path``. Its maker owns the file, so the file stays.
    """

    def __init__(self, path: str, allowed_uids: frozenset[int], inherited: socket.socket | None = None) -> None:
        self.address = path
        self._allowed = allowed_uids
        self._sock = inherited or listening_socket(path, socket.SOCK_SEQPACKET)
        self.file = SocketFile(path, is_own=inherited is None)

    def fileno(self) -> int:
        """Readable when a connection waits."""
        return self._sock.fileno()

    def accept(self) -> LoopbackConnection | None:
        """The next allowed connection, or None. Closes a connection of any other user and returns None."""
        try:
            sock, _ = self._sock.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return None
        connection = LoopbackConnection(sock)
        if connection.peer_uid not in self._allowed:
            connection.close()
            return None
        return connection

    def replace(self, sock: socket.socket) -> None:
        """Listen on ``sock`` instead, which takes over the path. Accepted connections stay open."""
        self._sock.close()
        self._sock = sock

    def self_connect(self) -> LoopbackConnection:
        """See `HostListener.self_connect`."""
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
        try:
            sock.connect(self.address)  # a Unix socket connects at once or fails
        except BaseException:
            sock.close()
            raise
        self_probe = LoopbackConnection(sock)
        self_probe.finish()
        return self_probe

    def close(self) -> None:
        """Stop listening and remove the socket file."""
        if self._sock.fileno() >= 0:
            self.file.remove()
            self._sock.close()


@dataclass(frozen=True, slots=True)
class LoopbackConnector:
    """Implements `offpath.bindings.ports.HostConnector`: the daemon's socket at ``path``."""

    path: str
    starts_threads = False

    def connect(self, timeout_s: float = 5.0) -> LoopbackConnection:
        """See `HostConnector.connect`."""
        return connect_channel(self.path, timeout_s)


def connect_channel(path: str, timeout_s: float = 5.0) -> LoopbackConnection:
    """The host's end. Raises: PeerGone: no daemon listens at ``path``, or no descriptor is left. DaemonNotTrusted: an
    untrusted user listens there. OptionRefused: as `connect_daemon`."""
    try:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
        try:
            connect_daemon(sock, path, timeout_s)
            return LoopbackConnection(sock)
        except BaseException:
            sock.close()
            raise
    except OSError as fault:
        raise PeerGone(f"no daemon at {path}: {fault.strerror or fault}") from None
