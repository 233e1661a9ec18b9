"""migd's configuration: what it names is found, what it gets wrong is told at once."""

from __future__ import annotations

import os
import pwd
from pathlib import Path
from typing import Any

import pytest

from offpath.bindings.errors import OptionRefused
from offpath.bindings.nvml.records import GpuInfo, MigMode
from offpath.host_helper.migd.config import DEFAULT_HOLD_MS, MigdConfigInvalid, load_config

GPU = GpuInfo(0, "GPU-1", "A100", "00000000:17:00.0", 0x20B010DE, 0, MigMode.ON, 40960)


def test_without_a_file_root_alone_may_cut_every_gpu() -> None:
    config = load_config(None, {})
    assert config.mode(GPU) == "mig"
    assert (config.may_connect(0), config.may_connect(1), config.hold_ms) == (True, False, DEFAULT_HOLD_MS)


@pytest.mark.parametrize(
    ("gpus", "mode"),
    [
        ({"GPU-1": "whole", "0000:17:00.0": "static", "all": "mig"}, "whole"),
        ({"0000:17:00.0": "static", "all": "mig"}, "static"),
        ({"00000000:17:00.0": "static"}, "static"),
        ({"GPU-2": "mig"}, None),
    ],
)
def test_a_uuid_goes_before_an_address_and_that_before_all(gpus: dict[str, str], mode: str | None) -> None:
    assert load_config(None, {"gpus": gpus}).mode(GPU) == mode


def test_a_file_is_read_and_flags_replace_its_keys(tmp_path: Path) -> None:
    path = tmp_path / "migd.toml"
    me = pwd.getpwuid(os.getuid()).pw_name
    path.write_text(f'uids = ["{me}", 4711]\noperators = [4712]\nhold_ms = 5\n[gpus]\n"GPU-1" = "static"\n')
    config = load_config(str(path), {"hold_ms": 6})
    assert config.uids == {os.getuid(), 4711}
    assert config.is_operator(4712)
    assert not config.is_operator(4711)
    assert (config.mode(GPU), config.hold_ms) == ("static", 6)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("gpus = 3", "gpus"), ('[gpus]\nall = "cut"', "gpus"), ("[gpus]\n", "gpus"), ("uids = [-1]", "uids"),
        ('uids = ["no such user"]', "no such user"), ('group = "no such group"', "no such group"),
        ("hold_ms = -1", "hold_ms"), ("colour = 1", "colour"), ("hold_ms = ", "migd.toml"), ("\xff", "migd.toml"),
    ],
)  # fmt: skip
def test_a_fault_is_named_with_its_key(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "migd.toml"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(OptionRefused, match=told):
        load_config(str(path), {})


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    missing = str(tmp_path / "none")
    with pytest.raises(OptionRefused, match=missing):
        load_config(missing, {})


def test_all_faults_are_told_at_once() -> None:
    broken: dict[str, Any] = {"hold_ms": "x", "destroy_wait_ms": "y"}
    with pytest.raises(OptionRefused, match=r"hold_ms.*; destroy_wait_ms"):
        load_config(None, broken)


def test_a_number_of_thousands_of_digits_is_a_fault_of_the_file(tmp_path: Path) -> None:
    (file := tmp_path / "migd.toml").write_text(f"hold_ms = {'9' * 5000}\n")
    with pytest.raises(MigdConfigInvalid, match=r"migd\.toml: "):
        load_config(str(file), {})
