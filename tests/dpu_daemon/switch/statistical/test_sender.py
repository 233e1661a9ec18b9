"""A worker's window and its losses, packet by packet; the parameter server's answers."""

from __future__ import annotations

from typing import Any

import pytest

from offpath.bindings.ina.packets import Flag, Packet, PacketKind
from offpath.host_helper.ina.statistical.parameter_server import ParameterServer
from offpath.host_helper.ina.statistical.sender import Sender, Window

MS = 1_000_000
RTT = 100 * MS


def sender(window: Window, packets: int = 100, **more: Any) -> Sender:
    made = Sender(1, 0, 2, window, **more)
    for number in range(packets):
        assert made.offer(number.to_bytes(4, "little")) == number
    return made


def result(psn: int, flags: int = 0) -> Packet:
    return Packet(PacketKind.RESULT, 1, psn, 2, 3, flags, 0, bytes(4))


def psns(packets: list[Packet]) -> list[int]:
    return [packet.psn for packet in packets]


def test_the_window_bounds_what_is_in_flight_and_grows_by_one_a_round_trip() -> None:
    it = sender(Window(1, 4, 16))
    assert psns(it.packets(0)) == [0, 1, 2, 3]
    assert it.packets(1) == []
    for psn in range(4):
        assert it.receive(result(psn), RTT)
    assert it.window == pytest.approx(4.9, abs=0.2)
    assert psns(it.packets(RTT)) == [4, 5, 6, 7]
    assert it.deadline_ns() == RTT + 200 * MS


def test_marks_halve_the_window_once_a_window_down_to_the_least() -> None:
    it = sender(Window(3, 16, 16))
    it.packets(0)
    for psn in range(16):
        it.receive(result(psn, Flag.CONGESTED), RTT)
    assert (it.window, it.counters.decreases, it.counters.marked) == (8, 1, 16)
    for turn in range(2, 5):
        sent = psns(it.packets(turn * RTT))
        for psn in sent:
            it.receive(result(psn, Flag.CONGESTED), turn * RTT)
    assert it.window == 3


def test_a_packet_overtaken_by_two_round_trips_is_sent_again_and_flagged() -> None:
    it = sender(Window(1, 2, 16), packets=5, least_rto_ns=100 * RTT)
    it.packets(0)
    it.receive(result(1), RTT)
    for turn in (1, 2, 3):
        assert psns(it.packets(turn * RTT)) == [turn + 1]
        it.receive(result(turn + 1), (turn + 1) * RTT)
    (again,) = it.packets(4 * RTT)
    assert (again.psn, again.flags) == (0, Flag.RETRANSMITTED)
    assert it.counters.retransmitted == 1


def test_time_outs_back_off() -> None:
    it = sender(Window(1, 1, 1), 1)
    it.packets(0)
    waits, now_ns = [], 0
    for _ in range(5):
        deadline_ns = it.deadline_ns()
        assert deadline_ns is not None
        waits.append((deadline_ns - now_ns) // MS)
        now_ns = deadline_ns
        assert it.packets(now_ns - 1) == []
        assert [packet.flags for packet in it.packets(now_ns)] == [Flag.RETRANSMITTED]
    assert waits == [1000, 2000, 4000, 8000, 16_000]


def test_no_psn_is_sent_before_the_result_one_ring_before_it() -> None:
    it = sender(Window(1, 8, 8))
    assert psns(it.packets(0)) == list(range(8))
    for psn in range(1, 8):
        it.receive(result(psn), RTT)
    assert it.packets(RTT) == []
    it.receive(result(0), RTT)
    assert psns(it.packets(RTT)) == list(range(8, 16))


def test_a_collision_gives_the_position_another_hash_for_the_next_time() -> None:
    it, same = sender(Window(1, 4, 4)), sender(Window(1, 4, 4), rehashes=False)
    before = [packet.hash for packet in it.packets(0)]
    plain = [packet.hash for packet in same.packets(0)]
    assert before == plain
    for each in (it, same):
        for psn in range(4):
            each.receive(result(psn, Flag.COLLIDED if psn == 2 else 0), RTT)
    after = [packet.hash for packet in it.packets(RTT)]
    assert [one == other for one, other in zip(before, after, strict=True)] == [True, True, False, True]
    assert not set(plain) & {packet.hash for packet in same.packets(RTT)}


@pytest.mark.parametrize(
    "packet",
    [
        Packet(PacketKind.RESULT, 2, 0, 2, 3, payload=bytes(4)),
        Packet(PacketKind.RESULT, 1, 0, 2, 2, payload=bytes(4)),
        Packet(PacketKind.RESULT, 1, 0, 2, 3, payload=bytes(8)),
        Packet(PacketKind.RESULT, 1, 9, 2, 3, payload=bytes(4)),
    ],
)
def test_a_result_that_is_not_for_it_is_not_taken(packet: Packet) -> None:
    it = sender(Window(1, 4, 4))
    it.packets(0)
    assert not it.receive(packet, RTT)
    assert it.receive(result(0), RTT)
    assert not it.receive(result(0), RTT)


def test_the_ps_asks_for_a_flush_of_what_stays_incomplete_with_doubled_pauses() -> None:
    ps = ParameterServer(1, 2, 8, 10 * MS)
    assert ps.data(Packet(PacketKind.DATA, 1, 0, 2, 1, Flag.COLLIDED, 77, bytes(4)), 0) == []
    flush = Packet(PacketKind.FLUSH, 1, 0, 2, hash=77)
    times = []
    for now_ns in range(0, 200 * MS, MS):
        if ps.due(now_ns) == [flush]:
            times.append(now_ns // MS)
    assert times == [10, 30, 70, 150]
    (done,) = ps.data(Packet(PacketKind.DATA, 1, 0, 2, 2, 0, 77, bytes(4)), 200 * MS)
    assert (done.bitmap, done.flags) == (3, Flag.COLLIDED)
    assert ps.deadline_ns() is None


def test_the_ps_takes_no_psn_that_no_worker_can_send() -> None:
    ps = ParameterServer(1, 2, 8, 10 * MS)
    for psn in range(1000, 5000):
        ps.data(Packet(PacketKind.DATA, 1, psn, 2, 1, 0, 0, bytes(4)), 0)
    assert (ps.held, ps.counters.outside) == (0, 4000)
    for psn in range(1000):
        ps.data(Packet(PacketKind.DATA, 1, psn, 2, 1, 0, 0, bytes(4)), 0)
    assert ps.held == 17
