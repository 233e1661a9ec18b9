"""Small socket helpers shared by the loopback adapters: peer identity, peer death, quiet closing."""

from __future__ import annotations

import array
import contextlib
import errno
import os
import socket
import struct
from collections.abc import Sequence
from typing import Final

from offpath.bindings.errors import HandoverError

_UCRED = struct.Struct("3i")
_TIMEVAL = struct.Struct("@ll")
_SO_PEERPIDFD: Final = 77  # Linux 6.5: the peer's pidfd, free of pid reuse
GONE: Final = (errno.EPIPE, errno.ECONNRESET, errno.ENOTCONN, errno.ECONNREFUSED, errno.EBADF, errno.ESHUTDOWN)


def peer_credentials(sock: socket.socket) -> tuple[int, int, int]:
    """(pid, uid, gid) of the process that connected, as the kernel saw it then."""
    raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    pid, uid, gid = _UCRED.unpack(raw)
    return pid, uid, gid


def peer_pidfd(sock: socket.socket) -> int:
    """A pidfd of the peer's process (ours to close), or -1 when it is gone or the kernel cannot say."""
    try:
        raw = sock.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD, 4)
        return int(struct.unpack("i", raw)[0])
    except OSError:
        pass
    try:
        return os.pidfd_open(peer_credentials(sock)[0])
    except OSError:
        return -1


def connect_within(sock: socket.socket, path: str, timeout_s: float) -> None:
    """Connect a Unix socket, and wait ``timeout_s`` at most for room in a full backlog: a socket with a timeout of
    Python's own is non-blocking to the kernel, which then fails at once. The socket waits without bound afterwards.

    Raises: OSError; of EAGAIN: the backlog stayed full.
    """
    seconds, rest = divmod(max(timeout_s, 1e-3), 1.0)
    sock.setblocking(True)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _TIMEVAL.pack(int(seconds), int(rest * 1e6)))
    sock.connect(path)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _TIMEVAL.pack(0, 0))


def send_with_fds(sock: socket.socket, message: bytes, fds: Sequence[int], flags: int = 0) -> None:
    """`socket.send_fds`, which drops its ``flags`` (Python 3.11, seen): MSG_DONTWAIT would block."""
    sock.sendmsg([message], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))], flags)


def receive_with_fds(sock: socket.socket, nbytes: int, most: int, flags: int = 0) -> tuple[bytes, list[int], int]:
    """(message, descriptors, flags); as `socket.recv_fds`, but ``flags`` count, and descriptors close on exec."""
    fds = array.array("i")
    message, ancillary, said, _ = sock.recvmsg(
        nbytes, socket.CMSG_LEN(most * fds.itemsize), flags | socket.MSG_CMSG_CLOEXEC
    )
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
    return message, list(fds), said


def listening_socket(path: str, kind: socket.SocketKind) -> socket.socket:
    """A bound, non-blocking Unix socket of mode 0600 at ``path``; a stale file there is replaced.

    Raises: OSError: the path is taken by a live listener, or cannot be made.
    """
    sock = socket.socket(socket.AF_UNIX, kind | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
    try:
        if os.path.exists(path):
            with socket.socket(socket.AF_UNIX, kind | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK) as probe:
                # Only a refusal proves that nobody listens: a full backlog or another kind of socket is somebody's.
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
    """A listening Unix socket that another process made and handed down as ``fd``; owned and non-blocking from here.

    Raises: HandoverError: ``fd`` is something else; it is left open, for it may not be ours.
    """
    try:
        sock = socket.socket(fileno=fd)
    except OSError:
        raise HandoverError(f"{name}: descriptor {fd} is no socket") from None
    is_listening = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    if sock.family != socket.AF_UNIX or sock.type != kind or not is_listening:
        found = f"a {sock.family.name} socket of {sock.type.name}{', listening' if is_listening else ''}"
        sock.detach()
        raise HandoverError(f"{name}: want a listening AF_UNIX socket of {kind.name}, descriptor {fd} is {found}")
    sock.setblocking(False)
    return sock
