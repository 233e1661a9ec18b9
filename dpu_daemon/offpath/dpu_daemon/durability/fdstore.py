"""The service manager's side of the notify protocol: its socket, its messages and the descriptors that it stores."""

from __future__ import annotations

import array
import logging
import os
import socket
import stat
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from offpath.bindings.errors import PlaceUnusable
from offpath.dpu_daemon.durability.notify import FD_NAME, close_all

logger = logging.getLogger(__name__)
_MAX_MESSAGE_BYTES: Final = 4096  # systemd's NOTIFY_BUFFER_MAX
_MAX_FDS: Final = 253  # the kernel's SCM_MAX_FD
_UCRED: Final = struct.Struct("3i")


@dataclass(slots=True, eq=False)
class Notification:
    """One message: the sender's pid, as the kernel reports it; the last value per key; descriptors, which it owns."""

    pid: int
    fields: dict[str, str]
    fds: list[int] = field(default_factory=list)

    def take_fds(self) -> list[int]:
        """Transfers the descriptors to the caller."""
        taken, self.fds = self.fds, []
        return taken

    def close(self) -> None:
        """Close the descriptors that were not taken."""
        close_all(self.take_fds())


def open_notify_socket(path: str) -> socket.socket:
    """A datagram socket at ``path``, mode 0600, that reports each sender's credentials. Raises: PlaceUnusable."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        if os.path.exists(path):
            os.unlink(path)  # this manager holds the listening sockets, so no other one uses this socket
        mask = os.umask(0o177)
        try:
            sock.bind(path)
        finally:
            os.umask(mask)
    except OSError as fault:
        sock.close()
        raise PlaceUnusable(f"{path}: {fault.strerror or fault}") from None
    return sock


def read_notification(sock: socket.socket) -> Notification | None:
    """The next message, or None if there is none. A truncated message has no fields."""
    space = socket.CMSG_SPACE(_UCRED.size) + socket.CMSG_SPACE(_MAX_FDS * 4)
    try:
        data, ancillary, flags, _ = sock.recvmsg(
            _MAX_MESSAGE_BYTES, space, socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC
        )
    except BlockingIOError:
        return None
    message = Notification(0, {})
    for level, kind, body in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds = array.array("i")
            fds.frombytes(body[: len(body) - len(body) % fds.itemsize])
            message.fds += fds
        elif level == socket.SOL_SOCKET and kind == socket.SCM_CREDENTIALS:
            message.pid = _UCRED.unpack(body[: _UCRED.size])[0]
    if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
        logger.warning(
            "message of pid %d dropped: too long, or more descriptors than RLIMIT_NOFILE allows",
            message.pid,
            extra={"code": "notify_too_long"},
        )
    else:
        text = data.decode("utf-8", "replace")
        message.fields = dict(line.split("=", 1) for line in text.split("\n") if "=" in line)
    return message


class DescriptorStore:
    """Descriptors by name. Holds at most ``most``.

    Semantics of ``FDPOLL=0``: they are held until removed or until the store closes, even if the other end closes.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._held: list[tuple[str, int]] = []
        self._known: set[tuple[int, int]] = set()

    def __len__(self) -> int:
        return len(self._held)

    def entries(self) -> Iterator[tuple[str, int]]:
        """(name, descriptor); the store keeps ownership. systemd gives them in no order. Here the newest comes first,
        so that a daemon which relies on the order of arrival is found."""
        return reversed(self._held)

    def add(self, name: str, fds: Sequence[int]) -> None:
        """Store all of ``fds`` or none; takes ownership. A file that is stored already, under any name, is skipped."""
        if not FD_NAME.fullmatch(name) or len(self._held) + len(fds) > self._most:
            logger.warning(
                "%d descriptors named %.40r not stored: the store is full with %d",
                len(fds),
                name,
                len(self._held),
                extra={"code": "store_full"},
            )
            close_all(fds)
            return
        for fd in fds:
            identity = _identity(fd)
            if identity in self._known:
                os.close(fd)
                continue
            if identity is not None:
                self._known.add(identity)
            self._held.append((name, fd))

    def remove(self, name: str) -> None:
        """Close and drop every descriptor of that name; a name without descriptors is not an error."""
        for _, fd in [entry for entry in self._held if entry[0] == name]:
            self._known.discard(_identity(fd) or (0, 0))
            os.close(fd)
        self._held = [entry for entry in self._held if entry[0] != name]

    def close(self) -> None:
        """Close and drop every descriptor."""
        close_all([fd for _, fd in self._held])
        self._held.clear()
        self._known.clear()


def _identity(fd: int) -> tuple[int, int] | None:
    """(device, inode), by which duplicates are found. None for eventfds and the like, which share one inode."""
    found = os.fstat(fd)
    is_own = stat.S_ISREG(found.st_mode) or stat.S_ISSOCK(found.st_mode) or stat.S_ISFIFO(found.st_mode)
    return (found.st_dev, found.st_ino) if is_own else None
