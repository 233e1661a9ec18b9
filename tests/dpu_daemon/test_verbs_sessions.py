"""The fabric `verbs` in a running daemon, on Soft-RoCE: requests by RDMA, what is lost, and who comes back.

The daemon has rxe0, requesters have rxe1, in this namespace. Helper and lanes are loopback's.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from offpath.bindings.errors import NegotiationRefused, VerbsError
from offpath.bindings.verbs.devices import choose
from offpath.bindings.verbs.domain import Device
from offpath.bindings.verbs.exchange import as_message
from offpath.bindings.verbs.fabric import VerbsRequesterSession
from offpath.bindings.verbs.library import library
from offpath.bindings.wire import admin, control, negotiating
from offpath.bindings.wire.codes import Status
from offpath.bindings.wire.frames import frame
from offpath.cli.admin_client import AdminClient, all_tenants
from offpath.host_helper import Rdma, Requester, RequestFailed
from offpath.host_helper.negotiate import Negotiation, connect_to
from offpath.host_helper.resume import Way

from ..support.cluster import MIB, Cluster, pids_of
from ..support.processes import until

pytestmark = pytest.mark.rdma
BOUND_S = 120.0  # emulated, on a machine that may be busy
LIMIT = 8 * MIB
"""Longest message of rdma_rxe."""
TABLES: dict[str, Any] = {
    "datapath": {"fabric": "verbs"},
    "rdma": {"device": "rxe0"},
    "leasing": {"landing_bytes": 9 * MIB, "result_bytes": 9 * MIB},
    "durability": {"resume_ttl_s": 60, "adopt_ms": 30_000, "journal_mib": 4},
    "limits": {"helper_ms": 60_000, "drain_ms": 60_000},
}
RDMA = Rdma(device="rxe1")


def started(helper: dict[str, str] | None = None, **options: Any) -> Cluster:
    """``helper``: what is set in its environment."""
    made = Cluster({"ada": {}, "bob": {}, "cyd": {"max_sessions": 4}, "dee": {}}, **TABLES, **options)
    try:
        made.start_helper(helper, emulate=["A100-40GB"])
    except BaseException:
        made.kill()
        raise
    return made


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    made = started()
    try:
        yield made
        made.close()
    finally:
        made.kill()


@pytest.fixture
def connect(cluster: Cluster) -> Iterator[Callable[..., Requester]]:
    made: list[Requester] = []

    def open_one(tenant: str = "ada", **sizes: Any) -> Requester:
        made.append(cluster.connect(tenant, rdma=RDMA, timeout_s=BOUND_S, **sizes))
        return made[-1]

    yield open_one
    for each in made:
        each.close()


def noise(nbytes: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(nbytes).integers(0, 256, nbytes, np.uint8)


# -- what arrives -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("nbytes", [0, 1, 4096, MIB, LIMIT - 1, LIMIT, LIMIT + 1])
def test_payload_and_result_of_any_length_arrive_whole(connect: Callable[..., Requester], nbytes: int) -> None:
    """Around the device's message limit too, both ways."""
    room = max(4096, nbytes)
    requester = connect(slots=1, payload_bytes=room, result_bytes=room)
    sent = noise(nbytes)
    assert (requester.submit("echo", [sent], timeout=BOUND_S).array == sent).all()


def test_many_requests_in_flight_are_all_answered_each_its_own(connect: Callable[..., Requester]) -> None:
    requester = connect(slots=8)
    sent = [noise(number) for number in range(1, 65)]
    pending = [requester.begin("echo", [each]) for each in sent]
    for each, request in zip(sent, pending, strict=True):
        assert (request.result(BOUND_S).array == each).all()


@pytest.mark.parametrize("elements", [4, 40_000])
def test_a_stream_arrives_in_order(connect: Callable[..., Requester], elements: int) -> None:
    requester = connect(slots=2, payload_bytes=MIB, result_bytes=MIB)
    wish = [np.array([9, elements, 0, 0], np.float64)]
    taken = [set(each.array.tolist()) for each in requester.stream("count", wish, timeout=BOUND_S)]
    assert taken == [{number} for number in range(1, 10)]
    next(requester.stream("count", wish))
    assert requester.submit("echo", [noise(8)], timeout=BOUND_S).array.tolist() == noise(8).tolist()


