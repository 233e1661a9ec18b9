"""The page's server beside a real controller and a real job manager, with a job each."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from offpath.bindings.runtime import CONTROLLER_SOCKET
from offpath.bindings.wire import ina_admin
from offpath.cli import controller_client
from offpath.cli.admin_client import Refused
from offpath.cli.local.ina_cluster import InaCluster
from offpath.cli.local.job_manager import JobManager
from offpath.cli.web import document
from offpath.cli.web.reader import Reader

from ...support.processes import until

HOSTS = ("h1", "h2", "h3", "h4")


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="offpath-t-") as made:  # sockets have short paths
        yield Path(made)


def test_the_controllers_jobs_are_read_and_explained(folder: Path) -> None:
    cluster = InaCluster(str(folder / "c"), {}, hosts=HOSTS)
    cluster.prepare()
    with contextlib.closing(cluster):
        cluster.start("controller")
        cluster.await_line("controller", "ready in")
        runtime = cluster.path("controller")
        with controller_client.client(runtime) as client:
            for name, hosts in (("resnet", ["h1", "h2"]), ("vgg", ["h2", "h3"])):
                client.query(ina_admin.SubmitRequest(job=name, on=hosts), ina_admin.InaJob)
        reader = Reader(runtime, has_daemon=False)
        seen = reader.read()
        assert (seen.faults, seen.daemon, seen.manager) == ({}, None, None)
        assert seen.controller is not None
        made = document.controller(seen.controller, None)
        assert [(row[0], row[1], row[2]) for row in made["jobs"]["rows"]] == [
            ("resnet", "waiting", ["h1", "h2"]), ("vgg", "waiting", ["h2", "h3"]),
        ]  # fmt: skip
        assert [(tree[0], tree[3]) for tree in made["trees"]["rows"]] == [("resnet", False), ("vgg", False)]
        assert {name for name, _ in made["network"]["nodes"]} >= {"h1", "h2", "h3"}
        assert "none of its ranks" in reader.explain_job("resnet").where
        with pytest.raises(Refused):
            reader.explain_job("nothing")
    closed = reader.read()
    assert closed.controller is None
    is_there = (Path(runtime) / CONTROLLER_SOCKET).exists()
    assert list(closed.faults) == (["controller"] if is_there else []), "a socket without a listener is a fault"


def test_the_job_managers_jobs_are_read(folder: Path) -> None:
    nodes = [{"name": "n1", "gpus": 2, "switch": "leaf0"}]
    engine = {"kind": "local", "folder": str(folder / "engine"), "poll_ms": 100, "node": nodes}
    with JobManager(str(folder / "m"), {"engine": engine}) as manager:
        manager.submit("night", 2, ["sleep", "60"])
        reader = Reader(manager.runtime_dir, has_daemon=False)

        def rows() -> list[list[object]]:
            seen = reader.read()
            assert seen.faults == {}
            assert seen.manager is not None
            return document.manager(seen.manager)["jobs"]["rows"]

        until(lambda: rows()[0][1] == "running")
        (row,) = rows()
        assert (row[0], row[2], row[-1]) == ("night", 2, ["n1:2"])
        manager.cancel("night")
