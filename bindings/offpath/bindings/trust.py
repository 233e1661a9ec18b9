"""Checks that a socket belongs to a trusted daemon, before a client sends a token, a ticket or a request.

Trusted: root, the client's own user, the user in ``$OFFPATH_DAEMON_UID``, and for sockets in `SYSTEM_DIRECTORY` that
directory's owner, because only root can create it. Two checks, because the file system can change between them:
directory and socket file before the connection, the kernel's record of the listening process after it.
"""

from __future__ import annotations

import os
import pwd
import socket
import stat
from typing import Final

from offpath.bindings.errors import DaemonNotTrusted, OptionRefused
from offpath.bindings.runtime import SYSTEM_DIRECTORY
from offpath.bindings.sockets import connect_within, peer_credentials

VARIABLE: Final = "OFFPATH_DAEMON_UID"
_FIX: Final = f"if that user runs the daemon, set {VARIABLE} to it"
_MOST_UID: Final = 0xFFFF_FFFE


def configured_uid() -> int | None:
    """The user in ``$OFFPATH_DAEMON_UID``, a number or a name. Raises: OptionRefused: the user does not exist."""
    given = os.environ.get(VARIABLE, "")
    if not given:
        return None
    if given.isascii() and given.isdigit() and len(given) <= 10 and int(given) <= _MOST_UID:
        return int(given)
    try:
        return pwd.getpwnam(given).pw_uid
    except (KeyError, ValueError):
        raise OptionRefused(f"{VARIABLE}: no such user") from None


def trusted_uids(directory: str) -> frozenset[int]:
    """Users that may run the daemon whose sockets are in ``directory``. Raises: OptionRefused, OSError."""
    uids = {0, os.getuid()}
    if (configured := configured_uid()) is not None:
        uids.add(configured)
    if os.path.realpath(directory) == SYSTEM_DIRECTORY:
        parent = os.stat(os.path.dirname(SYSTEM_DIRECTORY))
        if parent.st_uid == 0 and not parent.st_mode & 0o022:
            uids.add(os.stat(SYSTEM_DIRECTORY).st_uid)
    return frozenset(uids)


def connect_daemon(sock: socket.socket, path: str, timeout_s: float) -> None:
    """Connect ``sock`` to the daemon's socket at ``path``; see `connect_within`.

    Raises: DaemonNotTrusted: directory, socket or peer belong to an untrusted user, or others may write to the
        directory. OptionRefused: ``$OFFPATH_DAEMON_UID``, or an invalid path. OSError: no listener.
    """
    if not path or "\0" in path:
        raise OptionRefused("a socket's path must not be empty or contain NUL")
    directory = os.path.dirname(path) or "."
    trusted = trusted_uids(directory)
    _check_files(directory, path, trusted)
    connect_within(sock, path, timeout_s)
    uid = peer_credentials(sock)[1]
    if uid not in trusted:
        raise DaemonNotTrusted(f"{path}: the process that listens there runs as uid {uid}; {_FIX}")


def _check_files(directory: str, path: str, trusted: frozenset[int]) -> None:
    folder, file = os.stat(directory), os.lstat(path)
    if folder.st_uid not in trusted:
        raise DaemonNotTrusted(f"{directory} belongs to uid {folder.st_uid}; {_FIX}")
    if folder.st_mode & 0o022 and not folder.st_mode & stat.S_ISVTX:
        mode = stat.S_IMODE(folder.st_mode)
        raise DaemonNotTrusted(f"{directory} can be written by others (mode {mode:o}); chmod go-w it")
    if not stat.S_ISSOCK(file.st_mode):
        raise DaemonNotTrusted(f"{path} is not a socket")
    if file.st_uid not in trusted:
        raise DaemonNotTrusted(f"{path} belongs to uid {file.st_uid}; {_FIX}")
