"""Authenticates clients: the ZAP handler (ZeroMQ RFC 27). CURVE alone encrypts, and accepts any key.

Without a handler libzmq accepts every CURVE client, unless `ZAP_ENFORCE_DOMAIN` is set; then it refuses all (table in
tests/bindings/zeromq/test_authentication.py). The listener's thread runs the handler; it has none of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from offpath.bindings.errors import NobodyAllowed
from offpath.bindings.zeromq.library import z85, zmq

ENDPOINT: Final = "inproc://zeromq.zap.01"
OURSELVES: Final = "~self"
"""The user id of the daemon's self-connection; no name on a list can equal it."""
_SERVED: Final = 64  # requests in one turn, so that a flood of handshakes does not delay established sessions
_REQUEST_PARTS: Final = 7  # version, request id, domain, address, identity, mechanism, key


class Authority:
    """Answers libzmq's ZAP requests in one context. Create it before any socket of the context is bound.

    ``is_full``: True refuses further connections. Raises: NobodyAllowed: the list is empty.
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
        """Replace the list, by public key in Z85. Raises: NobodyAllowed."""
        if not any(name != OURSELVES for name in allowed.values()):
            raise NobodyAllowed("no client's key is allowed")
        self._names = {z85.decode(key): name for key, name in allowed.items()}

    @property
    def names(self) -> frozenset[str]:
        """The names on the list."""
        return frozenset(self._names.values())

    def fileno(self) -> int:
        """Edge-triggered: call `serve` whenever it is readable."""
        return int(self._sock.FD)

    def serve(self) -> bool:
        """Answer pending requests. True: more are pending."""
        for _ in range(_SERVED):
            try:
                request = self._sock.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return False
            name = self._name(request)
            self.refused += name is None
            status, text = (b"200", b"OK") if name is not None else (b"400", b"not listed")
            version, request_id = (request[0], request[1]) if len(request) > 1 else (b"1.0", b"")
            self._sock.send_multipart([version, request_id, status, text, (name or "").encode(), b""])
        return True

    def _name(self, request: list[bytes]) -> str | None:
        if (
            len(request) != _REQUEST_PARTS
            or request[0] != b"1.0"
            or request[2] != self._domain
            or request[5] != b"CURVE"
        ):
            return None
        name = self._names.get(request[6])
        return None if name is None or self._is_full() else name

    def close(self) -> None:
        """Accept no more clients. Idempotent."""
        self._sock.close()
