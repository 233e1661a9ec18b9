"""Limits with real processes: endless kernels, helpers that stand still, leases that never open, workers stillborn."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from offpath.bindings.errors import PeerGone
from offpath.bindings.wire import admin, control
from offpath.bindings.wire.codes import Reason, Status
from offpath.cli.admin_client import AdminClient
from offpath.dpu_daemon.config import tables
from offpath.host_helper import Options, Requester, RequestFailed
from offpath.host_helper.pending import Pending

from ..support.cluster import TIMEOUT, Cluster
from ..support.clusters import NARROW, Make, first_pid, path_array, seconds
from ..support.fakehost import FakeHost
from ..support.processes import until

TRIES = 5
LINGER_S = 0.2
LINGER = {f"{tables.__name__}.LINGER_MS": int(LINGER_S * 1e3)}


TRIES_AT_BIRTH = 7


def oldest_ms(client: AdminClient) -> float:
    """The age of the oldest job, on the daemon's clock."""
    return max((job.age_ms for job in client.query(admin.JobsRequest(), admin.Jobs).jobs), default=0.0)


def reason_of(pending: Pending) -> Reason:
    """How it ended; NONE: it completed."""
    try:
        pending.result(TIMEOUT)
    except RequestFailed as failed:
        return Reason(failed.reason)
    return Reason.NONE


def expired_on_its_worker(cluster: Cluster, ada: Requester, kernel: str) -> tuple[int, Path]:
    """The worker of a request that expired there, and the file of its kernel. One that expired before a worker had it,
    because the machine was slow, says nothing: another is sent."""
    for attempt in range(TRIES):
        path = cluster.folder / f"expired-{attempt}"
        ada.submit("echo", seconds(1), timeout=TIMEOUT)
        with pytest.raises(RequestFailed) as failed:
            ada.submit(kernel, path_array(path), options=Options(budget_ms=300), timeout=TIMEOUT)
        assert failed.value.status is Status.EXPIRED
        if path.exists():
            return first_pid(path), path
    raise AssertionError(f"no worker had a request within its time, {TRIES} times")


def test_an_endless_kernel_fails_its_worker_dies_and_the_lane_beside_it_finishes(make_cluster: Make) -> None:
    """The kernel beside it ends when the worker is seen to be dead, so that its lease was not free before. It began
    later, so it has that much of its own limit left; where the machine let even that pass, the try says nothing."""
    cluster = make_cluster({"ada": {"max_share": 42, "profile": "3g.20gb"}}, limits={"kernel_ms": 1000})
    cluster.start_helper()
    with cluster.connect("ada") as ada, AdminClient(str(cluster.run_folder)) as admin_client:
        for attempt in range(1, TRIES + 1):
            paths = [cluster.folder / f"{name}-{attempt}" for name in ("endless", "beside")]
            endless = ada.begin("mark", path_array(paths[0]))
            pid = first_pid(paths[0])
            until(lambda: oldest_ms(admin_client) >= 500)
            beside = ada.begin("held", path_array(paths[1]))
            neighbour = first_pid(paths[1])
            with pytest.raises(RequestFailed) as failed:
                endless.result(TIMEOUT)
            assert (failed.value.status, failed.value.reason) == (Status.FAILED, Reason.KERNEL_OVERRAN)
            until(lambda pid=pid: not os.path.exists(f"/proc/{pid}"))
            paths[1].unlink()
            if (ended := reason_of(beside)) is Reason.NONE:
                assert beside.result(TIMEOUT).array.item() == neighbour
                break
            assert ended is Reason.KERNEL_OVERRAN
        else:
            raise AssertionError(f"the worker died only when the lane beside it had ended, {TRIES} times")
        assert ada.submit("echo", seconds(2), timeout=TIMEOUT).array == 2
    assert cluster.statistics()["workers_killed"] == 2 * attempt - 1


