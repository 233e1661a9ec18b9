"""`offpath daemon run`, by its command line: kept and unkept, with a sound and a hostile environment."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from offpath.bindings.wire import negotiating

from ..support.certificates import Authority
from ..support.peers import Peer, hello
from ..support.processes import BOUND_S, until

OFFPATH = [sys.executable, "-m", "offpath.cli.main", "daemon", "run"]
HAND_DOWN = """
import os, sys
os.dup2(int(sys.argv[1]), 3)
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS="1", LISTEN_FDNAMES="negotiate")
os.execv(sys.argv[2], sys.argv[2:])
"""


@pytest.fixture
def words(tmp_path: Path) -> list[str]:
    token = tmp_path / "token"
    token.write_text(f"alpha-{'x' * 24}")
    token.chmod(0o600)
    (tmp_path / "c.toml").write_text(f'[[tenant]]\nname = "alpha"\ntoken_file = "{token}"\n')
    return ["--config", str(tmp_path / "c.toml"), "--runtime-dir", str(tmp_path / "run")]


@pytest.fixture
def kept(words: list[str], tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    with open(tmp_path / "errors", "w") as errors:
        process = subprocess.Popen(
            [*OFFPATH, *words, "--keep", "--json"], stdout=subprocess.PIPE, stderr=errors, text=True, cwd=tmp_path
        )
    try:
        yield process
    finally:
        process.kill()
        process.communicate(timeout=BOUND_S)


def test_a_kept_daemon_comes_back_and_its_statistics_reach_standard_output(
    kept: subprocess.Popen[str], tmp_path: Path
) -> None:
    def times_ready() -> int:
        return (tmp_path / "errors").read_text().count("offpathd ready")

    until(times_ready)
    (child,) = Path(f"/proc/{kept.pid}/task/{kept.pid}/children").read_text().split()
    os.kill(int(child), signal.SIGKILL)
    until(lambda: times_ready() == 2)
    with Peer(f"unix:{tmp_path}/run/negotiate.sock") as peer:
        peer.send_message(**hello("alpha"))
        assert isinstance(peer.hear(), negotiating.Welcome)
    kept.send_signal(signal.SIGTERM)
    out, _ = kept.communicate(timeout=BOUND_S)
    assert kept.returncode == 0
    assert "dma_bytes" in json.loads(out)
    assert "ended by SIGKILL; restarting it" in (tmp_path / "errors").read_text()


@pytest.mark.parametrize("name", ["host", "negotiate", "fabric", "admin"])
@pytest.mark.parametrize("kept", [[], ["--keep"]], ids=["alone", "kept"])
def test_a_socket_that_another_process_has_is_named_and_left_to_it(
    words: list[str], tmp_path: Path, name: str, kept: list[str]
) -> None:
    (tmp_path / "run").mkdir(mode=0o700)
    path = tmp_path / "run" / f"{name}.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.bind(str(path))
        sock.listen()
        command = [*OFFPATH, *words, *kept]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=BOUND_S)
        assert (done.returncode, done.stderr) == (73, f"offpath: {path}: another process listens there\n")
        assert path.exists()


def test_a_port_that_another_process_has_is_named(words: list[str], tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    cert, key = authority.issue("offpathd", is_server=True)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        table = {"listen": listen, "ca_file": authority.ca_file, "cert_file": cert, "key_file": key}
        command = [*OFFPATH, *words, *(f"--set=tls.{key}={value}" for key, value in table.items())]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=BOUND_S)
    assert (done.returncode, done.stderr) == (73, f"offpath: tls.listen: {listen}: Address already in use\n")


def refused(words: list[str], variables: str) -> str:
    """What the daemon says with these variables; LISTEN_PID is right, for the shell becomes the daemon."""
    command = f'{variables} LISTEN_PID=$$ exec "$@"'
    done = subprocess.run(
        ["sh", "-c", command, "sh", *OFFPATH, *words], capture_output=True, text=True, check=False, timeout=BOUND_S
    )
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    return done.stderr


@pytest.mark.parametrize(
    "variables",
    [
        "LISTEN_FDS=1",
        "LISTEN_FDS=-1",
        "LISTEN_FDS=99999999999999999999",
        "LISTEN_FDS=2 LISTEN_FDNAMES=negotiate",
        "LISTEN_FDS=1 LISTEN_FDNAMES='a b'",
    ],
)
def test_a_hostile_environment_is_refused_before_anything_is_made(
    words: list[str], tmp_path: Path, variables: str
) -> None:
    assert refused(words, variables).startswith("offpath: LISTEN_FD")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("redirection", "variables", "reason"),
    [
        ("3</dev/null", "LISTEN_FDS=1 LISTEN_FDNAMES=negotiate", "descriptor 3 is not a socket"),
        ("3</dev/null 4</dev/null", "LISTEN_FDS=2 LISTEN_FDNAMES=fabric:fabric", "2 listening sockets are named"),
    ],
)
def test_what_is_no_listening_socket_is_refused(
    words: list[str], redirection: str, variables: str, reason: str
) -> None:
    assert reason in refused(words, f"exec {redirection};{variables}")


def test_a_socket_from_a_service_manager_is_used_where_it_is_and_left_there(words: list[str], tmp_path: Path) -> None:
    """Its own place, not the runtime directory's; its mode and its file stay as they were made."""
    path = str(tmp_path / "elsewhere.sock")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.bind(path)
        sock.listen()
        command = [sys.executable, "-c", HAND_DOWN, str(sock.fileno()), *OFFPATH, *words]
        daemon = subprocess.Popen(command, pass_fds=[sock.fileno()], stderr=subprocess.DEVNULL)
    try:
        with Peer(f"unix:{path}") as peer:
            peer.send_message(**hello("alpha"))
            assert isinstance(peer.hear(), negotiating.Welcome)
        daemon.send_signal(signal.SIGTERM)
        assert daemon.wait(BOUND_S) == 0
    finally:
        daemon.kill()
        daemon.wait(BOUND_S)
    assert os.path.exists(path)
    assert list((tmp_path / "run").iterdir()) == []
