"""A gateway's end of the batches of a collaboration controller (`zeromq.batches` has the other end).

libzmq reconnects by itself: after a restart of the controller the next batch is answered again.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Final

import orjson

from offpath.bindings.errors import ControlError, PeerGone, PlaceUnusable
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
_MOST_ANSWER_BYTES: Final = max(MOST_BATCH_BYTES, MOST_BATCH * _ANSWER_BYTES) + _OVERHEAD


class BatchEnd:
    """Batches as bytes; several may wait for their answers. ``server_key``: the controller's public key; ``secret``:
    the gateway's. Not for several threads at once. libzmq connects again by itself; an answer that was lost with a
    connection never comes, and a message of more than an answer's bytes closes it."""

    def __init__(self, address: str, server_key: bytes, secret: bytes) -> None:
        """Raises: PlaceUnusable: not an address."""
        self._context = zmq.Context(1)
        self._sock = self._context.socket(zmq.DEALER)
        set_limits(self._sock, CLUSTER)
        self._sock.setsockopt(zmq.MAXMSGSIZE, _MOST_ANSWER_BYTES)
        self._sock.setsockopt(zmq.LINGER, 0)
        self._sock.setsockopt(zmq.CURVE_SERVERKEY, server_key)
        self._sock.setsockopt(zmq.CURVE_PUBLICKEY, zmq.curve_public(secret))
        self._sock.setsockopt(zmq.CURVE_SECRETKEY, secret)
        try:
            self._sock.connect(address)
        except zmq.ZMQError as fault:
            self.close()
            raise PlaceUnusable(f"{address}: {fault.strerror}") from None

    def send(self, body: bytes, timeout_s: float = 10.0) -> bool:
        """Send a batch. False: there is no room for it within that time: no connection, or too many unanswered ones."""
        if not self._sock.poll(round(timeout_s * 1e3), zmq.POLLOUT):
            return False
        self._sock.send(body)
        return True

    def receive(self, timeout_s: float = 10.0) -> bytes | None:
        """The next answer; None: none came in that time."""
        return self._sock.recv() if self._sock.poll(round(timeout_s * 1e3), zmq.POLLIN) else None

    def close(self) -> None:
        """Hang up; what waits is not sent. Idempotent."""
        if not self._context.closed:
            self._sock.close(0)
            self._context.term()


class Gateway:
    """Check-ins and results, one batch at a time, with their answers; arguments as of `BatchEnd`. A batch is answered
    within ``timeout_s``. Not for several threads."""

    def __init__(self, address: str, server_key: bytes, secret: bytes, timeout_s: float = ANSWER_S) -> None:
        """Raises: PlaceUnusable: not an address."""
        self._address, self._timeout_s = address, timeout_s
        self._connect = partial(BatchEnd, address, server_key, secret)
        self._end = self._connect()
        self._number = 0

    def exchange(self, items: Sequence[CheckIn | Result]) -> list[Answer]:
        """The answers, in the order of ``items``. Raises: PeerGone: none in time, or the controller refuses the batch.
        What was sent may have been counted: send it again."""
        answers: list[Answer] = []
        for batch in _batches(items):
            answers += self._exchange(batch)
        return answers

    def _exchange(self, items: Sequence[CheckIn | Result]) -> list[Answer]:
        self._number += 1
        ends = time.monotonic() + self._timeout_s
        self._end.send(orjson.dumps(Batch(number=self._number, items=list(items)).model_dump()), self._timeout_s)
        while (left := ends - time.monotonic()) > 0 and (body := self._end.receive(left)) is not None:
            try:
                found = control.decode(TO_GATEWAY, body)
            except ControlError as fault:
                self._renew()
                raise PeerGone(f"controller at {self._address}: {fault}") from None
            if isinstance(found, Refusal):
                raise PeerGone(f"the controller refuses the batch: {found.code}: {found.detail}")
            if found.number == self._number and len(found.items) == len(items):
                return found.items
        self._renew()
        raise PeerGone(f"no answer from the controller at {self._address} within {self._timeout_s:g} s")

    def _renew(self) -> None:
        """A new connection: what waits in the old one is not sent later."""
        self._end.close()
        self._end = self._connect()

    def close(self) -> None:
        """Hang up. Idempotent."""
        self._end.close()


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
