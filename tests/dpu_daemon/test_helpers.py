"""Several helpers serve one daemon: each for itself, with its GPUs, kernels, workers and generation."""

from __future__ import annotations

import os
import signal
from typing import Any

import numpy as np
import pytest

from offpath.bindings.wire import admin, control, fields
from offpath.bindings.wire.codes import Reason, Status
from offpath.bindings.wire.frames import MAX_FRAME_BYTES
from offpath.cli.admin_client import AdminClient
from offpath.dpu_daemon.hosts.host import MAX_GPUS
from offpath.host_helper import RequestFailed

from ..support.cluster import TIMEOUT, Cluster, pids_of, said
from ..support.clusters import Make, first_pid, path_array, seconds
from ..support.fakehost import FakeHost, offer
from ..support.processes import Process, until

ECHO = control.KernelOffer(name="echo", demand=14)


def status(cluster: Cluster) -> admin.Status:
    with AdminClient(str(cluster.run_folder)) as client:
        return client.query(admin.StatusRequest(), admin.Status)


def helpers(cluster: Cluster) -> dict[str, admin.HelperLine]:
    return {each.name: each for each in status(cluster).helpers}


def two(cluster: Cluster) -> tuple[Process, Process]:
    """ "a" serves held and echo, "b" where and echo; both name their GPU GPU-0."""
    return (
        cluster.start_helper(name="a", only=["held", "echo"]),
        cluster.start_helper(name="b", only=["where", "echo"]),
    )


def parent(pid: int) -> int:
    with open(f"/proc/{pid}/stat", encoding="ascii") as file:
        return int(file.read().rpartition(")")[2].split()[1])


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM], ids=["killed", "ended"])
def test_of_two_helpers_one_is_lost_and_the_others_jobs_are_untouched(make_cluster: Make, how: signal.Signals) -> None:
    cluster = make_cluster({"ada": {"profile": "1g.5gb"}, "bob": {"profile": "1g.5gb"}})
    a, b = two(cluster)
    assert {gpu.gpu for gpu in status(cluster).gpus} == {"a/GPU-0", "b/GPU-0"}
    path = cluster.folder / "held"
    with cluster.connect("ada") as ada, cluster.connect("bob") as bob:
        running = ada.begin("held", path_array(path))
        worker = first_pid(path)
        assert parent(worker) == a.pid
        before = said(bob.submit("where", seconds(0), timeout=TIMEOUT))
        assert parent(before["pid"]) == b.pid
        lost = bob.begin("where", seconds(20))
        until(lambda: status(cluster).unanswered == 2 and status(cluster).queued == 0)
        if how is signal.SIGTERM:
            b.signal(how)
        else:
            b.kill()
            with pytest.raises(RequestFailed) as failed:
                lost.result(TIMEOUT)
            assert (failed.value.status, failed.value.reason) == (Status.OUTCOME_UNKNOWN, Reason.HELPER_LOST)
        until(lambda: helpers(cluster).keys() == {"a"})
        assert (helpers(cluster)["a"].generation, helpers(cluster)["a"].leases) == (1, 1)
        late = bob.begin("where", seconds(0))  # accepted: its helper may return
        assert bob.submit("echo", seconds(3), timeout=TIMEOUT).array == 3, "the other serves it too"
        path.unlink()
        assert running.result(TIMEOUT).array.item() == worker
        again = cluster.start_helper(name="b", only=["where", "echo"])
        assert parent(said(late.result(TIMEOUT))["pid"]) == again.pid
        assert helpers(cluster)["b"].generation == 3


