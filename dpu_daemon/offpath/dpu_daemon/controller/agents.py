"""Accepts the agents' connections: one channel per host, identified by its key."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from pydantic import BaseModel

from offpath.bindings.errors import ControlError, ProtocolError
from offpath.bindings.wire import cluster, control
from offpath.dpu_daemon.agent.channel import AgentChannel

if TYPE_CHECKING:
    from offpath.bindings.ports import HostConnection
    from offpath.bindings.zeromq.listener import ZmqListener

logger = logging.getLogger(__name__)
HELLO_S: Final = 5.0
_ACCEPTS: Final = 32


class Agents:
    """``on_report`` gets a host's reports; ``on_connected`` and ``on_disconnected`` report which hosts are reachable.
    ``is_host``: whether the topology contains the name."""

    def __init__(
        self,
        listener: ZmqListener,
        is_host: Callable[[str], bool],
        on_report: Callable[[str, cluster.AgentReport], None],
        on_connected: Callable[[str], None],
        on_disconnected: Callable[[str], None],
    ) -> None:
        self._listener = listener
        self.is_host = is_host
        self._on_report, self._on_connected, self._on_disconnected = on_report, on_connected, on_disconnected
        self._loop = asyncio.get_running_loop()
        self._pending: dict[AgentChannel, asyncio.TimerHandle] = {}
        self._hosts: dict[str, AgentChannel] = {}
        self.refused = 0
        self._loop.add_reader(listener.fileno(), self._accept)

    @property
    def hosts(self) -> tuple[str, ...]:
        """Names of the hosts whose agents are connected."""
        return tuple(sorted(self._hosts))

    @property
    def cut_off(self) -> int:
        """Connections closed because of incomplete messages."""
        return self._listener.cut_off

    def _accept(self) -> None:
        for _ in range(_ACCEPTS):
            connection = self._listener.accept()
            if connection is None:
                return
            self._meet(connection)

    def _meet(self, connection: HostConnection) -> None:
        def on_text(text: bytes) -> None:
            self._on_text(channel, connection.peer, text)

        def lost(why: str) -> None:
            self._lost(channel, connection.peer, why)

        channel = AgentChannel(connection, on_text, lost)
        self._pending[channel] = self._loop.call_later(
            HELLO_S, self._turn_away, channel, connection.peer, "no hello in time"
        )

    def _on_text(self, channel: AgentChannel, peer: str, text: bytes) -> None:
        try:
            message = control.decode(cluster.TO_CONTROLLER, text)
            if isinstance(message, cluster.AgentHello):
                self._greet(channel, peer, message)
            elif self._hosts.get(peer) is channel:
                self._on_report(peer, message)
            else:
                raise ControlError("hello", f"{message.kind} before the hello")
        except ProtocolError as fault:
            self._turn_away(channel, peer, str(fault))

    def _greet(self, channel: AgentChannel, peer: str, hello: cluster.AgentHello) -> None:
        if channel not in self._pending:
            raise ControlError("hello", "a second hello")
        if hello.host != peer:
            raise ControlError("host", f"its hello names host {hello.host}; its key is listed as {peer}")
        if not self.is_host(peer):
            raise ControlError("host", f"{peer} is not a host of the topology")
        self._pending.pop(channel).cancel()
        if (former := self._hosts.get(peer)) is not None:  # it reconnected before the old connection was lost
            former.close()
            self._on_disconnected(peer)
        self._hosts[peer] = channel
        self._on_connected(peer)

    def _turn_away(self, channel: AgentChannel, peer: str, why: str) -> None:
        self.refused += 1
        logger.warning("agent %s refused: %s", peer, why, extra={"code": "agent_refused"})
        channel.send(cluster.Farewell(code="refused", detail=why[:500]))
        self._forget(channel, peer)
        channel.close()

    def _lost(self, channel: AgentChannel, peer: str, why: str) -> None:
        if self._hosts.get(peer) is channel:
            logger.info("agent %s disconnected: %s", peer, why, extra={"code": "agent_away"})
        self._forget(channel, peer)

    def _forget(self, channel: AgentChannel, peer: str) -> None:
        if (timer := self._pending.pop(channel, None)) is not None:
            timer.cancel()
        if self._hosts.get(peer) is channel:
            del self._hosts[peer]
            self._on_disconnected(peer)

    def send(self, host: str, message: BaseModel) -> None:
        """Send if the host's agent is connected, else drop the message: its state is requested when it connects."""
        if (channel := self._hosts.get(host)) is not None:
            channel.send(message)

    def close(self) -> None:
        """Close every connection."""
        self._loop.remove_reader(self._listener.fileno())
        for timer in self._pending.values():
            timer.cancel()
        for channel in [*self._pending, *self._hosts.values()]:
            channel.close()
        self._pending.clear()
        self._hosts.clear()
        self._listener.close()
