"""The promises of the fabric port, for every adapter: one-sided writes, doorbells both ways, one-time tickets.

Those of the adapter `verbs` are marked rdma (`fabric_rigs`).
"""

from __future__ import annotations

import select
import signal
from typing import Any

import pytest

from offpath.bindings.errors import PeerGone, TicketRefused
from offpath.bindings.ports import (
    IMM_CANCEL,
    IMM_CREDIT,
    IMM_SLOT_MASK,
    IMM_SUBMIT,
    FabricSession,
    RequesterSession,
    immediate,
)
from offpath.bindings.wire.header import FIXED_BYTES, HEADER_COPY_BYTES, HEADER_PART_BYTES, MAX_TENSORS, TENSOR_BYTES

pytestmark = pytest.mark.conformance


def drain(session: FabricSession, readable: Any, count: int) -> list[int]:
    imms: list[int] = []
    while len(imms) < count:
        assert readable(session.fileno()), f"{len(imms)} of {count} doorbells came"
        if (imm := session.poll()) is not None:
            imms.append(imm)
    return imms


def take(requester: RequesterSession, readable: Any, count: int) -> list[int]:
    imms: list[int] = []
    while len(imms) < count:
        assert readable(requester.fileno()), f"{len(imms)} of {count} doorbells came"
        imms += requester.poll()
    return imms


def test_an_immediate_is_its_kind_in_the_high_byte_and_the_slot_below() -> None:
    assert [immediate(kind, 0x0A0B0C) for kind in (IMM_SUBMIT, IMM_CREDIT, IMM_CANCEL)] == [
        0x000A0B0C,
        0x010A0B0C,
        0x020A0B0C,
    ]
    assert immediate(IMM_CANCEL, 1023) & IMM_SLOT_MASK == 1023


def test_the_daemon_reads_what_the_requester_wrote_before_its_doorbell(fabric_rig: Any, readable: Any) -> None:
    session, requester = fabric_rig.pair(slots=3, payload_bytes=10_000)
    header = bytes(range(23)) + b"\4" + bytes(range(104)) + bytes(range(192))  # announces four tensors
    requester.payload_view(2)[:] = b"\xee" * 10_000
    requester.write_header(2, header, 10_000)
    requester.ring(immediate(IMM_SUBMIT, 2))
    assert drain(session, readable, 1) == [2]
    assert session.read_header(2) == header
    assert fabric_rig.read_slots(session, session.payload_offset(2), 10_000) == b"\xee" * 10_000


def test_a_header_is_copied_once_and_later_writes_do_not_reach_the_copy(fabric_rig: Any, readable: Any) -> None:
    session, requester = fabric_rig.pair()
    copies = []
    for byte in (b"\x01", b"\x02"):
        requester.write_header(0, byte * 23 + bytes([MAX_TENSORS]) + byte * (HEADER_COPY_BYTES - 24), 0)
        requester.ring(immediate(IMM_SUBMIT, 0))
        drain(session, readable, 1)
        copies.append(session.read_header(0))
    assert [len(each) for each in copies] == [HEADER_COPY_BYTES] * 2
    assert [set(each) for each in copies] == [{1, MAX_TENSORS}, {2, MAX_TENSORS}]


def test_slots_do_not_overlap_and_neither_do_answers(fabric_rig: Any, readable: Any) -> None:
    session, requester = fabric_rig.pair(slots=5, payload_bytes=4097, result_bytes=4097)
    assert requester.slot_count == 5
    for slot in range(5):
        requester.payload_view(slot)[:] = bytes([0x80 | slot]) * 4097
        requester.write_header(slot, bytes([slot]) * HEADER_PART_BYTES, 4097)
        requester.ring(immediate(IMM_SUBMIT, slot))
        session.write_answer(slot, bytes([0x40 | slot]) * HEADER_COPY_BYTES, bytes([0x20 | slot]) * 4097, 4097)
        assert session.ring(immediate(IMM_SUBMIT, slot))
    drain(session, readable, 5)
    take(requester, readable, 5)
    for slot in range(5):
        at = session.payload_offset(slot)
        assert session.read_header(slot) == bytes([slot]) * (FIXED_BYTES + slot * TENSOR_BYTES)
        assert fabric_rig.read_slots(session, at, 4097) == bytes([0x80 | slot]) * 4097
        assert requester.answer_header(slot) == bytes([0x40 | slot]) * (FIXED_BYTES + (0x40 | slot) * TENSOR_BYTES)
        assert requester.result_view(slot, 4097) == bytes([0x20 | slot]) * 4097


