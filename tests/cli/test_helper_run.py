"""`offpath helper run FILE` as the author of FILE sees it: what it serves, when it joined, and why it does not."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from offpath.host_helper.ina.rank_file import RankStateFile
from offpath.sched.ina.protocol.records import RankState

from ..support.cluster import TIMEOUT
from ..support.clusters import Make
from ..support.command import offpath
from ..support.processes import until

SERVE = """
from tool import NAME  # beside this file, as for any script
from offpath.host_helper import Helper
helper = Helper()
@helper.kernel(NAME, demand=14)
def kernel(array):
    return array
"""


@pytest.fixture
def serve(tmp_path: Path) -> Path:
    (tmp_path / "tool.py").write_text('NAME = "echo"')
    (tmp_path / "serve.py").write_text(SERVE)
    return tmp_path / "serve.py"


@contextmanager
def helper(file: Path, runtime: Path, name: str, **more: str) -> Iterator[Path]:
    """A helper that runs, and the file of what it prints; it ends in order."""
    log = file.parent / f"{name}.err"
    words = ["helper", "run", str(file), "--emulate", "A100-40GB", "A30-24GB", "--runtime-dir", str(runtime)]
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", **more}
    with open(log, "wb") as errors:
        process = subprocess.Popen([sys.executable, "-m", "offpath.cli.main", *words], stderr=errors, env=environment)
    try:
        yield log
        process.terminate()
        assert process.wait(TIMEOUT) == 0, log.read_text()
    finally:
        process.kill()
        process.wait(TIMEOUT)


def test_ranks_of_training_jobs_find_it_where_the_environment_says(
    make_cluster: Make, serve: Path, tmp_path: Path
) -> None:
    """As the shipped unit does, whose user may write nothing beside the daemon's sockets."""
    cluster = make_cluster({"ada": {}})
    with helper(serve, cluster.run_folder, "helper", OFFPATH_INA_DIRECTORY=str(tmp_path / "ranks")) as log:
        until(lambda: "joined the daemon" in log.read_text())
        rank = RankStateFile(str(tmp_path / "ranks"), RankState("digits", incarnation=1, rank=0, ranks=1))
        rank._file.close()  # as a rank that is killed
        until(lambda: not os.path.exists(rank.path))  # the helper removes what it has left
    assert not (cluster.run_folder / "ina").exists()


def test_it_says_what_it_serves_when_it_joined_and_that_another_serves_already(make_cluster: Make, serve: Path) -> None:
    cluster = make_cluster({"ada": {}})
    with helper(serve, cluster.run_folder, "first") as first:
        until(lambda: "joined the daemon as generation 1 at 20" in first.read_text())
        with helper(serve, cluster.run_folder, "second") as second:
            until(lambda: "not joined: a helper 'helper' " in second.read_text())
            until(lambda: cluster.daemon.errors.count("serves this daemon already") >= 3)  # it tried again
    offered = "offpath helper: serves echo (14 %) on GPU-0 (A100-40GB, EMULATED), GPU-1 (A30-24GB, EMULATED)"
    lines = first.read_text().splitlines()
    assert (lines[0], len(lines)) == (offered, 3)
    assert lines[1] == "offpath helper: EMULATED: GPU-0, GPU-1: this host's CPU computes, and no GPU"
    (line,) = second.read_text().splitlines()[2:]
    assert line.endswith("serves this daemon already; start this one with another --name; trying again"), (
        "said once, however often it tries"
    )


def test_without_a_daemon_it_says_so_once_and_joins_when_there_is_one(make_cluster: Make, serve: Path) -> None:
    nowhere = serve.parent / "nowhere"
    with helper(serve, nowhere, "alone") as log:
        until(lambda: "not joined: no daemon at " in log.read_text())
        nowhere.symlink_to(make_cluster({"ada": {}}).run_folder)
        until(lambda: "joined the daemon as generation 1" in log.read_text())
    assert len(log.read_text().splitlines()) == 4


def test_without_a_gpu_and_without_a_model_to_emulate_it_is_an_error_that_says_what_to_do(serve: Path) -> None:
    done = offpath("helper", "run", str(serve), "--runtime-dir", str(serve.parent))
    assert (done.code, done.out, len(done.err.splitlines())) == (1, "", 1)
    assert "no GPU to serve kernels on: " in done.err
    assert "--emulate A100-40GB" in done.err


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "serve.py: No such file or directory"),
        ("helper = 3", "defines no `helper = Helper()`"),
        ("from offpath.host_helper import Helper\nhelper = Helper()", "registers no kernel"),
    ],
    ids=["no file", "no helper", "no kernel"],
)
def test_a_file_that_cannot_serve_is_one_line(tmp_path: Path, text: str | None, said: str) -> None:
    if text is not None:
        (tmp_path / "serve.py").write_text(text)
    done = offpath("helper", "run", str(tmp_path / "serve.py"), "--runtime-dir", str(tmp_path))
    assert (done.code, said in done.err, len(done.err.splitlines())) == (1, True, 1), done.err


@pytest.mark.parametrize("text", ["import nothing_of_this_name", "helper = (", "1 / 0"])
def test_a_file_that_raises_leaves_its_own_traceback_and_no_frame_of_ours(tmp_path: Path, text: str) -> None:
    path = tmp_path / "serve.py"
    path.write_text(text)
    words = ["helper", "run", str(path), "--runtime-dir", str(tmp_path)]
    done = subprocess.run([sys.executable, "-m", "offpath.cli.main", *words], capture_output=True, text=True)
    assert done.returncode == 1
    assert f'File "{path}", line 1' in done.stderr
    assert done.stderr.splitlines()[-1].startswith(f"offpath: {path} cannot be loaded: ")
    assert not {"helper_run.py", "runpy"} & set(done.stderr.replace('"', "/").split("/"))


def test_the_environment_chooses_the_channel_also_beside_a_runtime_directory(serve: Path) -> None:
    """As the drop-in of docs/hosts.md does for the shipped unit, whose command names the runtime directory."""
    words = ["helper", "run", str(serve), "--runtime-dir", str(serve.parent)]
    environment = {**os.environ, "OFFPATH_HELPER_HOST_CHANNEL": "zmq"}
    command = [sys.executable, "-m", "offpath.cli.main", *words]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=TIMEOUT, check=False)
    assert (done.returncode, done.stderr) == (1, "offpath: the host channel zmq needs --daemon, --key, --server-key\n")
