"""Requests end to end on NVIDIA's stack (migd, NVML, CUDA): the GPU emulator's, and for a whole GPU a real one's."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from offpath.bindings.wire.codes import Reason, Status
from offpath.host_helper import Options, RequestFailed
from offpath.host_helper.migd.gpu import UNHELD_MS, MigGpu

from ..host_helper.migd.rig import Migd
from ..support.cluster import TIMEOUT, Cluster, said
from ..support.clusters import NARROW, Make, path_array, seconds
from ..support.gpu_machine import Machine
from ..support.processes import until
from ..support.real_gpu import real_gpu

pytestmark = pytest.mark.gpu
AGAIN = Options(is_idempotent=True)
Boot = Callable[..., Machine]


@pytest.fixture
def boot(tmp_path: Path) -> Iterator[Boot]:
    """``boot(**settings)``: the emulated machine that this process and its children use."""
    made: list[Machine] = []

    def start(**settings: str) -> Machine:
        made.append(Machine(tmp_path / "machine", **settings))
        return made[-1]

    yield start
    for each in made:
        each.close()


@pytest.fixture
def migd(boot: Boot, tmp_path: Path) -> Iterator[Migd]:
    """migd on a machine with one A100 in MIG mode."""
    made = Migd(boot(models="A100-40GB", slice_bytes=str(32 << 20)), tmp_path / "migd")
    yield made
    made.close()


@pytest.fixture
def cluster(migd: Migd, make_cluster: Make) -> Cluster:
    """Two tenants with a slice and one worker each, and a helper with migd's instances, which ends before migd does."""
    made = make_cluster({"ada": NARROW, "bob": NARROW}, leasing={"keep_warm_ms": 60_000, "lanes": 1})
    start(made, gpus="migd", migd=migd.path)
    return made


def instances(migd: Migd) -> list[tuple[str, int, bool]]:
    """(profile, start, leased) of each instance that exists."""
    client = migd.client()
    try:
        found = client.describe(client.gpus().gpus[0].uuid).instances
        return sorted((each.profile, each.start, bool(each.handle)) for each in found)
    finally:
        client.close()


def start(cluster: Cluster, **options: Any) -> None:
    cluster.start_helper(emulate=[], **options)


def echo(cluster: Cluster, tenant: str, nbytes: int) -> dict[str, Any]:
    """Equal bytes there and back, then where a kernel of this tenant runs. Idempotent, because a lane's worker may have
    ended a moment ago: until the daemon knows, a request on it has an unknown outcome."""
    payload = np.random.default_rng(nbytes).integers(0, 256, nbytes, np.uint8)
    with cluster.connect(tenant) as requester:
        for _ in range(3):
            assert np.array_equal(requester.submit("echo", [payload], options=AGAIN, timeout=TIMEOUT).array, payload)
        where: dict[str, Any] = said(requester.submit("where", seconds(0), options=AGAIN, timeout=TIMEOUT))
    return where


def test_a_whole_gpu_serves_one_tenant_at_a_time(make_cluster: Make, boot: Boot) -> None:
    if real_gpu() is None:
        boot(mig="off", models="H100-80GB", slice_bytes=str(8 << 20))
    cluster = make_cluster({"ada": {}, "bob": {}})
    start(cluster, gpus="cuda")
    for tenant in ("ada", "bob", "ada"):
        where = echo(cluster, tenant, 100_000)
        assert (where["tenant"], where["profile"], set(where["residue"])) == (tenant, "whole", {0})


def test_migd_cuts_an_instance_for_each_tenant(cluster: Cluster, migd: Migd) -> None:
    places = [echo(cluster, tenant, 120_000) for tenant in ("ada", "bob")]
    assert [(each["tenant"], each["profile"]) for each in places] == [("ada", "1g.5gb"), ("bob", "1g.5gb")]
    starts = sorted(each["start"] for each in places)
    assert len(set(starts)) == 2
    assert {value for each in places for value in each["residue"]} == {0}
    assert instances(migd) == [("1g.5gb", at, True) for at in starts]
    assert cluster.helper is not None
    cluster.helper.finish()
    assert instances(migd) == [], "the helper gave them back"


def test_a_worker_killed_with_its_instance_disturbs_nobody_and_leaves_nothing(cluster: Cluster, migd: Migd) -> None:
    """Its lease is scrubbed, although its CUDA context died with it, and cut again for the next request."""
    before = {tenant: echo(cluster, tenant, 1000) for tenant in ("ada", "bob")}
    with cluster.connect("bob") as bob:
        running = bob.begin("where", seconds(1.0))
        os.kill(before["ada"]["pid"], signal.SIGKILL)
        again = echo(cluster, "ada", 50_000)
        undisturbed = said(running.result(TIMEOUT))
    assert again["lease"] != before["ada"]["lease"]
    assert set(again["residue"]) == {0}
    assert (undisturbed["pid"], undisturbed["lease"]) == (before["bob"]["pid"], before["bob"]["lease"])
    until(lambda: len(instances(migd)) == 2)