def test_what_goes_wrong_is_told_as_over_loopback(connect: Callable[..., Requester]) -> None:
    with pytest.raises(RequestFailed) as failed:
        connect(slots=1).submit("fail", [], timeout=BOUND_S)
    assert failed.value.status is Status.FAILED


# -- who may come in --------------------------------------------------------------------------------------------------
def welcomed(cluster: Cluster, tenant: str = "ada") -> Any:
    """A negotiation with its welcome, whose ticket nobody redeemed."""
    negotiation = Negotiation(connect_to(cluster.address, None, BOUND_S), BOUND_S)
    hello = negotiating.Hello(
        tenant=tenant, token=cluster.token(tenant), slots=1, payload_bytes=4096, result_bytes=4096
    )
    try:
        return negotiation, negotiation.hello(hello)
    except BaseException:
        negotiation.abandon()
        raise


@pytest.fixture
def end() -> Iterator[negotiating.QueuePairEnd]:
    session = VerbsRequesterSession(Device(choose(device="rxe1")), 1, 4096, 4096)
    yield as_message(session.end())
    session.close()


def test_a_ticket_is_good_once_on_its_own_negotiation_for_a_queue_pair_that_nobody_has(
    cluster: Cluster, end: negotiating.QueuePairEnd
) -> None:
    first, welcome = welcomed(cluster)
    second, _ = welcomed(cluster, "bob")
    try:
        with pytest.raises(NegotiationRefused, match="belongs to another negotiation"):
            second.redeem(welcome.ticket, end)
        first.redeem(welcome.ticket, end)
        third, other = welcomed(cluster, "bob")
        with pytest.raises(NegotiationRefused, match="belongs to another session"):
            third.redeem(other.ticket, end)
        with pytest.raises(NegotiationRefused, match="ticket"):
            first.redeem(welcome.ticket, end)
    finally:
        for each in (first, second, third):
            each.close()


@pytest.mark.parametrize("gid", ["::", "ff02::1", "fe80::1", "::ffff:127.0.0.1", "::ffff:224.0.0.1", "nonsense"])
def test_an_end_that_cannot_be_is_refused(cluster: Cluster, end: negotiating.QueuePairEnd, gid: str) -> None:
    negotiation, welcome = welcomed(cluster)
    with pytest.raises(NegotiationRefused, match=r"fabric|ticket"):
        negotiation.redeem(welcome.ticket, end.model_copy(update={"gid": gid}))
    negotiation.close()


def test_a_peer_that_is_nowhere_is_refused_and_holds_nobody_up(
    cluster: Cluster, connect: Callable[..., Requester], end: negotiating.QueuePairEnd
) -> None:
    """The kernel would wait a second for its address, with the interpreter locked."""
    requester = connect(slots=1)
    requester.submit("echo", [noise(8)], timeout=BOUND_S)
    negotiation, welcome = welcomed(cluster)
    said = negotiating.Redeem(ticket=welcome.ticket, end=end.model_copy(update={"gid": "::ffff:10.99.0.77"}))
    negotiation._sock.sendall(frame(control.encode(said)))
    begun = time.monotonic()
    answered = 0
    while time.monotonic() - begun < 0.8:
        requester.submit("echo", [noise(8)], timeout=BOUND_S)
        answered += 1
    assert answered >= 3
    with pytest.raises(NegotiationRefused, match="does not answer"):
        negotiation.redeem(welcome.ticket, end)
    negotiation.close()


# -- what is lost -----------------------------------------------------------------------------------------------------
def test_a_link_that_is_down_for_two_seconds_costs_no_request(
    cluster: Cluster, connect: Callable[..., Requester]
) -> None:
    """The queue pairs fail, the sessions wait, the requester comes back when the port has held. The link stays down
    until the daemon has met the failure, and for two seconds at least."""
    requester = connect(slots=4)
    requester.submit("echo", [noise(8)], timeout=BOUND_S)
    lost = f"session {requester.welcome.session} of tenant ada lost its peer"
    before, down = cluster.daemon.errors.count(lost), time.monotonic()
    running = [requester.begin("sleep", [np.array([0.5])]) for _ in range(2)]
    ip("link", "set", "rdma1", "down")
    try:
        until(lambda: cluster.daemon.errors.count(lost) > before and time.monotonic() - down >= 2, BOUND_S)
    finally:
        ip("link", "set", "rdma1", "up")
    until(lambda: choose_is_well("rxe1"), BOUND_S)
    for request in running:
        request.result(BOUND_S)
    assert (requester.submit("echo", [noise(4096)], timeout=BOUND_S).array == noise(4096)).all()


