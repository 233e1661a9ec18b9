"""Requests for servers and switches on a real Slurm and a real Ray: tasks on servers run once, are seen ending, are
adopted by a restarted job manager, placed again when they die, and cancelled."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random

import pytest

from offpath.bindings.wire import inc_admin
from offpath.bindings.wire.inc_admin import CompositeBody, SubmitRequest
from offpath.cli import inc_client
from offpath.cli.inc_values import Values
from offpath.cli.local import engines
from offpath.cli.local.job_manager import JobManager

from ...support.processes import BOUND_S, until

pytestmark = pytest.mark.not_fast("scripts of the source tree fetch Slurm and Ray")
LEAVES = {"s0": 1, "s1": 1}
LONG_S = 2 * BOUND_S
SEED = 22
TASKS = 3


@dataclass(frozen=True, slots=True)
class Mark:
    """What a task's process wrote when it began."""

    identity: str
    node: str
    pid: int


class Rig:
    """A job manager on an engine. Each task of `request` writes a line when it begins, and ends when it is let go."""

    def __init__(self, folder: Path, engine: engines.Started) -> None:
        self._folder = folder
        switches = [{"name": leaf, "hosts": list(nodes)} for leaf, nodes in engine.leaves.items()]
        first_port = 31_000 + os.getpid() % 900
        self.manager = JobManager(str(folder / "manager"), {
            "engine": engine.table,
            "inc": {
                "round_ms": 50, "first_port": first_port, "last_port": first_port + 20,
                "server": [{"name": name, "cpu_milli": 4_000, "memory_mib": 1_024} for name in engine.nodes],
                "switch": [*switches, {"name": "core", "switches": list(engine.leaves)}],
            },
        })  # fmt: skip

    def request(self) -> SubmitRequest:
        script = (
            f'echo "$OFFPATH_JOB $OFFPATH_NODE $$" >>{self._folder}/marks;'
            f" until [ -e {self._folder}/go ]; do sleep 0.1; done"
        )
        work = CompositeBody(name="work", instances=TASKS, cpu_milli=1_000, argv=["sh", "-c", script])
        return SubmitRequest(name="r", tenant="t", composite=[work, CompositeBody(name="keep", service="store")])

    @property
    def marks(self) -> list[Mark]:
        path = self._folder / "marks"
        lines = path.read_text().splitlines() if path.exists() else []
        return [Mark(identity, node, int(pid)) for identity, node, pid in map(str.split, lines)]

    def let_go(self) -> None:
        (self._folder / "go").touch()

    def submit(self) -> None:
        with inc_client.client(self.manager.runtime_dir) as client:
            client.query(self.request(), inc_admin.Shown)

    def cancel(self) -> None:
        with inc_client.client(self.manager.runtime_dir) as client:
            client.query(inc_admin.CancelRequest(name="r"), inc_admin.Shown)

    def shown(self) -> inc_admin.Shown:
        return inc_client.shown("r", self.manager.runtime_dir)

    def tasks(self, composite: str = "work") -> dict[str, str]:
        """Node by identity."""
        return {each.identity: each.where for each in self.shown().tasks if each.composite == composite}

    def is_running(self) -> bool:
        shown = self.shown()
        return shown.request.state == "running" and all(each.state == "running" for each in shown.tasks)

    def began(self) -> dict[str, str]:
        """Node by identity, of the processes that began; each began once."""
        identities = [each.identity for each in self.marks]
        assert len(set(identities)) == len(identities), f"a task ran twice: {identities}"
        return {each.identity: each.node for each in self.marks}


@pytest.fixture(params=["slurm", "ray"])
def rig(request: pytest.FixtureRequest) -> Iterator[Rig]:
    folder = Path(tempfile.mkdtemp(prefix="offpath-i-"))
    try:
        with engines.started(request.param, str(folder), LEAVES) as engine:
            made = Rig(folder, engine)
            with made.manager:
                yield made
                assert "Traceback" not in made.manager.log
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def test_tasks_on_servers_run_once_are_adopted_placed_again_and_cancelled(rig: Rig) -> None:
    rig.submit()
    time.sleep(Random(SEED).random())  # some tasks are being started then
    rig.manager.kill()
    rig.manager.start()
    rig.submit()  # the same request is one
    until(rig.is_running, LONG_S)
    first = rig.tasks()
    assert len(first) == TASKS
    until(lambda: rig.began() == first, LONG_S)

    with Values("r", "keep", rig.manager.runtime_dir) as values:
        values.put("k", b"kept")
        rig.manager.kill()
        rig.manager.start()
        until(rig.is_running, LONG_S)
        assert rig.tasks() == first, "a restart changes no task"
        assert values.get("k") == (b"kept", 1), "the store is the same process"

    dead = rig.marks[0]
    os.kill(dead.pid, signal.SIGKILL)
    until(lambda: dead.identity not in rig.tasks() and rig.is_running(), LONG_S)
    second = rig.tasks()
    assert len(second.keys() & first.keys()) == TASKS - 1
    until(lambda: rig.began() == first | second, LONG_S)

    rig.manager.kill()
    rig.let_go()
    rig.manager.start()
    until(lambda: rig.tasks() == {}, LONG_S)
    assert rig.shown().request.state == "running", "the store goes on"
    store = rig.tasks("keep")
    assert len(store) == 1
    assert processes_of(store) != []

    rig.cancel()
    until(lambda: rig.shown().tasks == [], LONG_S)
    assert processes_of(store) == [], "its end is reported when nothing of it is left"
    assert rig.began() == first | second
    assert rig.shown().request.state == "cancelled"


def processes_of(tasks: dict[str, str]) -> list[int]:
    """The built-in programs that run for these tasks."""
    found = []
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        try:
            environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"serve" in command and any(f"OFFPATH_JOB={each}".encode() in environment for each in tasks):
            found.append(int(pid))
    return found
