"""Who is let in: the ZAP handler (ZeroMQ RFC 27). CURVE alone encrypts, and lets in whoever has any key at all.

Without a handler libzmq accepts every CURVE client, also with a domain set; only an enforced domain refuses then
(tests/bindings/zeromq/test_authentication.py holds the table). It is served by whoever serves the listener: no thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from offpath.bindings.errors import NobodyAllowed
from offpath.bindings.zeromq.library import z85, zmq

ENDPOINT: Final = "inproc://zeromq.zap.01"
OURSELVES: Final = "~self"
"""The user id of the daemon's check of itself; no name on a list can be it."""
_SERVED: Final = 64  # requests in one turn: a flood of handshakes does not hold up who is in
_REQUEST_PARTS: Final = 7  # version, request id, domain, address, identity, mechanism, key


class Authority:
    """Answers libzmq's questions in one context. Made before any socket of the context is bound.

    ``is_full``: no further connection is let in. Raises: NobodyAllowed: the list is empty.
    """

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], domain: str, allowed: Mapping[bytes, str],
        is_full: Callable[[], bool],
    ) -> None:  # fmt: skip
        self._domain = domain.encode()
        self._is_full = is_full
        self._names: dict[bytes, str] = {}
        self.allow(allowed)
        self.refused = 0
        self._sock = context.socket(zmq.REP)
        self._sock.setsockopt(zmq.LINGER, 0)
        self._sock.bind(ENDPOINT)

    def allow(self, allowed: Mapping[bytes, str]) -> None:
        """The list from now on, by public key in Z85. Raises: NobodyAllowed."""
        if not any(name != OURSELVES for name in allowed.values()):
            raise NobodyAllowed("no client's key is allowed")
        self._names = {z85.decode(key): name for key, name in allowed.items()}

    @property
    def names(self) -> frozenset[str]:
        """Who is on the list."""
        return frozenset(self._names.values())

    def fileno(self) -> int:
        """Edge-triggered: call `serve` whenever it is readable."""
        return int(self._sock.FD)

    def serve(self) -> bool:
        """Answer what is asked. True: there is more."""
        for _ in range(_SERVED):
            try:
                asked = self._sock.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return False
            name = self._name(asked)
            self.refused += name is None
            status, text = (b"200", b"OK") if name is not None else (b"400", b"not listed")
            version, request = (asked[0], asked[1]) if len(asked) > 1 else (b"1.0", b"")
            self._sock.send_multipart([version, request, status, text, (name or "").encode(), b""])
        return True

    def _name(self, asked: list[bytes]) -> str | None:
        if len(asked) != _REQUEST_PARTS or asked[0] != b"1.0" or asked[2] != self._domain or asked[5] != b"CURVE":
            return None
        name = self._names.get(asked[6])
        return None if name is None or self._is_full() else name

    def close(self) -> None:
        """Nobody is let in any more. Repeating it is harmless."""
        self._sock.close()
