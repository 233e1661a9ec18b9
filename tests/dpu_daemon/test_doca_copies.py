"""A daemon that copies by DOCA, with its helper, over the loopback fabric: on the emulator, the daemon on the DPU's
side and the lanes' workers on the host's."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from offpath.bindings.wire.codes import Reason
from offpath.host_helper import RequestFailed

from ..support.cluster import Cluster, pids_of, said
from ..support.clusters import Make, path_array, seconds
from ..support.command import offpath
from ..support.doca import emulator, environment, on_the_dpu
from ..support.processes import until
from .test_metrics import get, watched

MIB = 1 << 20
SIZES = {"payload_bytes": 3 * MIB, "result_bytes": 3 * MIB}
HOST = {"DOCA_EMULATOR_SIDE": "host"}
DOCA: dict[str, Any] = {"datapath": {"copy_engine": "doca"}}


@pytest.fixture(autouse=True)
def _emulated() -> Iterator[None]:
    with on_the_dpu(OFFPATH_DOCA_PATH=emulator()):
        yield


@pytest.fixture
def with_faults(make_cluster: Make) -> Callable[[str], Cluster]:
    """A cluster whose daemon's DOCA has these faults."""
    return lambda faults: make_cluster({"ada": {}}, environment={"DOCA_EMULATOR_FAULTS": faults}, **DOCA)


def filled(requester: Any, nbytes: int, value: int) -> bool:
    """A result of that many bytes is right."""
    array = requester.submit("fill", [np.array([nbytes, value])]).array
    return array.nbytes == nbytes and bool((array == value).all())


def echoed(requester: Any, nbytes: int) -> bool:
    """A payload of that many bytes comes back."""
    content = np.frombuffer(np.random.default_rng(nbytes).bytes(nbytes), np.uint8)
    return bool((requester.submit("echo", [content]).array == content).all())


def test_payloads_and_results_of_any_size_are_carried_by_doca(make_cluster: Make) -> None:
    """Visibility is delayed: without `acquire` kernels would compute on stale bytes."""
    cluster, port = watched(make_cluster, {"ada": {}}, **DOCA)
    cluster.start_helper(environment=HOST, delayed_visibility=True)
    moved = 0
    with cluster.connect("ada", **SIZES) as requester:
        for nbytes in (1, 4096, 100_000, 3 * MIB - 64):  # the last in two tasks
            assert echoed(requester, nbytes)
            moved += nbytes
        for nbytes in (10, 3073, 3 * MIB):  # up to 3 KiB they travel in the message
            assert filled(requester, nbytes, nbytes % 251)
            moved += nbytes
        many = [requester.begin("sum", [np.full(1000 + n, n)]) for n in range(24)]
        assert [pending.result(20).array[0] for pending in many] == [(1000 + n) * n for n in range(24)]
        assert until(lambda: get(port, "/healthz")[0] == 200)
    counted = cluster.statistics()
    assert counted["dma_bytes"] > moved
    assert counted["ended_completed"] == 31
    assert "ended_failed" not in counted


def test_a_worker_killed_costs_its_own_jobs_and_its_lane_s_successor_is_exported_anew(make_cluster: Make) -> None:
    cluster = make_cluster({"ada": {}, "bob": {}}, **DOCA)
    helper = cluster.start_helper(environment=HOST)
    with cluster.connect("ada", **SIZES) as ada, cluster.connect("bob", **SIZES) as bob:
        assert filled(ada, MIB, 3)
        assert filled(bob, MIB, 4)
        path = cluster.folder / "mark"
        doomed = ada.begin("mark", path_array(path))
        victim = until(lambda: path.exists() and path.read_text())
        os.kill(int(victim), signal.SIGKILL)
        with pytest.raises(RequestFailed) as failed:
            doomed.result(20)
        assert failed.value.reason is Reason.WORKER_LOST
        assert filled(bob, 2 * MIB, 5)
        assert filled(ada, 2 * MIB, 6)
        assert int(victim) not in pids_of(helper)


def test_a_daemon_that_is_killed_goes_on_with_lanes_that_are_exported_anew(make_cluster: Make) -> None:
    lasting = {"resume_ttl_s": 120, "adopt_ms": 60_000, "journal_mib": 4}
    cluster = make_cluster({"ada": {}}, keep={"starts": 0}, durability=lasting, **DOCA)
    helper = cluster.start_helper(environment=HOST)
    with cluster.connect("ada", **SIZES) as requester:
        assert filled(requester, MIB, 7)
        before = set(pids_of(helper))
        running = requester.begin("where", seconds(1.0))
        queued = [requester.begin("fill", [np.array([MIB, n])]) for n in range(4)]
        time.sleep(0.3)
        os.kill(pids_of(cluster.daemon)[0], signal.SIGKILL)
        assert cluster.daemon.hear(30)["lineage"] == cluster.lineage
        assert said(running.result(30))["pid"] in before, "it ran on"
        for value, pending in enumerate(queued):
            array = pending.result(30).array
            assert array.nbytes == MIB
            assert (array == value).all()
        assert filled(requester, 2 * MIB, 9)


def test_a_copy_that_fails_costs_its_job_and_not_its_lane(with_faults: Callable[[str], Cluster]) -> None:
    cluster = with_faults("dma_error=3")
    cluster.start_helper(environment=HOST)
    answers = []
    with cluster.connect("ada", **SIZES) as requester:
        for n in range(6):
            try:
                answers.append(filled(requester, MIB, n))
            except RequestFailed as fault:
                answers.append(fault.reason is not None)
    assert answers == [True] * 6
    assert "its memory cannot be reached" not in cluster.daemon.errors


def test_completions_that_come_late_and_in_another_order_reach_their_jobs(
    with_faults: Callable[[str], Cluster],
) -> None:
    cluster = with_faults("delay=2,reorder=5")
    cluster.start_helper(environment=HOST)
    with cluster.connect("ada", **SIZES) as requester:
        many = [requester.begin("sum", [np.full(20_000 + n, n)]) for n in range(30)]
        assert [pending.result(20).array[0] for pending in many] == [(20_000 + n) * n for n in range(30)]


def test_a_helper_without_the_device_it_was_given_says_so(make_cluster: Make) -> None:
    cluster = make_cluster({"ada": {}}, **DOCA)
    helper = cluster.start_helper(environment=HOST, doca_device="mlx5_9")
    with cluster.connect("ada") as requester:
        waiting = requester.begin("echo", seconds(1))
        until(lambda: "no device to export, named mlx5_9: there are 0000:5c:00.0" in helper.errors)
        waiting.cancel()
    helper.kill()  # each worker said it as its last word


def test_a_daemon_without_its_doca_ends_with_a_line_that_says_so(tmp_path: Path) -> None:
    config = tmp_path / "offpathd.toml"
    for doca, said_last in (
        (f'path = "{tmp_path}"', f"offpath: libdoca_common.so.2: not in {tmp_path} "),
        ('device = "mlx5_9"', "offpath: no device to copy, named mlx5_9: there are 0000:03:00.0"),
    ):
        config.write_text(f'[[tenant]]\nname = "ada"\n[datapath]\ncopy_engine = "doca"\n[doca]\n{doca}\n')
        with environment(OFFPATH_DOCA_PATH=emulator() if "device" in doca else str(tmp_path)):
            done = offpath("daemon", "run", "--config", str(config), "--runtime-dir", str(tmp_path / "run"))
        assert done.code == 1
        assert done.err.splitlines()[-1].startswith(said_last)
