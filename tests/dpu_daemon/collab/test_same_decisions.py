"""One journal of check-ins, answers and jobs: the live controller's shell decides as the simulation does."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from offpath.dpu_daemon.collab.config import CollabConfig
from offpath.dpu_daemon.collab.shell import CollabShell
from offpath.dpu_daemon.collab.store import StateFile
from offpath.sched.collab.policies import make
from offpath.sched.collab.records import Event, JobSpec, Lease, RoundEnded
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
    """The shell, used as a book is."""

    def __init__(self, config: CollabConfig, random: Random) -> None:
        self._clock = Clock(BEGIN_NS)
        self.shell = Watched(config, StateFile(config.operation.state), clock=self._clock.steady, draw=random.randrange)
        self.shell.seen = []

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
        return [moved(each) if isinstance(each, RoundEnded) else each for each in found]

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

    def close(self, name: str, now_ns: int) -> None:
        self._at(now_ns)
        self.shell.close_job(name)

    def check_in(self, device: str, properties: Properties, now_ns: int) -> Lease | None:
        self._at(now_ns)
        return self.shell.check_in(int(device), properties, self.shell.advance())

    def result(self, device: Any, number: int, is_good: bool, now_ns: int) -> list[Any]:
        self._at(now_ns)
        self.shell.result(device, number, is_good, self.shell.advance())
        return self._events()


def moved(event: RoundEnded) -> RoundEnded:
    filled_ns = event.filled_ns - BEGIN_NS if event.filled_ns >= 0 else event.filled_ns
    return replace(
        event, submitted_ns=event.submitted_ns - BEGIN_NS, ended_ns=event.ended_ns - BEGIN_NS, filled_ns=filled_ns
    )


def simulated(world: World, policy: str, seed: int, epsilon: float = 0.0) -> list[RoundEnded]:
    ended: list[RoundEnded] = []
    random = Random(seed)
    simulation = CollabSimulation(
        make(policy, random.randrange, epsilon),
        random.randrange,
        world.devices,
        lambda day: world.days[day],
        ended.append,
    )
    simulation.run(world.jobs, DAYS)
    return ended


@pytest.mark.parametrize(
    ("policy", "epsilon"),
    [("venn", 0.0), ("venn-paper", 0.0), ("srsf", 0.0), ("random", 0.0), ("venn-paper", 2.0), ("venn-irs", 0.5)],
)
def test_the_live_controller_decides_as_the_simulation(tmp_path: Path, policy: str, epsilon: float) -> None:
    rounds, changed = 0, 0
    for seed in range(4):
        world = World(seed)
        config = loaded(tmp_path / str(seed)).config
        table = config.policy.model_copy(update={"name": policy, "epsilon": epsilon, "lease_s": 86_400})
        live = Live(config.model_copy(update={"policy": table}), Random(seed))
        try:
            found = OneByOne(world, live).run()
        finally:
            live.shell.close()
        assert found == simulated(world, policy, seed, epsilon)
        rounds += len(found)
        changed += found != simulated(world, policy, seed)
    assert rounds > 40
    assert changed == 0 if not epsilon else changed > 0