def choose_is_well(device: str) -> bool:
    try:
        choose(device=device)
    except VerbsError:
        return False
    return True


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


def test_a_queue_pair_that_fails_is_made_anew_and_costs_no_request(
    cluster: Cluster, connect: Callable[..., Requester]
) -> None:
    """Forced into its error state at the requester's end, with requests under way; the daemon's end fails by it."""
    requester = connect(slots=4)
    for _ in range(3):
        running = [requester.begin("sleep", [np.array([0.2])]) for _ in range(3)]
        force_error(requester)
        for request in running:
            assert how_it_ended(request) in (Status.COMPLETED, Status.RETRY_SAFE)
        assert (requester.submit("echo", [noise(99)], timeout=BOUND_S).array == noise(99)).all()


def test_a_request_that_never_arrived_is_safe_to_try_again(connect: Callable[..., Requester]) -> None:
    """The session had no jobs when its queue pair failed; it is kept, because its requester lives."""
    requester = connect(slots=1)
    requester.submit("echo", [noise(8)], timeout=BOUND_S)
    force_error(requester)
    assert how_it_ended(requester.begin("echo", [noise(8)])) is Status.RETRY_SAFE
    assert (requester.submit("echo", [noise(99)], timeout=BOUND_S).array == noise(99)).all()


def force_error(requester: Requester) -> None:
    queue = cast(VerbsRequesterSession, requester._link.session)._link._queue
    verbs = library()
    attributes = verbs.qp.QPAttr(qp_state=verbs.enums.IBV_QPS_ERR)
    queue.qp.modify(attributes, verbs.enums.IBV_QP_STATE)


def test_a_requester_that_is_killed_mid_write_costs_only_itself(
    cluster: Cluster, connect: Callable[..., Requester]
) -> None:
    """It dies with a payload of many packets under way; another's requests go on, and its credits come back."""
    other = connect("bob", slots=1)
    token = str(cluster.folder / "ada.token")
    for _ in range(3):
        code = (
            "import numpy, sys; from offpath.host_helper import Requester, Rdma;"
            f"r = Requester({cluster.address!r}, tenant='ada', token_file={token!r}, slots=2, payload_bytes={LIMIT},"
            " result_bytes=4096, rdma=Rdma(device='rxe1'), timeout_s=120);"
            f"r.begin('sum', [numpy.zeros({LIMIT}, numpy.uint8)]); print('rung', flush=True);"
            "import time; time.sleep(600)"
        )
        victim = subprocess.Popen(["python", "-c", code], stdout=subprocess.PIPE)
        assert victim.stdout is not None
        assert victim.stdout.readline() == b"rung\n"
        victim.kill()
        victim.wait()
        victim.stdout.close()
        assert (other.submit("echo", [noise(100)], timeout=BOUND_S).array == noise(100)).all()


def test_a_killed_daemon_is_come_back_to_and_nothing_runs_twice(tmp_path: Path) -> None:
    tally = tmp_path / "tally"
    made = started(keep={"starts": 0}, helper={"OFFPATH_TEST_TALLY": str(tally)})
    try:
        with made.connect("ada", rdma=RDMA, timeout_s=BOUND_S, slots=4) as requester:
            requester.submit("echo", [noise(8)], timeout=BOUND_S)
            for life in range(2):
                tags = [f"{life}-{number}" for number in range(8)]
                running = [requester.begin("tally", [np.frombuffer(tag.encode(), np.uint8)]) for tag in tags[:4]]
                os.kill(pids_of(made.daemon)[0], signal.SIGKILL)
                running += [requester.begin("tally", [np.frombuffer(tag.encode(), np.uint8)]) for tag in tags[4:]]
                made.daemon.hear()
                for request in running:
                    how_it_ended(request)
                ran = tally.read_text().split() if tally.exists() else []
                for tag, request in zip(tags, running, strict=True):
                    ends_as_its_tally_says(request, ran.count(tag))
                assert (requester.submit("echo", [noise(50)], timeout=BOUND_S).array == noise(50)).all()
        made.close()
    finally:
        made.kill()


