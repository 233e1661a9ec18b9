"""A message of parts without end, from a peer with a listed key: its connection is cut, and nobody else notices.

libzmq keeps parts until the last one is there; what it keeps is seen as memory of the process that serves.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from offpath.bindings.errors import HostMessageError
from offpath.bindings.wire.host import MAX_MESSAGE_BYTES
from offpath.bindings.zeromq import connection as connection_module
from offpath.bindings.zeromq import watch
from offpath.bindings.zeromq.watch import LOOK_S, MOST_BYTES, MOST_TOGETHER, PROBE_BYTES

from ..conformance.channel_rigs import ZmqChannelRig

SENT_BYTES = 256 << 20
"""What a peer tries to leave: far above the bound, and above what the machine's noise adds to our memory."""
MOST_GROWTH = SENT_BYTES // 2

_PEER = """
import sys, zmq
address, server, secret, nonce, count, size = sys.argv[1], *map(bytes.fromhex, sys.argv[2:5]), *map(int, sys.argv[5:7])
dealer = zmq.Context().socket(zmq.DEALER)
dealer.setsockopt(zmq.RECONNECT_IVL, -1)
dealer.setsockopt(zmq.CURVE_SERVERKEY, server)
dealer.setsockopt(zmq.CURVE_PUBLICKEY, zmq.curve_public(secret))
dealer.setsockopt(zmq.CURVE_SECRETKEY, secret)
dealer.connect(address)
if nonce:
    dealer.send(bytes((1, 1, 0, 0)) + bytes(4) + nonce)
    dealer.recv()
for _ in range(count):
    dealer.send(bytes(size), zmq.SNDMORE)
dealer.send(b"last")  # libzmq puts a message on the wire once it has all of it; the other side sees it grow
print("sent", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[ZmqChannelRig]:
    made = ZmqChannelRig(tmp_path)
    yield made
    made.close()


def resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def attack(rig: ZmqChannelRig, size: int, count: int, has_session: bool) -> subprocess.Popen[str]:
    server, secret = (Path(path).read_bytes().strip().hex() for path in (rig.server_key_file, rig.key_file))
    nonce = os.urandom(8).hex() if has_session else ""
    words = [rig.listener.address, server, secret, nonce, str(count), str(size)]
    return subprocess.Popen(
        [sys.executable, "-c", _PEER, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


@pytest.mark.parametrize("has_session", [True, False], ids=["in a session", "without one"])
def test_a_peer_whose_message_has_no_end_is_cut_off_and_another_goes_on(rig: ZmqChannelRig, has_session: bool) -> None:
    connection, honest = rig.pair()
    before = most = resident()
    with attack(rig, MAX_MESSAGE_BYTES, SENT_BYTES // MAX_MESSAGE_BYTES, has_session) as peer:
        try:
            end = time.monotonic() + 60
            while not rig.zmq_listener.cut_off:
                assert time.monotonic() < end, f"not cut off; {(most - before) >> 20} MiB more"
                assert honest.send(b"ask")
                assert rig.receive(connection) == (b"ask", ())
                assert connection.send(b"answer")
                assert honest.wait_message() == b"answer"
                most = max(most, resident())
            assert most - before < MOST_GROWTH, "what it sent was kept"
            if has_session:
                hostile = rig.accept()
                with pytest.raises(HostMessageError, match="endless"):
                    rig.receive(hostile)
            until = time.monotonic() + 60
            while rig.zmq_listener._parts._peers.keys() != {connection.tcp_fd}:  # type: ignore[attr-defined]
                assert time.monotonic() < until, "its connection stands"
                rig._serve()
        finally:
            peer.kill()
    assert honest.send(b"and on")
    assert rig.receive(connection) == (b"and on", ())


@pytest.fixture
def counted(rig: ZmqChannelRig, monkeypatch: pytest.MonkeyPatch) -> dict[int, int]:
    """What the kernel is said to have received, by descriptor, beside what it has: heartbeats of hours."""
    more: dict[int, int] = {}
    received = watch._received

    def with_more(fd: int) -> int | None:
        found = received(fd)
        return None if found is None else found + more.get(fd, 0)

    monkeypatch.setattr(watch, "_received", with_more)
    return more


def looked(rig: ZmqChannelRig) -> None:
    """Until the watch has looked once more."""
    at = rig.zmq_listener._parts._next
    end = time.monotonic() + 30
    while rig.zmq_listener._parts._next == at:
        assert time.monotonic() < end
        rig._serve()
        time.sleep(LOOK_S / 10)


def test_a_silent_peer_is_probed_and_answers_by_itself(rig: ZmqChannelRig, counted: dict[int, int]) -> None:
    connection, honest = rig.pair()
    looked(rig)
    for _ in range(20):
        counted[connection.tcp_fd] = counted.get(connection.tcp_fd, 0) + PROBE_BYTES + 1  # type: ignore[attr-defined]
        looked(rig)
        assert honest.receive() is None, "a probe is no message"
        looked(rig)
    assert rig.zmq_listener.cut_off == 0
    assert honest.send(b"still here")
    assert rig.receive(connection) == (b"still here", ())


def test_a_worker_that_runs_a_kernel_for_hours_is_not_cut_off(
    rig: ZmqChannelRig, counted: dict[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its thread is in the kernel and calls nothing of the channel; its heartbeats add up."""
    monkeypatch.setattr(connection_module, "ATTEND_S", LOOK_S)
    connection, worker = rig.pair()
    fd: int = connection.tcp_fd  # type: ignore[attr-defined]
    looked(rig)
    watched = rig.zmq_listener._parts._peers[fd]
    for _ in range(2 * MOST_BYTES // PROBE_BYTES):
        counted[fd] = counted.get(fd, 0) + PROBE_BYTES + 1
        looked(rig)
        end = time.monotonic() + 30
        while watched.is_probed:
            assert rig.zmq_listener.cut_off == 0
            assert time.monotonic() < end, "its probe is not answered"
            looked(rig)
    assert connection.send(b"and on")
    assert worker.wait_message() == b"and on"


def test_a_peer_that_answers_no_probe_is_cut_off_at_the_bound(
    rig: ZmqChannelRig, counted: dict[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_module, "ATTEND_S", 3600.0)
    connection, honest = rig.pair()
    looked(rig)
    looked(rig)
    counted[connection.tcp_fd] = MOST_BYTES - 4096  # type: ignore[attr-defined]
    looked(rig)
    assert rig.zmq_listener.cut_off == 0
    counted[connection.tcp_fd] = MOST_BYTES + 1  # type: ignore[attr-defined]
    looked(rig)
    assert rig.zmq_listener.cut_off == 1
    with pytest.raises(HostMessageError, match="endless"):
        rig.receive(connection)
    end = time.monotonic() + 30
    while not honest.has_ended():
        assert time.monotonic() < end
        rig._serve()


def test_of_many_peers_that_keep_below_the_bound_those_with_most_are_cut_off_first() -> None:
    quiet = [(PROBE_BYTES + 1, n) for n in range(10)]
    assert watch._over(quiet) == ()
    assert watch._over([*quiet, (MOST_BYTES + 1, 99)]) == (99,)
    many = [(MOST_BYTES - n, n) for n in range(40)]
    over = watch._over(many)
    assert over == tuple(range(len(over)))
    assert sum(nbytes for nbytes, n in many if n not in over) <= MOST_TOGETHER
