"""A GPU that needs a reset: its helper says so, the daemon places nothing there, and the other GPUs serve on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from offpath.bindings.wire import admin, control
from offpath.bindings.wire.codes import Reason, Status
from offpath.cli.admin_client import AdminClient
from offpath.host_helper import Options, RequestFailed

from ..host_helper.migd.rig import Migd
from ..support.cluster import TIMEOUT, Cluster
from ..support.clusters import NARROW, Make, path_array
from ..support.fakehost import FakeHost, offer
from ..support.gpu_machine import Machine
from ..support.processes import until
from .test_resume import DURABLE, kill_daemon

ECHO = control.KernelOffer(name="echo", demand=14)
LOST = "Xid 79 (GPU has fallen off the bus)"


def status(cluster: Cluster) -> admin.Status:
    with AdminClient(str(cluster.run_folder)) as client:
        return client.query(admin.StatusRequest(), admin.Status)


def two_gpus(fake: FakeHost) -> control.HostWelcome:
    """Join with the GPUs "left" and "right"."""
    fake.send(
        control.HelperHello(
            name="fake", pid=1, gpu_count=2, kernels=[ECHO],
        )
    )  # fmt: skip
    for uuid in ("left", "right"):
        fake.send(offer(uuid))
    welcome = fake.hear()
    assert isinstance(welcome, control.HostWelcome)
    return welcome


@pytest.fixture
def migd(tmp_path: Path) -> Iterator[Migd]:
    """migd on a machine with two A100 in MIG mode."""
    machine = Machine(tmp_path / "machine", models="A100-40GB,A100-40GB", slice_bytes=str(32 << 20))
    made = Migd(machine, tmp_path / "migd")
    yield made
    made.close()
    machine.close()


@pytest.mark.gpu
def test_a_lost_gpu_gets_no_lease_and_the_other_one_serves_on(migd: Migd, make_cluster: Make) -> None:
    """The first falls off the bus under a kernel."""
    tenants = {"ada": NARROW, "bob": NARROW}
    leasing = {"keep_warm_ms": 60_000, "lanes": 1}
    cluster = make_cluster(tenants, leasing=leasing, keep={"starts": 0}, durability=DURABLE, operation={"log": "json"})
    cluster.start_helper(emulate=[], gpus="migd", migd=migd.path)
    path = cluster.folder / "mark"
    with cluster.connect("ada") as ada:
        running = ada.begin("mark", path_array(path))
        until(lambda: path.exists() and path.read_text())
        migd.machine.post_xid(79)
        with pytest.raises(RequestFailed) as failed:
            running.result(TIMEOUT)
        assert (failed.value.status, failed.value.reason) == (Status.OUTCOME_UNKNOWN, Reason.WORKER_LOST)
        again = ada.submit("echo", [np.arange(9.0)], options=Options(is_idempotent=True), timeout=TIMEOUT)
        assert again.array.tolist() == list(range(9))
    until(lambda: f"is lost: {LOST}" in cluster.daemon.errors)
    (lost,) = [line for line in cluster.daemon.errors.splitlines() if '"code":"gpu_lost"' in line.replace(": ", ":")]
    assert json.loads(lost)["gpu"].startswith("helper/GPU-")
    assert [(each.gpus, each.lost_gpus, each.leases) for each in status(cluster).helpers] == [(2, 1, 1)]
    assert len(status(cluster).gpus) == 1
    kill_daemon(cluster)
    until(lambda: [each.lost_gpus for each in status(cluster).helpers] == [1])
    assert len(status(cluster).gpus) == 1, "the next daemon knows it too"


def test_leases_on_a_lost_gpu_are_forgotten_and_the_next_opens_elsewhere(make_cluster: Make) -> None:
    cluster = make_cluster({"ada": NARROW})
    with FakeHost(cluster) as fake, cluster.connect("ada", slots=2) as ada:
        two_gpus(fake)
        ada._link.negotiation.update(1.0)
        waiting = ada.begin("echo", [np.zeros(1)])
        order = fake.hear()
        assert (order.kind, order.gpu) == ("open_instance", "left")
        fake.send(control.GpuLost(uuid="left", detail=LOST))
        other = fake.hear()
        assert (other.kind, other.gpu, other.scrub_first) == ("open_instance", "right", False)
        fake.send(control.InstanceFailed(lease=order.lease, generation=order.generation, detail="too late"))
        fake.send(control.GpuLost(uuid="left", detail="again"))
        assert (status(cluster).helpers[0].lost_gpus, len(status(cluster).gpus)) == (1, 1)
        fake.send(control.GpuLost(uuid="right", detail=LOST))
        with pytest.raises(RequestFailed) as failed:
            waiting.result(TIMEOUT)
        assert (failed.value.status, failed.value.reason) == (Status.CANCELLED, Reason.NO_INSTANCE_FITS)
        assert status(cluster).leases == 0


@pytest.mark.parametrize("is_joined", [False, True], ids=["before it joined", "another's GPU"])
def test_a_helper_that_reports_a_loss_out_of_turn_is_lost_itself(make_cluster: Make, is_joined: bool) -> None:
    cluster = make_cluster({"ada": NARROW})
    with FakeHost(cluster) as fake:
        if is_joined:
            two_gpus(fake)
            fake.send(control.GpuLost(uuid="GPU-0", detail=""))
            said = "GPU-0 is not a GPU of this helper"
        else:
            fake.send(control.HelperHello(name="fake", pid=1, gpu_count=2, kernels=[ECHO]))
            fake.send(offer("left"))
            fake.send(control.GpuLost(uuid="left", detail=""))
            said = "it sent an unexpected GpuLost"
        assert fake.hear() is None
        until(lambda: said in cluster.daemon.errors)
