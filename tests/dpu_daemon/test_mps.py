"""Requests end to end where the lanes of a lease share their GPU by MPS, and what is left when a part of that ends."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from offpath.bindings.wire.codes import Reason, Status
from offpath.host_helper import Options, RequestFailed

from ..host_helper.migd.rig import Migd
from ..host_helper.mps_rig import control_daemons, daemon_of, end_all, ended, folders
from ..support.cluster import TIMEOUT, Cluster, pids_of, said
from ..support.clusters import Make, first_pid, path_array, seconds
from ..support.gpu_machine import Machine
from ..support.processes import Process, until

MIB = 1 << 20
WIDE = {"max_share": 28, "profile": "2g.10gb"}
"""A tenant with two slices: α = 28, so that a kernel of R = 14 may use half of the instance's multiprocessors."""
SMS = 28
"""Of 2g.10gb on an A100."""


class Site:
    """A machine with migd, a daemon, and a helper whose leases run under MPS."""

    def __init__(self, folder: Path) -> None:
        self.machine = Machine(folder / "machine", models="A100-40GB", slice_bytes=str(32 * MIB))
        self.migd = Migd(self.machine, folder / "migd", hold_ms=500)  # what a killed helper had is free soon
        self.cluster = Cluster({"ada": WIDE, "bob": WIDE})
        self.root = self.cluster.folder / "own" / "mps"
        self.root.parent.mkdir(mode=0o700)
        self.client = self.migd.client()
        self.helper = self.start()

    def start(self, **environment: str) -> Process:
        self.helper = self.cluster.start_helper(
            environment={"RUNTIME_DIRECTORY": str(self.root.parent), **environment},
            emulate=[], gpus="migd", migd=self.migd.path, mps="on",
        )  # fmt: skip
        return self.helper

    def ask(self, tenant: str, nbytes: int = MIB) -> dict[str, Any]:
        with self.cluster.connect(tenant) as requester:
            found: dict[str, Any] = said(requester.submit("share", seconds(nbytes), timeout=TIMEOUT))
        return found

    def instances(self) -> int:
        return len(self.client.describe(self.client.gpus().gpus[0].uuid).instances)

    def is_empty(self) -> bool:
        """No lease is left: no control daemon, no directory of one, no instance."""
        return not control_daemons(self.root) and len(folders(self.root)) == 1 and not self.instances()

    def close(self) -> None:
        """The helper ends in order, also where a worker complained in its log; nothing is left."""
        self.helper.signal(signal.SIGTERM)
        assert self.helper.ended() == 0
        self.helper.kill()
        assert (control_daemons(self.root), folders(self.root), self.instances()) == ([], [], 0)
        self.cluster.close()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    made = Site(tmp_path_factory.mktemp("mps"))
    try:
        yield made
        made.close()
    finally:
        made.cluster.kill()
        end_all(made.root)
        made.migd.close()
        made.machine.close()


@pytest.fixture(autouse=True)
def nothing_is_left(site: Site) -> Iterator[None]:
    yield
    until(site.is_empty)  # leases stay warm for 300 ms


def how(pending: Any) -> tuple[Status, Reason]:
    with pytest.raises(RequestFailed) as failed:
        pending.result(TIMEOUT)
    return failed.value.status, failed.value.reason


