"""What a hostile or broken process can do over a loopback host channel."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from offpath.bindings.errors import HostMessageError, PeerGone
from offpath.bindings.loopback.channel import LoopbackChannelListener, LoopbackConnection
from offpath.bindings.wire.host import MAX_MESSAGE_BYTES


class Wire:
    """Our connection and the raw socket at its other end."""

    def __init__(self) -> None:
        ours, self.raw = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.connection = LoopbackConnection(ours)

    def close(self) -> None:
        self.connection.close()
        self.raw.close()


@pytest.fixture
def wire() -> Iterator[Wire]:
    made = Wire()
    yield made
    made.close()


READS = ("receive", "receive_message", "wait_message")


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("length", [MAX_MESSAGE_BYTES + 1, MAX_MESSAGE_BYTES + 2, 60_000])
def test_an_overlong_message_is_refused_and_the_next_one_is_whole(wire: Wire, read: str, length: int) -> None:
    wire.raw.send(bytes(length))
    wire.raw.send(b"next")
    with pytest.raises(HostMessageError, match="too_long"):
        getattr(wire.connection, read)()
    assert wire.connection.receive() == (b"next", ())


@pytest.mark.parametrize("read", READS)
def test_a_message_of_no_bytes_is_a_hang_up(wire: Wire, read: str) -> None:
    wire.raw.send(b"")
    with pytest.raises(PeerGone):
        getattr(wire.connection, read)()


@pytest.mark.parametrize("read", READS)
def test_every_way_to_read_tells_a_hang_up(wire: Wire, read: str) -> None:
    wire.raw.close()
    with pytest.raises(PeerGone):
        getattr(wire.connection, read)()


def test_too_many_descriptors_are_refused_and_closed(wire: Wire, count_fds: Any) -> None:
    before = count_fds()
    socket.send_fds(wire.raw, [b"four"], [0] * 4)
    socket.send_fds(wire.raw, [b"five"], [0] * 5)
    got = wire.connection.receive()
    assert got is not None
    assert (got[0], len(got[1])) == (b"four", 4)
    for fd in got[1]:
        os.close(fd)
    with pytest.raises(HostMessageError):
        wire.connection.receive()
    assert count_fds() == before


def test_descriptors_beside_an_overlong_message_are_closed(wire: Wire, count_fds: Any) -> None:
    before = count_fds()
    socket.send_fds(wire.raw, [bytes(5000)], [0, 0])
    with pytest.raises(HostMessageError):
        wire.connection.receive()
    assert count_fds() == before


@pytest.mark.parametrize("read", ["receive_message", "wait_message"])
def test_descriptors_nobody_asked_for_do_not_stay_with_us(wire: Wire, count_fds: Any, read: str) -> None:
    before = count_fds()
    socket.send_fds(wire.raw, [b"take these"], [0, 0, 0])
    assert getattr(wire.connection, read)() == b"take these"
    assert count_fds() == before


def test_the_peers_flags_on_its_own_end_never_make_ours_block(wire: Wire) -> None:
    wire.raw.setblocking(True)
    assert wire.connection.receive() is None
    assert wire.connection.receive_message() is None
    while wire.connection.send(b"x" * 4000):
        pass
    wire.raw.setblocking(False)
    assert wire.connection.send(b"x" * 4000) is False
    assert wire.connection.receive() is None


def test_a_process_of_another_user_is_not_let_in(tmp_path: Path, count_fds: Any) -> None:
    listener = LoopbackChannelListener(path := str(tmp_path / "channel.sock"), frozenset({os.getuid() + 1}))
    before = count_fds()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as stranger:
        stranger.connect(path)
        assert listener.accept() is None
        assert stranger.recv(1) == b""
    assert count_fds() == before
    assert listener.accept() is None
    listener.close()
    listener.close()
    assert not os.path.exists(path)
