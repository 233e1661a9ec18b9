"""`offpath config check` and `offpath config show`, as an operator calls them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from offpath.cli.main import main

SECRET = "do-not-show-this-token-0123"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    token = tmp_path / "ada.token"
    token.write_text(SECRET)
    token.chmod(0o600)
    path = tmp_path / "offpathd.toml"
    path.write_text(f'[[tenant]]\nname = "ada"\ntoken_file = "{token}"\nmax_bytes = 1048576\n')
    return path


def test_a_right_configuration_is_ok(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "check", str(file)]) == 0
    assert capsys.readouterr() == (f"{file}: ok\n", "")
    assert main(["config", "check", str(file), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"is_valid": True, "faults": [], "warnings": []}


def test_a_warning_goes_to_standard_error_and_is_no_fault(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "check", str(file), "--set", "leasing.result_bytes=5000"]) == 0
    out, error = capsys.readouterr()
    assert out.endswith("ok\n")
    assert error.startswith("warning: leasing.result_bytes: 5000 is rounded up to")


def test_faults_end_with_78_and_are_all_there(
    file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OFFPATH_LEASING_LANES", "0")
    assert main(["config", "check", str(file), "--set", "max_jobs=0"]) == 78
    error = capsys.readouterr().err
    assert "OFFPATH_LEASING_LANES (leasing.lanes): " in error
    assert "--set max_jobs (max_jobs): " in error
    assert main(["config", "check", str(file), "--json"]) == 78
    said = json.loads(capsys.readouterr().out)
    assert (said["is_valid"], [fault["path"] for fault in said["faults"]]) == (False, ["leasing.lanes"])
    assert main(["config", "show", str(file)]) == 78
    assert main(["daemon", "run", "--config", str(file)]) == 78


def test_a_file_that_is_not_there_is_a_fault_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "check", str(tmp_path / "absent"), "--json"]) == 78
    assert "No such file" in json.loads(capsys.readouterr().out)["faults"][0]["text"]


def test_every_value_is_shown_with_its_origin_and_no_secret(
    file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OFFPATH_LEASING_LANES", "3")
    arguments = ["config", "show", str(file), "--origin", "--set", "max_jobs=7"]
    assert main(arguments) == 0
    text = capsys.readouterr().out
    rows = dict(line.split(" = ", 1) for line in text.splitlines())
    assert rows["leasing.lanes"].split() == ["3", "#", "OFFPATH_LEASING_LANES"]
    assert rows["max_jobs"].split() == ["7", "#", "--set", "max_jobs"]
    assert rows["tenant.0.name"].split() == ['"ada"', "#", f"{file}:2"]
    assert rows["limits.open_ms"].split() == ["30000", "#", "default"]
    assert SECRET not in text
    assert main([*arguments, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["leasing.lanes"] == {"value": 3, "origin": "OFFPATH_LEASING_LANES"}
    assert main(["config", "show", str(file), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["leasing.lanes"] == 3
