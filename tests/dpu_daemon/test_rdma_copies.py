"""A daemon that copies by RDMA, with its helper, over the loopback fabric: in the virtual machine (-m rdma), the daemon
on rxe0 and the lanes behind rxe1. What a configuration without its device comes to is tested everywhere."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from offpath.bindings.wire.codes import Reason
from offpath.host_helper import Options, RequestFailed
from offpath.host_helper.errors import UnknownKernel

from ..support.cluster import pids_of, said
from ..support.clusters import Make, path_array, seconds
from ..support.command import offpath
from ..support.processes import until
from .test_metrics import get, watched

rdma = pytest.mark.rdma
VERBS: dict[str, Any] = {"datapath": {"copy_engine": "verbs"}, "rdma": {"device": "rxe0"}}
MIB = 1 << 20
BOUND_S = 120.0  # emulated, on a machine that may be busy
SIZES = {"payload_bytes": 2 * MIB, "result_bytes": 2 * MIB}


def filled(requester: Any, nbytes: int, value: int) -> bool:
    """A result of that many bytes is right."""
    array = requester.submit("fill", [np.array([nbytes, value])], timeout=BOUND_S).array
    return array.nbytes == nbytes and bool((array == value).all())


def echoed(requester: Any, nbytes: int) -> bool:
    """A payload of that many bytes comes back."""
    content = np.frombuffer(np.random.default_rng(nbytes).bytes(nbytes), np.uint8)
    return bool((requester.submit("echo", [content], timeout=BOUND_S).array == content).all())


def answered(requester: Any) -> bool:
    """A request, tried until the helper is back and its lanes are."""

    def attempt() -> Any:
        try:
            return echoed(requester, 5000)
        except (UnknownKernel, RequestFailed):
            return None

    got: bool = until(attempt, BOUND_S)
    return got


@rdma
def test_payloads_and_results_of_any_size_are_carried_by_rdma(make_cluster: Make) -> None:
    cluster, port = watched(make_cluster, {"ada": {}}, **VERBS)
    cluster.start_helper(rdma_device="rxe1", delayed_visibility=True)
    moved = 0
    with cluster.connect("ada", **SIZES) as requester:
        for nbytes in (1, 4096, 100_000, 2 * MIB - 64):
            assert echoed(requester, nbytes)
            moved += nbytes
        for nbytes in (10, 3073, 2 * MIB):  # up to 3 KiB they travel in the message
            assert filled(requester, nbytes, nbytes % 251)
            moved += nbytes
        many = [requester.begin("sum", [np.full(1000 + n, n)]) for n in range(24)]
        assert [pending.result(BOUND_S).array[0] for pending in many] == [(1000 + n) * n for n in range(24)]
        assert until(lambda: get(port, "/healthz", BOUND_S)[0] == 200, BOUND_S)
    counted = cluster.statistics()
    assert counted["dma_bytes"] > moved
    assert counted["ended_completed"] == 31
    assert "ended_failed" not in counted


@rdma
def test_a_worker_killed_costs_its_own_jobs_and_its_lanes_successor_is_linked_anew(make_cluster: Make) -> None:
    cluster = make_cluster({"ada": {}, "bob": {}}, **VERBS)
    helper = cluster.start_helper(rdma_device="rxe1")
    with cluster.connect("ada", **SIZES) as ada, cluster.connect("bob", **SIZES) as bob:
        assert filled(ada, MIB, 3)
        assert filled(bob, MIB, 4)
        path = cluster.folder / "mark"
        doomed = ada.begin("mark", path_array(path))
        victim = until(lambda: path.exists() and path.read_text(), BOUND_S)
        os.kill(int(victim), signal.SIGKILL)
        with pytest.raises(RequestFailed) as failed:
            doomed.result(BOUND_S)
        assert failed.value.reason is Reason.WORKER_LOST
        assert filled(bob, 2 * MIB, 5)
        assert filled(ada, 2 * MIB, 6)
        assert int(victim) not in pids_of(helper)


@rdma
def test_a_lane_that_cannot_be_copied_to_is_given_up_and_its_job_runs_in_another(make_cluster: Make) -> None:
    """Its worker is well: only its queue pair has failed."""
    cluster = make_cluster({"ada": {}}, leasing={"lanes": 1}, **VERBS)
    cluster.start_helper(rdma_device="rxe1", break_link=str(cluster.folder / "lied"))
    with cluster.connect("ada") as requester:
        assert echoed(requester, 50_000)
    assert re.search("its memory cannot be reached: .*REM_ACCESS_ERR", cluster.daemon.errors)


@rdma
def test_a_daemon_that_is_killed_goes_on_with_lanes_that_are_linked_anew(make_cluster: Make) -> None:
    lasting = {"resume_ttl_s": 120, "adopt_ms": 60_000, "journal_mib": 4}
    leasing = {"keep_warm_ms": 600_000}  # an emulated processor may need longer than the default for one request
    cluster = make_cluster({"ada": {}}, leasing=leasing, keep={"starts": 0}, durability=lasting, **VERBS)
    helper = cluster.start_helper(rdma_device="rxe1")
    with cluster.connect("ada", **SIZES) as requester:
        assert filled(requester, MIB, 7)
        before = set(pids_of(helper))
        running = requester.begin("where", seconds(2.0))
        queued = [requester.begin("fill", [np.array([MIB, n])]) for n in range(4)]
        time.sleep(0.3)
        os.kill(pids_of(cluster.daemon)[0], signal.SIGKILL)
        assert cluster.daemon.hear(BOUND_S)["lineage"] == cluster.lineage
        assert said(running.result(BOUND_S))["pid"] in before, "it ran on"
        for value, pending in enumerate(queued):
            array = pending.result(BOUND_S).array
            assert array.nbytes == MIB
            assert (array == value).all()
        assert filled(requester, 2 * MIB, 9)
        assert before & set(pids_of(helper)), "a worker of before serves the daemon of now"


@rdma
def test_a_helper_without_the_port_it_was_given_says_so_and_the_daemon_too(make_cluster: Make) -> None:
    cluster = make_cluster({"ada": {}}, **VERBS)
    helper = cluster.start_helper(rdma_device="rxe9")
    with cluster.connect("ada") as requester:
        waiting = requester.begin("echo", seconds(1), options=Options(budget_ms=3000))
        until(lambda: "no port for device rxe9; there are rxe0/1 ACTIVE, rxe1/1 ACTIVE" in helper.errors, BOUND_S)
        until(lambda: "could not be opened: no port for device rxe9" in cluster.daemon.errors, BOUND_S)
        with pytest.raises(RequestFailed):
            waiting.result(BOUND_S)


def test_a_daemon_without_its_rdma_device_ends_with_a_line_that_says_so(tmp_path: Path) -> None:
    config = tmp_path / "offpathd.toml"
    config.write_text('[[tenant]]\nname = "ada"\n[datapath]\ncopy_engine = "verbs"\n[rdma]\ndevice = "rxe9"\n')
    done = offpath("daemon", "run", "--config", str(config), "--runtime-dir", str(tmp_path / "run"))
    assert done.code == 1
    last = done.err.splitlines()[-1]
    assert last == "offpath: the kernel lists no RDMA device" or last.startswith("offpath: no port for device rxe9")
