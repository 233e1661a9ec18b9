"""Jobs of a real Flower on one SuperLink: controller, ServerApps and SuperNodes killed at seeded moments.

As `test_borrow_kills`, with Flower's own processes: the app of `offpath demo venn`, whose nodes note when they work.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path
from random import Random

import pytest

from offpath.bindings.wire import collab_admin
from offpath.cli.demo.samples import DATA
from offpath.cli.demo.venn.story import APP, Work, overlaps
from offpath.cli.local.collab_controller import CollabController
from offpath.cli.local.flower_cluster import FlowerCluster

from ..support.processes import until
from .test_borrow_kills import Rounds

pytestmark = [pytest.mark.full, pytest.mark.not_fast("the processes of Flower have no compiled modules")]
KILLS = 12
KINDS = ("controller", "serverapp", "supernode")
NODES = 6
JOBS = {"a": "softmax", "b": "hidden", "c": "features"}
DEMAND = NODES // len(JOBS)
DEADLINE_S = 45.0
"""Six processes of ClientApps that start at once take a third of that on two busy cores."""
WORK_MS = 500
PAUSE_S = 8.0
"""Between two kills, at most."""
_BOUND_S = 300.0
_SERVERAPP = "flwr-serverapp"
_LOOK_S = 0.2


class Life:
    """Three ServerApps at work on six SuperNodes; what dies is started again. A restarted node has a part of its own,
    and with it a trace of its own: what its former process left behind may still work."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.random = folder, Random(seed)
        self.trace, self.start_file = folder / "trace", folder / "start"
        self.trace.mkdir()
        self.start_file.touch()
        place = folder / "controller"
        place.mkdir()
        self.controller = CollabController(place, {"name": "venn", "period_s": 1, "lease_s": 60})
        settings = self.controller.settings(
            poll_s=0.2, patience_s=120.0, attributes=str(folder / "attributes.json"), prefix="kills"
        )
        self.nodes: list[dict[str, int | str]] = [{"part": number, "parts": NODES} for number in range(NODES)]
        self.flower = FlowerCluster(folder, self.nodes, {"OFFPATH_COLLAB": str(settings)})
        self.rounds = Rounds(DEADLINE_S)
        self.kills = dict.fromkeys(KINDS, 0)
        self.results: dict[str, Path] = {}
        self.runs = 0

    def start(self) -> None:
        self.controller.start()
        self.flower.open()
        for name in JOBS:
            self.start_job(name)

    def start_job(self, name: str) -> None:
        """Another run, of the same job."""
        self.runs += 1
        self.results[name] = self.folder / f"{name}{self.runs}.json"
        self.flower.run(APP, {
            "job": name, "model": JOBS[name], "rounds": 10_000, "demand": DEMAND, "deadline-s": DEADLINE_S, "least": "",
            "data": str(DATA), "result": str(self.results[name]), "seed": 0, "trace": str(self.trace),
            "work-ms": WORK_MS, "start": str(self.start_file),
        })  # fmt: skip

    def pid(self, name: str) -> int:
        """Of the job's ServerApp; 0: it has not begun, or it has ended."""
        path = self.results[name].with_suffix(".ready")
        pid = int(path.read_text() or 0) if path.exists() else 0
        return pid if pid and is_serverapp(pid, self.folder) else 0

    def look(self) -> None:
        """No round runs too long."""
        asked = time.monotonic()
        with self.controller.client() as client:
            lines = client.query(collab_admin.JobsRequest(), collab_admin.JobLines).jobs
        answered = time.monotonic()
        for line in lines:
            self.rounds.seen(line, asked, answered)

    def watch(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.look()
            time.sleep(_LOOK_S)

    def kill(self, kind: str) -> None:
        """One process, and start it again."""
        self.kills[kind] += 1
        if kind == "controller":
            self.controller.kill()
            time.sleep(self.random.random())
            self.controller.start()
        elif kind == "supernode":
            number = self.random.randrange(NODES)
            self.flower.kill(number)
            self.nodes[number]["part"] = NODES + sum(self.kills.values())
            self.flower.start(number)
        else:
            name = self.random.choice(tuple(JOBS))
            os.kill(until(lambda: self.pid(name), _BOUND_S), signal.SIGKILL)
            self.start_job(name)

    def grown(self, before: dict[str, int]) -> bool:
        self.look()
        time.sleep(_LOOK_S)
        return all(self.rounds.completed.get(name, 0) > before.get(name, 0) for name in JOBS)

    def works(self) -> list[Work]:
        """A killed process of a node may have left half a line."""
        found = []
        for path in sorted(self.trace.iterdir()):
            for line in path.read_text().splitlines(keepends=True):
                if line.endswith("\n"):
                    job, began, ended = line.split()
                    found.append(Work(int(path.name), job, float(began), float(ended)))
        return found

    def close(self) -> None:
        self.flower.close()
        self.controller.close()


def is_serverapp(pid: int, home: Path) -> bool:
    """The process is one of a ServerApp of the cluster in that folder; its number may be another process's by now."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False
    return (
        any(Path(os.fsdecode(word)).name == _SERVERAPP for word in words) and os.fsencode(f"HOME={home}") in variables
    )


@pytest.mark.parametrize(
    ("words", "home", "expected"),
    [((_SERVERAPP,), "", True), ((_SERVERAPP,), "another", False), (("another",), "", False)],
)
def test_only_a_process_of_the_clusters_serverapps_is_one(
    tmp_path: Path, words: tuple[str, ...], home: str, expected: bool
) -> None:
    environment = {**os.environ, "HOME": str(tmp_path / home)}
    with subprocess.Popen(["sh", "-c", "read -r line", *words], stdin=subprocess.PIPE, env=environment) as process:
        try:
            until(lambda: Path(f"/proc/{process.pid}/cmdline").read_bytes().startswith(b"sh\0"))
            assert is_serverapp(process.pid, tmp_path) is expected
        finally:
            process.communicate()
    assert not is_serverapp(process.pid, tmp_path), "it has ended"


def test_rounds_of_a_real_flower_end_whoever_is_killed(tmp_path: Path) -> None:
    life = Life(tmp_path, seed=20_261_126)
    order = list(KINDS) * (KILLS // len(KINDS))
    life.random.shuffle(order)
    try:
        life.start()
        until(lambda: life.grown({}), _BOUND_S)
        for kind in order:
            life.watch(life.random.random() * PAUSE_S)
            life.kill(kind)
        before = dict(life.rounds.completed)
        until(lambda: life.grown(before), _BOUND_S)
        assert overlaps(life.works()) == []
        assert "Traceback" not in life.controller.log
    finally:
        life.close()
    done = sum(life.rounds.completed.values())
    ends = [end for _, _, end in life.rounds.ends]
    print(f"kills {life.kills}, runs {life.runs}, rounds seen {len(life.rounds.first)}, completed {done}, aborted "
          f"rounds seen {ends.count('aborted')}, works {len(life.works())}")  # fmt: skip
    assert life.kills == dict.fromkeys(KINDS, KILLS // len(KINDS))
    assert len({work.node for work in life.works()}) >= NODES
    assert done >= 2 * len(JOBS), "too few rounds to say anything"
