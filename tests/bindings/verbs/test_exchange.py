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