def test_two_helpers_and_their_jobs_outlive_a_kill_of_the_daemon(make_cluster: Make) -> None:
    durability = {"resume_ttl_s": 60, "adopt_ms": 3000, "journal_mib": 1}
    cluster = make_cluster({"ada": {"profile": "1g.5gb"}}, keep={"starts": 0}, durability=durability)
    a, b = two(cluster)
    paths = [cluster.folder / "held"]
    with cluster.connect("ada") as ada:
        running = ada.begin("held", path_array(paths[0]))
        worker = first_pid(paths[0])
        generations = {name: each.generation for name, each in helpers(cluster).items()}
        os.kill(pids_of(cluster.daemon)[0], signal.SIGKILL)
        assert cluster.daemon.hear()["lineage"] == cluster.lineage
        until(lambda: helpers(cluster).keys() == {"a", "b"})
        assert {name: each.generation for name, each in helpers(cluster).items()} == generations
        paths[0].unlink()
        assert running.result(TIMEOUT).array.item() == worker
        assert parent(said(ada.submit("where", seconds(0), timeout=TIMEOUT))["pid"]) == b.pid
        assert worker in pids_of(a)


def test_a_helper_that_died_with_the_daemon_takes_none_of_the_other_with_it(make_cluster: Make) -> None:
    durability = {"resume_ttl_s": 60, "adopt_ms": 2000, "journal_mib": 1}
    cluster = make_cluster({"ada": {"profile": "1g.5gb"}}, keep={"starts": 0}, durability=durability)
    cluster.start_helper(name="a", only=["held", "echo"])
    b = cluster.start_helper(name="b", only=["mark", "echo"])
    path, other = cluster.folder / "held", cluster.folder / "mark"
    with cluster.connect("ada") as ada:
        running, lost = ada.begin("held", path_array(path)), ada.begin("mark", path_array(other))
        worker, _ = first_pid(path), first_pid(other)
        os.kill(pids_of(cluster.daemon)[0], signal.SIGKILL)
        b.kill()
        assert cluster.daemon.hear()["lineage"] == cluster.lineage
        until(lambda: helpers(cluster).keys() == {"a"})
        path.unlink()
        assert running.result(TIMEOUT).array.item() == worker
        with pytest.raises(RequestFailed) as failed:
            lost.result(TIMEOUT)
        assert failed.value.status is Status.OUTCOME_UNKNOWN


def hello(fake: FakeHost, name: str, gpus: int = 0, **more: Any) -> None:
    fake.send(control.HelperHello(name=name, pid=1, kernels=[ECHO], gpu_count=gpus, **more))


def test_names_and_their_number_are_bounded_by_the_configuration(make_cluster: Make) -> None:
    cluster = make_cluster({"ada": {}}, helper_names=["a", "b", "c"], max_helpers=2)
    with FakeHost(cluster) as a, FakeHost(cluster) as b, FakeHost(cluster) as other:
        hello(a, "a")
        assert isinstance(a.hear(), control.HostWelcome)
        hello(b, "b")
        assert isinstance(b.hear(), control.HostWelcome)
        for name, why in (
            ("a", "a helper 'a' serves this daemon already; start this one with another --name"),
            ("c", "2 helpers serve this daemon already, as many as its max_helpers allows"),
            ("d", "helper 'd' is not in the daemon's helper_names"),
        ):
            other.channel = other.connect()
            hello(other, name)
            assert other.turned_away() == why
    until(lambda: not status(cluster).helpers)
    config = cluster.config_file.read_text().replace("max_helpers = 2", "max_helpers = 1")
    assert cluster.reload(config)
    with FakeHost(cluster) as a, FakeHost(cluster) as b:
        hello(a, "a")
        assert isinstance(a.hear(), control.HostWelcome)
        hello(b, "b")
        assert "as many as its max_helpers allows" in b.turned_away()


def test_the_gpus_of_all_helpers_are_bounded_and_a_real_one_is_offered_once(make_cluster: Make) -> None:
    cluster = make_cluster({"ada": {}})
    with FakeHost(cluster) as a, FakeHost(cluster) as b, FakeHost(cluster) as c:
        hello(a, "a", 16)
        a.send(offer("GPU-real", is_emulated=False))
        for number in range(15):
            a.send(offer(f"GPU-{number}"))
        assert isinstance(a.hear(), control.HostWelcome)
        hello(c, "c", 2)
        c.send(offer("GPU-0"))
        c.send(offer("GPU-real", is_emulated=False))
        assert c.hear() is None
        until(lambda: "GPU-real is offered by helper 'a' already" in cluster.daemon.errors)
        hello(b, "b", MAX_GPUS - 16)
        for number in range(MAX_GPUS - 16):
            b.send(offer(f"GPU-{number}"))
        assert isinstance(b.hear(), control.HostWelcome), "emulated GPUs of two hosts may have one name"
        c.channel = c.connect()
        hello(c, "c", 1)
        assert c.turned_away() == f"its 1 GPUs and the {MAX_GPUS} of other helpers are more than {MAX_GPUS}"


