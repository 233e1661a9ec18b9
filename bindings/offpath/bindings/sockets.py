"""Unix sockets: the peer's identity, descriptors beside messages, listening sockets and their files."""

from __future__ import annotations

import array
import contextlib
import errno
import fcntl
import os
import socket
import stat
import struct
import time
from collections.abc import Iterator, Sequence
from typing import Final

from offpath.bindings.errors import HandoverError

_UCRED = struct.Struct("3i")
_TIMEVAL = struct.Struct("@ll")
_SO_PEERPIDFD: Final = 77  # Linux 6.5: the peer's pidfd, immune to pid reuse
_ALONE_S: Final = 5.0
_LOCK: Final = ".sockets.lock"
GONE: Final = (errno.EPIPE, errno.ECONNRESET, errno.ENOTCONN, errno.ECONNREFUSED, errno.EBADF, errno.ESHUTDOWN)


def peer_credentials(sock: socket.socket) -> tuple[int, int, int]:
    """(pid, uid, gid) of the process that connected, as the kernel recorded it then."""
    raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    pid, uid, gid = _UCRED.unpack(raw)
    return pid, uid, gid


def peer_pidfd(sock: socket.socket) -> int:
    """A pidfd of the peer's process, which the caller closes; -1: the process is gone or the kernel cannot provide one.

    Raises: OSError: no descriptor is left for it. The peer may be alive.
    """
    try:
        raw = sock.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD, 4)
        return int(struct.unpack("i", raw)[0])
    except OSError as fault:
        if fault.errno in (errno.EMFILE, errno.ENFILE):
            raise
    try:
        return os.pidfd_open(peer_credentials(sock)[0])
    except OSError as fault:
        if fault.errno in (errno.EMFILE, errno.ENFILE):
            raise
        return -1


def connect_within(sock: socket.socket, path: str, timeout_s: float) -> None:
    """Connect a Unix socket; wait at most ``timeout_s`` for space in a full backlog. Python's own timeout makes the
    socket non-blocking to the kernel, which then fails at once. Afterwards the socket blocks without limit.

    Raises: OSError; EAGAIN: the backlog stayed full.
    """
    until = time.monotonic() + max(timeout_s, 1e-3)
    sock.setblocking(True)
    while True:
        seconds, rest = divmod(max(until - time.monotonic(), 1e-3), 1.0)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _TIMEVAL.pack(int(seconds), int(rest * 1e6)))
        sock.connect(path)
        if _is_connected(sock):
            break
        if time.monotonic() >= until:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _TIMEVAL.pack(0, 0))


def _is_connected(sock: socket.socket) -> bool:
    """False after a `connect` that a signal interrupted: Python waits until the socket is writable, which an
    unconnected one is, and returns as if it were connected (observed in Python 3.11)."""
    try:
        sock.getpeername()
    except OSError as fault:
        if fault.errno == errno.ENOTCONN:
            return False
        raise
    return True


def send_with_fds(sock: socket.socket, message: bytes, fds: Sequence[int], flags: int = 0) -> None:
    """As `socket.send_fds`, which ignores its ``flags`` (observed in Python 3.11): MSG_DONTWAIT would block."""
    sock.sendmsg([message], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))], flags)


def receive_with_fds(sock: socket.socket, nbytes: int, most: int, flags: int = 0) -> tuple[bytes, list[int], int]:
    """(message, descriptors, flags). As `socket.recv_fds`, but honours ``flags``, and descriptors close on exec."""
    fds = array.array("i")
    message, ancillary, received_flags, _ = sock.recvmsg(
        nbytes, socket.CMSG_LEN(most * fds.itemsize), flags | socket.MSG_CMSG_CLOEXEC
    )
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
    return message, list(fds), received_flags


class SocketFile:
    """The file of a listening Unix socket: its identity, and whether this process may remove it.

    A path does not identify a listener: the file may have been removed, and another process may have made a new one.
    """

    def __init__(self, path: str, *, is_own: bool) -> None:
        """``is_own``: this process made it. Otherwise its maker removes it."""
        self.path = path
        self.is_own = is_own
        self.mode, self.gid = 0o600, -1
        self._identity: tuple[int, int] | None = None
        if is_own or not _is_dead(path):
            self._look()

    def _look(self) -> tuple[int, int] | None:
        """(device, inode) of the file at the path now."""
        try:
            found = os.lstat(self.path)
        except OSError:
            return None
        if self._identity is None:
            self._identity = found.st_dev, found.st_ino
        if self._identity == (found.st_dev, found.st_ino):
            self.mode, self.gid = stat.S_IMODE(found.st_mode), found.st_gid
        return found.st_dev, found.st_ino

    def is_there(self) -> bool:
        """The path leads to this file. Records its mode and group."""
        return self._identity is not None and self._look() == self._identity

    def remake(self, kind: socket.SocketKind) -> socket.socket:
        """A new listening socket at the path, with the mode and group of the former file. Does not wait.

        Raises: OSError: the path is taken, or the file cannot be made, or not with that group. Nothing is left at the
            path.
        """
        sock = listening_socket(self.path, kind, wait_s=0.0)
        try:
            made = os.lstat(self.path)
            if self.mode >> 3 & ~self.mode & 0o7 and self.gid != made.st_gid:  # the group has rights that others lack
                os.chown(self.path, -1, self.gid)
            os.chmod(self.path, self.mode)
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(self.path)
            sock.close()
            raise
        self._identity, self.is_own = (made.st_dev, made.st_ino), True
        return sock

    def remove(self) -> None:
        """Remove it if this process made it and it was not replaced. Idempotent."""
        if self.is_own and self.is_there():
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.path)