def test_a_fresh_session_holds_nothing_of_an_older_one(fabric_rig: Any, readable: Any) -> None:
    session, requester = fabric_rig.pair(slots=1, payload_bytes=4096, result_bytes=4096)
    requester.payload_view(0)[:] = b"\xaa" * 4096
    requester.write_header(0, b"\xdd" * 64, 4096)
    requester.ring(immediate(IMM_SUBMIT, 0))
    session.write_answer(0, b"\xbb" * 64, b"\xcc" * 4096, 4096)
    assert session.ring(immediate(IMM_SUBMIT, 0))
    drain(session, readable, 1)
    take(requester, readable, 1)
    requester.close()
    session.close()
    session, requester = fabric_rig.pair(slots=1, payload_bytes=4096, result_bytes=4096)
    assert fabric_rig.read_slots(session, 0, HEADER_PART_BYTES + 4096) == bytes(HEADER_PART_BYTES + 4096)
    assert requester.answer_header(0) == bytes(FIXED_BYTES)
    assert requester.result_view(0, 4096) == bytes(4096)


def test_the_requester_reads_the_answer_that_its_doorbell_announced(fabric_rig: Any, readable: Any) -> None:
    session, requester = fabric_rig.pair()
    session.write_answer(1, b"answer header", b"small result", 12)
    assert session.ring(immediate(IMM_SUBMIT, 1)) is True
    assert readable(requester.fileno())
    assert requester.wait(10) == [1]
    assert requester.answer_header(1)[:13] == b"answer header"
    assert requester.result_view(1, 12) == b"small result"


def test_doorbells_arrive_in_order_and_poll_takes_one(fabric_rig: Any, readable: Any) -> None:
    session, requester = fabric_rig.pair(slots=20)
    rung = [immediate(kind, slot) for slot in range(20) for kind in (IMM_SUBMIT, IMM_CANCEL, IMM_CREDIT)]
    for imm in rung:
        requester.ring(imm)
    assert drain(session, readable, 1) == rung[:1]
    assert readable(session.fileno())
    assert drain(session, readable, len(rung) - 1) == rung[1:]
    assert session.poll() is None
    assert not readable(session.fileno(), 0)
    for imm in rung:
        assert session.ring(imm)
    assert take(requester, readable, len(rung)) == rung
    assert requester.poll() == []


def test_an_idle_requester_waits_no_longer_than_it_said(fabric_rig: Any) -> None:
    _, requester = fabric_rig.pair()
    assert requester.wait(0.01) == []


def fill(session: FabricSession) -> int:
    """Ring until no more is taken, however often room comes back by itself; returns how often."""
    rung = 0
    while session.ring(immediate(IMM_SUBMIT, rung)):
        rung += 1
        assert rung < 1_000_000, "a doorbell queue without an end"
    return rung


def test_a_requester_that_takes_nothing_never_blocks_the_daemon_and_loses_nothing(
    fabric_rig: Any, readable: Any
) -> None:
    session, requester = fabric_rig.pair()
    rung = fill(session)
    assert rung >= 4
    assert session.ring(immediate(IMM_SUBMIT, rung)) is False
    assert take(requester, readable, rung) == list(range(rung))
    ring_when_there_is_room(session, rung, readable)
    assert take(requester, readable, 1) == [rung]


def ring_when_there_is_room(session: FabricSession, imm: int, readable: Any) -> None:
    """Woken as `FabricSession.room_is_polled` says."""
    if session.room_is_polled:
        while not session.ring(imm):
            assert readable(session.fileno())
            assert session.poll() is None
        return
    poller = select.poll()
    poller.register(session.fileno(), select.POLLOUT)
    assert poller.poll(10_000) == [(session.fileno(), select.POLLOUT)]
    assert session.ring(imm) is True


def test_the_daemon_learns_when_it_may_ring_again(fabric_rig: Any, readable: Any) -> None:
    session, requester = fabric_rig.pair()
    rung = fill(session)
    if session.room_is_polled:
        while readable(session.fileno(), 0.2):  # what was rung is told of when it has arrived
            assert session.poll() is None
        assert session.ring(0) is False
    else:
        poller = select.poll()
        poller.register(session.fileno(), select.POLLOUT)
        assert poller.poll(0) == []
    take(requester, readable, rung)
    ring_when_there_is_room(session, 0, readable)


