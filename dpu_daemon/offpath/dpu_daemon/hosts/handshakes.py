"""Host-channel connections that have not sent a hello."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import Callable
from functools import partial
from typing import Final

from offpath.bindings.errors import PeerGone, ProtocolError
from offpath.bindings.loopback.channel import LoopbackChannelListener
from offpath.bindings.ports import HostConnection, HostListener
from offpath.bindings.wire import control
from offpath.dpu_daemon.listening.accepting import Acceptor, Unidentified

logger = logging.getLogger(__name__)
HELLO_TIMEOUT_S: Final = 5.0
MAX_PENDING: Final = 256
"""A helper and the workers of all its lanes may connect at the same time."""


class PendingConnections:
    """Accepts connections and waits for each hello. Passes it to ``accept_helper`` or ``accept_worker``, which must
    call `known` or `turn_away`."""

    def __init__(
        self,
        listener: HostListener,
        accept_helper: Callable[[HostConnection, control.HelperHello], None],
        accept_worker: Callable[[HostConnection, control.WorkerHello], None],
        *,
        on_contact: Callable[[], None],
        count: Callable[[str], None],
    ) -> None:
        """``count`` receives the names of counters: ``connections_evicted``, ``descriptors_exhausted``."""
        self._loop = asyncio.get_running_loop()
        self._listener = listener
        self._accept_helper = accept_helper
        self._accept_worker = accept_worker
        self._on_contact = on_contact
        self.waiting: dict[HostConnection, asyncio.TimerHandle] = {}
        self._unidentified = Unidentified(MAX_PENDING, partial(count, "connections_evicted"))
        self.acceptor = Acceptor(
            "host channel", self._accept, self._refuse, self._unidentified, partial(count, "descriptors_exhausted")
        )
        self.acceptor.open(listener.fileno())

    def _accept(self) -> bool:
        if (connection := self._listener.accept()) is None:
            return False
        self._on_contact()
        timer = self._loop.call_later(HELLO_TIMEOUT_S, self._no_hello, connection)
        self._unidentified.add(connection, connection.peer, lambda: self.turn_away(connection, "too many connections"))
        self.waiting[connection] = timer
        self._loop.add_reader(connection.fileno(), self._first_message, connection)
        return True

    def _refuse(self) -> bool:
        if (connection := self._listener.accept()) is None:
            return False
        connection.close()
        return True

    def replace(self, listener: LoopbackChannelListener, sock: socket.socket) -> None:
        """Have ``listener`` listen on another socket, after accepting the connections that wait at the old one."""
        with contextlib.suppress(PeerGone, OSError):
            while self._accept():
                pass
        self.acceptor.open(sock.fileno())
        listener.replace(sock)

    def _no_hello(self, connection: HostConnection) -> None:
        """The hello is overdue. If this process was not scheduled, the hello may have arrived: read once more."""
        self._first_message(connection)
        if connection in self.waiting:
            self.turn_away(connection, "no hello in time")

    def turn_away(
        self, connection: HostConnection, why: str, *, is_expected: bool = False, level: int = logging.WARNING
    ) -> None:
        """Refuse a connection that is not (yet) a helper or worker. ``is_expected``: the refusal is no fault."""
        timer = self.waiting.pop(connection, None)
        self._unidentified.remove(connection)
        if timer is not None:
            timer.cancel()
        self._loop.remove_reader(connection.fileno())
        logger.log(
            logging.DEBUG if connection.is_self_probe or is_expected else level,
            "host channel: refused pid %d (%s): %s", connection.peer_pid, connection.peer, why,
            extra={"code": "host_peer_refused"},
        )  # fmt: skip
        with contextlib.suppress(PeerGone, OSError):  # it may have disconnected already
            connection.send(control.encode(control.Closing(code="refused", detail=why[:500])))
        connection.close()

    def _first_message(self, connection: HostConnection) -> None:
        try:
            received = connection.receive()
            if received is None:
                return
            self._on_contact()
            close_all(received[1])
            message = control.decode(control.HOST_TO_DAEMON, received[0])
        except PeerGone as fault:  # normal: a worker that its helper ends may have tried to reconnect
            self.turn_away(connection, str(fault), level=logging.INFO)
            return
        except (ProtocolError, OSError) as fault:
            self.turn_away(connection, str(fault))
            return
        if isinstance(message, control.HelperHello):
            self._accept_helper(connection, message)
        elif isinstance(message, control.WorkerHello):
            self._accept_worker(connection, message)
        else:
            self.turn_away(connection, f"{message.kind} before a hello")

    def known(self, connection: HostConnection) -> None:
        """The peer is identified; the component that accepted it watches the connection."""
        self.waiting.pop(connection).cancel()
        self._unidentified.remove(connection)
        self._loop.remove_reader(connection.fileno())

    def close(self) -> None:
        """Stop accepting and refuse all pending connections."""
        self.acceptor.close()
        self._listener.close()
        for connection in list(self.waiting):
            self.turn_away(connection, "the daemon is shutting down")


def close_all(fds: tuple[int, ...]) -> None:
    """Close unexpected descriptors."""
    for fd in fds:
        os.close(fd)
