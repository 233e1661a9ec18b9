"""Limits with real processes: endless kernels, helpers that stand still, leases that never open, workers stillborn."""

from __future__ import annotations

import os
import signal
import time

import pytest

from offpath.bindings.errors import PeerGone
from offpath.bindings.wire import control
from offpath.bindings.wire.codes import Reason, Status
from offpath.host_helper import Options, RequestFailed

from ..support.cluster import TIMEOUT
from ..support.clusters import NARROW, Make, first_pid, path_array, seconds
from ..support.fakehost import FakeHost
from ..support.processes import until

pytestmark = pytest.mark.slow


def test_an_endless_kernel_fails_its_worker_dies_and_the_lane_beside_it_finishes(make_cluster: Make) -> None:
    cluster = make_cluster({"ada": {"max_share": 42, "profile": "3g.20gb"}}, limits={"kernel_ms": 1000})
    cluster.start_helper()
    path = cluster.folder / "endless"
    with cluster.connect("ada") as ada:
        endless = ada.begin("mark", path_array(path))
        pid = first_pid(path)
        time.sleep(0.4)
        beside = ada.begin("sleep", seconds(0.8))
        with pytest.raises(RequestFailed) as failed:
            endless.result(TIMEOUT)
        assert (failed.value.status, failed.value.reason) == (Status.FAILED, Reason.KERNEL_OVERRAN)
        until(lambda: not os.path.exists(f"/proc/{pid}"), 5.0)
        assert not beside.done, "the worker died before its lease was free"
        assert beside.result(TIMEOUT).array == 0.8
        assert ada.submit("echo", seconds(2), timeout=TIMEOUT).array == 2
    assert cluster.statistics()["workers_killed"] == 1


@pytest.mark.slow
def test_a_kernel_that_runs_on_after_its_request_expired_is_killed(make_cluster: Make) -> None:
    cluster = make_cluster({"ada": NARROW})
    cluster.start_helper()
    path = cluster.folder / "lingers"
    with cluster.connect("ada") as ada:
        ada.submit("echo", seconds(1), timeout=TIMEOUT)
        pending = ada.begin("mark", path_array(path), options=Options(budget_ms=500))
        pid = first_pid(path)
        with pytest.raises(RequestFailed) as failed:
            pending.result(TIMEOUT)
        assert failed.value.status is Status.EXPIRED
        assert os.path.exists(f"/proc/{pid}")
        until(lambda: not os.path.exists(f"/proc/{pid}"), 10.0)
        assert ada.submit("echo", seconds(2), timeout=TIMEOUT).array == 2


def test_a_helper_that_stands_still_is_lost_and_serves_again_when_it_moves(make_cluster: Make) -> None:
    cluster = make_cluster({"ada": NARROW}, limits={"helper_ms": 500}, leasing={"keep_warm_ms": 60_000})
    helper = cluster.start_helper()
    with cluster.connect("ada") as ada:
        ada.submit("echo", seconds(1), timeout=TIMEOUT)
        with helper.stopped():
            until(lambda: "silent for" in cluster.daemon.errors, 10.0)
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
    cluster = make_cluster({"ada": {}}, limits={"helper_ms": 150, "scrub_ms": 900, "open_ms": 20_000})
    with FakeHost(cluster) as fake, cluster.connect("ada", slots=1) as ada:
        fake.join()
        ada._link.negotiation.update(1.0)
        ada.begin("echo", seconds(1))
        kinds = []
        while not any(isinstance(kind, control.OpenInstance) for kind in kinds):
            kinds.append(fake.hear())
        started = time.monotonic()
        while heard(fake) is not None:
            pass
        assert 0.8 < time.monotonic() - started < 10


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
        fake.say(control.InstanceClosed(lease=order.lease, generation=order.generation, scrubbed_bytes=0))
        again, _ = fake.open_lanes()
        assert again.generation > order.generation


def test_a_worker_that_never_scrubs_leaves_it_to_the_helper(make_cluster: Make) -> None:
    cluster = make_cluster({"ada": {}}, limits={"scrub_ms": 300}, leasing={"lanes": 1, "keep_warm_ms": 0})
    cluster.config["lease"] = [{"tenant": "ada", "profile": "1g.5gb", "start": 0}]
    assert cluster.reload()
    with FakeHost(cluster) as fake:
        fake.join()
        order, (lane,) = fake.open_lanes()
        del cluster.config["lease"]
        assert cluster.reload()
        assert isinstance(fake.hear(lane), control.ScrubLane)
        closed = fake.hear()
        assert closed == control.CloseInstance(lease=order.lease, generation=order.generation, scrub=True)


@pytest.mark.slow
def test_workers_that_die_at_birth_are_forked_ever_more_rarely(make_cluster: Make) -> None:
    cluster = make_cluster({"ada": NARROW, "bob": NARROW}, leasing={"lanes": 1})
    cluster.start_helper(stillborn="ada")
    with cluster.connect("ada") as ada, cluster.connect("bob") as bob:
        ada.begin("echo", seconds(1))
        until(lambda: cluster.daemon.errors.count(": ada gets") == 3)
        tries = cluster.daemon.errors.count(": ada gets")
        assert bob.submit("echo", seconds(2), timeout=TIMEOUT).array == 2
        time.sleep(1.5)
        assert cluster.daemon.errors.count(": ada gets") == tries, "the third pause is four seconds"


def test_the_supervisor_reaps_a_worker_that_it_killed(make_cluster: Make) -> None:
    cluster = make_cluster({"ada": NARROW}, limits={"kernel_ms": 200})
    helper = cluster.start_helper()
    path = cluster.folder / "killed"
    with cluster.connect("ada") as ada:
        pending = ada.begin("mark", path_array(path))
        pid = first_pid(path)
        until(lambda: pending.done or ada.poll(0.05) or pending.done)
        until(lambda: not os.path.exists(f"/proc/{pid}"), 10.0)
        assert ada.submit("echo", seconds(2), timeout=TIMEOUT).array == 2
    assert "as ordered" in helper.errors
    helper.signal(signal.SIGTERM)
    assert helper.ended() == 0