def test_a_kernel_that_runs_on_after_its_request_expired_is_killed(make_cluster: Make) -> None:
    assert tables.LINGER_MS == 2000
    cluster = make_cluster({"ada": NARROW}, limits={"on_expiry": "kill"}, shortened=LINGER)
    cluster.start_helper()
    with cluster.connect("ada") as ada:
        pid, _ = expired_on_its_worker(cluster, ada, "mark")
        until(lambda: not os.path.exists(f"/proc/{pid}"))
        assert ada.submit("echo", seconds(2), timeout=TIMEOUT).array == 2
    statistics = cluster.statistics()
    assert (statistics["expired_running"], statistics["workers_killed"]) == (1, 1)


def test_a_kernel_whose_request_expired_may_finish_where_that_is_configured(make_cluster: Make) -> None:
    """It runs for four times as long as `kill` would let it, on the only lane; the next request has the same worker."""
    cluster = make_cluster({"ada": NARROW}, limits={"on_expiry": "finish"}, leasing={"lanes": 1}, shortened=LINGER)
    cluster.start_helper()
    with cluster.connect("ada") as ada:
        _, path = expired_on_its_worker(cluster, ada, "held")
        time.sleep(4 * LINGER_S)
        path.unlink()
        assert ada.submit("echo", seconds(2), timeout=TIMEOUT).array == 2
    statistics = cluster.statistics()
    assert statistics["expired_running"] == 1
    assert "workers_killed" not in statistics
    assert statistics["leases_opened"] == 1, "no worker was lost, and no lease"


def test_a_reload_decides_for_the_kernel_that_runs(make_cluster: Make) -> None:
    cluster = make_cluster({"ada": NARROW}, limits={"on_expiry": "finish"}, shortened=LINGER)
    cluster.start_helper()
    with cluster.connect("ada") as ada:
        pid, _ = expired_on_its_worker(cluster, ada, "mark")
        cluster.config["limits"] = {"on_expiry": "kill"}
        assert cluster.reload()
        until(lambda: not os.path.exists(f"/proc/{pid}"))
    assert cluster.statistics()["workers_killed"] == 1


def test_a_helper_that_stands_still_is_lost_and_serves_again_when_it_moves(make_cluster: Make) -> None:
    cluster = make_cluster({"ada": NARROW}, limits={"helper_ms": 500}, leasing={"keep_warm_ms": 60_000})
    helper = cluster.start_helper()
    with cluster.connect("ada") as ada:
        ada.submit("echo", seconds(1), timeout=TIMEOUT)
        with helper.stopped():
            until(lambda: "silent for" in cluster.daemon.errors)
            pending = ada.begin("echo", seconds(2))
        assert pending.result(TIMEOUT).array == 2
    assert "lost: silent for" in cluster.daemon.errors


def test_a_helper_that_answers_no_ping_is_hung_up_on_though_it_reads_everything(make_cluster: Make) -> None:
    cluster = make_cluster({"ada": {}}, limits={"helper_ms": 200})
    with FakeHost(cluster) as fake:
        fake.join()
        pings = []
        while (received := heard(fake)) is not None:
            pings.append(control.decode(control.DAEMON_TO_HOST, received))
        assert [type(ping) for ping in pings] == [control.Ping], "one at a time, and no other until it is answered"


def heard(fake: FakeHost) -> bytes | None:
    """The next raw message; None: the daemon hung up."""
    end = time.monotonic() + TIMEOUT
    while time.monotonic() < end:
        try:
            received = fake.channel.receive()
        except PeerGone:
            return None
        if received is not None:
            return received[0]
        time.sleep(0.001)
    raise AssertionError("the daemon neither spoke nor hung up")


