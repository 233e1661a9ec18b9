"""Restores the files of listening Unix sockets, which a cleaner of temporary files may remove while they listen.

Without its file a socket accepts no connections; established ones continue. A removed socket is created again at the
same path, with the mode and group of the former file. This includes sockets inherited from the service manager, if the
directory belongs to this process's user. The manager keeps the old socket, without a file, so the next process does the
same.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import stat
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from offpath.bindings.errors import RegionError
from offpath.bindings.runtime import make_runtime_directory
from offpath.bindings.sockets import SocketFile

logger = logging.getLogger(__name__)
LOOK_S: Final = 1.0


@dataclass(slots=True, eq=False)
class _Place:
    file: SocketFile
    kind: socket.SocketKind
    replace: Callable[[socket.socket], None]
    directory_mode: int


class Places:
    """The socket files of one process. Between `open` and `close`, each second costs one `lstat` per socket."""

    def __init__(self) -> None:
        self._places: list[_Place] = []
        self._timer: asyncio.TimerHandle | None = None
        self._is_closed = False
        self.lost: dict[str, str] = {}
        """Paths whose socket cannot be created again, with the reason. Each check retries them."""

    def add(self, file: SocketFile, kind: socket.SocketKind, replace: Callable[[socket.socket], None]) -> None:
        """``replace`` is called with each new listening socket and takes ownership of it."""
        try:
            mode = stat.S_IMODE(os.stat(os.path.dirname(file.path) or ".").st_mode)
        except OSError:  # of an inherited socket: removed before this process started
            mode = 0o700
        self._places.append(_Place(file, kind, replace, mode))

    def open(self) -> None:
        """Check now and every `LOOK_S`, in the running loop."""
        self.look()
        if not self._is_closed:
            self._timer = asyncio.get_running_loop().call_later(LOOK_S, self.open)

    def look(self) -> bool:
        """Create removed sockets again. False: none was removed. Does not block."""
        if self._is_closed:
            return False
        removed = [place for place in self._places if not place.file.is_there()]
        for place in removed:
            self._remake(place)
        return bool(removed)

    def _remake(self, place: _Place) -> None:
        path = place.file.path
        try:
            _make_directory(os.path.dirname(path) or ".", place.directory_mode)
            sock = place.file.remake(place.kind)
        except (OSError, RegionError) as fault:
            why = (fault.strerror if isinstance(fault, OSError) else None) or str(fault)
            if self.lost.get(path) != why:
                self.lost[path] = why
                logger.error(
                    "listening socket %s was removed and cannot be created again: %s",
                    path,
                    why,
                    extra={"code": "socket_lost"},
                )
            return
        self.lost.pop(path, None)
        place.replace(sock)
        logger.warning("listening socket %s was removed; created it again", path, extra={"code": "socket_remade"})

    def close(self) -> None:
        """Stop checking. Idempotent."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _make_directory(path: str, mode: int) -> None:
    """Ensure it exists and belongs to this user. Raises: RegionError: another user owns it or may write. OSError."""
    is_new = not os.path.isdir(path)
    make_runtime_directory(path)
    if is_new:
        os.chmod(path, mode)
