"""Jobs that borrow devices, the devices and the collaboration controller, all killed at seeded moments.

All is looked at from outside, by what devices note and what the controller answers: every round ends or is aborted by
its deadline, and no device works for two jobs at a time.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest

from offpath.bindings.wire import collab_admin
from offpath.cli.local.collab_controller import CollabController
from offpath.host_helper.collab.settings import VARIABLE

from ..sizes import sized
from ..support.processes import until

KILLS = sized(quick=2, fast=2, slow=8, full=100)
DEVICES = 6
DEMAND = {"a": 2, "b": 2, "c": 2}
"""As many as there are devices: with fewer, the policy would starve the last job, which has the same demand."""
DEADLINE_S = 4.0
QUORUM = 50
WORK_S = 0.2
PAUSE_S = 0.6
"""Between two kills, at most."""
_SUPPORT = Path(__file__).resolve().parents[1] / "support"
_BOUND_S = 120.0


# -- what devices note ------------------------------------------------------------------------------------------------
class Work(NamedTuple):
    """Of a device, for a job. ``ended`` of a killed device: when its next process started, or no end."""

    job: str
    began: float
    ended: float


def works(journal: str) -> list[Work]:
    """In the order of their beginnings."""
    found, open_ = list[Work](), dict[str, tuple[str, float]]()
    for line in journal.splitlines():
        at, kind, *rest = line.split()
        if kind == "begin":
            open_[rest[0]] = rest[1], float(at)
        elif kind == "end":
            found.append(Work(*open_.pop(rest[0]), float(at)))
        else:
            found += [Work(*each, float(at)) for each in open_.values()]
            open_.clear()
    found += [Work(*each, float("inf")) for each in open_.values()]
    return sorted(found, key=lambda work: work.began)


def shared(found: list[Work]) -> list[tuple[Work, Work]]:
    """Works of one device for two jobs at a time. A job's own works are one after another too, or the next pair would
    hide a later one."""
    return [(one, other) for one, other in pairwise(found) if other.began < one.ended]


# -- what the controller answers --------------------------------------------------------------------------------------
@dataclass(slots=True)
class Rounds:
    """Refuses a round that still runs after its deadline; see `seen`."""

    deadline_s: float = DEADLINE_S
    first: dict[tuple[str, int], float] = field(default_factory=dict)
    """When a round's first line was there: it was asked for before."""
    completed: dict[str, int] = field(default_factory=dict)
    ends: set[tuple[str, int, str]] = field(default_factory=set)

    def seen(self, line: collab_admin.JobLine, asked_s: float, answered_s: float) -> None:
        """``line`` is of a moment between the two, of the monotonic clock."""
        assert line.rounds_completed >= self.completed.get(line.job, 0), f"job {line.job} has lost a round"
        self.completed[line.job] = line.rounds_completed
        if line.last_end:
            self.ends.add((line.job, line.round - (line.state != "idle"), line.last_end))
        if line.state != "idle":
            first = self.first.setdefault((line.job, line.round), answered_s)
            assert asked_s < first + self.deadline_s, f"round {line.round} of {line.job} runs after its deadline"


