"""A peer may be silent for five seconds: before its hello, in a handshake, with its ticket."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from offpath.bindings.errors import OffpathError
from offpath.bindings.wire import negotiating
from offpath.dpu_daemon.ingress import admission, negotiation, streams

from ..support.certificates import Authority
from ..support.cluster import TIMEOUT, Cluster
from ..support.clusters import Make
from ..support.peers import Peer, hello, redeem
from ..support.processes import until
from .test_negotiation import authority, tls_address, tls_table

__all__ = ["authority"]
SILENCE_S = 1
TICK_S = 0.005
"""The daemon's timers count whole milliseconds, from another moment than this test's clock."""
SILENCES = (
    "ingress.negotiation.HELLO_TIMEOUT_S", "ingress.streams.HANDSHAKE_S", "ingress.admission.TICKET_TTL_S",
    "ingress.fabric_acceptor.TICKET_TTL_S",
)  # fmt: skip
"""How long a peer may be silent: the last two are one constant."""


def test_a_peer_that_sends_nothing_for_five_seconds_is_let_go(make_cluster: Make, authority: Authority) -> None:
    """A hello, a ticket, a handshake, a half frame, an unredeemed ticket: all wait at once here, on a daemon that lets
    go of them sooner."""
    assert (negotiation.HELLO_TIMEOUT_S, streams.HANDSHAKE_S, admission.TICKET_TTL_S) == (5.0, 5.0, 5)
    shortened = {f"offpath.dpu_daemon.{name}": SILENCE_S if "TTL" in name else float(SILENCE_S) for name in SILENCES}
    cluster = make_cluster({"few": {"max_sessions": 2}}, tls=tls_table(authority), shortened=shortened)
    before = cluster.daemon.fds_at_rest()

    def silent(open_socket: Callable[[], socket.socket], first: bytes = b"") -> float:
        started = time.monotonic()
        with open_socket() as sock:
            sock.settimeout(TIMEOUT)
            if first:
                sock.sendall(first)
            received = sock.recv(64)
            assert received == b"" or received[0] == 0x15, "nothing but a hang-up, or an alert of TLS"
            return time.monotonic() - started

    def unix(kind: socket.SocketKind, name: str) -> socket.socket:
        sock = socket.socket(socket.AF_UNIX, kind)
        sock.connect(str(cluster.run_folder / name))
        return sock

    def late_ticket() -> float:
        with contextlib.ExitStack() as held:
            peer, welcome, started = until(lambda: welcomed(cluster, held))
            assert welcome.ticket_ttl_s == SILENCE_S
            assert peer.hear_the_end() == "ticket_expired"
            assert redeem(welcome.fabric.address, welcome.ticket.encode()) is None
            return float(time.monotonic() - started)

    def slow_loris() -> float:
        """One byte each tenth of a second is no hello in time either."""
        started = time.monotonic()
        with Peer(cluster.address) as peer:
            peer.sock.settimeout(SILENCE_S / 10)
            for byte in (500).to_bytes(4, "little") + b"{" * 400:
                peer.send(bytes([byte]))
                try:
                    assert peer.hear() is None
                except TimeoutError:
                    continue
                return time.monotonic() - started
        raise AssertionError("it was listened to for ever")

    with ThreadPoolExecutor(6) as threads:
        waits = [
            threads.submit(silent, partial(unix, socket.SOCK_STREAM, "negotiate.sock")),
            threads.submit(silent, partial(unix, socket.SOCK_STREAM, "negotiate.sock"), b"\xff\x00"),
            threads.submit(silent, partial(unix, socket.SOCK_SEQPACKET, "fabric.sock")),
            threads.submit(silent, partial(socket.create_connection, tls_address(cluster), TIMEOUT)),
            threads.submit(late_ticket),
            threads.submit(slow_loris),
        ]
        times = [wait.result(2 * TIMEOUT) for wait in waits]
    assert min(times) >= SILENCE_S, times
    until(lambda: cluster.daemon.open_fds() == before)
    until(lambda: is_open_to(cluster, 2))


def welcomed(cluster: Cluster, held: contextlib.ExitStack) -> tuple[Peer, negotiating.Welcome, float] | None:
    """A peer, its welcome, and a moment before it. None: this process was slower than the shortened limit."""
    peer, started = held.enter_context(Peer(cluster.address)), time.monotonic()
    peer.send_message(**hello("few"))
    welcome = peer.hear()
    return (peer, welcome, started) if isinstance(welcome, negotiating.Welcome) else None


def is_open_to(cluster: Cluster, sessions: int) -> bool:
    """So many sessions are let in. False: this process was slower than the shortened limit."""
    with contextlib.ExitStack() as held:
        try:
            for _ in range(sessions):
                held.enter_context(cluster.connect("few"))
        except (OffpathError, OSError):
            return False
    return True
