"""Who may redeem a ticket with which end. Needs no RDMA device."""

from __future__ import annotations

from dataclasses import replace

import pytest

from offpath.bindings.errors import TicketRefused
from offpath.bindings.verbs.exchange import VerbsListener, as_message, from_message
from offpath.bindings.verbs.link import End
from offpath.bindings.verbs.queue import Address
from offpath.bindings.verbs.queue_pairs_in_use import QueuePairsInUse

END = End(Address(17, 1, "::ffff:a63:101", 5), 16, 4096, 7)


def listener(*tickets: str) -> VerbsListener:
    made = VerbsListener()
    for ticket in tickets:
        made.offer(ticket, 1, 4096, 4096, expires_ns=100)
    return made


@pytest.mark.parametrize("gid", ["::ffff:10.99.1.1", "::FFFF:A63:101", "0:0:0:0:0:ffff:a63:101"])
def test_a_queue_pair_of_another_session_is_refused_however_its_gid_is_spelled(gid: str) -> None:
    acceptors = listener("first", "second", "third")
    acceptors.claim(b"first", END, 0)
    again = from_message(as_message(END).model_copy(update={"gid": gid, "psn": 9, "memory": 1 << 20, "rkey": 8}))
    with pytest.raises(TicketRefused, match="another session"):
        acceptors.claim(b"second", again, 0)
    acceptors.back(END)
    acceptors.claim(b"third", again, 0)


def test_a_gid_is_the_same_in_every_spelling_also_in_the_one_that_libibverbs_reads() -> None:
    """Python 3.13 prints an address mapped from IPv4 with dots; libibverbs takes eight groups of hexadecimal digits."""
    spellings = ("::ffff:10.99.1.1", "::FFFF:A63:101", "::ffff:a63:101%rdma1")
    texts = {Address(17, 1, gid, 5).gid_bytes.hex(":", 2) for gid in spellings}
    assert texts == {"0000:0000:0000:0000:0000:ffff:0a63:0101"}


def test_a_lane_cannot_name_a_queue_pair_again_by_a_gid_with_a_zone() -> None:
    taken = QueuePairsInUse()
    assert taken.take(END.address)
    assert not taken.take(replace(END.address, gid=f"{END.address.gid}%1"))


def test_the_end_of_a_lane_or_of_our_own_is_nobodys() -> None:
    """Copies and sessions share what is taken; an own queue pair that somebody named before is noticed."""
    lane = Address(23, 4, END.address.gid, 5)
    taken = QueuePairsInUse()
    assert taken.take(lane)
    acceptors = VerbsListener(taken)
    for ticket in ("first", "second", "third"):
        acceptors.offer(ticket, 1, 4096, 4096, expires_ns=100)
    with pytest.raises(TicketRefused, match="or a lane"):
        acceptors.claim(b"first", replace(END, address=replace(lane, psn=77)), 0)
    assert acceptors.made(END)
    assert not acceptors.made(END)
    with pytest.raises(TicketRefused, match="belongs to another"):
        acceptors.claim(b"second", END, 0)
    taken.give_back(lane)
    acceptors.back(END)
    acceptors.claim(b"third", replace(END, address=lane), 0)


@pytest.mark.parametrize("gid", ["", "10.99.1.1", "::ffff:10.99.1.1%0", "::ffff:10.99.1.1%rdma1", "no gid"])
def test_what_is_no_gid_or_names_a_zone_is_refused(gid: str) -> None:
    with pytest.raises(TicketRefused, match="is not a GID"):
        from_message(as_message(END).model_copy(update={"gid": gid}))


def test_a_ticket_is_used_up_also_by_an_end_that_is_refused() -> None:
    acceptors = listener("first", "second")
    acceptors.claim(b"first", END, 0)
    for said in ("another session", "unknown ticket"):
        with pytest.raises(TicketRefused, match=said):
            acceptors.claim(b"second", END, 0)