@pytest.mark.parametrize(
    ("kernel", "detail"), [("gpu-fault", "CUDA_ERROR_ILLEGAL_ADDRESS"), ("gpu-glutton", "CUDA_ERROR_OUT_OF_MEMORY")]
)
def test_a_kernel_that_fails_on_the_gpu_fails_its_job_and_nobody_elses(
    cluster: Cluster, kernel: str, detail: str
) -> None:
    """A fault ends its worker, because CUDA refuses every further call of the process."""
    before = {tenant: echo(cluster, tenant, 1000) for tenant in ("ada", "bob")}
    with cluster.connect("ada") as ada, cluster.connect("bob") as bob:
        running = bob.begin("where", seconds(0.5))
        with pytest.raises(RequestFailed, match=detail) as failed:
            ada.submit(kernel, seconds(0), timeout=TIMEOUT)
        assert (failed.value.status, failed.value.reason) == (Status.FAILED, Reason.KERNEL_RAISED)
        assert said(running.result(TIMEOUT))["lease"] == before["bob"]["lease"]
    if kernel == "gpu-glutton":
        return  # its memory is its lease's until that ends
    after = echo(cluster, "ada", 50_000)
    assert after["lease"] != before["ada"]["lease"]
    assert set(after["residue"]) == {0}
    assert echo(cluster, "bob", 1000)["pid"] == before["bob"]["pid"]


def test_migd_killed_and_started_again_disturbs_no_request(cluster: Cluster, migd: Migd) -> None:
    first = echo(cluster, "ada", 1000)
    migd.end()
    assert echo(cluster, "ada", 1000)["lease"] == first["lease"], "a warm lease needs no migd"
    migd.start()
    assert echo(cluster, "bob", 1000)["profile"] == "1g.5gb"
    assert echo(cluster, "ada", 1000)["pid"] == first["pid"]
    assert len(instances(migd)) == 2


def test_an_idle_helper_holds_its_leases_again_after_a_restart_of_migd(cluster: Cluster, migd: Migd) -> None:
    """No order of the daemon brings it to that."""
    lease = echo(cluster, "ada", 1000)["lease"]
    migd.end()
    migd.start()
    client = migd.client()
    gpu = client.gpus().gpus[0].uuid
    until(lambda: [each.unheld_ms for each in client.describe(gpu).instances] == [-1])
    client.close()
    assert echo(cluster, "ada", 1000)["lease"] == lease


def test_an_xid_of_the_whole_gpu_ends_its_leases_and_one_of_a_process_ends_none(cluster: Cluster, migd: Migd) -> None:
    """After Xid 79 the GPU needs a reset: its jobs have an unknown outcome, and no new instance is opened on it."""
    assert cluster.helper is not None
    helper, path = cluster.helper, cluster.folder / "mark"
    with cluster.connect("ada") as ada:
        running = ada.begin("mark", path_array(path))
        until(lambda: path.exists() and path.read_text())
        migd.machine.post_xid(31)
        until(lambda: "Xid 31 (GPU memory page fault)" in helper.errors)
        assert not running.done
        migd.machine.post_xid(79)
        with pytest.raises(RequestFailed) as failed:
            running.result(TIMEOUT)
        assert (failed.value.status, failed.value.reason) == (Status.OUTCOME_UNKNOWN, Reason.WORKER_LOST)
        with pytest.raises(RequestFailed) as refused:
            ada.submit("echo", [np.zeros(8)], options=AGAIN, timeout=TIMEOUT)
        assert refused.value.reason == Reason.NO_INSTANCE_FITS
    until(lambda: "Xid 79 (GPU has fallen off the bus)" in helper.errors)


def test_a_helper_killed_leaves_its_instances_to_the_next(cluster: Cluster, migd: Migd) -> None:
    assert UNHELD_MS == 10_000
    echo(cluster, "ada", 1000)
    assert cluster.helper is not None
    cluster.helper.kill()
    (left,) = instances(migd)
    assert left[2], "migd keeps the lease of a helper that may come back"
    start(cluster, gpus="migd", migd=migd.path, shortened={f"{MigGpu.__module__}.UNHELD_MS": 500})
    places = [echo(cluster, tenant, 1000) for tenant in ("ada", "bob")]
    assert {value for each in places for value in each["residue"]} == {0}
