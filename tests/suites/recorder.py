"""pytest's plug-in for a run of a suite: what each test came to is written down at once, so that a run that is stopped
goes on where it was. `run` names the file in ``OFFPATH_TEST_PROGRESS``; conftest registers it."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest

UNIT = "unit"
"""Name of the property by which a test records a `records.Unit`: [name, sources, said]."""


def lines_of(progress: Path) -> list[dict[str, Any]]:
    """The whole lines that were written. A run that was killed may have left a part of one, which does not count."""
    found = []
    for line in progress.read_text("utf-8", errors="replace").splitlines() if progress.exists() else ():
        with contextlib.suppress(ValueError):
            if isinstance(read := json.loads(line), dict):
                found.append(read)
    return found


def passed_before(progress: Path) -> set[str]:
    """Ids of the tests that need not run again."""
    return {line["test"] for line in lines_of(progress) if line.get("outcome") == "passed"}


class Recorder:
    """Collects the phases of each test; at its end, a line."""

    def __init__(self, progress: Path) -> None:
        self.progress = progress
        self._running: dict[str, dict[str, Any]] = {}

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Leave out what has passed already."""
        known = passed_before(self.progress)
        gone = [item for item in items if item.nodeid in known]
        if gone:
            config.hook.pytest_deselected(items=gone)
            items[:] = [item for item in items if item.nodeid not in known]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Each phase of each test, in the process that started the workers."""
        line = self._running.setdefault(report.nodeid, {"test": report.nodeid, "outcome": "passed", "seconds": 0.0})
        line["seconds"] = round(line["seconds"] + report.duration, 3)
        if report.outcome == "failed":
            line["outcome"] = "failed"
        elif report.outcome == "skipped" and line["outcome"] == "passed":
            line["outcome"] = "skipped"
            line["reason"] = str(report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr)
        if report.when == "teardown":
            if units := [value for name, value in report.user_properties if name == UNIT]:
                line["units"] = units
            with self.progress.open("a", encoding="utf-8") as file:
                file.write(json.dumps(self._running.pop(report.nodeid)) + "\n")


def register(config: pytest.Config, progress: Path) -> None:
    """Workers only leave out; the process that started them writes."""
    recorder = Recorder(progress)
    if hasattr(config, "workerinput"):
        recorder.pytest_runtest_logreport = lambda report: None  # type: ignore[method-assign]
    config.pluginmanager.register(recorder, "offpath-suite-recorder")
