"""The daemon's RDMA port: from another network namespace, through its failures, and what thousands of sessions leave.

Marked rdma: ./scripts/rxe-vm -- ./scripts/test -m rdma
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from offpath.bindings.errors import NegotiationRefused
from offpath.bindings.wire import negotiating
from offpath.cli.admin_client import AdminClient, all_tenants
from offpath.dpu_daemon.ingress.verbs_acceptor import HOLD_S
from offpath.host_helper import Rdma, Requester
from offpath.host_helper.negotiate import Negotiation, connect_to

from ..sizes import SIZE
from ..support.certificates import Authority
from ..support.cluster import Cluster
from ..support.processes import until

pytestmark = pytest.mark.rdma
BOUND_S = 120.0  # emulated, on a machine that may be busy
HERE = "10.98.0.1"  # as the namespace `peer` reaches us
LOOKS = 10
CYCLES = 1000 if SIZE == "full" else 25
RDMA = Rdma(device="rxe1")


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("keys"))


@pytest.fixture(scope="module")
def cluster(authority: Authority) -> Iterator[Cluster]:
    certificate, key = authority.issue("offpathd", "DNS:offpathd", is_server=True)
    tls = {"listen": f"{HERE}:7443", "ca_file": authority.ca_file, "cert_file": certificate, "key_file": key}
    made = Cluster(
        {"ada": {}, "bob": {}}, datapath={"fabric": "verbs"}, rdma={"device": "rxe0"}, tls=tls,
        limits={"helper_ms": 60_000},
    )  # fmt: skip
    try:
        made.start_helper(emulate=["A100-40GB"])
        yield made
        made.close()
    finally:
        made.kill()


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


# -- from elsewhere ---------------------------------------------------------------------------------------------------
REMOTE = """
import json, sys, numpy
from offpath.host_helper import Rdma, Requester, Tls
address, tls = sys.argv[1], Tls(**json.loads(sys.argv[2]))
sizes = {"payload_bytes": 1 << 20, "result_bytes": 1 << 20}
with Requester(address, tls=tls, rdma=Rdma(device="rxe1"), timeout_s=120, **sizes) as requester:
    sent = numpy.arange(200_000, dtype=numpy.uint8)
    print(requester.welcome.tenant, (requester.submit("echo", [sent], timeout=120).array == sent).all())
"""


def test_a_requester_in_another_namespace_comes_by_tls_and_verbs(cluster: Cluster, authority: Authority) -> None:
    """It reaches nothing of ours but the negotiation's port, and the wire between the two devices."""
    certificate, key = authority.issue("bob", "offpath://tenant/bob")
    tls = json.dumps({"ca_file": authority.ca_file, "cert_file": certificate, "key_file": key})
    done = subprocess.run(
        ["ip", "netns", "exec", "peer", sys.executable, "-c", REMOTE, f"tls:{HERE}:7443", tls],
        capture_output=True, text=True, check=False, timeout=BOUND_S,
    )  # fmt: skip
    assert (done.stdout, done.returncode) == ("bob True\n", 0), done.stderr


# -- failures ---------------------------------------------------------------------------------------------------------
def test_a_failed_port_takes_nobody_and_is_trusted_again_when_it_has_held(cluster: Cluster) -> None:
    codes: set[tuple[str, int]] = set()

    def refusal() -> str:
        """Of a hello; the requester's own port has no wire meanwhile."""
        negotiation = Negotiation(connect_to(cluster.address, None, BOUND_S), BOUND_S)
        hello = negotiating.Hello(tenant="ada", token=cluster.token("ada"), slots=1, payload_bytes=1, result_bytes=1)
        try:
            negotiation.hello(hello)
        except NegotiationRefused as refused:
            codes.add((refused.code, refused.retry_after_ms))
            return refused.detail
        finally:
            negotiation.close()
        return ""

    ip("link", "set", "rdma0", "down")
    try:
        assert until(refusal, BOUND_S)
    finally:
        came_back = time.monotonic()  # at the earliest; on a busy machine we hear of it late
        ip("link", "set", "rdma0", "up")
    until(lambda: not refusal(), BOUND_S)
    assert time.monotonic() - came_back >= HOLD_S
    assert codes == {("fabric_down", 1000)}
    assert "RDMA device rxe0: PORT_ERR" in cluster.daemon.errors
    assert "RDMA device rxe0: PORT_ACTIVE" in cluster.daemon.errors


# -- what is left -----------------------------------------------------------------------------------------------------
def held(pid: int) -> Counter[str]:
    """What the kernel keeps for the process: queue pairs, completion queues, regions, domains; and its descriptors."""
    found = Counter({"fd": len(os.listdir(f"/proc/{pid}/fd"))})
    for kind in ("qp", "cq", "mr", "pd"):
        shown = subprocess.run(["rdma", "resource", "show", kind], capture_output=True, text=True, check=True).stdout
        found[kind] = sum(f" pid {pid} " in line for line in shown.splitlines())
    return found


def at_rest(cluster: Cluster, *pids: int) -> list[Counter[str]]:
    """What the processes hold when no session is left and nothing closes any more: the same in ten looks in a row.

    Only then is the count exact afterwards: one taken while a session closes can never come again.
    """

    def has_no_session() -> bool:
        with AdminClient(str(cluster.run_folder)) as client:
            return all(line.sessions == 0 for line in all_tenants(client)[1])

    until(has_no_session, BOUND_S)
    looks: list[list[Counter[str]]] = []

    def is_steady() -> bool:
        looks.append([held(pid) for pid in pids])
        return len(looks) >= LOOKS and all(look == looks[-1] for look in looks[-LOOKS:])

    until(is_steady, BOUND_S)
    return looks[-1]


def test_sessions_that_come_and_go_leave_nothing(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    """At the daemon, and here."""
    daemon, ours = cluster.daemon.pid, os.getpid()

    def cycle(number: int) -> None:
        sent = np.full(64, number % 256, np.uint8)
        with cluster.connect("ada", rdma=RDMA, timeout_s=BOUND_S, slots=2, payload_bytes=4096) as requester:
            assert (requester.submit("echo", [sent], timeout=BOUND_S).array == sent).all()

    for number in range(3):
        cycle(number)
    before = at_rest(cluster, daemon, ours)
    begun = time.monotonic()
    for number in range(CYCLES):
        cycle(number)
    took_s = time.monotonic() - begun
    until(lambda: [held(daemon), held(ours)] == before, BOUND_S)
    with capsys.disabled():
        print(f"\n{CYCLES} cycles in {took_s:.1f} s; held before and after: daemon {before[0]}, we {before[1]}")


def test_requesters_that_vanish_leave_nothing(cluster: Cluster, tmp_path: Path) -> None:
    """Their negotiation breaks without a goodbye, with a request under way; `resume_ttl_s` is 0 here."""
    (before,) = at_rest(cluster, cluster.daemon.pid)
    for _ in range(5):
        requester: Requester = cluster.connect("ada", rdma=RDMA, timeout_s=BOUND_S, slots=2)
        requester.begin("sleep", [np.array([0.3])])
        requester._link.negotiation.abandon()
        requester._link.session.close()
    until(lambda: held(cluster.daemon.pid) == before, BOUND_S)
