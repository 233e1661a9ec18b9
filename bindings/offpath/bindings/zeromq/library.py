"""Imports pyzmq, and sets the options of both ends' sockets. No other module here imports pyzmq."""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from offpath.bindings.channel.session import HEAD_BYTES, WINDOW
from offpath.bindings.errors import ZmqMissing
from offpath.bindings.wire.host import MAX_MESSAGE_BYTES

try:
    import zmq
    from zmq.utils import z85
except ImportError as fault:  # part of the extra "daemon"; a host needs it only for this carrier
    raise ZmqMissing(f'host channel zmq needs pyzmq ({fault}): pip install "offpath[daemon]", or pyzmq alone') from None

__all__ = ["HEARTBEAT_MS", "LOSS_MS", "has_news", "monitored", "next_event", "set_limits", "unmonitored", "z85", "zmq"]

HEARTBEAT_MS: Final = 200
LOSS_MS: Final = 1000
"""A peer is lost after this long without traffic: five heartbeats."""
HANDSHAKE_MS: Final = 5000
_CURVE_BYTES: Final = 33
"""What CURVE adds to a message on the wire (RFC 26: "\\x07MESSAGE", nonce, MAC, flags); MAXMSGSIZE counts it."""
_QUEUED: Final = 4 * WINDOW
"""Messages per peer and direction that libzmq queues: a session's window, and its control frames."""
_EVENT: Final = struct.Struct("=HI")
_ALL_EVENTS: Final = (
    zmq.EVENT_ACCEPTED
    | zmq.EVENT_DISCONNECTED
    | zmq.EVENT_CLOSED
    | zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
)


class Pace(NamedTuple):
    """A ping every ``heartbeat_ms``; a peer without traffic for ``loss_ms`` is lost."""

    heartbeat_ms: int
    loss_ms: int


HOST: Final = Pace(HEARTBEAT_MS, LOSS_MS)
"""One helper and its workers: a loss must be detected soon."""
CLUSTER: Final = Pace(2000, 10_000)
"""A thousand agents: pings every 200 ms would be most of a controller's load, and a loss is not urgent."""


def set_limits(sock: zmq.Socket[bytes], pace: Pace = HOST) -> None:
    """Set bounds for queues and messages, and heartbeats."""
    sock.setsockopt(zmq.MAXMSGSIZE, HEAD_BYTES + MAX_MESSAGE_BYTES + _CURVE_BYTES)
    sock.setsockopt(zmq.SNDHWM, _QUEUED)
    sock.setsockopt(zmq.RCVHWM, _QUEUED)
    sock.setsockopt(zmq.HANDSHAKE_IVL, HANDSHAKE_MS)
    sock.setsockopt(zmq.HEARTBEAT_IVL, pace.heartbeat_ms)
    sock.setsockopt(zmq.HEARTBEAT_TIMEOUT, pace.loss_ms - pace.heartbeat_ms)  # counted from the ping
    sock.setsockopt(zmq.HEARTBEAT_TTL, pace.loss_ms)
    sock.setsockopt(zmq.IPV6, 1)


def has_news(sock: zmq.Socket[bytes]) -> bool:
    """A message can be received. Check it after each send, which may consume the descriptor's edge."""
    return bool(int(sock.getsockopt(zmq.EVENTS)) & zmq.POLLIN)


def monitored(sock: zmq.Socket[bytes]) -> zmq.Socket[bytes]:
    """A socket from which `next_event` reads the events of ``sock``'s connections."""
    return sock.get_monitor_socket(_ALL_EVENTS)


def unmonitored(sock: zmq.Socket[bytes], monitor: zmq.Socket[bytes]) -> None:
    """Close a monitor, in this order: otherwise libzmq's own thread blocks for ever on the closed monitor
    (observed)."""
    sock.disable_monitor()
    monitor.close(0)


def next_event(monitor: zmq.Socket[bytes]) -> tuple[int, int] | None:
    """(event, its value: mostly the connection's descriptor), or None."""
    try:
        parts = monitor.recv_multipart(zmq.NOBLOCK)
    except zmq.Again:
        return None
    event, value = _EVENT.unpack_from(parts[0])
    return event, value
