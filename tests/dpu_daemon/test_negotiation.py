"""Who is let in, with how much, and what is given back: both carriers, tickets, quotas, time-outs."""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from offpath.bindings.errors import NegotiationRefused, PeerGone
from offpath.bindings.memory.slots import slot_stride
from offpath.bindings.wire import control, negotiating
from offpath.host_helper import Requester, Tls, connect
from offpath.host_helper.errors import UnknownKernel

from ..support.certificates import Authority
from ..support.cluster import MIB, TIMEOUT, Cluster, free_port
from ..support.clusters import Make
from ..support.fakehost import FakeHost
from ..support.peers import Peer, RawSession, hello, redeem, refusal
from ..support.processes import until

HUGE = 1 << 40


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


def tls_table(authority: Authority) -> dict[str, Any]:
    """Of the configuration, with a port of its own."""
    cert_file, key_file = authority.issue("offpathd", is_server=True)
    return {
        "listen": f"127.0.0.1:{free_port()}", "ca_file": authority.ca_file, "cert_file": cert_file, "key_file": key_file
    }  # fmt: skip


@pytest.fixture(scope="module")
def cluster(authority: Authority) -> Iterator[Cluster]:
    """No helper: nobody has to run anything to be let in."""
    tenants: dict[str, dict[str, Any]] = {
        "ada": {},
        "bob": {"uids": [os.getuid() + 1]},
        "few": {"max_sessions": 2},
        "slim": {"max_slots": 3},
        "poor": {"max_bytes": 17 * slot_stride(8192) - 1},
    }
    made = Cluster(tenants, tls=tls_table(authority))
    try:
        yield made
        made.close()
    finally:
        made.kill()


# -- Unix carrier --------------------------------------------------------------------------------------------------
def test_a_tenant_is_let_in_by_its_token(cluster: Cluster) -> None:
    with cluster.connect("ada", slots=3, payload_bytes=1000, result_bytes=2000) as requester:
        welcome = requester.welcome
        assert (welcome.tenant, welcome.slots, welcome.payload_bytes, welcome.result_bytes) == ("ada", 3, 1000, 2000)
        assert welcome.lineage == cluster.lineage
        assert len({welcome.ticket, welcome.resume_token}) == 2


@pytest.mark.parametrize(
    "claim",
    [
        {"tenant": "ada", "token": "y" * 28},
        {"tenant": "ada", "token": Cluster.token("bob")},
        {"tenant": "ada", "token": None},
        {"tenant": "nobody", "token": "y" * 28},
        {"tenant": "nobody", "token": Cluster.token("ada")},
        {"tenant": None, "token": Cluster.token("ada")},
        {"tenant": "bob", "token": Cluster.token("bob")},
    ],
    ids=["wrong token", "another's token", "no token", "unknown", "unknown, right token", "no name", "wrong uid"],
)
def test_who_is_not_let_in_learns_nothing(cluster: Cluster, claim: dict[str, Any]) -> None:
    """A wrong token, a name that does not exist and a uid that is not listed: one and the same answer."""
    refused = refusal(cluster, "ada", **claim)
    assert (refused.code, refused.detail, refused.retry_after_ms) == ("denied", "no tenant for these credentials", 0)


