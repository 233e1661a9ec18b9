"""Listens on an operator socket, checks each peer's uid and serves one request at a time per connection.

Only root, the daemon's own uid and the listed uids are accepted. Each peer costs one connection (of at most
`MAX_PEERS`), one request and one frame in flight. Requests are answered in the event loop, page by page.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from pydantic import BaseModel

from offpath.bindings.errors import ControlError, FrameError, PeerGone
from offpath.bindings.sockets import SocketFile, listening_socket, peer_credentials
from offpath.bindings.wire import admin, control
from offpath.bindings.wire.frames import FrameReader, frame
from offpath.dpu_daemon.ingress.streams import StreamListener
from offpath.dpu_daemon.listening.accepting import Unidentified
from offpath.dpu_daemon.listening.places import Places

logger = logging.getLogger(__name__)
MAX_PEERS: Final = 16
_MOST_UNIDENTIFIED: Final = 64  # peers are identified by uid within a few turns of the event loop
_LIMIT: Final = 2 * 65536
IDLE_S: Final = 5.0
"""Closes a connection that sends no request, or does not read its reply, for this long."""
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class AdminHandlers(Generic[_T]):
    """Callbacks of an `AdminSocket`. ``read`` raises ControlError. ``answer`` gets the request and the sender's uid.
    ``done`` runs after a reply was sent, ``broke`` after a protocol violation. ``uids`` returns the uids that are
    currently allowed besides root and the daemon's own."""

    read: Callable[[bytes], _T]
    answer: Callable[[_T, int], Awaitable[BaseModel]]
    uids: Callable[[], Collection[int]]
    done: Callable[[_T], None] = lambda request: None
    broke: Callable[[], None] = lambda: None


class AdminSocket(Generic[_T]):
    """Serves `AdminHandlers` at ``path``. `start` listens, `close` stops."""

    def __init__(
        self, handlers: AdminHandlers[_T], path: str, inherited: socket.socket | None = None,
        count: Callable[[str], None] = lambda what: None, *, places: Places,
    ) -> None:  # fmt: skip
        """``inherited``: a socket already listening at ``path``; its file is not removed on close. ``count`` gets the
        names of counters: ``connections_evicted``, ``descriptors_exhausted``. ``places`` monitors the socket file."""
        self._places = places
        self._file: SocketFile | None = None
        self._handlers = handlers
        self._path = path
        self._inherited = inherited
        self.listener: StreamListener | None = None
        self._waiting = Unidentified(_MOST_UNIDENTIFIED, lambda: count("connections_evicted"))
        self._exhausted = lambda: count("descriptors_exhausted")
        self._peers: dict[asyncio.StreamWriter, None] = {}  # least recently active first

    async def start(self) -> None:
        """Raises: OSError: the path is taken or cannot be made."""
        sock = self._inherited or listening_socket(self._path, socket.SOCK_STREAM)
        self.listener = StreamListener(
            "admin socket", sock, self._peer, self._waiting, limit=_LIMIT, exhausted=self._exhausted
        )
        self._file = SocketFile(self._path, is_own=self._inherited is None)
        self._places.add(self._file, socket.SOCK_STREAM, self.listener.replace)
        self.set_mode()
        self.listener.open()

    async def close(self) -> None:
        """Stop listening and close every connection."""
        if self.listener is None:
            return
        if self._file is not None:
            self._file.remove()
        await self.listener.close()

    def set_mode(self) -> None:
        """Access is checked by uid. If other uids are listed, the file mode lets them connect."""
        self._places.look()
        is_open = any(uid not in (0, os.getuid()) for uid in self._handlers.uids())
        with contextlib.suppress(FileNotFoundError):  # without its file the socket accepts nobody
            if os.stat(self._path).st_uid == os.geteuid():  # else its creator, a service manager, sets the mode
                os.chmod(self._path, 0o666 if is_open else 0o600)

    def _is_operator(self, uid: int) -> bool:
        return uid in (0, os.getuid()) or uid in self._handlers.uids()

    async def _peer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert self.listener is not None
        _, uid, _ = peer_credentials(writer.get_extra_info("socket"))
        if not self._is_operator(uid):
            logger.warning("admin socket: refused uid %d", uid, extra={"code": "admin_refused"})
            writer.write(frame(control.encode(admin.Fault(code="denied", detail="this uid is not an operator"))))
            writer.close()
            return
        self.listener.identified(writer)
        if len(self._peers) >= MAX_PEERS:
            quiet = next(iter(self._peers))
            del self._peers[quiet]
            quiet.transport.abort()
        self._peers[writer] = None
        try:
            await self._serve(reader, writer, uid)
        except (PeerGone, TimeoutError, OSError):
            pass  # the peer is gone or evicted; nothing is held for it
        finally:
            self._peers.pop(writer, None)
            if writer.transport.get_write_buffer_size() > 65536:
                writer.transport.abort()
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, uid: int) -> None:
        frames = FrameReader()
        waiting: list[bytes] = []
        while True:
            async with asyncio.timeout(IDLE_S):
                try:
                    while not waiting:
                        data = await reader.read(16384)
                        if not data:
                            return
                        waiting += frames.feed(data)
                    request = self._handlers.read(waiting.pop(0))
                except (FrameError, ControlError) as broken:
                    self._handlers.broke()
                    _respond(writer, admin.Fault(code=broken.code, detail=broken.detail[:500]))
                    return
                if writer not in self._peers or not self._is_operator(uid):
                    return  # evicted meanwhile, or no longer an operator after a reload
                self._peers[writer] = self._peers.pop(writer)
                _respond(writer, await self._handlers.answer(request, uid))
                await writer.drain()
            self._handlers.done(request)


def _respond(writer: asyncio.StreamWriter, reply: BaseModel) -> None:
    body = control.encode(reply)
    try:
        writer.write(frame(body))
    except FrameError:  # the page is too long because of long names
        writer.write(frame(control.encode(admin.Fault(code="too_long", detail="ask for a smaller page"))))
