"""Trainings whose controller, agents and switches are killed under them, and which must not notice."""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from offpath.bindings.ina.rate_limiter import write_rate
from offpath.cli.demo.ina import log, orders
from offpath.cli.demo.ina.cluster import HOSTS, RANKS, SWITCHES, Cluster
from offpath.cli.local.switches import ROOT

JOBS = {"left": 21, "right": 22}
PADDING_S = 0.03
RATE = 40_000_000
"""Of links, bytes/s: quick steps, but long enough operations to be struck in the middle."""
GOES_ON_S = 30.0
"""A step ends within this, whatever is dead: gloo's and the switches' patience is far above or below."""
BACK_S = 60.0
IN_USE = 10
"""Steps of both jobs on their trees before a switch is struck in use. On a busy machine some of them run plain, as the
tree comes and goes: after 4 steps one campaign had 96 operations in the network with 10 kills of switches."""


@dataclass(slots=True)
class Found:
    """Of all trainings."""

    kills: Counter[str] = field(default_factory=Counter)
    steps: int = 0
    operations: Counter[str] = field(default_factory=Counter)
    longest_step_s: float = 0.0
    trainings: int = 0

    def text(self) -> str:
        return (
            f"{sum(self.kills.values())} kills ({dict(sorted(self.kills.items()))}) under {self.trainings} trainings "
            f"of {RANKS} ranks: {self.steps} steps, operations {dict(sorted(self.operations.items()))}, "
            f"longest step {self.longest_step_s:.2f} s; all weights equal to the bit to those without INA"
        )


class Campaign:
    """A cluster with two jobs at work."""

    def __init__(self, cluster: Cluster, seed: int) -> None:
        self.cluster, self.random = cluster, Random(seed)
        self.logs = {job: log.Reader(os.path.join(cluster.folder(job), "steps.0.jsonl")) for job in JOBS}

    def begin(self, checkpoint_every: int = 0) -> None:
        self.cluster.start()
        write_rate(self.cluster.link, RATE)
        for job, seed in JOBS.items():
            self.cluster.submit(job)
            self.cluster.train(job, seed, orders.Order(0, PADDING_S), checkpoint_every)
        self.goes_on(5, 120.0)

    def goes_on(self, steps: int = 2, seconds: float = GOES_ON_S) -> None:
        """Both jobs end so many steps more: nobody waits for the dead."""
        for each in self.logs.values():
            each.more()
        goals = {job: len(each.steps) + steps for job, each in self.logs.items()}

        def is_so() -> bool:
            for each in self.logs.values():
                each.more()
            return all(len(each.steps) >= goals[job] for job, each in self.logs.items())

        self.cluster.wait(is_so, f"{steps} steps further", seconds)

    def kill(self) -> str:
        """One of them, and start it again, at once or a little later; what was killed. A switch mostly while it is in
        use."""
        kind = self.random.choice(("controller", "agent", "switch", "switch"))
        if kind == "switch" and self.random.random() < 0.7:
            self.uses_ina_again()
            self.goes_on(IN_USE)
        victim = self._victim(kind)
        time.sleep(self.random.random() * 0.2)
        self.cluster.kill(victim)
        if self.random.random() < 0.5:
            self.goes_on()
        self.cluster.revive(victim)
        return kind

    def _victim(self, kind: str) -> str:
        if kind == "controller":
            return "controller"
        if kind == "agent":
            return f"daemon-{self.random.choice(HOSTS)}"
        return ROOT if self.random.random() < 0.4 else self.random.choice(SWITCHES)

    def uses_ina_again(self) -> None:
        """When all are back, both jobs are granted a tree again, and apply it."""
        self.cluster.wait(lambda: all(map(self.cluster.has_tree, JOBS)), "granted trees again", BACK_S)

    def end(self, found: Found) -> None:
        """Both trainings end, with the weights that they would have without all this."""
        from offpath.cli.demo.ina import training  # torch takes seconds to import

        for job in JOBS:
            orders.write(os.path.join(self.cluster.folder(job), "wanted.json"), orders.Order(1, 0.0, True))
        ends = {job: Path(self.cluster.folder(job), "end.json") for job in JOBS}
        self.cluster.wait(lambda: all(path.exists() for path in ends.values()), "at their ends", 60.0)
        training.one_thread()
        for job, path in ends.items():
            end = json.loads(path.read_text("ascii"))
            alone = training.alone(JOBS[job], RANKS, end["steps"])
            assert end["weights"] == training.fingerprint(alone), f"job {job}, {end['steps']} steps"
            self.logs[job].more()
            found.steps += end["steps"]
            found.longest_step_s = max(found.longest_step_s, *(step.seconds for step in self.logs[job].steps[2:]))
            did = log.operations(os.path.join(self.cluster.folder(job), "operations.0.jsonl"))
            found.operations.update(each.how for each in did)
            found.trainings += 1


@contextmanager
def campaign(seed: int, checkpoint_every: int = 0) -> Iterator[Campaign]:
    """Everything is taken down at the end."""
    with (
        tempfile.TemporaryDirectory(prefix="ina-", dir="/tmp", ignore_cleanup_errors=True) as directory,
        Cluster(directory, mode="shared") as cluster,
    ):
        it = Campaign(cluster, seed)
        it.begin(checkpoint_every)
        yield it
