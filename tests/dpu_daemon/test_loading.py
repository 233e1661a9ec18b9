"""Loading of models counts apart from the opening of the lease: in its limit, in what operators see, and only once."""

from __future__ import annotations

from typing import Any

import pytest

from offpath.bindings.wire import admin, control
from offpath.cli.admin_client import AdminClient

from ..support.cluster import TIMEOUT, Cluster
from ..support.clusters import NARROW, Make, seconds
from ..support.fakehost import FakeHost
from ..support.processes import until


def leases(cluster: Cluster) -> list[admin.LeaseLine]:
    with AdminClient(str(cluster.run_folder)) as client:
        return client.query(admin.LeasesRequest(), admin.Leases).leases


def loading(order: control.OpenInstance, lane: int) -> control.LaneLoading:
    return control.LaneLoading(lease=order.lease, lane=lane, generation=order.generation)


def ordered(fake: FakeHost, ada: Any) -> control.OpenInstance:
    fake.join()
    ada._link.negotiation.update(1.0)
    ada.begin("echo", seconds(1))
    order = fake.hear()
    assert isinstance(order, control.OpenInstance)
    return order


def test_a_workers_load_is_shown_and_not_bounded_by_the_limit_on_opening(make_cluster: Make) -> None:
    """It loads for twice as long as opening may take."""
    cluster = make_cluster({"ada": NARROW}, limits={"open_ms": 1_500})
    cluster.start_helper(load_s=3.0)
    with cluster.connect("ada") as ada:
        assert ada.submit("echo", seconds(5), timeout=TIMEOUT).array == 5
        (lease,) = leases(cluster)
        assert (lease.lease, lease.load_ms >= 3_000) == (1, True), "the first lease, not a second try"
    counted = cluster.statistics()
    assert counted["lanes_ready"] == 2
    assert counted["load_ms"] >= 6_000


def test_models_that_load_for_too_long_close_the_lease(make_cluster: Make) -> None:
    cluster = make_cluster({"ada": NARROW}, limits={"open_ms": 600_000, "load_ms": 300})
    with FakeHost(cluster) as fake, cluster.connect("ada", slots=1) as ada:
        order = ordered(fake, ada)
        for lane in range(order.lanes):
            fake.send(loading(order, lane), fake.worker(order, lane))
        closed = fake.hear()
        assert closed == control.CloseInstance(lease=order.lease, generation=order.generation, scrub=True)


def test_the_limit_on_opening_counts_until_the_last_lane_is_reserved(make_cluster: Make) -> None:
    cluster = make_cluster({"ada": NARROW}, limits={"open_ms": 300, "load_ms": 0})
    with FakeHost(cluster) as fake, cluster.connect("ada", slots=1) as ada:
        order = ordered(fake, ada)
        fake.send(loading(order, 0), fake.worker(order, 0))
        assert fake.hear() == control.CloseInstance(lease=order.lease, generation=order.generation, scrub=True)


@pytest.mark.parametrize("is_ready", [False, True], ids=["while it loads", "when it is ready"])
def test_a_worker_that_reports_its_loading_twice_is_lost(make_cluster: Make, is_ready: bool) -> None:
    cluster = make_cluster({"ada": NARROW})
    with FakeHost(cluster) as fake, cluster.connect("ada", slots=1) as ada:
        order = ordered(fake, ada)
        lane = fake.worker(order, 0)
        fake.send(loading(order, 0), lane)
        if is_ready:
            fake.offer_lane(lane, order, 0)
        fake.send(loading(order, 0), lane)
        until(lambda: "worker of lease 1 lane 0 lost" in cluster.daemon.errors)
        assert fake.hear() == control.CloseInstance(lease=order.lease, generation=order.generation, scrub=True)


def test_a_load_that_no_number_holds_is_refused(make_cluster: Make) -> None:
    cluster = make_cluster({"ada": NARROW})
    with FakeHost(cluster) as fake, cluster.connect("ada", slots=1) as ada:
        order = ordered(fake, ada)
        fake.offer_lane(fake.worker(order, 0), order, 0, load_ms=1 << 32)
        until(lambda: "worker of lease 1 lane 0 lost" in cluster.daemon.errors)
