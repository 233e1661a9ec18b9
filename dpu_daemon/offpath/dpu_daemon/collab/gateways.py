"""Devices by ZeroMQ, through gateways: a batch is read, answered after its last change is on the disk, and sent back.

At most `MOST_AT_ONCE` batches are in work; further ones wait in libzmq and in the kernel, so that a gateway that sends
too much slows down itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import Final

from offpath.bindings.errors import ControlError
from offpath.bindings.wire import control
from offpath.bindings.wire.collab import FROM_GATEWAY, MOST_BATCH_BYTES, Answers, Refusal, body_of
from offpath.bindings.zeromq.batches import BatchListener, Received
from offpath.dpu_daemon.collab.config import GatewaysTable
from offpath.dpu_daemon.collab.devices import Devices, code_of

MOST_AT_ONCE: Final = 64
_A_TURN: Final = 2
"""Batches read in one turn of the event loop: each takes milliseconds."""


class Gateways:
    """``key``: the controller's secret CURVE key. Raises: PlaceUnusable, NobodyAllowed."""

    def __init__(self, table: GatewaysTable, devices: Devices, key: bytes, allowed: Mapping[bytes, str]) -> None:
        self._devices = devices
        self.listener = BatchListener(table.bind, key, allowed, table.domain, MOST_BATCH_BYTES)
        self._loop = asyncio.get_running_loop()
        self._in_work = 0

    def start(self) -> None:
        """Serve batches until `close`."""
        self._loop.add_reader(self.listener.fileno(), self._readable)

    def reload(self, allowed: Mapping[bytes, str]) -> None:
        """Replace the list of gateways. Raises: NobodyAllowed."""
        self.listener.allow(allowed)

    def close(self) -> None:
        """Hang up. Idempotent."""
        if (fd := self.listener.fileno()) >= 0:
            self._loop.remove_reader(fd)
            self.listener.close()

    def _readable(self) -> None:
        for received in self.listener.take(min(_A_TURN, MOST_AT_ONCE - self._in_work)):
            self._in_work += 1
            self._serve(received)

    def _serve(self, received: Received) -> None:
        give = partial(self._give, received.routing_id)
        try:
            batch = control.decode(FROM_GATEWAY, received.body)
        except ControlError as fault:
            give(self._devices.refusal(code_of(fault), fault.detail))
            return
        self._devices.answer_batch(batch, give)

    def _give(self, routing_id: bytes, answers: Answers | Refusal) -> None:
        if self.listener.fileno() < 0:
            return  # closed meanwhile
        was_full = self._in_work >= MOST_AT_ONCE
        self._in_work -= 1
        self.listener.send(routing_id, body_of(answers))
        if was_full:
            self.listener.wake()
