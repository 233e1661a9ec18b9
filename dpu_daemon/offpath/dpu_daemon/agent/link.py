"""Connects the agent to its controller and reconnects forever; nothing waits for the connection."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from pydantic import BaseModel

from offpath.bindings.errors import OffpathError
from offpath.bindings.wire import cluster
from offpath.dpu_daemon.agent.channel import AgentChannel
from offpath.dpu_daemon.config import InaTable

if TYPE_CHECKING:
    from offpath.bindings.zeromq.connection import ZmqEnd

logger = logging.getLogger(__name__)
MIN_BACKOFF_S: Final = 0.05
MAX_BACKOFF_S: Final = 2.0
HANDSHAKE_S: Final = 5.0
_LOOK_S: Final = 0.01


class ControllerLink:
    """Stays connected while it is open. ``on_text`` gets each complete text from the controller.

    ``keys`` is called at each attempt, so a new key pair is used from the next attempt on.
    """

    def __init__(
        self, table: InaTable, keys: Callable[[], tuple[bytes, bytes]], on_text: Callable[[bytes], None]
    ) -> None:
        """``keys``: the controller's public key and the agent's secret key; may raise OffpathError."""
        self._table = table
        self._keys = keys
        self._on_text = on_text
        self._loop = asyncio.get_running_loop()
        self._channel: AgentChannel | None = None
        self._shaking: ZmqEnd | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._backoff_s = MIN_BACKOFF_S
        self._is_notified = False
        self._is_closed = False
        self.is_up = False
        """Whether the controller has sent a message on this connection."""
        self.connected = 0
        """Number of connections established."""

    def open(self) -> None:
        """Connect, and reconnect after each loss; does not wait."""
        self._timer = None
        try:
            self._shaking = self._begin()
        except OffpathError as fault:
            self._failed(str(fault))
            return
        self._shake(self._loop.time() + HANDSHAKE_S)

    def _begin(self) -> ZmqEnd:
        from offpath.bindings.zeromq.connection import ZmqEnd  # pyzmq: needed only with a controller
        from offpath.bindings.zeromq.library import CLUSTER

        return ZmqEnd(self._table.controller, *self._keys(), pace=CLUSTER)

    def _shake(self, until: float) -> None:
        """Polls until the controller has opened the session: no descriptor signals it."""
        end = self._shaking
        assert end is not None
        why = "" if not end.has_ended() else end.why_refused or end.why_broken or "no process listens there"
        if not why and end.is_opened:
            self._shaking, self._timer = None, None
            self._channel = AgentChannel(end, self._received, self._gone)
            self.connected += 1
            self._channel.send(cluster.AgentHello(host=self._table.host))
            return
        if not why and self._loop.time() < until:
            self._timer = self._loop.call_later(_LOOK_S, self._shake, until)
            return
        self._shaking = None
        end.close(at_once=True)
        self._failed(why or "no answer")

    def _received(self, text: bytes) -> None:
        if not self.is_up:
            logger.info("connected to the controller at %s", self._table.controller, extra={"code": "controller_there"})
            self.is_up, self._is_notified = True, False
            self._backoff_s = MIN_BACKOFF_S
        self._on_text(text)

    def _gone(self, why: str) -> None:
        self._channel = None
        self.is_up = False
        self._failed(why)

    def _failed(self, why: str) -> None:
        if not self._is_notified:  # once per outage, which may be long
            logger.warning(
                "no connection to the controller at %s: %s",
                self._table.controller,
                why,
                extra={"code": "controller_away"},
            )
            self._is_notified = True
        if not self._is_closed:
            self._timer = self._loop.call_later(self._backoff_s * (0.5 + random.random()), self.open)
        self._backoff_s = min(MAX_BACKOFF_S, self._backoff_s * 2)

    def send(self, message: BaseModel) -> bool:
        """False: not connected; the message is dropped, because a controller queries everything when it connects."""
        if self._channel is None or self._channel.is_closed:
            return False
        self._channel.send(message)
        return True

    def broke(self, fault: OffpathError) -> None:
        """Close the connection after an invalid message."""
        if self._channel is not None:
            self._channel.refuse(fault)

    def close(self) -> None:
        """Close the connection and stop reconnecting."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._shaking is not None:
            self._shaking.close(at_once=True)
        if self._channel is not None:
            self._channel.close()
