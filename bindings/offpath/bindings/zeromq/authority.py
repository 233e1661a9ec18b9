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
"""The name of the daemon's self-connection; no name on a list can equal it."""
_SERVED: Final = 64  # requests in one turn, so that a flood of handshakes does not delay established sessions
_KEY_BYTES: Final = 32
_REQUEST_PARTS: Final = 7  # version, request id, domain, address, identity, mechanism, key


class Authority:
    """Answers libzmq's ZAP requests in one context. Create it before any socket of the context is bound. The user id of
    a connection's messages is its public key in Z85: a name may get another key while the connection is open.

    ``is_full``: True refuses further connections. Raises: NobodyAllowed: the list is empty.
    """

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], domain: str, allowed: Mapping[bytes, str],
        is_full: Callable[[], bool],
    ) -> None:  # fmt: skip
        self._domain = domain.encode()
        self._is_full = is_full
        self._names: dict[str, str] = {}
        self.allow(allowed)
        self.refused = 0
        self._sock = context.socket(zmq.REP)
        self._sock.setsockopt(zmq.LINGER, 0)
        self._sock.bind(ENDPOINT)

    def allow(self, allowed: Mapping[bytes, str]) -> None:
        """Replace the list, by public key in Z85. Raises: NobodyAllowed."""
        if not any(name != OURSELVES for name in allowed.values()):
            raise NobodyAllowed("no client's key is allowed")
        self._names = {key.decode("ascii"): name for key, name in allowed.items()}

    def name_of(self, key: str) -> str | None:
        """The name that the list has for a user id; None: the key is not on it, or is no longer."""
        return self._names.get(key)

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
            key = self._key(request)
            self.refused += not key
            status, text = (b"200", b"OK") if key else (b"400", b"not listed")
            version, request_id = (request[0], request[1]) if len(request) > 1 else (b"1.0", b"")
            self._sock.send_multipart([version, request_id, status, text, key.encode(), b""])
        return True

    def _key(self, request: list[bytes]) -> str:
        """The client's key; empty: it is refused."""
        if (
            len(request) != _REQUEST_PARTS
            or request[0] != b"1.0"
            or request[2] != self._domain
            or request[5] != b"CURVE"
        ):
            return ""
        key = z85.encode(request[6]).decode("ascii") if len(request[6]) == _KEY_BYTES else ""
        return key if key in self._names and not self._is_full() else ""

    def close(self) -> None:
        """Accept no more clients. Idempotent."""
        self._sock.close()
