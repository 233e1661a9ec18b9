"""Times of a run are added up by file and folder, and decide the order of files and the quick tier."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from . import durations, workers
from .durations import Clock, Durations

A, B = "tests/dpu_daemon/journal/test_a.py::test_x[1]", "tests/test_b.py::test_y"


def test_set_up_and_tear_down_are_counted_apart_from_the_test() -> None:
    clock = Clock()
    for nodeid, when, seconds in ((A, "setup", 1.0), (A, "call", 2.0), (A, "teardown", 0.5), (B, "call", 0.5)):
        clock.pytest_runtest_logreport(cast(Any, SimpleNamespace(nodeid=nodeid, when=when, duration=seconds)))
    found = clock.durations(2)
    assert found.folders == {"dpu_daemon/journal": (1.5, 2.0), "tests": (0.0, 0.5)}
    assert found.files == {"tests/dpu_daemon/journal/test_a.py": 3.5, "tests/test_b.py": 0.5}
    assert found.slowest == [(3.5, A), (0.5, B)]
    assert (found.workers, found.tests) == (2, 2)


def test_the_longest_file_comes_first_and_a_file_stays_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    times = {"tests/a.py": 1.0, "tests/b.py": 9.0}
    monkeypatch.setattr(durations, "kept", lambda: Durations(files=times))
    names = ["tests/a.py::one", "tests/a.py::two", "tests/b.py::three", f"{workers.LAST}::five", "tests/new.py::four"]
    items = [cast(pytest.Item, SimpleNamespace(nodeid=name)) for name in names]
    workers.order(items)
    assert [item.nodeid.rpartition("::")[2] for item in items] == ["three", "four", "one", "two", "five"]


def test_the_quick_tier_takes_the_cheapest_files_that_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(durations, "kept", lambda: Durations(files={"a": 3.0, "b": 1.0, "c": 2.0, "d": 9.0}))
    durations.cheap.cache_clear()
    assert durations.cheap(4.0) == {"b", "c"}
    durations.cheap.cache_clear()


def test_the_kept_run_can_be_read() -> None:
    kept = durations.kept()
    assert kept.tests == 0 or (kept.files and kept.folders and len(kept.slowest) == durations.SLOWEST)
