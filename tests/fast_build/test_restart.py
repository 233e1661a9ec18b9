"""A daemon is continued by the other build: the same lineage, the same sessions, and work in flight is answered."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from ..dpu_daemon.test_durability import DURABLE, kill_kept, terminal
from ..support.cluster import TIMEOUT, Cluster, pids_of
from ..support.clusters import Make, make_cluster, seconds, until_read
from ..support.fast import environment, fast_python, needs_the_scripts

__all__ = ["make_cluster"]
pytestmark = [
    pytest.mark.not_fast("it starts the fast build itself"),
    needs_the_scripts(),
]


def is_compiled(cluster: Cluster) -> bool:
    return "offpath_fast__mypyc" in Path(f"/proc/{pids_of(cluster.daemon)[0]}/maps").read_text()


def replayed(python: str, journal: Path) -> object:
    """What `offpath replay` of that build says."""
    command = [python, "-P", "-m", "offpath.cli.main", "replay", str(journal), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=TIMEOUT, env=environment())
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_each_build_continues_the_other_ones_daemon(
    make_cluster: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = sys.executable, fast_python()
    chosen, interpreter = tmp_path / "chosen", tmp_path / "python"
    chosen.write_text(ours)
    interpreter.write_text(f'#!/bin/sh\nexec "$(cat {chosen})" "$@"\n')
    interpreter.chmod(0o755)
    with monkeypatch.context() as patch:
        patch.setattr(sys, "executable", str(interpreter))
        cluster = make_cluster({"ada": {}}, keep={"starts": 0}, durability=DURABLE)
    cluster.start_helper()
    with cluster.connect("ada") as ada:
        assert not is_compiled(cluster)
        for python in (theirs, ours, theirs):
            values = np.arange(1_000.0)
            np.testing.assert_array_equal(ada.submit("echo", [values], timeout=TIMEOUT).arrays[0], values)
            running = ada.begin("sleep", seconds(1.0))
            waiting = [ada.begin("echo", seconds(0)) for _ in range(3)]
            until_read(cluster, ada)
            chosen.write_text(python)
            assert kill_kept(cluster) == cluster.lineage
            assert is_compiled(cluster) is (python is theirs)
            assert [terminal(each) for each in (running, *waiting)] == [None] * 4
    journal = tmp_path / "journal"
    shutil.copyfile(cluster.run_folder / "journal", journal)
    found = replayed(ours, journal)
    assert found == replayed(theirs, journal)
    assert isinstance(found, dict)
    assert found["fault"] == ""
    assert found["jobs_accepted"] >= 15
