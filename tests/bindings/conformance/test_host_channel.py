"""The promises of the host-channel port, for every adapter."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

from offpath.bindings.errors import HostMessageError, PeerGone
from offpath.bindings.wire.host import MAX_MESSAGE_BYTES


def test_messages_arrive_whole_and_in_order_both_ways(channel_rig: Any) -> None:
    ours, theirs = channel_rig.pair()
    sent = [bytes([n % 251]) * (1 + 37 * n % MAX_MESSAGE_BYTES) for n in range(20)]
    for source, target in ((ours, theirs), (theirs, ours)):
        for message in sent:
            assert source.send(message) is True
        assert [channel_rig.receive(target) for _ in sent] == [(message, ()) for message in sent]
        assert target.receive() is None


@pytest.mark.parametrize("length", [1, MAX_MESSAGE_BYTES - 1, MAX_MESSAGE_BYTES])
def test_a_message_up_to_the_limit_passes(channel_rig: Any, length: int) -> None:
    ours, theirs = channel_rig.pair()
    assert ours.send(b"\x5a" * length)
    assert channel_rig.receive(theirs) == (b"\x5a" * length, ())


@pytest.mark.parametrize(("length", "code"), [(0, "empty"), (MAX_MESSAGE_BYTES + 1, "too_long"), (65536, "too_long")])
def test_a_message_beyond_the_limits_is_refused_and_not_sent(channel_rig: Any, length: int, code: str) -> None:
    ours, theirs = channel_rig.pair()
    with pytest.raises(HostMessageError) as refused:
        ours.send(bytes(length))
    assert refused.value.code == code
    assert ours.send(b"next")
    assert channel_rig.receive(theirs) == (b"next", ())


def test_nothing_to_receive_is_none_and_nothing_readable(channel_rig: Any, readable: Any) -> None:
    ours, theirs = channel_rig.pair()
    assert ours.receive() is None
    assert not readable(ours.fileno(), 0)
    theirs.send(b"x")
    assert readable(ours.fileno())


def test_a_full_queue_returns_false_never_blocks_and_loses_nothing(channel_rig: Any, until: Any) -> None:
    ours, theirs = channel_rig.pair()
    sent = 0
    while ours.send(sent.to_bytes(4, "little") * 512):
        sent += 1
        assert sent < 1_000_000, "a queue without an end"
    assert sent >= 4
    assert ours.send(b"more") is False
    assert [channel_rig.receive(theirs)[0][:4] for _ in range(sent)] == [n.to_bytes(4, "little") for n in range(sent)]
    assert until(lambda: ours.send(b"more"))
    assert channel_rig.receive(theirs) == (b"more", ())


def test_descriptors_travel_with_their_message_and_belong_to_the_receiver(channel_rig: Any) -> None:
    if not channel_rig.carries_descriptors:
        pytest.skip("this carrier hands over descriptors as plain data")
    ours, theirs = channel_rig.pair()
    fd = os.memfd_create("travels")
    os.write(fd, b"content")
    assert ours.send(b"plain")
    assert ours.send(b"with two", (fd, fd))
    os.close(fd)
    assert channel_rig.receive(theirs) == (b"plain", ())
    message, fds = channel_rig.receive(theirs)
    assert (message, len(fds)) == (b"with two", 2)
    for received in fds:
        assert not os.get_inheritable(received)
        assert os.pread(received, 7, 0) == b"content"
        os.close(received)


def test_the_peers_process_is_known(channel_rig: Any, children: Any) -> None:
    def say_pid() -> None:
        connection = channel_rig.connect()
        connection.send(str(os.getpid()).encode())
        signal.pause()

    child = children.fork(say_pid)
    connection = channel_rig.accept()
    assert channel_rig.receive(connection) == (str(child.pid).encode(), ())
    assert connection.peer_pid in (0, child.pid)


def test_a_killed_peer_is_seen_by_end_of_file_and_by_its_death(channel_rig: Any, children: Any, readable: Any) -> None:
    def greet_and_hang() -> None:
        channel_rig.connect().send(b"hello")
        signal.pause()

    child = children.fork(greet_and_hang)
    connection = channel_rig.accept()
    assert channel_rig.receive(connection) == (b"hello", ())
    assert connection.receive() is None
    death = connection.death_fileno()
    assert death == -1 or not readable(death, 0)
    assert not connection.has_ended()
    child.kill()
    assert death == -1 or readable(death)
    assert readable(connection.fileno())
    assert connection.has_ended()
    with pytest.raises(PeerGone):
        connection.receive()
    with pytest.raises(PeerGone):
        connection.send(b"anybody?")


def test_a_peers_last_words_are_heard_after_its_end(channel_rig: Any, children: Any) -> None:
    def speak_and_end() -> None:
        connection = channel_rig.connect()
        connection.send(b"first")
        connection.send(b"last")

    child = children.fork(speak_and_end)
    connection = channel_rig.accept()
    assert child.wait() == 0
    assert connection.has_ended() or connection.death_fileno() == -1, "where it is known, also before it is heard out"
    assert channel_rig.receive(connection) == (b"first", ())
    assert channel_rig.receive(connection) == (b"last", ())
    assert connection.has_ended()
    with pytest.raises(PeerGone):
        connection.receive()


def test_a_dead_peer_whose_child_holds_the_connection_open_is_seen_by_its_death(
    channel_rig: Any, children: Any, readable: Any
) -> None:
    def leave_a_child_behind() -> None:
        connection = channel_rig.connect()
        grandchild = os.fork()
        if grandchild == 0:
            signal.pause()
            os._exit(0)
        connection.send(str(grandchild).encode())
        signal.pause()

    child = children.fork(leave_a_child_behind)
    connection = channel_rig.accept()
    children.adopt(int(channel_rig.receive(connection)[0]))
    if connection.death_fileno() == -1:
        pytest.skip("this carrier cannot tell its peer's process")
    assert not readable(connection.death_fileno(), 0)
    child.kill()
    assert readable(connection.death_fileno())
    assert connection.receive() is None  # no end of file: the grandchild holds it off


def test_a_closed_peer_is_gone_and_both_ends_may_be_closed_twice(channel_rig: Any, readable: Any) -> None:
    ours, theirs = channel_rig.pair()
    for _ in range(2):
        theirs.close()
    assert readable(ours.fileno())
    with pytest.raises(PeerGone):
        ours.receive()
    for _ in range(2):
        ours.close()
    with pytest.raises(PeerGone):
        ours.send(b"x")


def test_nobody_listening_is_a_typed_error(channel_rig: Any) -> None:
    channel_rig.listener.close()
    with pytest.raises(PeerGone):
        channel_rig.connect()