def test_lanes_have_their_percentage_and_their_part_of_the_memory(site: Site) -> None:
    kept = [site.cluster.folder / f"kept-{tenant}" for tenant in ("ada", "bob")]
    with site.cluster.connect("ada") as ada, site.cluster.connect("bob") as bob:
        held = [each.begin("held", path_array(path)) for each, path in zip((ada, bob), kept, strict=True)]
        lanes = {first_pid(path) for path in kept}
        found = [said(each.submit("share", seconds(MIB), timeout=TIMEOUT)) for each in (ada, bob)]
        assert len(lanes | {each["pid"] for each in found}) == 4
        assert [(each["mps"], each["sms"], each["allocated"]) for each in found] == [(1, SMS // 2, 0)] * 2
        assert said(ada.submit("share", seconds(40 * MIB), timeout=TIMEOUT))["allocated"] == 2, "half of 64 MiB"
        assert len(control_daemons(site.root)) == len(folders(site.root)) - 1 == 2
        for each, path in zip(held, kept, strict=True):
            path.unlink()
            assert each.result(TIMEOUT).array.item() in lanes


@pytest.mark.parametrize(("is_idempotent", "launches"), [(False, 1), (True, 3)], ids=["normal", "idempotent"])
def test_a_fault_ends_the_lanes_of_its_lease_and_of_no_other(site: Site, is_idempotent: bool, launches: int) -> None:
    """Nobody can tell whose kernel was at fault: the outcome of both jobs is unknown, and those that may run twice
    do."""
    file, beside, others = (site.cluster.folder / f"{name}-{launches}" for name in ("faults", "beside", "others"))
    with site.cluster.connect("ada") as ada, site.cluster.connect("bob") as bob:
        other = bob.begin("held", path_array(others))
        neighbour = ada.begin("held", path_array(beside))
        pid, victim = first_pid(others), first_pid(beside)
        culprit = ada.begin("gpu-fault-noted", path_array(file), options=Options(is_idempotent=is_idempotent))
        assert how(neighbour) == how(culprit) == (Status.OUTCOME_UNKNOWN, Reason.WORKER_LOST)
        assert file.read_text() == "launched\n" * launches
        until(lambda: ended(victim))
        others.unlink()
        assert other.result(TIMEOUT).array.item() == pid
        assert said(ada.submit("share", seconds(MIB), timeout=TIMEOUT))["mps"] == 1


def ends_with(site: Site, end: Callable[[dict[str, Any]], int], why: str) -> None:
    """``end`` kills a part of ada's lease: all of its lanes end, bob's go on, and ada is served again."""
    ours, others = (site.cluster.folder / f"{name}-{end.__name__}" for name in ("ours", "others"))
    with site.cluster.connect("ada") as ada, site.cluster.connect("bob") as bob:
        other, running = bob.begin("held", path_array(others)), ada.begin("held", path_array(ours))
        undisturbed, victim = first_pid(others), first_pid(ours)
        found = said(ada.submit("share", seconds(MIB), timeout=TIMEOUT))
        assert {victim, found["pid"]} <= set(pids_of(site.helper))
        killed = end(found)
        assert how(running) == (Status.OUTCOME_UNKNOWN, Reason.WORKER_LOST)
        until(lambda: all(map(ended, (killed, victim, found["pid"]))))
        after = said(ada.submit("share", seconds(MIB), timeout=TIMEOUT))
        assert (after["mps"], after["lease"] != found["lease"]) == (1, True)
        assert f"lease {found['lease']}: {why}" in site.helper.errors, "all lanes at once, not each at its next call"
        others.unlink()
        assert other.result(TIMEOUT).array.item() == undisturbed


def test_a_control_daemon_that_is_killed_ends_its_lease_and_no_other(site: Site) -> None:
    def daemon(found: dict[str, Any]) -> int:
        os.kill(pid := daemon_of(site.root, found["lease"]), signal.SIGKILL)
        return pid

    ends_with(site, daemon, "its MPS control daemon ended")


def test_a_worker_that_is_killed_ends_the_other_lanes_of_its_lease(site: Site) -> None:
    def worker(found: dict[str, Any]) -> int:
        os.kill(found["pid"], signal.SIGKILL)
        return int(found["pid"])

    ends_with(site, worker, "the worker of lane")


def test_what_a_killed_helper_left_is_gone_before_the_next_one_serves(site: Site) -> None:
    with site.cluster.connect("ada") as ada:
        lease = said(ada.submit("share", seconds(MIB), timeout=TIMEOUT))["lease"]
        left = daemon_of(site.root, lease)
        site.helper.signal(signal.SIGKILL)
        assert site.helper.ended() == -signal.SIGKILL
        assert not ended(left)
        site.helper.kill()
        site.start()
        assert ended(left)
        assert said(ada.submit("share", seconds(MIB), timeout=TIMEOUT))["mps"] == 1


def test_workers_that_cuda_runs_without_mps_serve_nothing(site: Site) -> None:
    site.helper.signal(signal.SIGTERM)
    site.helper.ended()
    site.helper.kill()
    helper = site.start(OFFPATH_GPU_EMULATOR_FAULTS="mps_gone")
    with site.cluster.connect("ada") as ada:
        waiting = ada.begin("echo", seconds(1))
        until(lambda: "CUDA runs without MPS" in helper.errors)
        assert not waiting.done
        helper.signal(signal.SIGTERM)
        assert helper.ended() == 0
        helper.kill()
        site.start()
        assert waiting.result(TIMEOUT).array == 1


def test_the_lanes_of_a_lease_share_a_whole_gpu(make_cluster: Make, tmp_path: Path) -> None:
    machine = Machine(tmp_path / "machine", mig="off", models="H100-80GB", slice_bytes=str(8 * MIB))
    try:
        cluster = make_cluster({"ada": {}})
        helper = cluster.start_helper(
            environment={"RUNTIME_DIRECTORY": str(cluster.folder)}, emulate=[], gpus="cuda", mps="auto"
        )
        with cluster.connect("ada") as ada:
            found = said(ada.submit("share", seconds(MIB), timeout=TIMEOUT))
        assert (found["mps"], found["sms"], found["allocated"]) == (1, 20, 0), "14 % of 132, in pairs"
        helper.finish()
        root = cluster.folder / "mps"
        assert (end_all(root), folders(root)) == ([], [])
    finally:
        machine.close()
