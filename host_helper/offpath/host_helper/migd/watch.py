"""A helper's watch over migd: holds its leases again soon after a restart of migd, and receives Xid events."""

from __future__ import annotations

import contextlib
import logging
import os
import select
import time
from typing import Final

from offpath.bindings.errors import OffpathError
from offpath.host_helper.migd import protocol
from offpath.host_helper.migd.client import MigdClient, XidStream

logger = logging.getLogger(__name__)
RETRY_S: Final = 0.5
"""Between attempts to reach a migd that went away. Another helper may reclaim leases that were unheld for 10 s."""
_MOST_EVENTS: Final = 64
"""Per poll; more wait for the next."""


class MigdWatch:
    """Watches the ``client``'s connection and, on a second one, events. Single-threaded, as the client is."""

    def __init__(self, client: MigdClient) -> None:
        self._client = client
        client.on_close = self._forget
        self._pid = os.getpid()
        self._epoll = select.epoll()
        self._stream: XidStream | None = None
        self._connection = 0
        self._retry_at = 0.0
        self._complaint = ""
        self._connect()

    def fileno(self) -> int:
        """Readable when migd hung up or an event waits. The same for all connections."""
        return self._epoll.fileno()

    @property
    def pause_s(self) -> float | None:
        """Seconds until `poll` tries to connect again; None: it is connected."""
        return max(0.0, self._retry_at - time.monotonic()) if self._stream is None else None

    def poll(self) -> list[protocol.Xid]:
        """The events since the last call. If migd hung up, connects again, and waits for its answer."""
        events: list[protocol.Xid] = []
        try:
            while self._stream is not None and len(events) < _MOST_EVENTS:
                event = self._stream.poll()
                if event is None:
                    break
                events.append(event)
        except OffpathError as fault:
            self._lost(str(fault))
        if self._stream is None:
            if time.monotonic() >= self._retry_at:
                self._connect()
        elif self._client.has_hung_up():
            self._connect()
        elif self._client.connection != self._connection:
            self._register()
        return events

    def close(self) -> None:
        """End the watch. In a forked child: close its copies of all connections. Idempotent."""
        self._drop_stream()
        self._client.close()
        self._client.on_close = lambda fd: None
        self._epoll.close()

    def _connect(self) -> None:
        try:
            self._client.restore()
            if self._stream is None:
                self._stream = self._client.watch()
        except OffpathError as fault:
            self._lost(str(fault))
            return
        self._register()
        if self._complaint:
            logger.info("migd answers again; leases held: %d", len(self._client.held))
        self._complaint = ""

    def _register(self) -> None:
        self._connection = self._client.connection
        for each in (self._client, self._stream):
            if each is not None and each.fileno() >= 0:
                with contextlib.suppress(FileExistsError):
                    self._epoll.register(each.fileno(), select.EPOLLIN)

    def _forget(self, fd: int) -> None:
        """Closing does not remove a socket of which a forked child holds a copy. A child shares this epoll."""
        if os.getpid() == self._pid:
            with contextlib.suppress(FileNotFoundError):
                self._epoll.unregister(fd)

    def _lost(self, why: str) -> None:
        self._drop_stream()
        self._retry_at = time.monotonic() + RETRY_S
        if why != self._complaint:
            logger.warning("%s; trying again", why)
        self._complaint = why

    def _drop_stream(self) -> None:
        if self._stream is not None:
            self._forget(self._stream.fileno())
            self._stream.close()
            self._stream = None
