"""Each kept verdict was written by a run in which nothing failed, and of a commit of this history."""

from __future__ import annotations

import json
import subprocess
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from ..support.sources import ROOT
from . import records
from .records import Broken, Unit, Verdict
from .table import suites

KEPT = sorted(path.name for path in records.FOLDER.glob("*.json"))
MADE = Verdict("load", "slow", "ab" * 32, 12.5, "2026-11-28", "0123456789ab", True, "3.11.2 x86_64", ["tests/x.py::y"])


@pytest.mark.parametrize("file", KEPT)
def test_a_kept_verdict_was_written_by_a_run_that_passed(file: str) -> None:
    name, size, _ = file.split(".")
    verdict = records.read(name, size)
    assert verdict is not None
    assert name in suites()
    assert all(suites()[name].has(test) for test in verdict.tests)


def test_what_is_kept_of_runs_that_go_on_was_written_by_them() -> None:
    for path in (records.FOLDER / "parts").glob("*"):
        name, size, _ = path.name.split(".")
        head, *lines = records.part(name, size)
        assert set(head) == {"sources", "python"}
        assert all(suites()[name].has(line["test"]) for line in lines if "test" in line)


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="no git history here")
@pytest.mark.parametrize("file", KEPT)
def test_a_kept_verdict_is_of_a_commit_of_this_history(file: str) -> None:
    name, size, _ = file.split(".")
    verdict = records.read(name, size)
    assert verdict is not None
    command = ["git", "cat-file", "-e", f"{verdict.commit}^{{commit}}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{verdict.commit}: {done.stderr}"


def test_a_verdict_is_read_as_it_was_written(tmp_path: Path) -> None:
    verdict = replace(MADE, units={"01-bug": Unit("cd" * 32, "3 schedules: lost")}, skipped={"no spin": 2})
    records.write(verdict, tmp_path)
    assert records.read("load", "slow", tmp_path) == verdict


@pytest.mark.parametrize(
    ("key", "value"),
    [("sources", "cd" * 32), ("result", "failed"), ("tests", []), ("date", "2027-01-01"), ("size", "full")],
)
def test_a_verdict_that_was_edited_is_broken(key: str, value: object, tmp_path: Path) -> None:
    records.write(MADE, tmp_path)
    path = records.path_of("load", "slow", tmp_path)
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: value}))
    with pytest.raises(Broken, match="seal"):
        records.read("load", "slow", tmp_path)


@pytest.mark.parametrize("change", [{"result": "failed"}, {"tests": []}, {"suite": "other"}])
def test_a_verdict_of_no_run_that_passed_is_broken_whatever_its_seal(change: dict[str, object], tmp_path: Path) -> None:
    verdict = replace(MADE, **change)  # type: ignore[arg-type]
    path = records.path_of("load", "slow", tmp_path)
    path.write_text(json.dumps({**asdict(verdict), "seal": verdict.seal()}))
    with pytest.raises(Broken, match="not the verdict of a run that passed"):
        records.read("load", "slow", tmp_path)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"seal": ""}', "\x00"])
def test_a_file_that_is_no_verdict_is_broken(text: str, tmp_path: Path) -> None:
    records.path_of("load", "slow", tmp_path).write_text(text)
    with pytest.raises(Broken):
        records.read("load", "slow", tmp_path)


def test_a_failed_run_withdraws_a_verdict_of_the_same_sources_only(tmp_path: Path) -> None:
    records.write(MADE, tmp_path)
    assert not records.withdraw("load", "slow", "other", tmp_path)
    assert records.withdraw("load", "slow", MADE.sources, tmp_path)
    assert records.read("load", "slow", tmp_path) is None
