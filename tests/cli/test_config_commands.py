"""`offpath config check` and `offpath config show`, as an operator calls them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from offpath.bindings.errors import OptionRefused
from offpath.cli.gpu_check import command
from offpath.cli.main import main
from offpath.dpu_daemon.config import Sources, lastgood

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


def test_a_fault_has_its_line_its_tenant_and_a_suggestion_in_our_own_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "offpathd.toml"
    path.write_text(
        """
max_jobs = 0
lanes = 2

[leasing]  # a comment with = and [brackets]
'landing_byte' = 4096
policy = '''
shiped'''

[[tenant]]
name = "ada"
wieght = 2
uids = [1,
  2, -7]

[[tenant]]
"name" = "bob" # = 3
weight = "heavy"
token_file = true

[datapath]
copy_engine = "docca"

[limmits]
drain_ms = 1
"""
    )
    assert main(["config", "check", str(path), "--json"]) == 78
    faults = {
        fault["path"]: (fault["text"], fault.get("line"), fault.get("tenant"))
        for fault in json.loads(capsys.readouterr().out)["faults"]
    }
    assert faults.pop("leasing.policy")[1] == 7
    assert faults == {
        "max_jobs": ("must be 1 or more, is 0", 2, None),
        "lanes": ('is not a key; did you mean "leasing.lanes"?', 3, None),
        "leasing.landing_byte": ('is not a key; did you mean "landing_bytes"?', 6, None),
        "tenant.0.wieght": ('is not a key; did you mean "weight"?', 12, "ada"),
        "tenant.0.uids.2": ("must be 0 or more, is -7", 13, "ada"),
        "tenant.1.weight": ("must be a whole number, is text", 18, "bob"),
        "tenant.1.token_file": ("must be text, is true or false", 19, "bob"),
        "datapath.copy_engine": (
            "must be one of 'loopback', 'verbs', 'doca' or 'cuda'; did you mean \"doca\"?", 22, None
        ),
        "limmits": ('is not a key; did you mean "limits"?', 24, None),
    }  # fmt: skip
    assert main(["config", "check", str(path)]) == 78
    error = capsys.readouterr().err
    assert '  tenant.0.wieght: is not a key; did you mean "weight"? (tenant ada, line 12)' in error
    assert "pydantic" not in error.lower()
    assert "input" not in error.lower()


def test_names_that_are_almost_right_are_suggested(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text(file.read_text() + '[[lease]]\ntenant = "adda"\nprofile = "1g.5g"\n')
    assert main(["config", "check", str(file), "--set", "leasing.lane=3"]) == 78
    error = capsys.readouterr().err
    assert '--set leasing.lane: is not a key; did you mean "leasing.lanes"?' in error
    assert main(["config", "check", str(file)]) == 78
    error = capsys.readouterr().err
    assert 'lease.0.tenant: lease of an unknown tenant: adda; did you mean "ada"?' in error
    assert "no GPU model has a profile '1g.5g'; did you mean \"1g.5gb\"?" in error


def test_what_a_reload_would_refuse_is_known_before_it(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = file.parent / "run"
    run.mkdir()
    check = ["config", "check", str(file), "--reload", "--runtime-dir", str(run)]
    assert main(check) == 69
    assert "no running daemon" in capsys.readouterr().err
    lastgood.keep(str(run), "lineage", Sources(str(file)).read().config)
    assert main(check) == 0
    file.write_text("host_uids = [5]\n" + file.read_text() + "[leasing]\nlanes = 3\ngrow_after_ms = 7\n")
    assert main(check[:3]) == 0
    capsys.readouterr()
    assert main(check) == 78
    error = capsys.readouterr().err
    assert "  leasing.lanes: needs a restart: 2 is in force (line " in error
    assert "  host_uids: needs a restart: [] is in force (line 1)" in error
    assert "grow_after_ms" not in error
    assert (
        main([*check, "--set", "leasing.lanes=2", "--set", "host_uids=", "--set", "leasing.policy=plugin:none"]) == 78
    )
    assert "leasing.policy" in capsys.readouterr().err


MANY = "9" * 5000
"""Python reads no number of more than 4 300 digits."""


@pytest.mark.parametrize(
    "given",
    [
        f"host_uids=[{MANY}]",
        "host_uids=" + "[" * 5000,
        f"max_jobs={MANY}",
        f"tenant.{MANY}.weight=1",
        "tenant.².weight=1",
    ],
)
def test_a_number_of_thousands_of_digits_is_a_fault_with_a_text(
    given: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (file := tmp_path / "c.toml").write_text('[[tenant]]\nname = "a"\nuids = [0]\n')
    assert main(["config", "check", str(file), "--set", given]) == 78
    assert f"--set {given.partition('=')[0][:40]}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["whatif", "/nothing", "--gpus", MANY], 1),
        (["migd", "run", "--uid", MANY], 78),
    ],
)
def test_such_a_number_of_a_flag_is_refused(words: list[str], code: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == code
    assert capsys.readouterr().err


def test_checks_of_a_gpu_are_chosen_by_their_numbers() -> None:
    assert command._chosen("2,1") == [1, 2]
    for wrong in (MANY, "0", "x", "99"):
        with pytest.raises(OptionRefused, match="use numbers from 1 to"):
            command._chosen(wrong)
