"""Processes that tests fork from a preloaded one behave as if they were started anew."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from .support import preloaded
from .support.cluster import Cluster
from .support.preloaded import Fork
from .support.processes import Process


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Processes of this file's own: what earlier tests used says nothing here. Their environment has been used once."""
    kept: dict[object, preloaded.Preloaded] = {}
    monkeypatch.setattr(preloaded, "_kept", kept)
    monkeypatch.setattr(preloaded, "_uses", {})
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "PYTHONFAULTHANDLER": "1"}
    assert preloaded.preloaded("daemon_main.py", environment) is None
    yield
    for each in kept.values():
        each.close()


def config(folder: Path) -> list[str]:
    file = folder / "offpathd.toml"
    file.write_text('[[tenant]]\nname = "ada"\ntoken_file = "token"\n')
    (folder / "token").write_text("ada-" + "x" * 24)
    (folder / "token").chmod(0o600)
    return [str(file), str(folder / "run")]


@pytest.mark.parametrize("environment", [None, {"ODD": "1"}])
def test_a_program_starts_says_and_ends_alike_forked_and_anew(
    tmp_path: Path, environment: dict[str, str] | None
) -> None:
    process = Process("daemon", tmp_path, "daemon_main.py", *config(tmp_path), environment=environment)
    assert isinstance(process._popen, Fork) == (environment is None)
    assert set(process.hear()) == {"lineage"}
    assert process.is_alive
    process.signal(signal.SIGTERM)
    assert "requests" in process.hear() or process.ended() == 0
    process.finish(is_notified=True)
    assert not process.is_alive


def test_a_forks_exit_code_and_its_last_words_arrive(tmp_path: Path) -> None:
    killed = Process("killed", tmp_path, "daemon_main.py", *config(tmp_path))
    killed.hear()
    killed.signal(signal.SIGKILL)
    assert killed.ended() == -signal.SIGKILL
    assert killed.ended() == -signal.SIGKILL
    killed.kill()
    wrong = Process("wrong", tmp_path, "daemon_main.py", "one-argument")
    assert wrong.ended() == 1
    assert "ValueError: not enough values to unpack" in wrong.errors
    wrong.kill()


def test_a_variable_that_changes_is_no_forks_to_know(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What a library read of the environment when it was imported would be of another time."""
    monkeypatch.setenv("ODD", "2")
    kinds = []
    for number in range(3):
        process = Process(f"daemon{number}", tmp_path, "daemon_main.py", *config(tmp_path))
        process.hear()
        process.finish()
        kinds.append(isinstance(process._popen, Fork))
    assert kinds == [False, True, True], "one of its own, from the second use on"


def test_forks_hold_no_descriptor_of_the_process_that_they_come_from(tmp_path: Path) -> None:
    counts = []
    for environment in ({"ODD": "1"}, None, None):
        cluster = Cluster({"ada": {}}, environment=environment)
        counts.append(cluster.daemon.fds_at_rest())
        cluster.close()
    assert len(set(counts)) == 1, counts
