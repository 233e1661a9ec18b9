"""A gateway's end of the batches of a collaboration controller (`wire.collab`): one batch at a time, with its answers.

libzmq reconnects by itself: after a restart of the controller the next batch is answered again.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Final

import orjson

from offpath.bindings.errors import ControlError, PeerGone
from offpath.bindings.wire import control
from offpath.bindings.wire.collab import (
    MOST_BATCH,
    MOST_BATCH_BYTES,
    TO_GATEWAY,
    Answer,
    Batch,
    CheckIn,
    Refusal,
    Result,
)
from offpath.bindings.zeromq.library import CLUSTER, set_limits, zmq

ANSWER_S: Final = 5.0
_OVERHEAD: Final = 64
_ANSWER_BYTES: Final = 1024
"""Of one item, at most."""


class Gateway:
    """``address``: tcp://HOST:PORT. ``server_key``: the controller's public CURVE key; ``secret``: the own one. A batch
    is answered within ``timeout_s``. Not for several threads."""

    def __init__(self, address: str, server_key: bytes, secret: bytes, timeout_s: float = ANSWER_S) -> None:
        self._address, self._server_key, self._secret, self._timeout_s = address, server_key, secret, timeout_s
        self._context = zmq.Context(1)
        self._number = 0
        try:
            self._sock = self._connected()
        except zmq.ZMQError as fault:
            self._context.term()
            raise PeerGone(f"no controller at {address}: {fault.strerror}") from None

    def _connected(self) -> zmq.Socket[bytes]:
        """Raises: zmq.ZMQError."""
        sock = self._context.socket(zmq.DEALER)
        set_limits(sock, CLUSTER)
        for option, value in (
            (zmq.MAXMSGSIZE, max(MOST_BATCH_BYTES, MOST_BATCH * _ANSWER_BYTES) + _OVERHEAD), (zmq.LINGER, 0),
            (zmq.SNDHWM, 1), (zmq.RCVHWM, 4),
        ):  # fmt: skip
            sock.setsockopt(option, value)
        sock.setsockopt(zmq.CURVE_SERVERKEY, self._server_key)
        sock.setsockopt(zmq.CURVE_PUBLICKEY, zmq.curve_public(self._secret))
        sock.setsockopt(zmq.CURVE_SECRETKEY, self._secret)
        try:
            sock.connect(self._address)
        except zmq.ZMQError:
            sock.close(0)
            raise
        return sock

    def exchange(self, items: Sequence[CheckIn | Result]) -> list[Answer]:
        """The answers, in the order of ``items``. Raises: PeerGone: none in time, or the controller refuses the batch.
        What was sent may have been counted: send it again."""
        answers: list[Answer] = []
        for batch in _batches(items):
            answers += self._exchange(batch)
        return answers

    def _exchange(self, items: Sequence[CheckIn | Result]) -> list[Answer]:
        self._number += 1
        end = time.monotonic() + self._timeout_s
        try:
            self._sock.setsockopt(zmq.SNDTIMEO, int(self._timeout_s * 1e3))
            self._sock.send(orjson.dumps(Batch(number=self._number, items=list(items)).model_dump()))
            while (left := end - time.monotonic()) > 0 and self._sock.poll(int(left * 1e3) + 1):
                found = control.decode(TO_GATEWAY, self._sock.recv(zmq.NOBLOCK))
                if isinstance(found, Refusal):
                    raise PeerGone(f"the controller refuses the batch: {found.code}: {found.detail}")
                if found.number == self._number and len(found.items) == len(items):
                    return found.items
        except (zmq.ZMQError, ControlError) as fault:
            self._renew()
            raise PeerGone(f"controller at {self._address}: {fault}") from None
        self._renew()
        raise PeerGone(f"no answer from the controller at {self._address} within {self._timeout_s:g} s")

    def _renew(self) -> None:
        """A new connection: what waits in the old one is not sent later."""
        self._sock.close(0)
        self._sock = self._connected()

    def close(self) -> None:
        """Hang up. Idempotent."""
        if not self._context.closed:
            self._sock.close(0)
            self._context.term()


def _batches(items: Sequence[CheckIn | Result]) -> Iterator[Sequence[CheckIn | Result]]:
    """Each within the limits of a batch."""
    batch: list[CheckIn | Result] = []
    size = _OVERHEAD
    for item in items:
        more = len(orjson.dumps(item.model_dump())) + 1
        if batch and (len(batch) == MOST_BATCH or size + more > MOST_BATCH_BYTES):
            yield batch
            batch, size = [], _OVERHEAD
        batch.append(item)
        size += more
    if batch:
        yield batch