def ends_as_its_tally_says(request: Any, runs: int) -> None:
    """No request runs twice; one that completed ran, one that is safe to try again did not."""
    ended = how_it_ended(request)
    assert runs in {Status.COMPLETED: (1,), Status.RETRY_SAFE: (0,), Status.OUTCOME_UNKNOWN: (0, 1)}[ended]


def how_it_ended(request: Any) -> Status:
    try:
        request.result(BOUND_S)
    except RequestFailed as failed:
        return failed.status
    return Status.COMPLETED


def test_who_comes_back_too_soon_is_told_to_wait(cluster: Cluster) -> None:
    way = Way(cluster.address, tenant="ada", token_file=str(cluster.folder / "ada.token"), rdma=RDMA, timeout_s=BOUND_S)
    link = way.open()
    resume = negotiating.Resume(
        session=link.welcome.session, lineage=link.welcome.lineage, token=link.welcome.resume_token, unanswered=[]
    )
    hello = negotiating.Hello(
        tenant="ada", token=cluster.token("ada"), slots=1, payload_bytes=1, result_bytes=1, resume=resume
    )
    negotiations = [Negotiation(connect_to(cluster.address, None, BOUND_S), BOUND_S) for _ in range(3)]
    for each in negotiations:
        each._sock.sendall(frame(control.encode(hello)))
    said = [control.decode(negotiating.TO_REQUESTER, each._next(time.monotonic() + BOUND_S)) for each in negotiations]
    waits = [each.retry_after_ms for each in said if isinstance(each, negotiating.Refused)]
    assert waits
    assert all(0 < wait <= 100 for wait in waits)
    for each in negotiations:
        each.abandon()
    link.session.close()
    link.negotiation.close()


def line_of(cluster: Cluster, tenant: str) -> admin.TenantLine:
    with AdminClient(str(cluster.run_folder)) as client:
        return next(liveness for liveness in all_tenants(client)[1] if liveness.tenant == tenant)


def requests_at(cluster: Cluster) -> int:
    with AdminClient(str(cluster.run_folder)) as client:
        return all_tenants(client)[0].counters["requests"]


def test_a_tenant_that_opens_sessions_without_end_is_slowed_down(
    cluster: Cluster, connect: Callable[..., Requester]
) -> None:
    """Ten a second beyond the four that it may hold; the library waits by itself."""
    waits = []
    for _ in range(60):
        try:
            welcomed(cluster, "cyd")[0].close()
        except NegotiationRefused as refused:
            if refused.code == "sessions_too_soon":
                waits.append(refused.retry_after_ms)
    assert waits
    assert all(0 < wait <= 100 for wait in waits)
    until(lambda: line_of(cluster, "cyd").sessions == 0, BOUND_S)
    assert (connect("cyd", slots=1).submit("echo", [noise(9)], timeout=BOUND_S).array == noise(9)).all()


def test_what_is_answered_before_its_tenant_goes_arrives(cluster: Cluster, connect: Callable[..., Requester]) -> None:
    """The daemon ends the session; its hang-up does not overtake the large answers that it rang before, or those by
    which it says that a queued request is given up."""
    requester = connect("dee", slots=4, payload_bytes=LIMIT, result_bytes=LIMIT)
    sent = noise(LIMIT)
    before = requests_at(cluster)
    running = [requester.begin("echo", [sent]) for _ in range(4)]
    until(lambda: requests_at(cluster) == before + 4, BOUND_S)
    tenants = cluster.config["tenant"]
    cluster.config["tenant"] = [each for each in tenants if each["name"] != "dee"]
    try:
        assert cluster.reload()
        assert {how_it_ended(each) for each in running} <= {Status.COMPLETED, Status.CANCELLED}
    finally:
        cluster.config["tenant"] = tenants
        assert cluster.reload()