def _is_dead(path: str) -> bool:
    """No socket is bound to the file at ``path``, or there is no file. Makes no connection: the socket kind differs."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as probe:
        return probe.connect_ex(path) in (errno.ECONNREFUSED, errno.ENOENT)


@contextlib.contextmanager
def _alone_in(directory: str, wait_s: float) -> Iterator[None]:
    """Exclude other processes that make sockets in ``directory``.

    The lock is a file of mode 0600, removed at the end. A lock on the directory itself would need no file, but any user
    with read access to the directory could take it and keep it.

    Raises: OSError; EADDRINUSE: another process held the lock for ``wait_s``.
    """
    path = os.path.join(directory, _LOCK)
    until = time.monotonic() + wait_s
    while (fd := _locked(path)) < 0:
        if time.monotonic() >= until:
            raise OSError(errno.EADDRINUSE, "another process is making a socket there", directory)
        time.sleep(0.005)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            os.unlink(path)
        os.close(fd)


def _locked(path: str) -> int:
    """A descriptor of the locked lock file at ``path``; -1: another process has the lock, or just removed the file.

    Raises: OSError: the file cannot be made, or belongs to another user in another user's directory.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        fd = os.open(path, flags, 0o600)
    except PermissionError:
        us = os.geteuid()
        if not os.path.lexists(path) or os.lstat(path).st_uid == us or os.stat(os.path.dirname(path)).st_uid != us:
            raise
        os.unlink(path)  # left by a root process that was killed
        return -1
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        locked, there = os.fstat(fd), os.lstat(path)
        if (locked.st_dev, locked.st_ino) == (there.st_dev, there.st_ino):
            return fd
    except (BlockingIOError, FileNotFoundError):
        pass
    except BaseException:
        os.close(fd)
        raise
    os.close(fd)
    return -1


def listening_socket(path: str, kind: socket.SocketKind, *, wait_s: float = _ALONE_S) -> socket.socket:
    """A bound, non-blocking Unix socket of mode 0600 at ``path``. Replaces a stale file there.

    Of several processes that start at once, one gets the path. Without the lock, a second one could find the stale file
    and remove the socket that the first had put there meanwhile, or find that socket bound and not yet listening.

    Raises: OSError: a live listener has the path, it cannot be made, or other processes made sockets in its directory
        for ``wait_s``.
    """
    with _alone_in(os.path.dirname(path) or ".", wait_s):
        return _listening_socket(path, kind)


def _listening_socket(path: str, kind: socket.SocketKind) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, kind | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
    try:
        if os.path.exists(path):
            with socket.socket(socket.AF_UNIX, kind | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK) as probe:
                # Only a refusal proves that the file is stale. A full backlog or another kind of socket means a live
                # owner.
                if probe.connect_ex(path) not in (errno.ECONNREFUSED, errno.ENOENT):
                    raise OSError(errno.EADDRINUSE, "another process listens there", path)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
        mask = os.umask(0o177)
        try:
            sock.bind(path)
        finally:
            os.umask(mask)
        sock.listen(128)
    except BaseException:
        sock.close()
        raise
    return sock


def inherited_listener(name: str, fd: int, kind: socket.SocketKind) -> socket.socket:
    """A listening Unix socket that another process made and passed as ``fd``. Takes ownership and makes it
    non-blocking.

    Raises: HandoverError: ``fd`` is something else. It stays open, because it may belong to other code.
    """
    try:
        sock = socket.socket(fileno=fd)
    except OSError:
        raise HandoverError(f"{name}: descriptor {fd} is not a socket") from None
    is_listening = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    if sock.family != socket.AF_UNIX or sock.type != kind or not is_listening:
        found = f"a {sock.family.name} socket of {sock.type.name}{', listening' if is_listening else ''}"
        sock.detach()
        raise HandoverError(f"{name}: want a listening AF_UNIX socket of {kind.name}, descriptor {fd} is {found}")
    sock.setblocking(False)
    return sock
