"""Runs the demo: two jobs train continuously while the sharing mode of the switch changes, block by block.

A mode is in force when both jobs have applied their epochs of it; only whole steps after that are measured. Each block
has its own order of modes, so that no mode always gets the quiet minutes of the machine.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any, Final

from offpath.bindings.ina.rate_limiter import plain_bytes, write_rate
from offpath.cli.demo.ina import log, orders, quiet
from offpath.cli.demo.ina.cluster import RANKS, Cluster
from offpath.cli.demo.ina.score import MODES, Block

JOBS: Final = ("left", "right")
SEEDS: Final = {"left": 11, "right": 12}
BYTES_PER_STEP: Final = 1_095_208
"""Bytes of gradients: `training.network`'s parameters as float32. A test compares it with the model."""
_SETTLE_STEPS: Final = 3
_END_S: Final = 120.0


@dataclass(frozen=True, slots=True)
class Setting:
    """``compute_s``: of a step, padding included; ``share``: the part of a step without INA that communication takes.
    Both determine the links' rate.
    """

    name: str
    compute_s: float
    share: float

    @property
    def rate(self) -> int:
        """Bytes/s of a link, each way."""
        seconds = self.compute_s * self.share / (1 - self.share)
        return round(plain_bytes(BYTES_PER_STEP, RANKS) / seconds)


SETTINGS: Final = (Setting("computing binds", 0.42, 0.425), Setting("communication binds", 0.24, 0.68))


@dataclass(frozen=True, slots=True)
class Measured:
    """Steps of one mode in one block, by job, and the last ns in which it was not in force yet."""

    setting: int
    block: int
    mode: str
    from_ns: int
    steps: tuple[tuple[log.Step, ...], ...]


@dataclass(slots=True)
class Outcome:
    """All observations. ``taken``: by setting, for each block, disturbed ones included, the part of the cores' time
    that other processes used; ``ends``: the final output of rank 0 of each job; ``operations``: by job, of rank 0.
    """

    wanted: int
    """Blocks of each setting."""
    measured: list[Measured] = field(default_factory=list)
    taken: list[list[float]] = field(default_factory=list)
    ends: dict[str, dict[str, Any]] = field(default_factory=dict)
    operations: dict[str, list[log.Did]] = field(default_factory=dict)
    started_in_s: float = 0.0
    controller: dict[str, Any] = field(default_factory=dict)


