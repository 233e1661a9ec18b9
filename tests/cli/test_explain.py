"""`offpath request explain ID` on six staged situations: it names the cause, and what would lift it."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from offpath.bindings.wire import admin
from offpath.bindings.wire.codes import Reason, Status
from offpath.cli.admin_client import AdminClient
from offpath.host_helper import Options, Requester, RequestFailed

from ..support.cluster import MIB, TIMEOUT, Cluster
from ..support.clusters import Make, seconds
from ..support.command import offpath
from ..support.processes import until

STAY = {"leasing": {"reclaim_after_ms": 60_000, "grow_after_ms": 20}}
"""Nobody's busy lease is taken while the test looks."""


def jobs_of(cluster: Cluster, session: int) -> list[admin.JobLine]:
    with AdminClient(str(cluster.run_folder)) as client:
        return client.query(admin.JobsRequest(session=session), admin.Jobs).jobs


def state_of(cluster: Cluster, requester: Requester, request_id: int) -> str:
    """The state of a request, as an operator sees it; empty while the daemon has not read its doorbell."""
    found = [job for job in jobs_of(cluster, requester.welcome.session) if job.request_id == request_id]
    return found[0].state if found else ""


def explained(cluster: Cluster, requester: Requester, request_id: int) -> dict[str, dict[str, Any]]:
    """The holds by cause, as JSON and as the text a person reads, told by job number and by SESSION/REQUEST."""
    name = f"{requester.welcome.session}/{request_id}"
    done = offpath("request", "explain", name, "--json", "--runtime-dir", str(cluster.run_folder))
    assert done.code == 0, done.err
    document = done.document
    text = offpath("request", "explain", str(document["job"]["job"]), "--runtime-dir", str(cluster.run_folder))
    holds = {hold["cause"]: hold for hold in document["holds"]}
    for cause, hold in holds.items():
        assert f"{cause}: " in text.out
        assert f"unblocked when: {', or '.join(hold['unblocked_by'])}" in text.out
    return holds


def test_a_tenant_clash_names_the_lease_and_the_tenant_that_hold_the_slices(make_cluster: Make) -> None:
    cluster = make_cluster({"ada": {}, "bob": {}}, **STAY)
    cluster.start_helper()
    with cluster.connect("bob") as bob, cluster.connect("ada") as ada:
        running = bob.begin("sleep", seconds(20), options=Options(demand=100))
        until(lambda: state_of(cluster, bob, 1) == "launched")
        waiting = ada.begin("echo", seconds(1))
        until(lambda: state_of(cluster, ada, 1) == "queued")
        hold = explained(cluster, ada, 1)["tenant_clash"]
        ((lease, tenant, profile),) = [(h["lease"], h["tenant"], h["profile"]) for h in hold["holders"]]
        assert (tenant, profile) == ("bob", "7g.40gb")
        assert f"lease {lease} of tenant bob has 7g.40gb at 0" in hold["text"]
        assert hold["unblocked_by"] == ["a lease of some tenant closes", "a helper joins"]
        for pending in (running, waiting):
            pending.cancel()


def test_geometry_says_which_starts_are_blocked_by_which_lease(make_cluster: Make) -> None:
    """Two small leases of the tenant's own leave six slices free, and 42 % nowhere to start."""
    pins = [{"tenant": "ada", "profile": "1g.5gb", "start": start} for start in (0, 4)]
    cluster = make_cluster({"ada": {}}, lease=pins, **STAY)
    cluster.start_helper()
    with cluster.connect("ada") as ada:
        ada.submit("echo", seconds(1), timeout=TIMEOUT)
        waiting = ada.begin("echo", seconds(1), options=Options(demand=42))
        until(lambda: state_of(cluster, ada, 2) == "queued")
        hold = explained(cluster, ada, 2)["geometry"]
        starts = {(each["profile"], each["start"]): each["leases"] for each in hold["starts"]}
        assert starts == {("3g.20gb", 0): [1], ("3g.20gb", 4): [2], ("4g.20gb", 0): [1], ("7g.40gb", 0): [1, 2]}
        assert "a lease of some tenant closes" in hold["unblocked_by"]
        waiting.cancel()


