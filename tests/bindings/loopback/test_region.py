"""Shared memory of a session: what prefaulting does to it, on kernels with MADV_POPULATE_WRITE and without."""

from __future__ import annotations

import socket
from contextlib import closing

import pytest

from offpath.bindings.loopback.fabric import LoopbackFabricSession, LoopbackRequesterSession, parse_taken
from offpath.bindings.memory import region
from offpath.bindings.memory.region import PAGE, Region
from offpath.bindings.sockets import receive_with_fds

NO_ADVICE = 9999
"""The kernel refuses it with EINVAL, as Linux before 5.14 refuses MADV_POPULATE_WRITE."""


@pytest.fixture(params=["with", "without"], autouse=True)
def populate(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "without":
        monkeypatch.setattr(region, "_MADV_POPULATE_WRITE", NO_ADVICE)
        assert not region.populates_pages()
    elif not region.populates_pages():
        pytest.skip("this kernel has no MADV_POPULATE_WRITE")


def requester_end(session: LoopbackFabricSession) -> LoopbackRequesterSession:
    """As `redeem_ticket` makes it."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        session.hand_over(ours)
        message, fds, _ = receive_with_fds(theirs, 64, 3)
    return LoopbackRequesterSession(fds, *parse_taken(message, len(fds)))


def test_a_requester_that_comes_back_finds_its_requests_and_answers(populate: None) -> None:
    with closing(LoopbackFabricSession(2, PAGE, PAGE)) as session:
        with closing(requester_end(session)) as before:
            before.write_header(1, b"request", 7)
            session.write_answer(0, b"answer", b"result", 6)
        with closing(requester_end(session)) as after:
            assert session.read_header(1)[:7] == b"request"
            assert after.answer_header(0)[:6] == b"answer"
            assert bytes(after.result_view(0, 6)) == b"result"


def test_after_prefaulting_every_page_is_mapped(populate: None) -> None:
    with closing(Region.create("offpath-test", 1000 * PAGE)) as made:
        assert resident(made.address) == 0
        made.prefault()
        assert resident(made.address) == made.nbytes


def resident(address: int) -> int:
    """Bytes of the mapping at ``address`` that have pages (proc(5), ``Rss``)."""
    with open("/proc/self/smaps") as lines:
        for line in lines:
            if line.startswith(f"{address:x}-"):
                rss = next(each for each in lines if each.startswith("Rss:"))
                return int(rss.split()[1]) * 1024
    raise AssertionError("no such mapping")
