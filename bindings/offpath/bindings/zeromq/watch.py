"""Bounds the incomplete messages of peers: libzmq buffers them without limit, so each connection is watched.

libzmq delivers a message after its last part, and MAXMSGSIZE bounds only one part. No option forbids several parts, and
under CURVE the more-flag is encrypted. The kernel counts the bytes that a TCP connection received. Bytes since a peer's
last whole message are buffered by libzmq, or were heartbeats. A session has at most a window of messages in flight, so
an honest peer stays far below the bound; one that is silent for long is probed, and answers with a message. Only TCP
has such a counter; ipc:// has none.
"""

from __future__ import annotations

import ctypes
import errno
import os
import socket
import struct
import time
from dataclasses import dataclass
from typing import Final, NamedTuple

LOOK_S: Final = 0.1
PROBE_BYTES: Final = 256 << 10
"""Ten minutes of a host's heartbeats, or more than a window of messages. The peer is then probed."""
MOST_BYTES: Final = 2 << 20
"""Bytes of one peer without a whole message; beyond, its connection is closed."""
MOST_TOGETHER: Final = 64 << 20
"""Bytes of all peers above `PROBE_BYTES` together; beyond, the connections with the most are closed."""
_TCP_INFO: Final = struct.Struct("=128xQ")
"""The last field: tcpi_bytes_received (linux/tcp.h, since Linux 4.1)."""
_TIMERSPEC: Final = struct.Struct("=qqqq")
_CLOCK_MONOTONIC: Final = 1
_libc: Final = ctypes.CDLL(None, use_errno=True)


class Found(NamedTuple):
    """TCP descriptors of peers to probe, and of peers to disconnect."""

    quiet: tuple[int, ...]
    over: tuple[int, ...]


@dataclass(slots=True)
class _Peer:
    inode: int
    """Inode of the socket: its descriptor may be reused after libzmq has closed it."""
    base: int
    """Bytes received when its last whole message was noticed."""
    has_sent: bool = False
    is_probed: bool = False


class PartWatch:
    """Watches one listener's connections, by TCP descriptor, which libzmq owns. Call `look` when `is_due`."""

    def __init__(self) -> None:
        self._timer = _libc.timerfd_create(_CLOCK_MONOTONIC, os.O_CLOEXEC | os.O_NONBLOCK)
        if self._timer < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        self._peers: dict[int, _Peer] = {}
        self._next = 0.0
        self.cut_off = 0
        """Number of connections that were closed."""

    def fileno(self) -> int:
        """Readable `LOOK_S` after each `look` while there are connections."""
        return int(self._timer)

    def came(self, fd: int) -> None:
        """A connection was accepted."""
        found = _received(fd)
        if found is None:
            return
        if not self._peers:
            self._set_timer(LOOK_S)
        self._peers[fd] = _Peer(_inode(fd), found)

    def left(self, fd: int) -> None:
        """A connection was closed."""
        if self._peers.pop(fd, None) is not None and not self._peers:
            self._set_timer(0)

    def on_received(self, fd: int) -> None:
        """A whole message was received on it."""
        if (peer := self._peers.get(fd)) is not None:
            peer.has_sent = True

    def is_due(self) -> bool:
        """It is time to `look`."""
        return bool(self._peers) and time.monotonic() >= self._next

    def look(self) -> Found:
        """Count again. Read all messages and monitor events before."""
        self._next = time.monotonic() + LOOK_S
        self._set_timer(LOOK_S)  # also clears the expiry
        quiet: list[int] = []
        held: list[tuple[int, int]] = []
        for fd, peer in self._peers.items():
            received = _received(fd) if _inode(fd) == peer.inode else None
            if received is None:
                continue  # closed; the monitor's event is pending
            if peer.has_sent:
                peer.base, peer.has_sent, peer.is_probed = received, False, False
            elif received - peer.base > PROBE_BYTES:
                held.append((received - peer.base, fd))
                if not peer.is_probed:
                    peer.is_probed = True
                    quiet.append(fd)
        return Found(tuple(quiet), _over(held))

    def cut(self, fd: int) -> None:
        """Shut the connection down; libzmq then frees its buffers."""
        peer = self._peers.get(fd)
        if peer is None:
            return
        try:
            with socket.socket(fileno=os.dup(fd)) as sock:
                if _inode(sock.fileno()) == peer.inode:
                    self.cut_off += 1
                    sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # closed already

    def close(self) -> None:
        """Close the timer. Idempotent."""
        if self._timer >= 0:
            os.close(self._timer)
            self._timer = -1

    def _set_timer(self, after_s: float) -> None:
        """Arm the timer once; 0: disarm."""
        spec = _TIMERSPEC.pack(0, 0, 0, int(after_s * 1e9))
        if _libc.timerfd_settime(self._timer, 0, spec, None):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _over(held: list[tuple[int, int]]) -> tuple[int, ...]:
    """Of (bytes, descriptor): those above the limit for one peer, and the largest while all together exceed their
    limit."""
    over = []
    together = sum(nbytes for nbytes, _ in held)
    for nbytes, fd in sorted(held, reverse=True):
        if nbytes <= MOST_BYTES and together <= MOST_TOGETHER:
            break
        over.append(fd)
        together -= nbytes
    return tuple(over)


def _received(fd: int) -> int | None:
    """Bytes that a TCP connection has received; None: not TCP, or closed."""
    try:
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 0, fileno=fd)
    except OSError:
        return None
    try:
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size)
    except OSError as fault:
        if fault.errno not in (errno.EOPNOTSUPP, errno.ENOPROTOOPT, errno.EBADF, errno.ENOTSOCK):
            raise
        return None
    finally:
        sock.detach()  # libzmq owns it
    return int(_TCP_INFO.unpack(info)[0]) if len(info) == _TCP_INFO.size else None


def _inode(fd: int) -> int:
    try:
        return os.fstat(fd).st_ino
    except OSError:
        return -1
