"""A run of a suite: its verdict needs all of its tests; one that is stopped goes on; one that fails leaves none."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from . import records, run
from .__main__ import main, seconds_of, state_of
from .table import suites

NAME = "kills-collab"
GOOD = ["tests/suites/sample.py::test_a", "tests/suites/sample.py::test_b"]


@pytest.fixture
def _apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Records and progress in folders of the test; pytest is replaced by a program that writes its lines."""
    monkeypatch.setattr(run, "PROGRESS", tmp_path / "out")
    monkeypatch.setattr(run, "_git", lambda *words: "")
    monkeypatch.setattr(records, "FOLDER", tmp_path)


def ran(
    monkeypatch: pytest.MonkeyPatch, outcomes: dict[str, str], code: int, *, is_over: bool = False, size: str = "slow"
) -> run.Ran:
    """Run the suite; its pytest writes these outcomes and ends so."""

    def pytest_of(suite: object, size: str, progress: Path, most_s: object, **words: bool) -> tuple[int, bool]:
        with progress.open("a") as file:
            for test, outcome in outcomes.items():
                reason = {"reason": "Skipped: no spin"} if outcome == "skipped" else {}
                file.write(json.dumps({"test": test, "outcome": outcome, "seconds": 1.0, **reason}) + "\n")
        return code, is_over

    monkeypatch.setattr(run, "_pytest", pytest_of)
    return run.run(suites()[NAME], size)


@pytest.mark.usefixtures("_apart")
def test_a_run_that_passes_leaves_a_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    done = ran(monkeypatch, {GOOD[0]: "passed", GOOD[1]: "skipped"}, 0)
    assert done.verdict is not None
    assert records.read(NAME, "slow") == done.verdict
    assert done.verdict.tests == GOOD[:1]
    assert done.verdict.skipped == {"no spin": 1}
    assert records.is_fresh(suites()[NAME], "slow")


