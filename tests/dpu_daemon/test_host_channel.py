"""The host is not trusted either (threats A8, T3): strangers, second helpers, wrong tokens, workers that lie."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from offpath.bindings.errors import PeerGone
from offpath.bindings.wire import control, fields, host
from offpath.bindings.wire.codes import Reason, Status
from offpath.bindings.wire.header import TENSOR_BYTES
from offpath.dpu_daemon.hosts import handshakes
from offpath.host_helper import Options, RequestFailed

from ..support.cluster import MIB, TIMEOUT, Cluster
from ..support.clusters import Make
from ..support.fakehost import FakeHost, offer, result
from ..support.processes import BOUND_S, until


@pytest.fixture(scope="module")
def shared() -> Iterator[Cluster]:
    leasing = {"landing_bytes": 2 * MIB, "result_bytes": 2 * MIB, "keep_warm_ms": 100}
    made = Cluster({"ada": {"max_share": 14, "profile": "1g.5gb"}}, leasing=leasing)
    try:
        yield made
        made.close()
    finally:
        made.kill()


@pytest.fixture
def cluster(shared: Cluster) -> Iterator[Cluster]:
    """A daemon whose host is any process that connects; at the end it holds nothing of it and serves an honest one."""
    before = shared.daemon.open_fds()
    yield shared
    until(lambda: shared.daemon.open_fds() == before)
    serves_an_honest_host(shared)
    until(lambda: shared.daemon.open_fds() == before)


def serves_an_honest_host(cluster: Cluster) -> None:
    with FakeHost(cluster) as fake, cluster.connect("ada", slots=1) as requester:
        fake.join()
        requester._link.negotiation.update(1.0)
        pending = requester.begin("echo", [np.ones(1)])
        _, lanes = fake.open_lanes()
        answer_one(fake, lanes)
        assert pending.result(TIMEOUT).arrays == ()


def launch_on(fake: FakeHost, lanes: list[Any]) -> tuple[Any, host.Launch]:
    """(the lane it came to, the launch)"""
    end = time.monotonic() + BOUND_S
    while time.monotonic() < end:
        for lane in lanes:
            received = lane.receive()
            if received is not None:
                return lane, host.parse_launch(received[0])
        time.sleep(0.001)
    raise AssertionError("no launch came")


def answer_one(fake: FakeHost, lanes: list[Any]) -> None:
    lane, launch = launch_on(fake, lanes)
    lane.send(result(launch))


# -- strangers -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "first",
    [
        b"hello",
        b"{}",
        b"\x01" * 64,
        b"\x02" * 64,
        b"{" * 4080,
        json.dumps({"kind": "goodbye"}).encode(),
        json.dumps({"kind": "helper_hello", "version": 2}).encode(),
        control.encode(offer()),
        control.encode(control.InstanceClosed(lease=1, generation=1, scrubbed_bytes=0)),
        control.encode(control.WorkerHello(lease=1, lane=0, pid=1, token="x" * 32)),
    ],
    ids=lambda first: first[:32].decode("latin-1"),
)
def test_a_stranger_is_told_why_and_turned_away(cluster: Cluster, first: bytes) -> None:
    with FakeHost(cluster) as fake:
        fake.channel.send(first)
        assert fake.turned_away() != ""


def test_descriptors_of_a_stranger_do_not_stay(cluster: Cluster) -> None:
    with FakeHost(cluster) as fake:
        for _ in range(5):
            connection = fake.connect()
            connection.send(b"{}", (0, 0, 0, 0))
            fake.turned_away(connection)
        connection = fake.connect()
        connection.send(b"x" * 4080, (0, 0))
        assert fake.turned_away(connection) != ""


def test_who_connects_and_says_nothing_is_turned_away_after_five_seconds(make_cluster: Make) -> None:
    assert handshakes.HELLO_TIMEOUT_S == 5.0
    cluster = make_cluster({"ada": {}}, shortened={f"{handshakes.__name__}.HELLO_TIMEOUT_S": 0.5})
    started = time.monotonic()
    with FakeHost(cluster) as fake:
        assert fake.turned_away() == "no hello in time"
    assert time.monotonic() - started >= 0.5


def test_a_user_that_is_not_listed_is_hung_up_on(make_cluster: Make) -> None:
    if os.getuid() != 0:
        pytest.skip("needs a second user to try with")
    cluster = make_cluster({"ada": {}})
    os.chmod(cluster.folder, 0o711)
    os.chmod(cluster.run_folder, 0o711)
    os.chmod(cluster.channel, 0o666)
    before = cluster.daemon.fds_at_rest()
    os.seteuid(65534)
    try:
        with FakeHost(cluster) as fake:
            assert fake.hear() is None
    finally:
        os.seteuid(0)
    until(lambda: cluster.daemon.open_fds() == before)


# -- helpers -------------------------------------------------------------------------------------------------------
def test_a_second_helper_is_turned_away_while_the_first_serves(cluster: Cluster) -> None:
    with FakeHost(cluster) as first, FakeHost(cluster) as second:
        assert first.join().generation > 0
        second.send(control.HelperHello(name="fake", pid=1, kernels=[_KERNEL], gpu_count=0))
        why = "a helper 'fake' serves this daemon already; start this one with another --name"
        assert second.turned_away() == why
        with cluster.connect("ada", slots=1) as requester:
            pending = requester.begin("echo", [np.ones(1)])
            answer_one(first, first.open_lanes()[1])
            pending.result(TIMEOUT)


_KERNEL = control.KernelOffer(name="echo", demand=14)


def test_each_helper_that_joins_is_a_new_generation_and_kernels_keep_their_numbers(cluster: Cluster) -> None:
    seen = []
    for _ in range(3):
        with FakeHost(cluster) as fake:
            seen.append(fake.join())
        until(lambda: helper_is_gone(cluster))
    assert seen[0].generation < seen[1].generation < seen[2].generation
    assert seen[0].kernel_ids == seen[1].kernel_ids == seen[2].kernel_ids


def helper_is_gone(cluster: Cluster) -> bool:
    with FakeHost(cluster) as fake, contextlib.suppress(PeerGone):  # turned away between the two, it is not
        fake.send(control.HelperHello(name="probe", pid=1, kernels=[_KERNEL], gpu_count=1))
        with contextlib.suppress(PeerGone):  # turned away already
            fake.send(offer())
        return isinstance(fake.hear(), control.HostWelcome)
    return False


@pytest.mark.parametrize("message", ["second hello", "worker's", "nonsense", "launch"])
def test_a_helper_that_speaks_out_of_turn_is_lost(cluster: Cluster, message: str) -> None:
    with FakeHost(cluster) as fake:
        fake.join()
        said = {
            "second hello": control.encode(control.HelperHello(name="x", pid=1, kernels=[_KERNEL], gpu_count=0)),
            "worker's": control.encode(control.LaneScrubbed(lease=1, lane=0, generation=1, scrubbed_bytes=9)),
            "nonsense": b"{nonsense",
            "launch": bytes([host.KIND_LAUNCH]) * 64,
        }
        fake.channel.send(said[message])
        assert fake.hear() is None


def test_a_helper_that_says_hello_and_hangs_up_at_once_is_forgotten(cluster: Cluster) -> None:
    for _ in range(20):
        with FakeHost(cluster) as fake:
            fake.send(control.HelperHello(name="brief", pid=1, kernels=[_KERNEL], gpu_count=0))
    until(lambda: helper_is_gone(cluster))


def test_an_instance_that_cannot_be_made_is_tried_again_and_the_request_waits(cluster: Cluster) -> None:
    with FakeHost(cluster) as fake, cluster.connect("ada", slots=1) as requester:
        fake.join()
        requester._link.negotiation.update(1.0)
        pending = requester.begin("echo", [np.ones(1)])
        order = fake.hear()
        fake.send(control.InstanceFailed(lease=order.lease, generation=order.generation, detail="no"))
        again, lanes = fake.open_lanes()
        assert (again.lease > order.lease, again.generation > order.generation) == (True, True)
        assert again.scrub_first, "nobody knows what the failed one left"
        answer_one(fake, lanes)
        pending.result(TIMEOUT)


# -- workers -------------------------------------------------------------------------------------------------------
def test_only_a_worker_with_the_leases_token_is_let_in_and_only_once_per_lane(cluster: Cluster) -> None:
    with FakeHost(cluster) as fake, cluster.connect("ada", slots=1) as requester:
        fake.join()
        requester._link.negotiation.update(1.0)
        pending = requester.begin("echo", [np.ones(1)])
        order = fake.hear()
        for wrong in ({"token": "y" * 32}, {"token": order.token[:-1]}, {"lease": order.lease + 1}, {"lane": 63}):
            assert fake.turned_away(fake.worker(order, 0, **wrong)) == "no lease expects this worker"
        lanes = [fake.lane(order, lane) for lane in range(order.lanes)]
        assert fake.turned_away(fake.worker(order, 0)) == "no lease expects this worker"
        answer_one(fake, lanes)
        pending.result(TIMEOUT)


@pytest.mark.parametrize(
    "lie",
    [
        {"landing_bytes": 4096},
        {"result_bytes": 4096},
        {"landing_bytes": 1 << 40},
        {"export": {}},
        {"export": {"offset": "0", "nbytes": "x"}},
        {"export": {"offset": 0, "nbytes": 4096}},
        {"export": {"offset": 4096, "nbytes": 4 * MIB}},
        {"export": {"offset": -4096, "nbytes": 4 * MIB}},
        {"export": {"offset": 1, "nbytes": 4 * MIB - 1}},
        {"export": {"offset": 0, "nbytes": 1 << 62}},
    ],
    ids=str,
)
def test_a_lane_that_is_not_what_was_asked_for_is_not_used(cluster: Cluster, lie: dict[str, Any]) -> None:
    with FakeHost(cluster) as fake, cluster.connect("ada", slots=1) as requester:
        fake.join()
        requester._link.negotiation.update(1.0)
        pending = requester.begin("echo", [np.ones(1)])
        order = fake.hear()
        lying = fake.worker(order, 0)
        fake.offer_lane(lying, order, 0, **lie)
        assert fake.hear(lying) is None
        assert isinstance(fake.hear(), control.CloseInstance)
        fake.send(control.InstanceClosed(lease=order.lease, generation=order.generation, scrubbed_bytes=0))
        answer_one(fake, fake.open_lanes()[1])
        pending.result(TIMEOUT)


@pytest.mark.parametrize(
    "lie",
    [
        {"job": 10**6},
        {"generation": 10**6},
        {"started_ns": 5, "finished_ns": 4},
        {"result_bytes": 2 * MIB + 1, "is_inline": False},
        {"started_ns": (1 << 64) - 1, "finished_ns": 0},
    ],
    ids=str,
)
def test_a_result_that_makes_no_sense_costs_the_worker_its_lane(cluster: Cluster, lie: dict[str, Any]) -> None:
    with FakeHost(cluster) as fake, cluster.connect("ada", slots=1, result_bytes=2 * MIB) as requester:
        fake.join()
        requester._link.negotiation.update(1.0)
        pending = requester.begin("echo", [np.ones(1)])
        _, lanes = fake.open_lanes()
        lane, launch = launch_on(fake, lanes)
        lane.send(result(launch, **lie))
        if lie.get("result_bytes"):  # what the session has no room for is said so before the lie is looked at
            assert how(pending) == (Status.FAILED, Reason.RESULT_TOO_LARGE)
        else:
            assert fake.hear(lane) is None
            assert how(pending) == (Status.OUTCOME_UNKNOWN, Reason.WORKER_LOST)


def how(pending: Any) -> tuple[Status, Reason]:
    with pytest.raises(RequestFailed) as failed:
        pending.result(TIMEOUT)
    return failed.value.status, failed.value.reason


def test_a_second_result_while_the_first_travels_costs_the_worker_its_lane_and_nobody_else_anything(
    cluster: Cluster,
) -> None:
    """Above 1 MiB the result goes by the copy thread; the daemon must not lose track of it."""
    with FakeHost(cluster) as fake, cluster.connect("ada", slots=2, result_bytes=2 * MIB) as requester:
        fake.join()
        requester._link.negotiation.update(1.0)
        pending = requester.begin("echo", [np.ones(1)])
        _, lanes = fake.open_lanes()
        lane, launch = launch_on(fake, lanes)
        with cluster.daemon.stopped():
            for _ in range(2):
                lane.send(result(launch, result_bytes=2 * MIB, is_inline=False))
        until(lambda: fake.hear(lane) is None)
        with pytest.raises(RequestFailed) as failed:
            pending.result(TIMEOUT)
        assert failed.value.status is Status.OUTCOME_UNKNOWN


def test_a_second_result_after_the_answer_changes_nothing(cluster: Cluster) -> None:
    with FakeHost(cluster) as fake, cluster.connect("ada", slots=1) as requester:
        fake.join()
        requester._link.negotiation.update(1.0)
        pending = requester.begin("echo", [np.ones(1)])
        _, lanes = fake.open_lanes()
        lane, launch = launch_on(fake, lanes)
        for _ in range(3):
            lane.send(result(launch))
        pending.result(TIMEOUT)
        time.sleep(0.05)  # once the lane holds another job, a result for the last one costs the worker its lane
        pending = requester.begin("echo", [np.ones(1)])
        answer_one(fake, lanes)
        pending.result(TIMEOUT)


def test_a_worker_that_hangs_up_while_it_runs_leaves_the_outcome_unknown(cluster: Cluster) -> None:
    with FakeHost(cluster) as fake, cluster.connect("ada", slots=1) as requester:
        fake.join()
        requester._link.negotiation.update(1.0)
        pending = requester.begin("echo", [np.ones(1)])
        _, lanes = fake.open_lanes()
        lane, _ = launch_on(fake, lanes)
        lane.close()
        assert how(pending) == (Status.OUTCOME_UNKNOWN, Reason.WORKER_LOST)


def test_an_answer_with_nonsense_in_it_fails_its_request_and_the_requester_lives(cluster: Cluster) -> None:
    """The worker's tensor descriptors reach the requester unread by the daemon."""
    with FakeHost(cluster) as fake, cluster.connect("ada", slots=1) as requester:
        fake.join()
        requester._link.negotiation.update(1.0)
        pending = requester.begin("echo", [np.ones(1)])
        _, lanes = fake.open_lanes()
        lane, launch = launch_on(fake, lanes)
        lane.send(result(launch, tensors=b"\xff" * TENSOR_BYTES))
        assert how(pending)[0] is Status.OUTCOME_UNKNOWN
        pending = requester.begin("echo", [np.ones(1)], options=Options())
        answer_one(fake, lanes)
        pending.result(TIMEOUT)