def test_a_requester_that_outruns_the_daemon_waits_and_loses_nothing(
    fabric_rig: Any, children: Any, readable: Any
) -> None:
    def ring_much() -> None:
        requester = fabric_rig.redeem("a-ticket-for-a-fast-one")
        for number in range(3000):
            requester.ring(number)
        assert requester.wait(10) == [1]

    fabric_rig.offer("a-ticket-for-a-fast-one")
    fast = children.fork(ring_much)
    session = fabric_rig.serve()
    assert drain(session, readable, 3000) == list(range(3000))
    assert session.ring(1)
    assert fast.wait() == 0


def test_a_requester_killed_in_another_process_is_seen_and_what_it_wrote_remains(
    fabric_rig: Any, children: Any, readable: Any
) -> None:
    def submit_and_hang() -> None:
        requester = fabric_rig.redeem("a-ticket-for-a-victim")
        requester.payload_view(1)[:4] = b"last"
        requester.write_header(1, b"header", 4)
        requester.ring(immediate(IMM_SUBMIT, 1))
        signal.pause()

    fabric_rig.offer("a-ticket-for-a-victim")
    victim = children.fork(submit_and_hang)
    session = fabric_rig.serve()
    assert drain(session, readable, 1) == [1]
    victim.kill()
    assert readable(session.fileno())
    with pytest.raises(PeerGone):
        session.poll()
    with pytest.raises(PeerGone):
        session.ring(immediate(IMM_SUBMIT, 1))
    assert session.read_header(1)[:6] == b"header"
    assert fabric_rig.read_slots(session, session.payload_offset(1), 4) == b"last"
    session.write_answer(1, b"to nobody", b"", 0)


def test_doorbells_rung_before_the_end_are_taken_before_the_end_is_told(fabric_rig: Any, readable: Any) -> None:
    session, requester = fabric_rig.pair()
    requester.ring(immediate(IMM_SUBMIT, 0))
    requester.ring(immediate(IMM_SUBMIT, 3))
    requester.close()
    assert drain(session, readable, 2) == [0, 3]
    assert readable(session.fileno())
    with pytest.raises(PeerGone):
        session.poll()


def test_a_requester_sees_its_daemon_go(fabric_rig: Any, readable: Any) -> None:
    session, requester = fabric_rig.pair()
    session.ring(immediate(IMM_SUBMIT, 2))
    session.close()
    assert requester.poll() == [2]
    assert readable(requester.fileno())
    with pytest.raises(PeerGone):
        requester.poll()
    with pytest.raises(PeerGone):
        requester.wait(10)
    with pytest.raises(PeerGone):
        requester.ring(immediate(IMM_SUBMIT, 0))


def test_both_ends_may_be_closed_twice(fabric_rig: Any) -> None:
    session, requester = fabric_rig.pair()
    for _ in range(2):
        session.close()
        requester.close()


def test_a_ticket_lets_exactly_one_peer_in(fabric_rig: Any) -> None:
    fabric_rig.pair()
    ours, theirs = fabric_rig.refusal("a-ticket-for-the-pair")
    assert isinstance(ours, TicketRefused)
    assert isinstance(theirs, TicketRefused)


@pytest.mark.parametrize("shown", ["unknown", "late", "withdrawn", "prefix", "oversized"])
def test_a_ticket_that_is_no_good_lets_nobody_in(fabric_rig: Any, shown: str) -> None:
    ticket = "a-good-ticket-of-some-length"
    fabric_rig.offer(ticket, ttl_s=-1 if shown == "late" else 5)
    if shown == "withdrawn":
        fabric_rig.listener.withdraw(ticket)
        fabric_rig.listener.withdraw(ticket)
    wrong = {"unknown": "another-ticket", "prefix": ticket[:-1], "oversized": ticket.ljust(4096, "x")}
    ours, theirs = fabric_rig.refusal(wrong.get(shown, ticket))
    assert isinstance(ours, TicketRefused)
    assert isinstance(theirs, TicketRefused)


def test_a_late_ticket_is_used_up(fabric_rig: Any) -> None:
    fabric_rig.offer("late", ttl_s=-1)
    fabric_rig.refusal("late")
    fabric_rig.offer("in-time")
    assert isinstance(fabric_rig.refusal("late")[0], TicketRefused)
    assert fabric_rig.refusal("in-time") == (None, None)


def test_a_requester_without_a_daemon_is_told_so(fabric_rig: Any) -> None:
    fabric_rig.stop_listening()
    with pytest.raises(PeerGone):
        fabric_rig.redeem("whatever")
