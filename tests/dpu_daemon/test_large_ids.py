"""Request ids up to 2⁶⁴ − 1 are legal in a header: an operator can list, show, explain and cancel such a request."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from offpath.bindings.wire import negotiating
from offpath.bindings.wire.codes import Status
from offpath.bindings.wire.header import pack_request

from ..support.cluster import Cluster
from ..support.command import offpath
from ..support.fakehost import FakeHost
from ..support.peers import Peer, RawSession, hello, redeem
from ..support.processes import until

IDS = (2**63, 2**64 - 1)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A helper that never opens an instance: what is submitted stays queued."""
    made = Cluster({"ada": {}}, durability={"resume_ttl_s": 60})
    try:
        with FakeHost(made) as fake:
            fake.join()
            yield made
        made.close()
    finally:
        made.kill()


def submit(session: RawSession, slot: int, request_id: int) -> None:
    header = pack_request(request_id=request_id, kernel_id=session.kernel_id("echo"), payload_bytes=8)
    session.write(slot, header, np.zeros(8, np.uint8).tobytes())
    assert session.ring(slot)


def command(cluster: Cluster, *words: str) -> object:
    done = offpath(*words, "--json", "--runtime-dir", str(cluster.run_folder))
    assert done.code == 0, done.err
    return done.document


@pytest.mark.parametrize("request_id", IDS)
def test_a_request_with_a_large_id_is_listed_shown_explained_and_cancelled(cluster: Cluster, request_id: int) -> None:
    with RawSession(cluster, "ada") as session:
        submit(session, 0, request_id)
        number = session.welcome.session
        listed = ["request", "list", "--session", str(number)]
        (job,) = until(lambda: command(cluster, *listed))
        assert job["request_id"] == request_id
        name = f"{number}/{request_id}"
        assert command(cluster, "request", "show", name)["job"]["request_id"] == request_id  # type: ignore[index]
        assert command(cluster, "request", "explain", name)["holds"]  # type: ignore[index]
        assert command(cluster, "request", "list")
        assert offpath("top", "--once", "--runtime-dir", str(cluster.run_folder)).code == 0
        cancelled = command(cluster, "request", "cancel", name)
        assert cancelled["job"]["state"] == "cancelled"  # type: ignore[index]
        assert session.rung() == 0
        answer = session.answer(0)
        assert (answer.request_id, answer.status) == (request_id, Status.CANCELLED)


@pytest.mark.parametrize("request_id", IDS)
def test_a_session_with_a_large_id_unanswered_comes_back(cluster: Cluster, request_id: int) -> None:
    with RawSession(cluster, "ada") as session:
        submit(session, 0, request_id)
        until(lambda: command(cluster, "request", "list", "--session", str(session.welcome.session)))
        session.close()
        welcome = session.welcome
        resume = {
            "session": welcome.session, "lineage": welcome.lineage, "token": welcome.resume_token,
            "unanswered": [request_id],
        }  # fmt: skip
        with Peer(cluster.address) as peer:
            peer.send_message(**hello("ada", resume=resume))
            again = peer.hear()
            assert isinstance(again, negotiating.Welcome), again
            assert [(one.request_id, one.state) for one in again.resumed] == [(request_id, "running")]
            assert redeem(again.fabric.address, again.ticket.encode()) is not None
            peer.send_message(kind="goodbye")


def test_an_id_beyond_64_bits_is_refused_by_the_command_line() -> None:
    done = offpath("request", "show", f"1/{2**64}")
    assert done.code == 2
    assert "out of range" in done.err
