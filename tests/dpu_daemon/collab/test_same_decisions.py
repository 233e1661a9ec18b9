"""One journal of check-ins, answers and jobs: the live controller's shell decides as the simulation does, also across its
restarts."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from offpath.dpu_daemon.collab.config import CollabConfig
from offpath.dpu_daemon.collab.shell import CollabShell
from offpath.dpu_daemon.collab.store import StateFile
from offpath.sched.collab.policies import make
from offpath.sched.collab.records import Event, JobSpec, Lease
from offpath.sched.collab.requirements import Properties
from offpath.sched.sim.collab import CollabSimulation

from ...support.collab import NOW_NS, Clock, loaded
from ...support.collab_world import DAYS, OneByOne, World

S = 10**9
BEGIN_NS = NOW_NS // (86_400 * S) * 86_400 * S
"""The simulation begins at 0, the controller on a day of now."""


class Watched(CollabShell):
    """Notes events."""

    seen: list[Event]

    def _take(self, events: Iterable[Event]) -> None:
        some = list(events)
        self.seen += some
        super()._take(some)


class Live:
    """The shell, used as a book is. ``is_restarted``: another process takes over after each round."""

    def __init__(self, config: CollabConfig, random: Random) -> None:
        self._config, self._random, self._clock = config, random, Clock(BEGIN_NS)
        self.shell = self._started()
        self._ids: dict[str, int] = {}

    def _started(self) -> Watched:
        shell = Watched(
            self._config, StateFile(self._config.operation.state), now_ns=self._clock, draw=self._random.randrange
        )
        shell.seen = []
        return shell

    def close(self) -> None:
        self.shell.close()

    # -- as a book ----------------------------------------------------------------------------------------------------
    @property
    def tally(self) -> Any:
        return self.shell.book.tally

    @property
    def leases(self) -> Any:
        return self.shell.book.leases

    @property
    def jobs(self) -> Any:
        return self.shell.book.jobs

    def next_ns(self) -> int | None:
        found = self.shell.book.next_ns()
        return None if found is None else found - BEGIN_NS

    def _at(self, now_ns: int) -> None:
        self._clock.now_ns = BEGIN_NS + now_ns

    def _events(self) -> list[Any]:
        found, self.shell.seen = self.shell.seen, []
        return [
            each._replace(
                submitted_ns=each.submitted_ns - BEGIN_NS, ended_ns=each.ended_ns - BEGIN_NS,
                filled_ns=each.filled_ns - BEGIN_NS if each.filled_ns >= 0 else each.filled_ns,
            )
            if hasattr(each, "ended_ns") else each
            for each in found
        ]  # fmt: skip

    def tick(self, now_ns: int) -> list[Any]:
        self._at(now_ns)
        self.shell.advance()
        return self._events()

    def open(self, spec: JobSpec, now_ns: int) -> None:
        self._at(now_ns)
        self.shell.open(spec)

    def request(self, name: str, number: int, demand: int, deadline_ns: int, now_ns: int) -> None:
        self._at(now_ns)
        self.shell.request(name, number, demand, (deadline_ns - now_ns) / S)

    def close_job(self, name: str, now_ns: int) -> None:
        self._at(now_ns)
        self.shell.close_job(name)

    def check_in(self, device: str, properties: Properties, now_ns: int) -> Lease | None:
        self._at(now_ns)
        return self.shell.check_in(int(device), properties)

    def result(self, device: Any, number: int, is_good: bool, now_ns: int) -> list[Any]:
        self._at(now_ns)
        self.shell.result(device, number, is_good)
        return self._events()


class LiveOneByOne(OneByOne):
    """A job closes by the shell's own method."""

    def take(self, events: list[Any]) -> None:
        book = self.book
        book.close = book.close_job
        super().take(events)


@pytest.mark.parametrize("policy", ["venn", "venn-paper", "srsf", "random"])
def test_the_live_controller_decides_as_the_simulation(tmp_path: Path, policy: str) -> None:
    rounds = 0
    for seed in range(4):
        world = World(seed)
        ended: list[Any] = []
        random = Random(seed)
        CollabSimulation(
            make(policy, random.randrange), random.randrange, world.devices, lambda day, world=world: world.days[day],
            ended.append,
        ).run(world.jobs, DAYS)  # fmt: skip
        config = loaded(tmp_path / f"{policy}-{seed}").config
        table = config.policy.model_copy(update={"name": policy, "lease_s": 86_400})
        live = Live(config.model_copy(update={"policy": table}), Random(seed))
        shell = live.shell
        try:
            assert LiveOneByOne(world, live).run() == ended
        finally:
            shell.close()
        rounds += len(ended)
    assert rounds > 40
