"""Where the time of a run goes: a table by folder at its end, beside the kept run.

The kept run is ``docs/evidence/durations.json``: seconds of each file, by folder (set-up apart from the tests) and of
the slowest tests. ``./scripts/test --keep-times`` keeps another one. The order of files on the
workers and the quick tier are taken from it.
"""

from __future__ import annotations

import json
import time
from collections import defaultdict
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Final

import pytest

KEPT: Final = Path(__file__).resolve().parents[1] / "docs" / "evidence" / "durations.json"
SLOWEST: Final = 60
_SHOWN: Final = 12


@dataclass(frozen=True, slots=True)
class Durations:
    """Of one run. ``wall_s``: by the clock; all else: seconds of all workers together. ``folders``: [set-up and
    tear-down, tests]; ``slowest``: [seconds, test]."""

    wall_s: float = 0.0
    workers: int = 1
    tests: int = 0
    folders: dict[str, tuple[float, float]] = field(default_factory=dict)
    files: dict[str, float] = field(default_factory=dict)
    slowest: list[tuple[float, str]] = field(default_factory=list)


@cache
def kept() -> Durations:
    """The kept run; an empty one where there is none."""
    return Durations(**json.loads(KEPT.read_text("utf-8"))) if KEPT.exists() else Durations()


@cache
def cheap(most_s: float) -> frozenset[str]:
    """The files that take least, as many as ``most_s`` seconds of a worker have room for."""
    spent, found = 0.0, []
    for file, seconds in sorted(kept().files.items(), key=lambda each: each[1]):
        spent += seconds
        if spent > most_s:
            break
        found.append(file)
    return frozenset(found)


def folder_of(nodeid: str) -> str:
    """``tests/dpu_daemon/journal/test_x.py::test_y``: ``dpu_daemon/journal``; at most two folders."""
    return "/".join(nodeid.split("::", 1)[0].split("/")[1:-1][:2]) or "tests"


class Clock:
    """Adds up the phases of all tests, in the process that started the workers."""

    def __init__(self, *, is_kept: bool = False) -> None:
        self.is_kept = is_kept
        self.started = time.monotonic()
        self.phases: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Set-up and tear-down count together."""
        self.phases[report.nodeid][report.when == "call"] += report.duration

    def durations(self, workers: int) -> Durations:
        """What the run has come to."""
        folders: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
        files: dict[str, float] = defaultdict(float)
        for nodeid, (around, call) in self.phases.items():
            folders[folder_of(nodeid)][0] += around
            folders[folder_of(nodeid)][1] += call
            files[nodeid.split("::", 1)[0]] += around + call
        slowest = sorted(((sum(spent), nodeid) for nodeid, spent in self.phases.items()), reverse=True)[:SLOWEST]
        return Durations(
            wall_s=round(time.monotonic() - self.started, 1),
            workers=workers,
            tests=len(self.phases),
            folders={name: (round(around, 1), round(call, 1)) for name, (around, call) in sorted(folders.items())},
            files={name: round(spent, 2) for name, spent in sorted(files.items())},
            slowest=[(round(spent, 2), nodeid) for spent, nodeid in slowest],
        )

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
        """The folders that took longest, and the slowest tests."""
        now = self.durations(len(getattr(config.option, "tx", None) or [""]))
        write = terminalreporter.write_line
        write(f"seconds by folder, {now.workers} workers (set-up, tests; kept run):")
        ordered = sorted(now.folders.items(), key=lambda each: -sum(each[1]))
        for name, (around, call) in ordered[:_SHOWN]:
            write(f"  {name:28} {around:7.1f} {call:7.1f}   {sum(kept().folders.get(name, ())):7.1f}")
        write("slowest: " + ", ".join(f"{spent:.1f} s {nodeid}" for spent, nodeid in now.slowest[:5]))
        if self.is_kept:
            KEPT.write_text(json.dumps(asdict(now), indent=1) + "\n", "utf-8")
