"""The messages of a reload, said by hand: what an honest helper may say, and what costs a liar its connection."""

from __future__ import annotations

import os
from typing import Any

import pytest

from offpath.bindings.wire import control

from ..support.cluster import TIMEOUT, Cluster
from ..support.clusters import NARROW, Make, seconds
from ..support.fakehost import FakeHost, offer, result
from ..support.processes import until

ECHO = [control.KernelOffer(name="echo", demand=14)]
BOTH = [*ECHO, control.KernelOffer(name="other", demand=20)]


@pytest.fixture
def cluster(make_cluster: Make) -> Cluster:
    return make_cluster({"ada": NARROW}, leasing={"keep_warm_ms": 60_000})


def reloaded(revision: int = 1, kernels: list[control.KernelOffer] = BOTH, **more: Any) -> control.KernelsReloaded:
    return control.KernelsReloaded(revision=revision, kernels=kernels, **more)


def needs(name: str = "other", **more: Any) -> control.KernelNeeds:
    return control.KernelNeeds(name=name, memory_bytes=1 << 20, **more)


def test_lanes_are_renewed_with_other_tokens_once_the_numbers_are_sent(cluster: Cluster) -> None:
    with FakeHost(cluster) as fake, cluster.connect("ada", slots=1) as ada:
        fake.join()
        ada._link.negotiation.update(1.0)
        first = ada.begin("echo", seconds(1))
        order, lanes = fake.open_lanes()
        launch = fake.hear(lanes[0])
        fake.send(reloaded(needs_count=1))
        fake.send(needs())
        numbers = fake.hear()
        assert (numbers.kernel_ids, numbers.revision) == ({"echo": 1, "other": 2}, 1)
        renewal = fake.hear()
        assert (renewal.lease, renewal.generation, renewal.renewal) == (order.lease, order.generation, 1)
        assert (renewal.lane, renewal.token != order.token) == (1, True)
        assert fake.turned_away(lanes[renewal.lane]) == "another takes its place"
        assert fake.turned_away(fake.worker(order, renewal.lane)) == "no lease expects this worker"
        assert lanes[0].send(result(launch))
        first.result(TIMEOUT)
        again = fake.hear()
        assert (again.lane, again.renewal) == (0, 1)
        assert again.token not in (order.token, renewal.token), "each lane has its own"
        fake.offer_lane(fake.worker(order, 0, token=again.token), order, 0)
        fake.send(control.WorkerDied(lease=order.lease, lane=renewal.lane, generation=order.generation))  # the former
        fake.offer_lane(fake.worker(order, renewal.lane, token=renewal.token), order, renewal.lane)
        died = {"lease": order.lease, "lane": renewal.lane, "generation": order.generation}
        fake.send(control.WorkerDied(**died, renewal=2))  # of none that is awaited
        fake.send(reloaded(2))
        assert [type(fake.hear()).__name__ for _ in range(3)] == ["HostKernels", "RenewWorker", "RenewWorker"]


@pytest.mark.parametrize(
    ("messages", "why"),
    [
        ([reloaded(1, [*ECHO, *ECHO])], "two kernels of one name"),
        ([reloaded(0)], "revision 0 after 0"),
        ([reloaded(), reloaded()], "revision 1 after 1"),
        ([reloaded(2), reloaded(1)], "revision 1 after 2"),
        ([reloaded(1, needs_count=1), reloaded(2)], "revision 1 is not complete"),
        ([reloaded(1, needs_count=1), needs("third")], "is not among the helper's kernels"),
        ([reloaded(1, needs_count=2), needs(), needs()], "was described before"),
        ([reloaded(1, needs_count=1), needs(), needs()], "is described without a reload"),
        ([needs()], "is described without a reload"),
    ],
    ids=["a name twice", "none", "again", "back", "too early", "foreign needs", "needs twice", "too many", "no reload"],
)
def test_a_reload_that_breaks_a_rule_loses_its_helper(cluster: Cluster, messages: list[Any], why: str) -> None:
    with FakeHost(cluster) as fake:
        fake.join()
        for message in messages:
            fake.send(message)
        until(lambda: why in cluster.daemon.errors)
        while fake.hear() is not None:  # what was said before
            pass


def test_a_reload_before_the_welcome_loses_its_helper(cluster: Cluster) -> None:
    with FakeHost(cluster) as fake:
        fake.send(control.HelperHello(name="fake", pid=os.getpid(), kernels=ECHO, gpu_count=1))
        fake.send(reloaded())
        assert fake.hear() is None
        until(lambda: "it sent an unexpected KernelsReloaded" in cluster.daemon.errors)


@pytest.mark.parametrize(
    ("lanes", "renewals"), [([0, 0], []), ([0, 1], [1]), ([0], [1, 2])], ids=["a lane twice", "too few", "too many"]
)
def test_an_instance_that_cannot_be_held_loses_its_helper(
    cluster: Cluster, lanes: list[int], renewals: list[int]
) -> None:
    with FakeHost(cluster) as fake:
        fake.send(control.HelperHello(name="fake", pid=os.getpid(), kernels=ECHO, gpu_count=1, held_count=1))
        fake.send(offer())
        fake.send(control.InstanceHeld(lease=1, generation=1, lanes=lanes, renewals=renewals))
        assert fake.hear() is None
        until(lambda: "instance_held" in cluster.daemon.errors)


def test_a_helper_that_joins_after_reloads_goes_on_from_there(cluster: Cluster) -> None:
    with FakeHost(cluster) as fake:
        fake.join(revision=7)
        fake.send(reloaded(8))
        assert fake.hear().revision == 8
        fake.send(reloaded(8))
        until(lambda: "revision 8 after 8" in cluster.daemon.errors)
