"""Where agents come in: one conversation per host, known by its key."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from pydantic import BaseModel

from offpath.bindings.errors import ControlError, ProtocolError
from offpath.bindings.wire import cluster, control
from offpath.dpu_daemon.agent.talk import Talk

if TYPE_CHECKING:
    from offpath.bindings.ports import HostConnection
    from offpath.bindings.zeromq.listener import ZmqListener

logger = logging.getLogger(__name__)
HELLO_S: Final = 5.0
_ACCEPTS: Final = 32


class Door:
    """``heard`` gets a host's reports; ``came`` and ``left`` tell who can be spoken to. ``is_host``: a name that the
    topology knows."""

    def __init__(
        self,
        listener: ZmqListener,
        is_host: Callable[[str], bool],
        heard: Callable[[str, cluster.AgentReport], None],
        came: Callable[[str], None],
        left: Callable[[str], None],
    ) -> None:
        self._listener = listener
        self.is_host = is_host
        self._heard, self._came, self._left = heard, came, left
        self._loop = asyncio.get_running_loop()
        self._strangers: dict[Talk, asyncio.TimerHandle] = {}
        self._hosts: dict[str, Talk] = {}
        self.refused = 0
        self._loop.add_reader(listener.fileno(), self._accept)

    @property
    def hosts(self) -> tuple[str, ...]:
        """Whose agents are here, by name."""
        return tuple(sorted(self._hosts))

    @property
    def cut_off(self) -> int:
        """Connections that were cut because what they sent made no whole message."""
        return self._listener.cut_off

    def _accept(self) -> None:
        for _ in range(_ACCEPTS):
            connection = self._listener.accept()
            if connection is None:
                return
            self._meet(connection)

    def _meet(self, connection: HostConnection) -> None:
        def heard(text: bytes) -> None:
            self._hear(talk, connection.peer, text)

        def lost(why: str) -> None:
            self._lost(talk, connection.peer, why)

        talk = Talk(connection, heard, lost)
        self._strangers[talk] = self._loop.call_later(
            HELLO_S, self._turn_away, talk, connection.peer, "no hello in time"
        )

    def _hear(self, talk: Talk, peer: str, text: bytes) -> None:
        try:
            message = control.decode(cluster.TO_CONTROLLER, text)
            if isinstance(message, cluster.AgentHello):
                self._greet(talk, peer, message)
            elif self._hosts.get(peer) is talk:
                self._heard(peer, message)
            else:
                raise ControlError("hello", f"{message.kind} came first")
        except ProtocolError as fault:
            self._turn_away(talk, peer, str(fault))

    def _greet(self, talk: Talk, peer: str, hello: cluster.AgentHello) -> None:
        if talk not in self._strangers:
            raise ControlError("hello", "a second one")
        if hello.host != peer:
            raise ControlError("host", f"it says that it is {hello.host}; its key is listed as {peer}")
        if not self.is_host(peer):
            raise ControlError("host", f"{peer} is no host of the topology")
        self._strangers.pop(talk).cancel()
        if (former := self._hosts.get(peer)) is not None:  # it came back before its old connection was missed
            former.close()
            self._left(peer)
        self._hosts[peer] = talk
        self._came(peer)

    def _turn_away(self, talk: Talk, peer: str, why: str) -> None:
        self.refused += 1
        logger.warning("agent %s refused: %s", peer, why, extra={"code": "agent_refused"})
        talk.say(cluster.Farewell(code="refused", detail=why[:500]))
        self._forget(talk, peer)
        talk.close()

    def _lost(self, talk: Talk, peer: str, why: str) -> None:
        if self._hosts.get(peer) is talk:
            logger.info("agent %s disconnected: %s", peer, why, extra={"code": "agent_away"})
        self._forget(talk, peer)

    def _forget(self, talk: Talk, peer: str) -> None:
        if (timer := self._strangers.pop(talk, None)) is not None:
            timer.cancel()
        if self._hosts.get(peer) is talk:
            del self._hosts[peer]
            self._left(peer)

    def say(self, host: str, message: BaseModel) -> None:
        """To who is not here nothing is said: it is asked when it comes."""
        if (talk := self._hosts.get(host)) is not None:
            talk.say(message)

    def close(self) -> None:
        """Hang up on everybody."""
        self._loop.remove_reader(self._listener.fileno())
        for timer in self._strangers.values():
            timer.cancel()
        for talk in [*self._strangers, *self._hosts.values()]:
            talk.close()
        self._strangers.clear()
        self._hosts.clear()
        self._listener.close()
