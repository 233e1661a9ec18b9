"""An agent that keeps to nothing: a listed host's key, and whatever the test wants to send to the controller."""

from __future__ import annotations

import json
import select
import time
from types import TracebackType
from typing import Any

from pydantic import BaseModel

from offpath.bindings.errors import HostMessageError, PeerGone
from offpath.bindings.wire import cluster, control, parts
from offpath.bindings.wire.host import MAX_MESSAGE_BYTES
from offpath.bindings.zeromq.connection import ZmqEnd
from offpath.bindings.zeromq.keys import read_public, read_secret
from offpath.bindings.zeromq.library import CLUSTER


class HostileAgent:
    """Connected as ``host``, with its hello said. ``keys``: the folder of an `InaCluster`."""

    def __init__(self, address: str, keys: str, host: str) -> None:
        self.end = ZmqEnd(
            address, read_public(f"{keys}/controller.pub"), read_secret(f"{keys}/{host}.key"), pace=CLUSTER
        )
        self.end.wait_opened(30)
        self._joiner = parts.Joiner()
        self.send(cluster.AgentHello(host=host))

    def send(self, message: BaseModel) -> None:
        self.text(control.encode(message))

    def text(self, body: bytes) -> None:
        """Anything as one text. Raises: PeerGone."""
        for part in parts.messages(body, MAX_MESSAGE_BYTES):
            until = time.monotonic() + 30
            while not self.end.send(part):
                assert time.monotonic() < until, "it takes nothing"
                self.heard()
                select.select([self.end.fileno()], [], [], 0.05)

    def report(self, *states: dict[str, Any], **fields: Any) -> None:
        """As JSON, past every check of this side."""
        said = {"kind": "agent_report", "term": 0, "states": list(states), **fields}
        self.text(json.dumps(said).encode())

    def heard(self) -> list[Any]:
        """What the controller said since the last call."""
        found = []
        while (message := self.end.receive_message()) is not None:
            if (text := self._joiner.message(message)) is not None:
                found.append(control.decode(cluster.TO_AGENT, text))
        return found

    def wait(self, kind: type[BaseModel]) -> Any:
        """The next message of that kind."""
        until = time.monotonic() + 30
        while True:
            for each in self.heard():
                if isinstance(each, kind):
                    return each
            assert time.monotonic() < until, f"no {kind.__name__}"
            select.select([self.end.fileno()], [], [], 0.05)

    def wait_gone(self) -> None:
        """Until the controller has hung up."""
        until = time.monotonic() + 30
        while True:
            try:
                self.heard()
            except (PeerGone, HostMessageError):
                return
            assert time.monotonic() < until, "it is still connected"
            select.select([self.end.fileno()], [], [], 0.05)

    def close(self) -> None:
        self.end.close(at_once=True)

    def __enter__(self) -> HostileAgent:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def state(job: str, **fields: Any) -> dict[str, Any]:
    """A rank's state as an agent sends it."""
    return {
        "job": job, "incarnation": 1, "rank": 0, "ranks": 1, "held": 0, "applied": 0, "lost": 0, "index": 0,
        "is_gone": False, "proof": "", **fields,
    }  # fmt: skip