# -- offers that no GPU and no daemon can hold ---------------------------------------------------------------------
def spoilt_offers() -> dict[str, list[control.GpuOffer]]:
    good = offer()
    first, *rest = good.profiles
    wide = first.model_copy(update={"compute_slices": good.compute_slices + 1})
    outside = first.model_copy(update={"starts": [good.memory_slices]})
    other = good.model_copy(update={"profiles": [first.model_copy(update={"name": "another"})]})
    return {
        "one GPU twice": [good, other],
        "one profile twice": [good.model_copy(update={"profiles": [first, first, *rest]})],
        "too many compute slices": [good.model_copy(update={"profiles": [wide]})],
        "a start outside": [good.model_copy(update={"profiles": [outside]})],
    }


@pytest.mark.parametrize("name", spoilt_offers())
def test_a_gpu_that_cannot_be_loses_its_helper(cluster: Cluster, name: str) -> None:
    offers = spoilt_offers()[name]
    with FakeHost(cluster) as fake:
        kernels = [control.KernelOffer(name="echo", demand=14)]
        fake.send(control.HelperHello(name="fake", pid=os.getpid(), gpu_count=len(offers), kernels=kernels))
        for each in offers:
            fake.send(each)
        assert fake.hear() is None


def test_kernel_names_without_end_grow_neither_the_daemon_nor_the_welcome(make_cluster: Make) -> None:
    """A helper that comes back under ever new names is served; the names that are gone for longest are forgotten."""
    cluster = make_cluster({"ada": {}})
    for n in range(fields.MAX_KERNELS // 32 + 1):
        with FakeHost(cluster) as fake:
            kernels = [control.KernelOffer(name=f"{'k' * 56}{n:03}{i:03}", demand=14) for i in range(32)]
            fake.join(kernels=kernels)
    with cluster.connect("ada", slots=1) as requester:
        assert len(requester.welcome.kernels) == fields.MAX_KERNELS
    with FakeHost(cluster) as fake:
        one_more = fake.join(kernels=[control.KernelOffer(name="one-more", demand=14)])
        assert one_more.kernel_ids == {"one-more": fields.MAX_KERNELS + 32 + 1}
