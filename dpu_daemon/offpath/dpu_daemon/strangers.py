"""Who connects to the host channel and has not said yet who it is."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable
from typing import Final

from offpath.bindings.errors import PeerGone, ProtocolError
from offpath.bindings.ports import HostConnection, HostListener
from offpath.bindings.wire import control

logger = logging.getLogger(__name__)
HELLO_TIMEOUT_S: Final = 5.0
_ACCEPTS: Final = 16  # in one turn of the loop, so that a flood of strangers does not hold up who is in


class Strangers:
    """Accepts, waits for a hello, and hands over to ``meet_helper`` or ``meet_worker``, which say `known` or
    `turn_away`."""

    def __init__(
        self,
        listener: HostListener,
        meet_helper: Callable[[HostConnection, control.HelperHello], None],
        meet_worker: Callable[[HostConnection, control.WorkerHello], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._listener = listener
        self._meet_helper = meet_helper
        self._meet_worker = meet_worker
        self.waiting: dict[HostConnection, asyncio.TimerHandle] = {}
        self._loop.add_reader(listener.fileno(), self._accept)

    def _accept(self) -> None:
        for _ in range(_ACCEPTS):
            if (connection := self._listener.accept()) is None:
                return
            timer = self._loop.call_later(HELLO_TIMEOUT_S, self._no_hello, connection)
            self.waiting[connection] = timer
            self._loop.add_reader(connection.fileno(), self._first_message, connection)

    def _no_hello(self, connection: HostConnection) -> None:
        """Time is up. If it was us who slept, the hello is here."""
        self._first_message(connection)
        if connection in self.waiting:
            self.turn_away(connection, "no hello in time")

    def turn_away(self, connection: HostConnection, why: str) -> None:
        """Close a connection that is neither helper nor worker (yet)."""
        timer = self.waiting.pop(connection, None)
        if timer is not None:
            timer.cancel()
        self._loop.remove_reader(connection.fileno())
        logger.log(
            logging.DEBUG if connection.is_ours else logging.WARNING,
            "host channel: turned away pid %d (%s): %s", connection.peer_pid, connection.peer, why,
        )  # fmt: skip
        with contextlib.suppress(PeerGone):  # it may have left before we can say so
            connection.send(control.encode(control.Closing(code="refused", detail=why[:500])))
        connection.close()

    def _first_message(self, connection: HostConnection) -> None:
        try:
            received = connection.receive()
            if received is None:
                return
            close_all(received[1])
            message = control.decode(control.HOST_TO_DAEMON, received[0])
        except (PeerGone, ProtocolError) as fault:
            self.turn_away(connection, str(fault))
            return
        if isinstance(message, control.HelperHello):
            self._meet_helper(connection, message)
        elif isinstance(message, control.WorkerHello):
            self._meet_worker(connection, message)
        else:
            self.turn_away(connection, f"{message.kind} before a hello")

    def known(self, connection: HostConnection) -> None:
        """It has a name now, and is watched by whoever met it."""
        self.waiting.pop(connection).cancel()
        self._loop.remove_reader(connection.fileno())

    def close(self) -> None:
        """Nobody is let in any more."""
        self._loop.remove_reader(self._listener.fileno())
        self._listener.close()
        for connection in list(self.waiting):
            self.turn_away(connection, "the daemon ends")


def close_all(fds: tuple[int, ...]) -> None:
    """Descriptors that came unasked."""
    for fd in fds:
        os.close(fd)