class Life:
    """Three jobs at work on six devices; whatever dies is started again."""

    def __init__(self, folder: Path, seed: int, takes_all: bool = False) -> None:
        self.folder, self.random, self.takes_all = folder, Random(seed), takes_all
        place = folder / "controller"
        place.mkdir()
        self.controller = CollabController(place, {"name": "venn", "period_s": 1, "lease_s": 60})
        self.settings = self.controller.settings(poll_s=0.05)
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.rounds = Rounds()
        self.kills = dict.fromkeys(("controller", "job", "device"), 0)

    def start(self) -> None:
        self.controller.start()
        for number in range(DEVICES):
            self.start_device(number)
        for name in DEMAND:
            self.start_job(name)

    def start_device(self, number: int) -> None:
        self._spawn(f"device {number}", "borrowing_device_main.py", f"{self.folder}/{number}.sock",
                    f"{self.folder}/{number}.works")  # fmt: skip

    def start_job(self, name: str) -> None:
        self._spawn(
            f"job {name}", "borrowing_job_main.py", str(self.folder), name, str(DEMAND[name]), str(DEADLINE_S),
            str(QUORUM), str(WORK_S), str(self.takes_all).lower(),
        )  # fmt: skip

    def _spawn(self, name: str, program: str, *words: str) -> None:
        with open(self.folder / f"{name}.log", "ab") as log:
            self.processes[name] = subprocess.Popen(
                [sys.executable, "-P", str(_SUPPORT / program), *words], stdout=log, stderr=log,
                env={**os.environ, VARIABLE: str(self.settings)},
            )  # fmt: skip

    def look(self) -> None:
        """Every process that was not killed lives, and no round runs too long."""
        for name, process in self.processes.items():
            assert process.poll() is None, f"{name} has ended: {(self.folder / f'{name}.log').read_text()[-2000:]}"
        asked = time.monotonic()
        with self.controller.client() as client:
            lines = client.query(collab_admin.JobsRequest(), collab_admin.JobLines).jobs
        answered = time.monotonic()
        for line in lines:
            self.rounds.seen(line, asked, answered)

    def kill(self) -> None:
        """One process, and start it again."""
        kind = self.random.choice(tuple(self.kills))
        self.kills[kind] += 1
        if kind == "controller":
            self.controller.kill()
            time.sleep(self.random.random() * 0.2)
            self.controller.start()
        elif kind == "device":
            self._kill(f"device {(number := self.random.randrange(DEVICES))}")
            self.start_device(number)
        else:
            self._kill(f"job {(name := self.random.choice(tuple(DEMAND)))}")
            self.start_job(name)

    def _kill(self, name: str) -> None:
        self.processes[name].kill()
        self.processes[name].wait()

    def grown(self, before: dict[str, int]) -> bool:
        self.look()
        return all(self.rounds.completed.get(name, 0) > before.get(name, 0) for name in DEMAND)

    def finish(self) -> None:
        """Each job completes another round, then all end by themselves."""
        before = dict(self.rounds.completed)
        until(lambda: self.grown(before), _BOUND_S)
        (self.folder / "stop").touch()
        for name in DEMAND:
            assert self.processes.pop(f"job {name}").wait(_BOUND_S) == 0, (self.folder / f"job {name}.log").read_text()

    def works(self) -> list[list[Work]]:
        return [works(path.read_text()) for path in sorted(self.folder.glob("*.works"))]

    def close(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait()
        self.controller.close()


def test_rounds_end_and_no_device_works_for_two_jobs_whoever_is_killed(tmp_path: Path) -> None:
    life = Life(tmp_path, seed=20_261_126)
    try:
        life.start()
        until(lambda: life.grown({}), _BOUND_S)
        for _ in range(KILLS):
            time.sleep(life.random.random() * PAUSE_S)
            life.look()
            life.kill()
            life.look()
        life.finish()
        summary = life.controller.summary()
        assert (summary.jobs, summary.leases) == (0, 0)
        assert [found for device in life.works() for found in shared(device)] == []
        assert "Traceback" not in life.controller.log
    finally:
        life.close()
    done = sum(life.rounds.completed.values())
    ends = [end for _, _, end in life.rounds.ends]
    print(f"kills {life.kills}, rounds seen {len(life.rounds.first)}, completed {done}, aborted rounds seen "
          f"{ends.count('aborted')}, works {sum(map(len, life.works()))}")  # fmt: skip
    assert sum(life.kills.values()) == KILLS
    assert done >= max(len(DEMAND), KILLS // 2), "too few rounds to say anything"
    if KILLS > 20:
        assert min(life.kills.values()) > KILLS // 6
        assert "aborted" in ends


# -- the checks find what they are for --------------------------------------------------------------------------------
def test_a_job_that_uses_devices_of_others_is_found(tmp_path: Path) -> None:
    life = Life(tmp_path, seed=1, takes_all=True)
    try:
        life.start()
        until(lambda: any(shared(device) for device in life.works()), _BOUND_S)
    finally:
        life.close()


def test_works_of_a_killed_device_end_with_its_next_process() -> None:
    journal = "1.0 start\n1.5 begin 1 a\n2.0 end 1\n2.0 begin 2 b\n3.0 start\n3.5 begin 1 c\n"
    assert works(journal) == [Work("a", 1.5, 2.0), Work("b", 2.0, 3.0), Work("c", 3.5, float("inf"))]
    assert shared(works(journal)) == []
    assert shared(works("1.0 begin 1 a\n1.5 begin 2 b\n1.6 end 1\n1.7 end 2\n")) == [
        (Work("a", 1.0, 1.6), Work("b", 1.5, 1.7))
    ]


def test_a_round_that_runs_after_its_deadline_is_found() -> None:
    rounds = Rounds()
    line = collab_admin.JobLine(
        job="a", tenant="t", requirement="any device", state="waits", round=3, demand=7, leased=1, done=0,
        rounds_completed=2, deadline_s=1, last_end="aborted", age_s=1,
    )  # fmt: skip
    rounds.seen(line, 10.0, 10.1)
    rounds.seen(line, 10.1 + DEADLINE_S - 0.1, 20.0)
    assert rounds.ends == {("a", 2, "aborted")}
    with pytest.raises(AssertionError, match="after its deadline"):
        rounds.seen(line, 10.1 + DEADLINE_S, 20.0)
    with pytest.raises(AssertionError, match="lost a round"):
        rounds.seen(line.model_copy(update={"rounds_completed": 1}), 10.2, 10.3)
    rounds.seen(line.model_copy(update={"state": "idle"}), 30.0, 30.1)
