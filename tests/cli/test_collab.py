"""`offpath collab`: a real controller process, and every command against it, as text and as JSON."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ..support.collab import Controller, controller, message
from ..support.command import offpath


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Controller]:
    folder = tmp_path_factory.mktemp("collab")
    with controller(folder, dict(os.environ), policy='name = "venn-paper"\nepsilon = 2.0') as made:
        yield made
        assert made.stop() == 0
        assert not [line for line in made.log if "Traceback" in line]


def run(here: Controller, *words: str, code: int = 0) -> str:
    done = offpath("collab", *words, "--runtime-dir", here.run_folder)
    assert done.code == code, done.err
    return done.out or done.err


def shown(here: Controller, *words: str, code: int = 0) -> Any:
    return json.loads(run(here, *words, "--json", code=code))


def test_a_job_gets_its_devices_from_opening_to_closing(here: Controller) -> None:
    opened = shown(here, "open", "kb", "--least", "mem=4", "--version-least", "os=14.2", "--label", "wifi")
    assert (opened["state"], opened["requirement"]) == ("idle", "mem >= 4, os >= 14.2, wifi")
    assert "kb" in run(here, "open", "kb", "--least", "mem=4", "--version-least", "os=14.2", "--label", "wifi")
    asked = shown(here, "request", "kb", "--round", "0", "--demand", "1", "--deadline", "600")
    assert (asked["state"], asked["demand"]) == ("waits", 1)

    config = str(here.folder / "collab.toml")
    token = offpath("collab", "token", "phone-1", "--config", config).out.strip()
    now_ms = time.time_ns() // 10**6
    kind = {"numbers": {"mem": 8}, "versions": {"os": "15"}, "labels": ["wifi"]}
    assert message("phone-1", now_ms)["token"] == token
    lease = here.post("/v1/checkin", {"device": "phone-1", "token": token, "sent_ms": now_ms, **kind})
    assert (lease["kind"], lease["job"]) == ("lease", "kb")

    assert [(job["job"], job["leased"], job["state"]) for job in shown(here, "jobs")] == [("kb", 1, "filled")]
    assert "1/1" in run(here, "jobs")
    assert "has all its devices" in run(here, "explain", "kb")
    assert shown(here, "plan")["groups"][0]["supply"] == 1
    assert "mem >= 4" in (text := run(here, "plan"))
    assert "policy venn-paper, fairness ε = 2; " in text
    assert "fairness ε = 2: it has received 0 of the time" in run(here, "explain", "kb")
    found = shown(here, "devices")
    assert (found["check_ins"], found["assigned"], found["leases"], found["worked"]) == (1, 1, 1, 1)
    assert "phone-1" not in run(here, "devices")
    assert shown(here, "whatif", "--least", "mem=4", "--demand", "2")["supply"] == 1
    assert "no devices" not in run(here, "whatif", "--demand", "2")
    assert "without devices" in run(here, "whatif", "--least", "mem=99", "--demand", "2", code=1)

    done = here.post("/v1/result", {**message("phone-1", now_ms + 1), "lease": lease["lease"], "is_good": True})
    assert done["kind"] == "recorded"
    (job,) = shown(here, "jobs")
    assert (job["state"], job["last_end"], job["rounds_completed"]) == ("idle", "complete", 1)
    assert "kb" in run(here, "close", "kb")
    assert shown(here, "jobs") == []


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("request", "none", "--round", "0", "--demand", "1", "--deadline", "9"), "no_job"),
        (("open", "bad", "--least", "mem"), "give NAME=VALUE"),
        (("open", "bad", "--least", "mem=-1"), "whole number"),
        (("open", "bad", "--version-least", "os=1.a"), "requirement"),
        (("open", "bad", "--quorum", "0"), "quorum"),
        (("open", "b d"), "job"),
        (("open", "bad", "--alone", "nan"), "alone_s"),
        (("whatif", "--demand", "0"), "demand"),
    ],
)
def test_what_is_wrong_is_named(here: Controller, words: tuple[str, ...], text: str) -> None:
    assert text in run(here, *words, code=1)
    assert shown(here, "jobs") == []


@pytest.mark.parametrize(
    ("demand", "deadline", "code"), [(0, 9, "demand"), (1_000_001, 9, "demand"), (1, 0, "deadline")]
)
def test_a_round_that_cannot_be_is_refused(here: Controller, demand: int, deadline: int, code: str) -> None:
    run(here, "open", "r")
    words = ("request", "r", "--round", "0", "--demand", str(demand), "--deadline", str(deadline))
    assert run(here, *words, code=1).startswith(f"offpath: {code}:")
    run(here, "close", "r")


def test_a_configuration_with_faults_ends_with_their_list(tmp_path: Path) -> None:
    path = tmp_path / "collab.toml"
    path.write_text("[devices]\n")
    done = offpath("collab", "run", str(path))
    assert done.code == 78
    for key in ("devices.token_keys", "operation"):
        assert key in done.err


def test_a_device_whose_name_is_none_gets_no_token(here: Controller) -> None:
    done = offpath("collab", "token", "a b", "--config", str(here.folder / "collab.toml"))
    assert done.code == 1
    assert "a b" not in done.err