def test_a_token_file_that_others_may_read_is_not_used(cluster: Cluster, tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text(Cluster.token("ada"))
    path.chmod(0o644)
    with pytest.raises(ValueError, match="may be read by others"):
        connect(cluster.address, tenant="ada", token_file=str(path))


def test_the_sockets_are_for_the_daemons_user_unless_a_tenant_has_another(cluster: Cluster, make_cluster: Make) -> None:
    own = make_cluster({"ada": {}})
    for name, mode in (("negotiate.sock", 0o600), ("fabric.sock", 0o600), ("host.sock", 0o600)):
        assert os.stat(own.run_folder / name).st_mode & 0o777 == mode
    for name, mode in (("negotiate.sock", 0o666), ("fabric.sock", 0o666), ("host.sock", 0o600)):
        assert os.stat(cluster.run_folder / name).st_mode & 0o777 == mode
    assert os.stat(own.run_folder).st_mode & 0o777 == 0o700


# -- TLS carrier ---------------------------------------------------------------------------------------------------
def tls_address(cluster: Cluster) -> tuple[str, int]:
    host, _, port = cluster.config["tls"]["listen"].partition(":")
    return host, int(port)


def connect_tls(cluster: Cluster, tls: Tls, **options: Any) -> Requester:
    sizes = {"slots": 2, "payload_bytes": 8192, "result_bytes": 8192}
    return connect("tls:{}:{}".format(*tls_address(cluster)), tls=tls, **{**sizes, **options})


def test_a_tenant_is_let_in_by_its_certificate(cluster: Cluster, authority: Authority) -> None:
    tls = authority.client("client-a", "offpath://tenant/ada")
    for claimed in (None, "ada"):
        with connect_tls(cluster, tls, tenant=claimed) as requester:
            assert requester.welcome.tenant == "ada"


def test_names_of_other_kinds_beside_the_tenants_do_no_harm(cluster: Cluster, authority: Authority) -> None:
    tls = authority.client("client-b", "spiffe://cluster/ada", "offpath://tenant/ada", "https://example.org/bob")
    with connect_tls(cluster, tls) as requester:
        assert requester.welcome.tenant == "ada"


@pytest.mark.parametrize(
    ("uris", "options"),
    [
        (["offpath://tenant/ada"], {"tenant": "few"}),
        (["offpath://tenant/nobody"], {}),
        (["offpath://tenant/ada", "offpath://tenant/few"], {}),
        (["offpath://tenant/ada", "offpath://tenant/ada"], {}),
        ([], {}),
        (["offpath://tenant/"], {}),
        (["offpath://operator/ada"], {}),
    ],
    ids=["claims another", "unknown", "two tenants", "one twice", "no name", "empty name", "another kind"],
)
def test_a_certificate_that_names_no_single_tenant_is_denied(
    cluster: Cluster, authority: Authority, uris: list[str], options: dict[str, Any]
) -> None:
    tls = authority.client("client-c", *uris)
    with pytest.raises(NegotiationRefused, match="denied: no tenant for these credentials"):
        connect_tls(cluster, tls, **options)


def test_a_token_does_not_help_over_tls(cluster: Cluster, authority: Authority) -> None:
    tls = authority.client("client-d", "offpath://tenant/few")
    token_file = str(cluster.folder / "ada.token")
    with pytest.raises(NegotiationRefused, match="denied"):
        connect_tls(cluster, tls, tenant="ada", token_file=token_file)


def test_a_certificate_of_another_authority_is_not_taken(
    cluster: Cluster, authority: Authority, tmp_path: Path
) -> None:
    other = Authority(tmp_path, "other")
    cert_file, key_file = other.issue("client", "offpath://tenant/ada")
    with pytest.raises(PeerGone):
        connect_tls(cluster, Tls(authority.ca_file, cert_file, key_file))
    with pytest.raises(PeerGone, match="certificate verify failed"):
        connect_tls(cluster, Tls(other.ca_file, *authority.issue("client-e", "offpath://tenant/ada")))


def test_a_daemon_of_another_name_is_not_taken(cluster: Cluster, authority: Authority) -> None:
    tls = authority.client("client-f", "offpath://tenant/ada")
    with pytest.raises(PeerGone, match="Hostname mismatch"):
        connect_tls(cluster, Tls(tls.ca_file, tls.cert_file, tls.key_file, server_name="somebody"))


def wrapped(cluster: Cluster, context: ssl.SSLContext) -> ssl.SSLSocket:
    context.check_hostname = False
    plain = socket.create_connection(tls_address(cluster), TIMEOUT)
    try:
        return context.wrap_socket(plain)
    except BaseException:
        plain.close()
        raise


def test_a_client_without_a_certificate_hears_nothing(cluster: Cluster, authority: Authority) -> None:
    context = ssl.create_default_context(cafile=authority.ca_file)
    with wrapped(cluster, context) as sock:
        Peer(sock).send_message(**hello("ada"))
        heard = b""
        with contextlib.suppress(ssl.SSLError, ConnectionError):  # an alert, if it comes before the hang-up
            heard = sock.recv(8)
        assert heard == b""


def test_a_client_of_tls_1_2_is_turned_away(cluster: Cluster, authority: Authority) -> None:
    context = ssl.create_default_context(cafile=authority.ca_file)
    context.load_cert_chain(*authority.issue("client-g", "offpath://tenant/ada"))
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises(ssl.SSLError):
        wrapped(cluster, context).close()


def test_plain_bytes_on_the_tls_port_are_turned_away(cluster: Cluster) -> None:
    with Peer(socket.create_connection(tls_address(cluster), TIMEOUT)) as peer:
        peer.send_message(**hello("ada"))
        received = peer.sock.recv(4096)
        assert received == b"" or received[0] == 0x15, "an alert, or nothing"


# -- quotas --------------------------------------------------------------------------------------------------------
def test_sessions_above_the_quota_are_refused_until_one_ends(cluster: Cluster) -> None:
    for _ in range(3):
        one, two = cluster.connect("few"), cluster.connect("few")
        with pytest.raises(NegotiationRefused, match="sessions: at most 2 sessions") as refused:
            cluster.connect("few")
        assert refused.value.retry_after_ms > 0
        one.close()
        until(lambda: admits(cluster, "few"))
        two.close()


def admits(cluster: Cluster, tenant: str, **changes: Any) -> bool:
    with Peer(cluster.address) as peer:
        peer.send_message(**hello(tenant, **changes))
        return isinstance(peer.hear(), negotiating.Welcome)


def test_slots_above_the_quota_are_not_given(cluster: Cluster) -> None:
    with cluster.connect("slim", slots=1000) as requester:
        assert requester.welcome.slots == requester._link.session.slot_count == 3


@pytest.mark.parametrize(
    ("tenant", "changes", "code", "can_wait"),
    [
        ("ada", {"payload_bytes": 4 * MIB + 1}, "payload_bytes", False),
        ("ada", {"payload_bytes": 1 << 62}, "payload_bytes", False),
        ("ada", {"result_bytes": 4 * MIB + 1}, "result_bytes", False),
        ("poor", {"slots": 100}, "memory", True),
        ("poor", {"slots": 1, "payload_bytes": 250_000}, "memory", True),
    ],
    ids=["payload", "huge payload", "result", "many slots", "large slot"],
)
def test_too_much_is_refused_with_a_typed_code_before_anything_is_made(
    cluster: Cluster, tenant: str, changes: dict[str, int], code: str, can_wait: bool
) -> None:
    before = cluster.daemon.open_fds()  # with what the test before left behind and is not closed yet
    refused = refusal(cluster, tenant, **changes)
    assert (refused.code, refused.retry_after_ms > 0) == (code, can_wait)
    until(lambda: cluster.daemon.open_fds() <= before)
    assert "MemoryError" not in cluster.daemon.errors


@pytest.mark.parametrize("changes", [{"slots": 0}, {"slots": 1025}, {"slots": -1}, {"payload_bytes": -1}], ids=str)
def test_sizes_outside_the_protocol_are_no_hello(cluster: Cluster, changes: dict[str, int]) -> None:
    assert refusal(cluster, "ada", **changes).code == "model"


def test_memory_is_given_back_however_the_session_ends(cluster: Cluster) -> None:
    """The tenant's memory holds eight slots of 8 KiB each way, and not a ninth."""
    share = {"slots": 4}
    for how in ("goodbye", "hang-up", "redeemed", "redeemed and closed"):
        before = cluster.daemon.open_fds()
        if how.startswith("redeemed"):
            session = RawSession(cluster, "poor", **share)
            assert refusal(cluster, "poor", slots=5).code == "memory"
            if how == "redeemed":
                session.peer.send_message(kind="goodbye")
                assert session.end() == ""
            session.close()
        else:
            with Peer(cluster.address) as peer:
                peer.send_message(**hello("poor", **share))
                assert isinstance(peer.hear(), negotiating.Welcome)
                assert refusal(cluster, "poor", slots=5).code == "memory"
                if how == "goodbye":
                    peer.send_message(kind="goodbye")
                    assert peer.hear() is None
        until(lambda: admits(cluster, "poor", slots=8))
        until(lambda before=before: cluster.daemon.open_fds() <= before)


# -- tickets -------------------------------------------------------------------------------------------------------
def test_a_ticket_is_good_once(cluster: Cluster) -> None:
    with RawSession(cluster, "ada") as session:
        assert redeem(session.welcome.fabric.address, session.welcome.ticket.encode()) is None
        assert session.ring(0x01000000)
        assert session.peer.sock.fileno() >= 0


def test_a_ticket_of_a_session_that_ended_is_worth_nothing(cluster: Cluster) -> None:
    with Peer(cluster.address) as peer:
        peer.send_message(**hello("ada"))
        welcome = peer.hear()
        peer.send_message(kind="goodbye")
        assert peer.hear() is None
    assert redeem(welcome.fabric.address, welcome.ticket.encode()) is None


# -- news ----------------------------------------------------------------------------------------------------------
def test_a_session_learns_of_kernels_when_a_helper_joins_after_it(make_cluster: Make) -> None:
    cluster = make_cluster({"ada": {}})
    with cluster.connect("ada") as requester:
        assert requester.welcome.kernels == []
        helper = cluster.start_helper(without=["sum"])
        assert requester.submit("echo", [np.ones(3)], timeout=TIMEOUT).array.sum() == 3
        with pytest.raises(UnknownKernel):
            requester.submit("sum", [np.ones(3)], timeout=TIMEOUT)
        helper.finish()
        cluster.start_helper(without=["nothing"])
        cluster.helper.finish()
        cluster.start_helper()
        assert requester.submit("sum", [np.ones(3)], timeout=TIMEOUT).array == 3


def test_a_session_that_reads_no_news_is_kept_and_hears_the_newest(make_cluster: Make, authority: Authority) -> None:
    """A requester whose kernels are known reads doorbells only, for months perhaps, and helpers come and go."""
    cluster = make_cluster({"ada": {}}, tls=tls_table(authority))
    names = ["echo", *(f"{'k' * 55}-{n}" for n in range(31))]
    kernels = [control.KernelOffer(name=name, demand=14) for name in names]
    tls = authority.client("client-a", "offpath://tenant/ada")
    with cluster.connect("ada") as near, connect_tls(cluster, tls) as far, cluster.connect("ada") as watcher:
        for _ in range(160):
            with FakeHost(cluster) as fake:
                fake.join(kernels=kernels)
            watcher.is_emulated("echo")
        news = watcher._link.negotiation
        assert news.kernels.keys() == set(names)
        assert sum(map(len, names)) * news.lists > 1 << 19, "more than a socket and the bound hold"
        cluster.start_helper()
        for requester in (near, far):
            assert requester.submit("echo", [np.ones(3)], timeout=TIMEOUT).array.sum() == 3
            until(lambda requester=requester: requester.is_emulated("sum"))


def test_a_kernel_keeps_its_number_when_the_helper_comes_back(make_cluster: Make) -> None:
    cluster = make_cluster({"ada": {}})
    cluster.start_helper(without=["echo"]).finish()
    cluster.start_helper()
    with cluster.connect("ada") as requester:
        numbers = {kernel.name: kernel.kernel_id for kernel in requester.welcome.kernels}
        assert max(numbers.values()) == numbers["echo"] == len(numbers)


def test_the_peers_hear_that_the_daemon_ends(make_cluster: Make) -> None:
    cluster = make_cluster({"ada": {}})
    session = RawSession(cluster, "ada")
    with Peer(cluster.address) as peer:
        peer.send_message(**hello("ada"))
        assert isinstance(peer.hear(), negotiating.Welcome)
        cluster.statistics()
        assert (peer.hear_the_end(), session.end()) == ("daemon_ends", "daemon_ends")
    assert sorted(os.listdir(cluster.run_folder)) == []