def test_memory_compares_what_the_lanes_take_with_what_the_largest_instance_has(make_cluster: Make) -> None:
    cluster = make_cluster({"ada": {}})
    cluster.start_helper(slice_bytes=MIB)
    with cluster.connect("ada") as ada:
        with pytest.raises(RequestFailed) as failed:
            ada.submit("echo", seconds(1), timeout=TIMEOUT)
        assert (failed.value.status, failed.value.reason) == (Status.REJECTED, Reason.NO_INSTANCE_FITS)
        hold = explained(cluster, ada, 1)["memory"]
        assert f"2 lanes take {16 * MIB} bytes" in hold["text"]
        assert "the configuration changes" in hold["unblocked_by"]


def test_quota_tells_what_the_tenant_holds_and_may_hold(make_cluster: Make) -> None:
    cluster = make_cluster({"ada": {"max_share": 14, "profile": "1g.5gb", "max_jobs": 3}}, **STAY)
    cluster.start_helper()
    with cluster.connect("ada") as ada:
        pending = [ada.begin("sleep", seconds(20)) for _ in range(3)]
        until(lambda: state_of(cluster, ada, 3) == "queued" and state_of(cluster, ada, 1) == "launched")
        until(lambda: state_of(cluster, ada, 2) == "copied")
        holds = explained(cluster, ada, 3)
        assert list(holds) == ["lanes", "quota"]
        assert "its tenant holds 14 % and may hold 14 %" in holds["quota"]["text"]
        assert "a job of the tenant ends" in holds["quota"]["unblocked_by"]
        assert list(explained(cluster, ada, 2)) == ["share"]
        with pytest.raises(RequestFailed) as failed:
            ada.submit("echo", seconds(1), timeout=TIMEOUT)
        assert failed.value.reason is Reason.TENANT_QUEUE_FULL
        assert "3 jobs unanswered" in explained(cluster, ada, 4)["quota"]["text"]
        for each in pending:
            each.cancel()


def test_a_deadline_is_a_cause_before_it_passes_and_after(make_cluster: Make) -> None:
    cluster = make_cluster({"ada": {"max_share": 14, "profile": "1g.5gb"}}, **STAY)
    cluster.start_helper()
    with cluster.connect("ada") as ada:
        pending = [ada.begin("sleep", seconds(20)) for _ in range(2)]
        until(lambda: state_of(cluster, ada, 1) == "launched")
        waiting = ada.begin("echo", seconds(1), options=Options(budget_ms=60_000))
        until(lambda: state_of(cluster, ada, 3) == "queued")
        assert "it ends EXPIRED" in explained(cluster, ada, 3)["deadline"]["text"]
        with pytest.raises(RequestFailed) as failed:
            ada.submit("echo", seconds(1), timeout=TIMEOUT, options=Options(budget_ms=30))
        assert failed.value.status is Status.EXPIRED
        hold = explained(cluster, ada, 4)["deadline"]
        assert hold["text"] == "its budget of 30 ms passed while it was queued"
        assert hold["unblocked_by"] == ["the requester submits it again", "the requester asks for something else"]
        for each in (*pending, waiting):
            each.cancel()


def test_a_lost_helper_is_named_for_those_that_wait_and_for_those_that_ran(make_cluster: Make) -> None:
    cluster = make_cluster({"ada": {"max_share": 14, "profile": "1g.5gb"}})
    helper = cluster.start_helper()
    with cluster.connect("ada") as ada:
        running = ada.begin("sleep", seconds(20))
        until(lambda: state_of(cluster, ada, 1) == "launched")
        waiting = ada.begin("echo", seconds(1))
        helper.signal(signal.SIGKILL)
        with pytest.raises(RequestFailed):
            running.result(TIMEOUT)
        helper.kill()
        until(lambda: state_of(cluster, ada, 2) == "queued")
        assert explained(cluster, ada, 2)["helper"]["unblocked_by"] == ["a helper joins"]
        ended = explained(cluster, ada, 1)["helper"]
        assert "while it may have run" in ended["text"]
        assert "the requester submits it again" in ended["unblocked_by"]
        waiting.cancel()
