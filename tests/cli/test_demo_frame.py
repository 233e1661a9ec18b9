"""What commands of demonstrations have in common: the report, the faults, the folder with the logs, the exit code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from offpath.bindings.errors import OffpathError, PeerGone
from offpath.cli.demo import frame


class Played:
    """`frame.run`, and the folder that it made."""

    def __init__(self, made: dict[str, Any] | OffpathError) -> None:
        self.made, self.folder = made, Path()

    def play(self, folder: str) -> dict[str, Any]:
        self.folder = Path(folder)
        (self.folder / "log").touch()
        if isinstance(self.made, OffpathError):
            raise self.made
        return self.made

    def run(self, *, is_json: bool = True) -> int:
        return frame.run("x", self.play, lambda made: f"text {made['ok']}", is_json=is_json)


def test_a_good_report_is_printed_and_the_folder_is_removed(capsys: pytest.CaptureFixture[str]) -> None:
    played = Played({"ok": True, "faults": []})
    assert played.run() == 0
    assert played.folder.name.startswith("offpath-x-")
    assert not played.folder.exists()
    out = json.loads(capsys.readouterr().out)
    assert out["seconds"] >= 0
    assert played.run(is_json=False) == 0
    assert capsys.readouterr().out == "text True\n"


def test_faults_are_named_and_the_logs_are_kept(capsys: pytest.CaptureFixture[str]) -> None:
    played = Played({"ok": False, "faults": ["one", "other"]})
    assert played.run() == 1
    assert (played.folder / "log").exists()
    found = capsys.readouterr()
    assert json.loads(found.out)["faults"] == ["one", "other"]
    lines = [f"demo x: logs are kept in {played.folder}", "demo x: FAILED: one", "demo x: FAILED: other"]
    assert found.err.splitlines() == lines


def test_what_cannot_be_played_is_an_error_of_that_demonstration(capsys: pytest.CaptureFixture[str]) -> None:
    played = Played(PeerGone("it is away"))
    with pytest.raises(OffpathError, match=r"^demo x: it is away$"):
        played.run()
    assert (played.folder / "log").exists()
    assert "logs are kept" in capsys.readouterr().err
