"""The promises of the host-channel port, for every adapter."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import pytest

from offpath.bindings.errors import HostMessageError, PeerGone
from offpath.bindings.wire.host import MAX_MESSAGE_BYTES

from ...support.processes import quickest

pytestmark = pytest.mark.conformance


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


def test_nothing_to_receive_is_none_and_nothing_readable(channel_rig: Any) -> None:
    for one, other in (channel_rig.pair(), reversed(channel_rig.pair())):
        assert one.receive() is None
        assert not channel_rig.readable(one, 0)
        other.send(b"x")
        assert channel_rig.readable(one)
        assert one.receive() == (b"x", ())
        assert one.receive_message() is None
        assert not channel_rig.readable(one, 0)


def test_no_message_is_overlooked_by_who_waits_for_the_descriptor(channel_rig: Any) -> None:
    """Both ends send at every turn, so that news comes while they send; each is woken by its descriptor alone."""
    ours, theirs = channel_rig.pair()
    for n in range(500):
        assert ours.send(n.to_bytes(4, "little"))
        assert theirs.send(n.to_bytes(4, "big"))
        for end, order in ((ours, "big"), (theirs, "little")):
            assert channel_rig.readable(end), f"nobody was woken for message {n}"
            while (message := end.receive_message()) is None:
                assert channel_rig.readable(end), f"nobody was woken for message {n}"
            assert message == n.to_bytes(4, order)


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


def test_a_carrier_without_descriptors_says_so(channel_rig: Any) -> None:
    if channel_rig.carries_descriptors:
        pytest.skip("this carrier hands descriptors over")
    ours, theirs = channel_rig.pair()
    for end in (ours, theirs):
        with pytest.raises(HostMessageError) as refused:
            end.send(b"with one", (0,))
        assert refused.value.code == "descriptors"


def test_the_peers_process_is_known(channel_rig: Any, children: Any) -> None:
    def say_pid() -> None:
        connection = channel_rig.connect()
        connection.send(str(os.getpid()).encode())
        signal.pause()

    child = children.fork(say_pid)
    connection = channel_rig.accept()
    assert channel_rig.receive(connection) == (str(child.pid).encode(), ())
    assert connection.peer_pid in (0, child.pid)


def test_a_killed_peer_is_seen_within_a_second_and_by_its_death(channel_rig: Any, children: Any, readable: Any) -> None:
    assert quickest(lambda: seconds_until_a_death_is_seen(channel_rig, children, readable), 1.0) < 1.0


def seconds_until_a_death_is_seen(channel_rig: Any, children: Any, readable: Any) -> float:
    def greet_and_hang() -> None:
        connection = channel_rig.connect()  # held: a connection that nobody holds is closed
        connection.send(b"hello")
        signal.pause()

    child = children.fork(greet_and_hang)
    connection = channel_rig.accept()
    assert channel_rig.receive(connection) == (b"hello", ())
    assert connection.receive() is None
    death = connection.death_fileno()
    assert death == -1 or not readable(death, 0)
    assert not connection.has_ended()
    child.kill()
    killed = time.monotonic()
    assert death == -1 or readable(death)
    assert channel_rig.readable(connection)
    took_s = time.monotonic() - killed
    assert connection.has_ended()
    with pytest.raises(PeerGone):
        connection.receive()
    with pytest.raises(PeerGone):
        connection.send(b"anybody?")
    connection.close()
    return took_s


def test_a_peers_last_words_are_heard_after_its_end(channel_rig: Any, children: Any) -> None:
    def speak_and_end() -> None:
        connection = channel_rig.connect()
        connection.send(b"first")
        connection.send(b"last")
        if not channel_rig.keeps_last_words:
            connection.close()

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

    if not channel_rig.knows_processes:
        pytest.skip("this carrier cannot tell its peer's process")
    child = children.fork(leave_a_child_behind)
    connection = channel_rig.accept()
    children.adopt(int(channel_rig.receive(connection)[0]))
    assert not readable(connection.death_fileno(), 0)
    child.kill()
    assert readable(connection.death_fileno())
    assert connection.receive() is None  # no end of file: the grandchild holds it off


def test_a_closed_peer_is_gone_and_both_ends_may_be_closed_twice(channel_rig: Any) -> None:
    ours, theirs = channel_rig.pair()
    for _ in range(2):
        theirs.close()
    assert channel_rig.readable(ours)
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


def test_who_finishes_is_heard_out_and_still_hears(channel_rig: Any) -> None:
    for one, other in (channel_rig.pair(), reversed(channel_rig.pair())):
        assert one.send(b"last")
        one.finish()
        assert channel_rig.receive(other) == (b"last", ())
        assert channel_rig.readable(other)
        with pytest.raises(PeerGone):
            channel_rig.receive(other)
        assert other.send(b"an answer")
        assert channel_rig.receive(one) == (b"an answer", ())
        other.close()
        assert channel_rig.readable(one)
        with pytest.raises(PeerGone):
            channel_rig.receive(one)


def test_a_peer_that_stands_still_is_lost_within_a_second(channel_rig: Any, children: Any) -> None:
    if channel_rig.loss_s is None:
        pytest.skip("this carrier's peers are on this machine: a pidfd, and the helper's pings, tell of them")
    bound_s = channel_rig.loss_s + 0.5
    assert quickest(lambda: seconds_until_a_stop_is_seen(channel_rig, children), bound_s) < bound_s


def seconds_until_a_stop_is_seen(channel_rig: Any, children: Any) -> float:
    def greet_and_stop() -> None:
        connection = channel_rig.connect()
        connection.send(b"hello")
        connection.wait_message()
        os.kill(os.getpid(), signal.SIGSTOP)

    children.fork(greet_and_stop)
    connection = channel_rig.accept()
    assert channel_rig.receive(connection) == (b"hello", ())
    assert connection.send(b"stand still")
    heard = time.monotonic()
    assert channel_rig.readable(connection)
    took_s = time.monotonic() - heard
    with pytest.raises(PeerGone):
        channel_rig.receive(connection)
    connection.close()
    return took_s


@pytest.mark.parametrize("attack", ["garbage", "oversize", "flood"])
def test_a_hostile_peer_gets_no_further_than_its_own_connection(channel_rig: Any, children: Any, attack: str) -> None:
    ours, theirs = channel_rig.pair()
    attacker = children.fork(channel_rig.attacks()[attack])
    hostile = channel_rig.accept()
    end = None
    for n in range(200):
        try:
            received = hostile.receive() if end is None else None
        except (HostMessageError, PeerGone) as fault:
            end = fault
            hostile.close()
        assert end is not None or received is None or len(received[0]) <= MAX_MESSAGE_BYTES
        assert ours.send(n.to_bytes(4, "little"))
        assert channel_rig.receive(theirs) == (n.to_bytes(4, "little"), ())
        assert theirs.send(n.to_bytes(4, "big"))
        assert channel_rig.receive(ours) == (n.to_bytes(4, "big"), ())
    attacker.kill()


def test_several_workers_at_once_each_have_their_own_messages(channel_rig: Any, children: Any) -> None:
    workers, messages = 8, 50

    def ask() -> None:
        connection = channel_rig.connect()
        for n in range(messages):
            asked = f"{os.getpid()}:{n}".encode()
            assert connection.send(asked)
            assert connection.wait_message() == asked
        connection.close()

    asking = [children.fork(ask) for _ in range(workers)]
    answered = dict.fromkeys((channel_rig.accept() for _ in range(workers)), 0)
    end = time.monotonic() + 30
    while sum(answered.values()) < workers * messages:
        assert time.monotonic() < end
        for connection in answered:
            if answered[connection] < messages and (received := connection.receive()) is not None:
                assert received[0].split(b":")[1] == str(answered[connection]).encode()
                assert connection.send(received[0])
                answered[connection] += 1
    assert [child.wait() for child in asking] == [0] * workers


def test_who_connects_again_has_a_new_session(channel_rig: Any) -> None:
    ours, theirs = channel_rig.pair()
    assert ours.send(b"for the old one")
    assert theirs.send(b"of the old one")
    theirs.close()
    again, back = channel_rig.pair()
    assert again is not ours
    assert again.send(b"new")
    assert channel_rig.receive(back) == (b"new", ())
    assert again.receive() is None
    assert back.receive() is None


def test_two_hundred_connections_leave_no_descriptor_behind(channel_rig: Any, count_fds: Any, until: Any) -> None:
    for end in channel_rig.pair():
        end.close()
    before = count_fds()
    for n in range(200):
        ours, theirs = channel_rig.pair()
        first, second = (ours, theirs) if n % 2 else (theirs, ours)
        first.close()
        second.close()
    assert until(lambda: count_fds() <= before)


def test_who_knocks_is_accepted_hung_up_on_and_known_as_ourselves(channel_rig: Any) -> None:
    self_probe = channel_rig.listener.self_connect()
    accepted = channel_rig.accept()
    assert accepted.is_self_probe
    with pytest.raises(PeerGone):
        channel_rig.receive(accepted)
    accepted.close()
    assert channel_rig.readable(self_probe)
    with pytest.raises(PeerGone):
        channel_rig.receive(self_probe)
    self_probe.close()
