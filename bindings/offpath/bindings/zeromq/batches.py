"""Messages of many devices, one batch each, from gateways with CURVE keys: one ROUTER, no sessions.

The owner watches the listener's descriptor and calls `take` whenever it is readable.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from offpath.bindings.zeromq.library import CLUSTER, has_news, zmq
from offpath.bindings.zeromq.router import Router

MAX_GATEWAYS: Final = 256
"""Connections."""
_QUEUED: Final = 2
"""Batches that libzmq holds for each gateway."""
_ANSWERS: Final = 128
"""Answers that it holds for each: more than batches are in work at once; a gateway that takes none loses some."""
_RECEIVE_BYTES: Final = 256 << 10
"""In the kernel, for each gateway: with what libzmq holds, below `watch.MOST_BYTES`."""
_OVERHEAD: Final = 64


class Received(NamedTuple):
    """``routing_id``: of the connection, for the answer."""

    routing_id: bytes
    body: bytes


class BatchListener:
    """Listens at ``address`` (tcp://HOST:PORT). ``allowed``: public key → name, see `keys.read_allowed`. ``most_bytes``
    of a batch. Raises: NobodyAllowed: it is empty. PlaceUnusable."""

    def __init__(self, address: str, secret: bytes, allowed: Mapping[bytes, str], domain: str, most_bytes: int) -> None:
        self._open: set[int] = set()
        options = (
            (zmq.MAXMSGSIZE, most_bytes + _OVERHEAD), (zmq.SNDHWM, _ANSWERS), (zmq.RCVHWM, _QUEUED),
            (zmq.RCVBUF, _RECEIVE_BYTES), (zmq.LINGER, 0),
        )  # fmt: skip
        self._router = Router(secret, allowed, domain, lambda: len(self._open) >= MAX_GATEWAYS, CLUSTER, options)
        self._sock, self._parts = self._router.sock, self._router.parts
        self.address = self._router.bind(address)

    def fileno(self) -> int:
        """Readable: call `take`."""
        return self._router.fileno()

    @property
    def connections(self) -> int:
        """Open ones, as far as `take` has noticed."""
        return len(self._open)

    @property
    def refused(self) -> int:
        """Handshakes with a key that is not listed."""
        return self._router.authority.refused

    def take(self, most: int) -> list[Received]:
        """Up to ``most`` batches; does not block. If more wait, `fileno` stays readable. 0: serves handshakes only."""
        if self._router.is_closed:
            return []
        is_rest = self._router.authority.serve()
        self._watch()
        found = list[Received]()
        while len(found) < most and (received := self._read_one()) is not None:
            if received.body:
                found.append(received)
        if (len(found) < most or not most) and self._parts.is_due():
            for fd in self._parts.look().over:
                self._parts.cut(fd)
        is_more = has_news(self._sock)  # also if none was to be read: it takes the descriptor's edge
        self._router.show(is_rest or (is_more and most > 0))
        return found

    def _watch(self) -> None:
        while (event := self._router.next_event()) is not None:
            kind, fd = event
            if kind == zmq.EVENT_ACCEPTED:
                self._open.add(fd)
                self._parts.came(fd)
            elif kind == zmq.EVENT_DISCONNECTED:
                self._open.discard(fd)
                self._parts.left(fd)

    def _read_one(self) -> Received | None:
        """One batch; one of several parts, or of a key that is not listed, has an empty body. None: no message
        waits."""
        try:
            routing_id = self._sock.recv(zmq.NOBLOCK)
        except zmq.Again:
            return None
        message = self._sock.recv(zmq.NOBLOCK, copy=False, track=False)
        is_whole = not self._sock.RCVMORE
        while self._sock.RCVMORE:
            self._sock.recv(zmq.NOBLOCK)
        fd = int(message.get(zmq.SRCFD))
        self._parts.on_received(fd)
        if self._router.authority.name_of(str(message.get("User-Id"))) is None:  # it was listed when it connected
            self._parts.cut(fd)
            is_whole = False
        return Received(routing_id, message.bytes if is_whole else b"")

    def send(self, routing_id: bytes, body: bytes) -> bool:
        """Answer a batch. False: the connection is closed, or its peer takes no answers; the answer is dropped."""
        try:
            self._router.send(routing_id, body)
        except zmq.ZMQError:  # zmq.Again is one
            return False
        return True

    def allow(self, allowed: Mapping[bytes, str]) -> None:
        """Replace the list. A gateway whose key is no longer listed is cut off with its next batch, which is not
        returned. Raises: NobodyAllowed."""
        self._router.authority.allow(allowed)

    def wake(self) -> None:
        """`take` is to be called again, though it returned as much as was asked for."""
        self._router.show(True)

    def close(self) -> None:
        """Stop listening and hang up. Idempotent."""
        self._router.close()