class Drive:
    """One run over a `Cluster`. ``say`` receives progress."""

    def __init__(self, cluster: Cluster, blocks: int, steps: int, seed: int, say: Callable[[str], None]) -> None:
        self._cluster, self._blocks, self._steps = cluster, blocks, steps
        self._random, self._echo = Random(seed), say
        self._logs = {job: log.Reader(os.path.join(cluster.folder(job), "steps.0.jsonl")) for job in JOBS}
        self._order = 0

    def run(self) -> Outcome:
        """Raises: ClusterFailed: a process ended, or a condition was not reached in time."""
        cluster, out = self._cluster, Outcome(self._blocks)
        begun = time.monotonic()
        cluster.start()
        write_rate(cluster.link, SETTINGS[0].rate)
        for job in JOBS:
            cluster.submit(job)
            cluster.train(job, SEEDS[job], orders.Order(0, SETTINGS[0].compute_s))
        self._await_steps(_SETTLE_STEPS + 3)
        out.started_in_s = round(time.monotonic() - begun, 1)
        for number, setting in enumerate(SETTINGS):
            if number:
                self._command(setting.compute_s)
                write_rate(cluster.link, setting.rate)
            self._run_setting(number, setting, out)
        status = cluster.status()
        out.controller = {"migrations": status.migrations, "term": status.term, "counters": dict(status.counters)}
        self._end(out)
        return out

    def _run_setting(self, number: int, setting: Setting, out: Outcome) -> None:
        """Run its blocks and repeat disturbed ones, until there are enough or no verdict is possible."""
        taken: list[float] = []
        out.taken.append(taken)
        while quiet.goes_on(taken, self._blocks):
            block, before = len(taken), quiet.look()
            for mode in self._random.sample(MODES, len(MODES)):
                out.measured.append(self._measure(number, block, mode, setting))
            taken.append(quiet.taken_by_others(before, quiet.look()))
            how = "quiet" if quiet.is_quiet(taken[-1]) else "disturbed"
            had = sum(quiet.is_quiet(each) for each in taken)
            self._echo(
                f"{setting.name}: block {block + 1} {how} (other processes used {taken[-1]:.0%} of the cores), {had} "
                f"of {self._blocks} quiet"
            )

    def _measure(self, number: int, block: int, mode: str, setting: Setting) -> Measured:
        self._cluster.set_mode(mode, float(setting.rate))
        self._await_mode(mode)
        self._await_steps(_SETTLE_STEPS)
        from_ns = time.monotonic_ns()
        begin = {job: len(each.steps) for job, each in self._logs.items()}
        self._await_steps(self._steps + 1)
        found = []
        for job, each in self._logs.items():
            whole = [step for step in each.steps[begin[job] :] if step.began_ns >= from_ns]
            found.append(tuple(whole[: self._steps]))
        return Measured(number, block, mode, from_ns, tuple(found))

    def _await_mode(self, mode: str) -> None:
        """Wait until each job has applied this mode's epoch. Alternating never settles: there, until one has."""

        def is_so() -> bool:
            held = [self._cluster.job(job) for job in JOBS]
            granted = [each.job.stamp for each in held]
            applied = [
                bool(each.job.stamp) and all(rank.applied >= each.job.stamp for rank in each.ranks) for each in held
            ]
            match mode:
                case "none":
                    return not any(granted) and self._are_idle(held)
                case "exclusive" | "alternate":
                    return any(applied)
                case _:
                    return all(applied)

        self._cluster.wait(is_so, f"in mode {mode}")

    @staticmethod
    def _are_idle(jobs: Sequence[Any]) -> bool:
        return all(rank.applied == rank.held for each in jobs for rank in each.ranks)

    def _await_steps(self, more: int) -> None:
        for each in self._logs.values():
            each.more()
        goal = {job: len(each.steps) + more for job, each in self._logs.items()}

        def is_so() -> bool:
            for each in self._logs.values():
                each.more()
            return all(len(each.steps) >= goal[job] for job, each in self._logs.items())

        self._cluster.wait(is_so, f"{more} steps further", 60.0 + 5.0 * more)

    def _command(self, padding_s: float, *, ends: bool = False) -> None:
        self._order += 1
        for job in JOBS:
            path = os.path.join(self._cluster.folder(job), "wanted.json")
            orders.write(path, orders.Order(self._order, padding_s, ends))
        if not ends:
            self._cluster.wait(lambda: self._are_at(self._order), "at the next setting")

    def _are_at(self, order: int) -> bool:
        for each in self._logs.values():
            each.more()
        return all(each.steps[-1].order >= order for each in self._logs.values())

    def _end(self, out: Outcome) -> None:
        self._command(0.0, ends=True)
        files = {job: Path(self._cluster.folder(job)) / "end.json" for job in JOBS}
        self._cluster.wait(lambda: all(path.exists() for path in files.values()), "at their ends", _END_S)
        for job, path in files.items():
            out.ends[job] = json.loads(path.read_text("ascii"))
            out.operations[job] = log.operations(os.path.join(self._cluster.folder(job), "operations.0.jsonl"))


def blocks(outcome: Outcome, setting: int) -> list[Mapping[str, Block]]:
    """The input of `score.runs`, in the order of `MODES`: the blocks that count."""
    numbers, _ = quiet.chosen(outcome.taken[setting], outcome.wanted)
    by_place = {(each.block, each.mode): each for each in outcome.measured if each.setting == setting}
    return [{mode: _block(outcome, by_place[number, mode]) for mode in MODES} for number in numbers]


def _block(outcome: Outcome, measured: Measured) -> Block:
    did = [within(outcome.operations[job], steps) for job, steps in zip(JOBS, measured.steps, strict=True)]
    counts = [{how: sum(each.how == how for each in these) for how in log.WAYS} for these in did]
    return Block(
        tuple(tuple(step.seconds for step in steps) for steps in measured.steps),
        tuple(
            sum(each.ended_ns - each.began_ns for each in these if each.how == log.INA) / 1e9 / len(steps)
            for these, steps in zip(did, measured.steps, strict=True)
        ),
        tuple(count[log.INA] for count in counts),
        tuple(count[log.REFUSED] for count in counts),
        tuple(count[log.PLAIN] + count[log.REDONE] for count in counts),
    )


def within(operations: Sequence[log.Did], steps: Sequence[log.Step]) -> list[log.Did]:
    """The operations of these steps."""
    if not steps:
        return []
    return [each for each in operations if steps[0].began_ns <= each.began_ns <= steps[-1].ended_ns]


def communication_s(outcome: Outcome, setting: int, mode: str) -> float:
    """How long all-reduces are under way in a step, on average over jobs and the blocks that count."""
    numbers, _ = quiet.chosen(outcome.taken[setting], outcome.wanted)
    found = []
    for each in outcome.measured:
        if each.setting == setting and each.mode == mode and each.block in numbers:
            for job, steps in zip(JOBS, each.steps, strict=True):
                busy = sum(one.ended_ns - one.began_ns for one in within(outcome.operations[job], steps))
                found.append(busy / 1e9 / len(steps))
    return fmean(found)
