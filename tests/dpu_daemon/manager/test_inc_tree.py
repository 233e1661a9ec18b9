"""SHArP live: three ranks on emulated hosts sum through the tree that HIRE has booked, whatever dies."""

from __future__ import annotations

import contextlib
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from subprocess import Popen

import pytest

from offpath.bindings.wire import ina_admin, inc_admin
from offpath.bindings.wire.inc_admin import CompositeBody, ConnectionBody, SubmitRequest
from offpath.cli import inc_client
from offpath.cli.local.child import COMMAND_LINE, start
from offpath.cli.local.ina_cluster import InaCluster
from offpath.cli.local.job_manager import JobManager
from offpath.cli.local.switches import Switches

from ...support.processes import BOUND_S, HERE, until
from ...support.training import needs_torch

pytestmark = needs_torch
HOSTS = ("h1", "h2", "h3")
LEAVES = ("s1", "s2", "s3")
TREE = {"s0", *LEAVES}


class World(contextlib.ExitStack):
    """Switches that sum, a controller and the hosts' daemons; switch s1 as one that HIRE books; a job manager."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="offpath-tree-"))
        self.callback(shutil.rmtree, self.folder, ignore_errors=True)
        self.switches = self.enter_context(Switches(f"{self.folder}/switches", leaves=len(HOSTS)))
        where = {
            name: (self.switches.addresses[name], self.switches.controls[name].address) for name in self.switches.names
        }
        self.cluster = self.enter_context(
            InaCluster(f"{self.folder}/cluster", where, hosts=HOSTS, policy={"mode": "exclusive"})
        )
        self.booked = self.start_booked()
        self.callback(self.end_booked)
        self.manager = self.enter_context(JobManager(str(self.folder / "manager"), self.tables()))

    def start_booked(self) -> Popen[bytes]:
        control = self.folder / "s1.sock"
        control.unlink(missing_ok=True)
        with open(self.folder / "s1.log", "ab") as log:
            made = start(COMMAND_LINE, "switch", "inc", "--name", "s1", "--control", str(control), "--features",
                         "sharp", stdout=log, stderr=log)  # fmt: skip
        until(control.exists)
        return made

    def end_booked(self) -> None:
        self.booked.kill()
        self.booked.wait()

    def tables(self) -> dict[str, object]:
        nodes = [{"name": host, "gpus": 1, "switch": leaf} for host, leaf in zip(HOSTS, LEAVES, strict=True)]
        leaves = [
            {"name": leaf, "hosts": [host], "features": ["sharp"],
             "control": str(self.folder / "s1.sock") if leaf == "s1" else ""}
            for host, leaf in zip(HOSTS, LEAVES, strict=True)
        ]  # fmt: skip
        return {
            "engine": {"kind": "local", "folder": str(self.folder / "engine"), "poll_ms": 100, "node": nodes},
            "inc": {
                "round_ms": 50, "controller": self.cluster.path("controller"),
                "server": [{"name": host, "cpu_milli": 1_500, "memory_mib": 8_192} for host in HOSTS],
                "switch": [*leaves, {"name": "s0", "switches": list(LEAVES), "features": ["sharp"]}],
            },
        }  # fmt: skip

    # -- the request --------------------------------------------------------------------------------------------------
    def submit(self) -> None:
        argv = [sys.executable, str(HERE / "tree_rank_main.py"), str(self.folder), "3", str(self.folder / "cluster")]
        ranks = CompositeBody(name="ranks", instances=3, cpu_milli=1_000, argv=argv,
                              environment={"OMP_NUM_THREADS": "1"}, output=str(self.folder / "rank"))  # fmt: skip
        sums = CompositeBody(name="sum", template="aggregate", among=["sharp", "server"], argv=["sleep", "900"])
        both = ConnectionBody(source="ranks", target="sum", bidirectional=True)
        request = SubmitRequest(name="r", tenant="t", composite=[ranks, sums], connection=[both])
        with inc_client.client(self.manager.runtime_dir) as client:
            client.query(request, inc_admin.Shown)

    def shown(self) -> inc_admin.Shown:
        return inc_client.shown("r", self.manager.runtime_dir)

    def is_running(self, chosen: str) -> bool:
        shown = self.shown()
        live = [task for task in shown.tasks if task.state != "stopping"]
        return (
            shown.request.state == "running" and shown.request.chosen.get("sum") == chosen
            and all(task.state == "running" for task in live)
        )  # fmt: skip

    def booked_switches(self) -> set[str]:
        return {task.where for task in self.shown().tasks if task.is_inc and task.state != "stopping"}

    # -- its ranks ----------------------------------------------------------------------------------------------------
    def sums(self) -> list[tuple[str, str]]:
        """Of rank 0: right or wrong, and how."""
        path = self.folder / "sums.0"
        lines = path.read_text().splitlines() if path.exists() else []
        return [(right, how) for _, right, how in map(str.split, lines) if how]

    def goes_on(self, how: str, count: int = 10) -> None:
        """So many sums further that ran in this way."""
        before = len(self.sums())
        until(lambda: sum(each == how for _, each in self.sums()[before:]) >= count, 2 * BOUND_S)

    # -- the controller -----------------------------------------------------------------------------------------------
    def jobs(self) -> list[ina_admin.InaJobLine]:
        with self.cluster.client() as client:
            return client.query(ina_admin.JobsRequest(), ina_admin.InaJobs).jobs

    def holds(self) -> list[ina_admin.HoldLine]:
        with self.cluster.client() as client:
            return client.query(ina_admin.HoldsRequest(), ina_admin.Holds).holds


@pytest.fixture
def world() -> Iterator[World]:
    with World() as made:
        yield made
        assert "Traceback" not in made.manager.log, made.manager.log
        assert "Traceback" not in made.cluster.log("controller")


def test_ranks_sum_through_the_booked_tree_go_on_without_it_and_nothing_is_left_after_them(world: World) -> None:
    world.submit()
    until(lambda: world.is_running("sharp"))
    assert world.booked_switches() == TREE
    (job,) = world.jobs()
    assert (set(job.hosts), set(job.switches or ())) == (set(HOSTS), TREE)
    world.goes_on("ina")
    assert {hold.switch for hold in world.holds()} == TREE
    assert job.job in " ".join(world.shown().history)

    before = {task.identity for task in world.shown().tasks}
    world.manager.kill()
    world.manager.start()
    world.cluster.kill("controller")
    ready = world.cluster.log("controller").count("ready in")
    world.cluster.start("controller")
    world.cluster.await_line("controller", "ready in", ready + 1)
    world.goes_on("ina")
    assert {task.identity for task in world.shown().tasks} == before, "neither restart changes anything"
    assert [set(each.switches or ()) for each in world.jobs()] == [TREE]

    world.switches.processes["s1"].kill()
    world.end_booked()
    world.goes_on("plain")
    until(lambda: world.is_running("server"))
    assert world.booked_switches() == set()
    assert "a switch of its tree was lost" in " ".join(world.shown().history)
    until(lambda: [each.switches for each in world.jobs()] == [[]])
    world.goes_on("plain")

    world.switches.restart("s1")
    world.booked = world.start_booked()
    with inc_client.client(world.manager.runtime_dir) as client:
        client.query(inc_admin.CancelRequest(name="r"), inc_admin.Shown)
    until(lambda: not world.shown().tasks)
    until(lambda: not world.holds())
    until(lambda: all(each.state == "cancelled" for each in world.jobs()))
    assert all(right == "right" for right, _ in world.sums())