@pytest.mark.usefixtures("_apart")
def test_a_run_that_fails_leaves_none_and_withdraws_that_of_the_same_sources(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert ran(monkeypatch, dict.fromkeys(GOOD, "passed"), 0).verdict is not None
    assert ran(monkeypatch, {GOOD[0]: "failed", GOOD[1]: "passed"}, 1).verdict is None
    assert records.read(NAME, "slow") is None


@pytest.mark.usefixtures("_apart")
def test_a_run_that_was_stopped_goes_on_and_its_verdict_has_all_tests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stopped = ran(monkeypatch, {GOOD[0]: "passed"}, 2, is_over=True)
    assert (stopped.is_over_time, stopped.verdict) == (True, None)
    assert records.read(NAME, "slow") is None
    done = ran(monkeypatch, {GOOD[1]: "passed"}, 0)
    assert done.verdict is not None
    assert done.verdict.tests == GOOD


@pytest.mark.usefixtures("_apart")
@pytest.mark.parametrize("is_over", [True, False], ids=["stopped", "failed"])
def test_a_whole_run_goes_on_elsewhere_from_what_was_kept(is_over: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    ran(monkeypatch, {GOOD[0]: "passed", GOOD[1]: "failed"}, 2 if is_over else 1, is_over=is_over, size="full")
    (progress,) = run.PROGRESS.iterdir()
    progress.unlink()  # another clone
    assert state_of(suites()[NAME], "full") == {"state": "part", "passed": 1}
    done = ran(monkeypatch, {GOOD[1]: "passed"}, 0, size="full")
    assert done.verdict is not None
    assert (done.verdict.tests, done.verdict.seconds >= 0) == (GOOD, True)
    assert records.part(NAME, "full") == []


@pytest.mark.usefixtures("_apart")
def test_where_no_count_is_larger_the_slow_record_is_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    ran(monkeypatch, dict.fromkeys(GOOD, "passed"), 0)
    assert state_of(suites()[NAME], "full") == {"state": "never"}
    monkeypatch.setitem(suites(), NAME, replace(suites()[NAME], whole=False))
    assert state_of(suites()[NAME], "full") == state_of(suites()[NAME], "slow")
    assert records.is_fresh(suites()[NAME], "full")


@pytest.mark.usefixtures("_apart")
def test_what_was_kept_of_a_run_is_sealed_and_of_its_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    ran(monkeypatch, {GOOD[0]: "passed"}, 2, is_over=True, size="full")
    (progress,) = run.PROGRESS.iterdir()
    progress.unlink()
    (kept,) = (records.FOLDER / "parts").iterdir()
    text = kept.read_text()
    kept.write_text(text.replace("test_a", "test_z"))
    with pytest.raises(records.Broken, match="seal"):
        ran(monkeypatch, {GOOD[1]: "passed"}, 0, size="full")
    kept.write_text(text)
    monkeypatch.setattr(run, "digest", lambda globs: "another")
    done = ran(monkeypatch, {GOOD[1]: "passed"}, 0, size="full")
    assert done.verdict is not None
    assert done.verdict.tests == GOOD[1:]


@pytest.mark.usefixtures("_apart")
@pytest.mark.parametrize("torn", ['{"test": "tests/suites/sample.py::te', "\x00", '"text"'])
def test_a_run_that_was_killed_while_it_wrote_goes_on(torn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ran(monkeypatch, {GOOD[0]: "passed"}, 2, is_over=True)
    (progress,) = run.PROGRESS.iterdir()
    with progress.open("a") as file:
        file.write(torn)
    done = ran(monkeypatch, {GOOD[1]: "passed"}, 0)
    assert done.verdict is not None
    assert done.verdict.tests == GOOD


@pytest.mark.usefixtures("_apart")
def test_what_was_run_before_its_sources_changed_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    ran(monkeypatch, {GOOD[0]: "passed"}, 2, is_over=True)
    monkeypatch.setattr(run, "digest", lambda globs: "changed")
    done = ran(monkeypatch, {GOOD[1]: "passed"}, 0)
    assert done.verdict is not None
    assert done.verdict.tests == GOOD[1:]


@pytest.mark.usefixtures("_apart")
def test_a_suite_of_which_nothing_could_run_has_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ran(monkeypatch, dict.fromkeys(GOOD, "skipped"), 0).verdict is None
    assert records.read(NAME, "slow") is None


SAMPLE = """
import pytest

def test_passes(record_property):
    record_property("unit", ["a bug", "sources", "3 schedules"])

def test_fails():
    assert False

def test_is_skipped():
    pytest.skip("no spin")
"""


def test_what_each_test_came_to_is_written_down_and_what_passed_does_not_run_again(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_sample=SAMPLE)
    pytester.makeconftest(
        "import os, pathlib\nfrom tests.suites import recorder\n"
        "def pytest_configure(config):\n"
        "    recorder.register(config, pathlib.Path(os.environ['OFFPATH_TEST_PROGRESS']))\n"
    )
    progress = pytester.path / "progress"
    pytester._monkeypatch.setenv("OFFPATH_TEST_PROGRESS", str(progress))
    pytester._monkeypatch.setenv("PYTHONPATH", str(run.ROOT))
    options = ("-p", "no:cacheprovider")
    pytester.runpytest_subprocess(*options).assert_outcomes(passed=1, failed=1, skipped=1)
    lines = {line["test"].split("::")[1]: line for line in map(json.loads, progress.read_text().splitlines())}
    assert {name: line["outcome"] for name, line in lines.items()} == {
        "test_passes": "passed",
        "test_fails": "failed",
        "test_is_skipped": "skipped",
    }
    assert lines["test_passes"]["units"] == [["a bug", "sources", "3 schedules"]]
    assert "no spin" in lines["test_is_skipped"]["reason"]
    pytester.runpytest_subprocess(*options).assert_outcomes(failed=1, skipped=1, deselected=1)


def test_an_unknown_suite_is_refused_with_the_way_to_see_them() -> None:
    with pytest.raises(SystemExit, match=r"no suite nonsense; ./scripts/test --status"):
        main(["run", "nonsense"])


def test_the_table_of_records_has_a_row_for_each_suite(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert list(rows) == list(suites())
    assert {row[size]["state"] for row in rows.values() for size in records.SIZES} <= {"fresh", "stale", "never"}


def test_suites_that_are_due_are_those_that_fit_cheapest_first(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["due", "--seconds", "0"]) == 0
    assert capsys.readouterr().out == ""
    assert main(["due", "--seconds", str(10**6)]) == 0
    due = capsys.readouterr().out.split()
    assert [seconds_of(suites()[name]) for name in due] == sorted(seconds_of(suites()[name]) for name in due)
