"""`offpath helper reload`: kernels are added, replaced and removed while they are called, and leases stay."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from offpath.bindings.wire import admin
from offpath.bindings.wire.codes import Reason, Status
from offpath.cli.admin_client import AdminClient
from offpath.host_helper import Requester, RequestFailed
from offpath.host_helper.errors import UnknownKernel

from ..support.cluster import TIMEOUT, Cluster
from ..support.clusters import NARROW, Make, first_pid, path_array
from ..support.command import Done, offpath
from ..support.processes import until

SERVE = """
import os, time
import numpy as np
from offpath.host_helper import Helper, current_lane
from tool import VERSION  # a module beside the file is loaded anew with it
helper = Helper()

@helper.kernel("version", demand=14)
def version(array):
    return np.array([VERSION, current_lane().lease, os.getpid()])

@helper.kernel("held", demand=14)
def held(path):
    name = path.tobytes().decode()
    with open(name, "w") as file:
        file.write(f"{os.getpid()}\\n")
    end = time.monotonic() + 20
    while os.path.exists(name) and time.monotonic() < end:
        time.sleep(0.002)
    return np.array([VERSION])
"""
ADDED = """
@helper.kernel("added", demand=14)
def added(array):
    return array + VERSION
"""
SLOW = """
@helper.lane_opened
def load(lane):
    time.sleep(1.0)