@pytest.mark.parametrize(
    "lie",
    [
        lambda order: control.InstanceClosed(lease=order.lease, generation=order.generation, scrubbed_bytes=1),
        lambda order: control.InstanceFailed(lease=order.lease, generation=order.generation, detail="no"),
        lambda order: control.InstanceFailed(lease=order.lease, generation=7_000, detail="no"),
        lambda order: control.WorkerDied(lease=order.lease, lane=0, generation=order.generation),
    ],
    ids=["closed", "failed", "of another generation", "died"],
)
def test_a_helper_that_reports_on_anothers_lease_is_lost_and_the_lease_stays(make_cluster: Make, lie: Any) -> None:
    cluster = make_cluster({"ada": {"profile": "1g.5gb"}})
    with FakeHost(cluster) as honest, FakeHost(cluster) as liar, cluster.connect("ada") as ada:
        honest.join(name="honest")
        ada._link.negotiation.update(1.0)
        pending = ada.begin("echo", [np.ones(1)])
        order, lanes = honest.open_lanes()
        hello(liar, "liar")
        assert isinstance(liar.hear(), control.HostWelcome)
        liar.send(lie(order))
        assert liar.hear() is None
        until(lambda: f"it reported on lease {order.lease}, which another helper holds" in cluster.daemon.errors)
        with FakeHost(cluster) as early:  # before it has joined
            hello(early, "early", 1)
            early.send(lie(order))
            assert early.hear() is None
        assert (helpers(cluster).keys(), helpers(cluster)["honest"].leases) == ({"honest"}, 1)
        assert pending.result is not None
        assert [lane.has_ended() for lane in lanes] == [False] * len(lanes)


def test_names_and_gpus_that_are_none_are_refused(make_cluster: Make) -> None:
    cluster = make_cluster({"ada": {}})
    for name in ("", "a/b", "x" * 33, "-a", "a b", "ä"):
        with FakeHost(cluster) as fake:
            assert fake.channel.send(
                control.encode(control.HelperHello.model_construct(name=name, pid=1, kernels=[ECHO], gpu_count=0))
            )
            assert fake.turned_away() != ""


def test_the_status_of_all_helpers_with_all_that_the_limits_allow_fits_a_frame() -> None:
    kernels = [f"{number:03}{'k' * 61}" for number in range(fields.MAX_KERNELS)]
    lines = [
        admin.HelperLine(
            name=f"{number:02}{'h' * 30}", generation=(1 << 64) - 1, kernels=kernels[: fields.MAX_LISTED],
            kernel_count=fields.MAX_OFFERED, gpus=16,
            leases=(1 << 32) - 1,
        )
        for number in range(fields.MAX_HELPERS)
    ]  # fmt: skip
    gpus = [
        admin.GpuLine(
            gpu=f"{'h' * 32}/{number:02}{'g' * 62}", model="m" * 64, is_emulated=False, compute_slices=16,
            held_share=(1 << 32) - 1,
        )
        for number in range(MAX_GPUS)
    ]  # fmt: skip
    largest = (1 << 32) - 1
    longest = admin.Status(
        release="r" * 64, lineage="l" * 64, pid=largest, uptime_ms=(1 << 64) - 1, is_draining=False,
        is_last_good=False, drain_ms=largest, has_helper=True, helpers=lines, gpus=gpus, kernels=kernels,
        tenants=largest, sessions=largest, leases=largest, unanswered=largest, queued=largest, leaving=largest,
    )  # fmt: skip
    assert len(control.encode(longest)) <= MAX_FRAME_BYTES
