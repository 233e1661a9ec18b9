"""What makes no sense on a command line is told in a line, with an exit code, and never by a traceback."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from ..support.cluster import Cluster
from ..support.clusters import seconds
from ..support.command import Done, offpath

NOT_UTF8 = b"\xff".decode("utf-8", "surrogateescape")
"""How Python hands over the argument 0xff."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    made = Cluster({"ada": {}})
    try:
        made.start_helper()
        yield made
        made.close()
    finally:
        made.kill()


def submit(cluster: Cluster, *words: str) -> Done:
    token = str(cluster.folder / "ada.token")
    where = "--runtime-dir", str(cluster.run_folder), "--tenant", "ada", "--token-file", token
    return offpath("request", "submit", *words, *where)


@pytest.mark.parametrize(
    ("code", "told", "words"),
    [
        (1, "hosts: ", ["job", "submit", "x", "--hosts", "-1"]),
        (1, "ranks_per_host: ", ["job", "submit", "x", "--hosts", "1", "--ranks-per-host", "0"]),
        (1, "job: ", ["job", "submit", "no spaces", "--hosts", "1"]),
        (1, "on.0: ", ["job", "submit", "x", "--on", ","]),
        (1, "job: ", ["job", "show", ""]),
        (1, "job: ", ["job", "cancel", NOT_UTF8]),
        (1, "job: ", ["job", "explain", "x" * 256]),
        (1, "link_bytes_per_s: ", ["ina", "mode", "all", "--link", "nan"]),
        (1, "host: ", ["ina", "hosts", "--quarantine", "x" * 256]),
        (2, "not a number of requests", ["request", "list", "--limit", "99999999999999999999"]),
        (2, "not a number of requests", ["request", "list", "--limit", "-1"]),
    ],
)
def test_a_word_out_of_its_range_is_named_before_anybody_is_asked(
    code: int, told: str, words: list[str], tmp_path: Path
) -> None:
    done = offpath(*words, "--runtime-dir", str(tmp_path / "none"))
    assert (done.code, done.out) == (code, "")
    assert told in done.err
    assert "pydantic" not in done.err


@pytest.mark.parametrize("core", ["65535", "-1", "99999999999999999999"])
def test_a_core_that_is_not_there_is_told_in_a_line(tmp_path: Path, core: str) -> None:
    """Of each command that serves."""
    (tmp_path / "token").write_text("a" * 32)
    (tmp_path / "token").chmod(0o600)
    (tmp_path / "offpathd.toml").write_text('[[tenant]]\nname = "ada"\ntoken_file = "token"\n')
    path = str(tmp_path)
    for words in (
        ["daemon", "run", "--config", f"{path}/offpathd.toml", "--runtime-dir", path],
        ["helper", "run", "serve.py"],
        ["switch", "run", "--name", "s", "--listen", f"unix://{path}/a", "--control", f"unix://{path}/b"],
    ):
        done = offpath(*words, f"--cpu={core}")
        assert (done.code, done.out) == (1, "")
        assert f"--cpu {core}: " in done.err


@pytest.mark.parametrize("seconds", ["nan", "inf", "1e300", "-1", "0", "soon"])
def test_a_patience_that_is_none_is_refused(seconds: str) -> None:
    done = offpath("request", "submit", "echo", "--tenant", "a", "--token-file", "b", "--timeout", seconds)
    assert done.code == 2
    assert f"'{seconds}' is not a number of seconds" in done.err


@pytest.mark.parametrize("patience_s", [math.inf, 1e9])
def test_a_patience_beyond_what_the_kernel_waits_for_is_one(cluster: Cluster, patience_s: float) -> None:
    """poll(2) takes 31 bits of ms, some 24 days."""
    with cluster.connect("ada") as ada:
        assert ada.submit("sleep", seconds(0.2), timeout=patience_s).array == 0.2


def test_an_array_that_cannot_travel_is_told_in_a_line(cluster: Cluster, tmp_path: Path) -> None:
    np.save(tmp_path / "days.npy", np.array(["2026-11-29"], "datetime64[D]"))
    (tmp_path / "empty.npy").touch()
    for name, told in (("days.npy", "dtype datetime64[D] is not supported"), ("empty.npy", "empty.npy: ")):
        done = submit(cluster, "echo", "--array", str(tmp_path / name))
        assert (done.code, done.out) == (1, "")
        assert told in done.err


def test_a_text_that_is_no_utf8_is_sent_as_it_was_typed(cluster: Cluster) -> None:
    done = submit(cluster, "echo", "--text", f"é{NOT_UTF8}", "--json")
    assert done.code == 0, done.err
    assert done.document["arrays"][0]["values"] == [0xC3, 0xA9, 0xFF]


def test_a_result_that_cannot_be_written_is_shown_before_that_is_said(cluster: Cluster, tmp_path: Path) -> None:
    file = str(tmp_path / "none" / "x.npy")
    done = submit(cluster, "echo", "--text", "x", "--json", "--output", file)
    assert done.code == 1
    assert json.loads(done.out)["status"] == "COMPLETED"
    assert f"--output {file}: " in done.err