def test_a_helper_at_work_on_an_instance_may_be_silent_for_as_long_as_a_scrub(make_cluster: Make) -> None:
    cluster = make_cluster({"ada": {}}, limits={"helper_ms": 150, "scrub_ms": 900, "open_ms": 600_000})
    started = time.monotonic()
    with FakeHost(cluster) as fake, cluster.connect("ada", slots=1) as ada:
        fake.join()
        ada._link.negotiation.update(1.0)
        ada.begin("echo", seconds(1))
        kinds = []
        while not any(isinstance(kind, control.OpenInstance) for kind in kinds):
            kinds.append(fake.hear())
        while heard(fake) is not None:  # it fails at its bound if the limit is open_ms
            pass
        assert time.monotonic() - started >= 0.9


def test_a_lease_that_never_opens_is_closed_and_tried_again(make_cluster: Make) -> None:
    cluster = make_cluster({"ada": {}}, limits={"open_ms": 300})
    with FakeHost(cluster) as fake, cluster.connect("ada", slots=1) as ada:
        fake.join()
        ada._link.negotiation.update(1.0)
        ada.begin("echo", seconds(1))
        order = fake.hear()
        assert isinstance(order, control.OpenInstance)
        fake.lane(order, 0)
        closed = fake.hear()
        assert closed == control.CloseInstance(lease=order.lease, generation=order.generation, scrub=True)
        fake.send(control.InstanceClosed(lease=order.lease, generation=order.generation, scrubbed_bytes=0))
        again, _ = fake.open_lanes()
        assert again.generation > order.generation


def test_a_worker_that_never_scrubs_leaves_it_to_the_helper(make_cluster: Make) -> None:
    cluster = make_cluster({"ada": {}}, limits={"scrub_ms": 300}, leasing={"lanes": 1, "keep_warm_ms": 0})
    cluster.config["lease"] = [{"tenant": "ada", "helper": "fake", "profile": "1g.5gb", "start": 0}]
    assert cluster.reload()
    with FakeHost(cluster) as fake:
        fake.join()
        order, (lane,) = fake.open_lanes()
        del cluster.config["lease"]
        assert cluster.reload()
        assert isinstance(fake.hear(lane), control.ScrubLane)
        closed = fake.hear()
        assert closed == control.CloseInstance(lease=order.lease, generation=order.generation, scrub=True)


def test_workers_that_die_at_birth_are_forked_ever_more_rarely(make_cluster: Make) -> None:
    """The pauses after the first tries: 1, 2, 4 times the shortened one, and so on."""
    assert tables.RETRY_OPEN_MS == 1000
    cluster = make_cluster(
        {"ada": NARROW, "bob": NARROW}, leasing={"lanes": 1}, shortened={f"{tables.__name__}.RETRY_OPEN_MS": 20}
    )
    cluster.start_helper(stillborn="ada")
    with cluster.connect("ada") as ada, cluster.connect("bob") as bob:
        began_s = time.monotonic()
        ada.begin("echo", seconds(1))
        until(lambda: forked(cluster) >= 3)
        assert bob.submit("echo", seconds(2), timeout=TIMEOUT).array == 2
        until(lambda: forked(cluster) >= TRIES_AT_BIRTH)
    assert time.monotonic() - began_s >= 0.02 * (2 ** (TRIES_AT_BIRTH - 1) - 1)


def forked(cluster: Cluster) -> int:
    """How often a lease was opened for ada."""
    return cluster.daemon.errors.count(": ada gets")


def test_the_supervisor_reaps_a_worker_that_it_killed(make_cluster: Make) -> None:
    cluster = make_cluster({"ada": NARROW}, limits={"kernel_ms": 200})
    helper = cluster.start_helper()
    path = cluster.folder / "killed"
    with cluster.connect("ada") as ada:
        pending = ada.begin("mark", path_array(path))
        pid = first_pid(path)
        until(lambda: pending.done or ada.poll(0.05) or pending.done)
        until(lambda: not os.path.exists(f"/proc/{pid}"))
        assert ada.submit("echo", seconds(2), timeout=TIMEOUT).array == 2
    assert "on the daemon's order" in helper.errors
    helper.signal(signal.SIGTERM)
    assert helper.ended() == 0
