"""Requests end to end on NVIDIA's stack (migd, NVML, CUDA), which the GPU emulator stands in for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ..host_helper.migd.rig import Migd
from ..support.cluster import TIMEOUT, Cluster, said
from ..support.clusters import NARROW, Make, seconds
from ..support.gpu_machine import Machine

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


def start(cluster: Cluster, **options: Any) -> None:
    cluster.start_helper(emulate=[], **options)


def echo(cluster: Cluster, tenant: str, nbytes: int) -> dict[str, Any]:
    """Equal bytes there and back, then where a kernel of this tenant runs."""
    payload = np.random.default_rng(nbytes).integers(0, 256, nbytes, np.uint8)
    with cluster.connect(tenant) as requester:
        for _ in range(3):
            assert np.array_equal(requester.submit("echo", [payload], timeout=TIMEOUT).array, payload)
        where: dict[str, Any] = said(requester.submit("where", seconds(0), timeout=TIMEOUT))
    return where


def test_a_whole_gpu_serves_one_tenant_at_a_time(make_cluster: Make, boot: Boot) -> None:
    boot(mig="off", models="H100-80GB", slice_bytes=str(8 << 20))
    cluster = make_cluster({"ada": {}, "bob": {}})
    start(cluster, gpus="cuda")
    for tenant in ("ada", "bob", "ada"):
        where = echo(cluster, tenant, 100_000)
        assert (where["tenant"], where["profile"], set(where["residue"])) == (tenant, "whole", {0})


def test_migd_cuts_an_instance_for_each_tenant(make_cluster: Make, boot: Boot, tmp_path: Path) -> None:
    machine = boot(models="A100-40GB", slice_bytes=str(32 << 20))
    migd = Migd(machine, tmp_path / "migd")
    try:
        cluster = make_cluster({"ada": NARROW, "bob": NARROW})
        start(cluster, gpus="migd", migd=migd.path)
        places = [echo(cluster, tenant, 120_000) for tenant in ("ada", "bob")]
        assert [(each["tenant"], each["profile"]) for each in places] == [("ada", "1g.5gb"), ("bob", "1g.5gb")]
        assert len({each["start"] for each in places}) == 2
        assert {value for each in places for value in each["residue"]} == {0}
    finally:
        cluster.close()
        migd.close()
