"""Sessions on one ROUTER: none can speak as another, be taken over, or leave anything to the next."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

from offpath.bindings.channel.session import BYE, CREDIT, DATA, END, OPEN, WINDOW, Session, parse
from offpath.bindings.errors import HostMessageError, PeerGone

from ..conformance.channel_rigs import ZmqChannelRig


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[ZmqChannelRig]:
    made = ZmqChannelRig(tmp_path)
    yield made
    made.close()


@pytest.fixture
def context() -> Iterator[zmq.Context[Any]]:
    made: zmq.Context[Any] = zmq.Context()
    yield made
    made.destroy(0)


def head(kind: int, session: bytes, taken: int = 0) -> bytes:
    return bytes((kind, 1, 0, 0)) + taken.to_bytes(4, "little") + session


def opened(rig: ZmqChannelRig, context: zmq.Context[Any], routing_id: bytes = b"") -> tuple[Any, bytes, Any]:
    """(a DEALER that speaks by hand, its nonce, the daemon's end)"""
    dealer, nonce = rig.raw(context, routing_id), os.urandom(8)
    dealer.send(head(OPEN, nonce))
    connection = rig.accept()
    assert dealer.recv()[0] == 2
    return dealer, nonce, connection


def test_a_frame_of_another_session_ends_its_own(rig: ZmqChannelRig, context: zmq.Context[Any]) -> None:
    _, other, innocent = opened(rig, context)
    dealer, nonce, connection = opened(rig, context)
    dealer.send(head(DATA, nonce) + b"mine")
    dealer.send(head(DATA, other) + b"not mine")
    assert rig.receive(connection) == (b"mine", ())
    with pytest.raises(HostMessageError, match="session"):
        rig.receive(connection)
    assert innocent.receive() is None


def test_a_second_peer_with_a_routing_id_takes_nothing_over(rig: ZmqChannelRig, context: zmq.Context[Any]) -> None:
    first, nonce, connection = opened(rig, context, b"a worker")
    second = rig.raw(context, b"a worker")
    second.send(head(OPEN, nonce))
    second.send(head(DATA, nonce) + b"from the second")
    end = time.monotonic() + 0.5
    while time.monotonic() < end:
        assert connection.receive() is None
        assert rig.listener.accept() is None
    assert connection.send(b"for the first")
    assert first.recv()[16:] == b"for the first"
    assert second.poll(0) == 0
    first.send(head(DATA, nonce) + b"still here")
    assert rig.receive(connection) == (b"still here", ())


def test_what_comes_without_a_session_or_after_its_end_is_dropped(
    rig: ZmqChannelRig, context: zmq.Context[Any]
) -> None:
    dealer, nonce, connection = opened(rig, context)
    connection.close()
    assert dealer.recv()[0] == BYE
    for frame in (head(DATA, nonce) + b"late", b"garbage", head(CREDIT, nonce), head(OPEN, nonce)[:15]):
        dealer.send(frame)
    ours, theirs = rig.pair()
    assert theirs.send(b"x")
    assert rig.receive(ours) == (b"x", ())


@pytest.mark.parametrize(
    ("frame", "code"),
    [
        (lambda nonce: head(DATA, nonce), "empty"),
        (lambda nonce: head(CREDIT, nonce) + b"x", "frame"),
        (lambda nonce: head(CREDIT, nonce, 1), "credit"),
        (lambda nonce: head(OPEN, nonce), "frame"),
        (lambda nonce: head(9, nonce), "frame"),
        (lambda nonce: head(DATA, nonce)[:10], "short"),
        (lambda nonce: [head(DATA, nonce) + b"x", b"more"], "frame"),
    ],
    ids=["empty", "body", "credit", "twice", "kind", "short", "parts"],
)
def test_a_frame_that_breaks_a_rule_is_told_by_its_code(
    rig: ZmqChannelRig, context: zmq.Context[Any], frame: Any, code: str
) -> None:
    dealer, nonce, connection = opened(rig, context)
    made = frame(nonce)
    dealer.send_multipart(made if isinstance(made, list) else [made])
    with pytest.raises(HostMessageError) as refused:
        rig.receive(connection)
    assert refused.value.code == code
    with pytest.raises(PeerGone):
        connection.send(b"x")


def test_more_than_the_window_is_a_flood_and_what_came_before_is_heard(
    rig: ZmqChannelRig, context: zmq.Context[Any]
) -> None:
    dealer, nonce, connection = opened(rig, context)
    for n in range(WINDOW + 1):
        dealer.send(head(DATA, nonce) + bytes([n]))
    end = time.monotonic() + 10
    while not connection._session.is_over:
        assert time.monotonic() < end
        rig.listener.accept()
    for n in range(WINDOW):
        assert rig.receive(connection)[0] == bytes([n])
    with pytest.raises(HostMessageError, match="flood"):
        rig.receive(connection)


def test_counts_go_round_at_2_to_the_32nd() -> None:
    ours, theirs = Session(b"8 bytes!"), Session(b"8 bytes!")
    for session in (ours, theirs):
        session._sent = session._theirs = session._taken = session._said = (1 << 32) - 5
    for n in range(200):
        assert ours.has_room
        theirs.on_received(parse(ours.frame(DATA, bytes([n]))))
        ours.on_sent(DATA)
        assert theirs.take() == bytes([n])
        if theirs.owes_credit:
            ours.on_received(parse(theirs.frame(CREDIT)))
            theirs.on_sent(CREDIT)
    theirs.on_received(parse(ours.frame(END)))
    with pytest.raises(PeerGone):
        theirs.take()


def test_without_pyzmq_the_packages_import_and_the_channel_says_what_to_install() -> None:
    code = """
import sys
sys.modules["zmq"] = None
import offpath.bindings.ports, offpath.bindings.zeromq.keys, offpath.bindings.channel.session
import offpath.host_helper.helper, offpath.host_helper.relay, offpath.dpu_daemon.serve
from offpath.bindings.errors import ZmqMissing
from offpath.host_helper import host_channel
host_channel("unix", path="/nowhere")
try:
    host_channel("zmq", daemon="ipc:///nowhere", key="k", server_key="s")
except ZmqMissing as missing:
    assert "pip install" in str(missing)
else:
    raise SystemExit("not missed")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