"""
ONE = [np.array([1])]


class Served:
    """A helper whose file tests rewrite."""

    def __init__(self, run_folder: Path, folder: Path) -> None:
        self.run_folder = run_folder
        self.folder = folder
        self.log = folder / "helper.err"
        self.write(1)
        words = ["helper", "run", str(folder / "serve.py"), "--emulate", "A100-40GB"]
        with open(self.log, "wb") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "offpath.cli.main", *words, "--runtime-dir", str(run_folder)],
                stderr=errors, env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
            )  # fmt: skip

    def write(self, version: int, text: str = SERVE) -> None:
        (self.folder / "tool.py").write_text(f"VERSION = {version}")
        (self.folder / "serve.py").write_text(text)

    def reload(self, *words: str) -> Done:
        return offpath("helper", "reload", "--runtime-dir", str(self.run_folder), *words)

    def changed(self, version: int, text: str = SERVE) -> dict[str, Any]:
        """Write the file and reload it."""
        self.write(version, text)
        done = self.reload("--json")
        assert done.code == 0, done.err
        document: dict[str, Any] = done.document
        return document

    def leases(self) -> list[tuple[int, int, str]]:
        with AdminClient(str(self.run_folder)) as client:
            found = client.query(admin.LeasesRequest(), admin.Leases).leases
        return [(each.lease, each.generation, each.tenant) for each in found]


@contextmanager
def served(run_folder: Path, folder: Path, said: str = "joined the daemon") -> Iterator[Served]:
    """A helper that has said so; it ends in order."""
    made = Served(run_folder, folder)
    try:
        until(lambda: said in made.log.read_text())
        yield made
        made.process.terminate()
        assert made.process.wait(TIMEOUT) == 0, made.log.read_text()
    finally:
        made.process.kill()
        made.process.wait(TIMEOUT)


def called(requester: Requester, kernel: str = "version") -> list[int]:
    return [int(each) for each in np.atleast_1d(requester.submit(kernel, ONE, timeout=TIMEOUT).array)]


def test_kernels_are_replaced_under_load_and_no_lease_ends(make_cluster: Make, tmp_path: Path) -> None:
    """Every answer is right; what is submitted after a reload is answered by the new code."""
    leasing = {"keep_warm_ms": 60_000, "grow_after_ms": 60_000}
    cluster = make_cluster({"ada": {"profile": "1g.5gb"}, "bob": NARROW}, leasing=leasing)
    with served(cluster.run_folder, tmp_path) as helper, cluster.connect("ada") as ada, cluster.connect("bob") as bob:
        called(bob)
        before = {lease: pid for _, lease, pid in (called(ada) for _ in range(20))}
        leases = helper.leases()
        for version in (2, 3, 4):
            running = [ada.begin("version", ONE) for _ in range(8)]
            report = helper.changed(version)
            assert report == {
                "revision": version - 1, "added": [], "replaced": ["version", "held"], "removed": [], "is_joined": True
            }  # fmt: skip
            assert {int(each.result(TIMEOUT).array[0]) for each in running} <= {version - 1, version}
            after = [called(ada) for _ in range(20)]
            assert {each[0] for each in after} == {version}
            assert {each[1] for each in after} <= before.keys()
            assert called(bob)[0] == version
            assert helper.leases() == leases
        assert before.items().isdisjoint({(lease, pid) for _, lease, pid in after})
    counted = cluster.statistics()
    assert counted["workers_renewed"] == 3 * 2 * len(leases)
    assert "leases_closed" not in counted or counted["leases_opened"] == len(leases)


def test_a_launch_that_runs_ends_with_the_former_code(make_cluster: Make, tmp_path: Path) -> None:
    """The reload returns before it ends; its lane takes the new code afterwards."""
    cluster = make_cluster({"ada": NARROW}, leasing={"lanes": 1})
    with served(cluster.run_folder, tmp_path) as helper, cluster.connect("ada") as ada:
        path = tmp_path / "held"
        running = ada.begin("held", path_array(path))
        first_pid(path)
        leases = helper.leases()
        helper.changed(2)
        waiting = ada.begin("version", ONE)
        path.unlink()
        assert running.result(TIMEOUT).array.item() == 1
        assert waiting.result(TIMEOUT).array[0] == 2
        assert helper.leases() == leases


def test_kernels_are_added_and_removed(make_cluster: Make, tmp_path: Path) -> None:
    cluster = make_cluster(
        {"ada": NARROW}, limits={"kernel_gone_ms": 300}, leasing={"keep_warm_ms": 60_000, "lanes": 1}
    )
    with served(cluster.run_folder, tmp_path) as helper, cluster.connect("ada") as ada:
        with pytest.raises(UnknownKernel):
            called(ada, "added")
        called(ada)
        leases = helper.leases()
        assert helper.changed(2, SERVE + ADDED)["added"] == ["added"]
        ada._link.negotiation.update(1.0)
        assert called(ada, "added") == [3]
        path = tmp_path / "held"
        running = ada.begin("held", path_array(path))
        first_pid(path)
        waiting = ada.begin("added", ONE)
        assert helper.changed(3) == {
            "revision": 2, "added": [], "replaced": ["version", "held"], "removed": ["added"], "is_joined": True
        }  # fmt: skip
        with pytest.raises(RequestFailed) as failed:
            waiting.result(TIMEOUT)
        assert (failed.value.status, failed.value.reason) == (Status.CANCELLED, Reason.KERNEL_GONE)
        path.unlink()
        assert running.result(TIMEOUT).array.item() == 2
        assert called(ada)[0] == 3
        assert helper.leases() == leases


def test_a_signal_reloads_too(make_cluster: Make, tmp_path: Path) -> None:
    cluster = make_cluster({"ada": NARROW})
    with served(cluster.run_folder, tmp_path) as helper, cluster.connect("ada") as ada:
        assert called(ada)[0] == 1
        helper.write(2)
        helper.process.send_signal(signal.SIGHUP)
        until(lambda: "reloaded, revision 1: replaced version, held" in helper.log.read_text())
        until(lambda: called(ada)[0] == 2)


REFUSED = [
    ("helper = (", "cannot be loaded: SyntaxError"),
    ("1 / 0", "cannot be loaded: ZeroDivisionError"),
    ("import sys; sys.exit(3)", "serve.py cannot be loaded: SystemExit: 3"),
    ("import os; os._exit(0)", "the process of its trial ended early"),
    ("import os; os.kill(os.getpid(), 11)", "its trial was ended by SIGSEGV"),
    ("helper = 3", "defines no `helper = Helper()`"),
    ("from offpath.host_helper import Helper\nhelper = Helper()", "registers no kernel"),
    (SERVE.replace("demand=14", "demand=101"), "cannot be loaded: ValueError"),
    (SERVE.replace("demand=14", 'demand={"no-such-model": 14}'), "no-such-model"),
    (SERVE.replace("demand=14", 'demand="auto"'), "auto"),
]


def test_a_file_that_cannot_be_served_changes_nothing(make_cluster: Make, tmp_path: Path) -> None:
    cluster = make_cluster({"ada": NARROW}, leasing={"keep_warm_ms": 60_000, "lanes": 1})
    with served(cluster.run_folder, tmp_path) as helper, cluster.connect("ada") as ada:
        first = called(ada)
        for text, said in REFUSED:
            helper.write(2, text)
            done = helper.reload()
            assert (done.code, done.out, said in done.err) == (1, "", True), done.err
            assert called(ada) == first
        assert helper.changed(3)["revision"] == 1
        assert called(ada)[:2] == [3, first[1]]
        assert helper.log.read_text().count("not reloaded: ") == len(REFUSED)


def test_a_helper_without_a_daemon_reloads_for_the_next_one(tmp_path: Path) -> None:
    with served(tmp_path, tmp_path, "not joined: no daemon at") as helper:
        assert helper.changed(2, SERVE + ADDED) == {
            "revision": 1, "added": ["added"], "replaced": ["version", "held"], "removed": [], "is_joined": False
        }  # fmt: skip
    done = helper.reload()
    assert (done.code, "no helper 'helper' at" in done.err) == (69, True), done.err


def test_the_daemon_is_killed_in_the_middle_of_a_reload_and_leases_stay(make_cluster: Make, tmp_path: Path) -> None:
    """Workers load for a second when it dies: the next process awaits the helper for `durability.adopt_ms`, its new
    workers until their own limits, and gets their lanes."""
    cluster = make_cluster({"ada": NARROW}, keep={}, leasing={"keep_warm_ms": 60_000}, durability={"resume_ttl_s": 30})
    with served(cluster.run_folder, tmp_path) as helper, cluster.connect("ada") as ada:
        assert called(ada)[0] == 1
        leases = helper.leases()
        helper.changed(2, SERVE + SLOW)
        waiting = ada.begin("version", ONE)
        os.kill(daemon_pid(cluster), signal.SIGKILL)
        assert waiting.result(TIMEOUT).array[0] == 2
        assert helper.leases() == leases
        assert helper.changed(3)["revision"] == 2
        assert called(ada)[0] == 3
        assert helper.leases() == leases


def test_a_reload_while_the_daemon_is_away_is_taken_over_when_it_returns(make_cluster: Make, tmp_path: Path) -> None:
    cluster = make_cluster({"ada": NARROW}, keep={}, leasing={"keep_warm_ms": 60_000}, durability={"resume_ttl_s": 30})
    with served(cluster.run_folder, tmp_path) as helper, cluster.connect("ada") as ada:
        assert called(ada)[0] == 1
        leases = helper.leases()
        daemon = daemon_pid(cluster)
        os.kill(daemon, signal.SIGSTOP)
        helper.write(2, SERVE + ADDED)
        helper.process.send_signal(signal.SIGHUP)
        until(lambda: "reloaded, revision 1" in helper.log.read_text())
        os.kill(daemon, signal.SIGKILL)  # the message about it was sent, and never read
        until(lambda: called(ada)[0] == 2)
        ada._link.negotiation.update(1.0)
        assert called(ada, "added") == [3]
        assert helper.leases() == leases


def daemon_pid(cluster: Cluster) -> int:
    with AdminClient(str(cluster.run_folder)) as client:
        return client.query(admin.StatusRequest(), admin.Status).pid


def test_what_the_command_prints_is_one_line(make_cluster: Make, tmp_path: Path) -> None:
    cluster = make_cluster({"ada": NARROW})
    with served(cluster.run_folder, tmp_path) as helper:
        helper.write(1, SERVE + ADDED)
        done = helper.reload()
        assert (done.code, done.out) == (0, "reloaded, revision 1: added added; replaced version, held\n")
        assert json.loads(helper.reload("--json").out)["revision"] == 2
        done = helper.reload("--name", "other")
        assert (done.code, "no helper 'other' at" in done.err) == (69, True)
