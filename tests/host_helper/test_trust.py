"""A client gives its token only to a daemon of a user that it trusts. The false daemons here are real processes."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from offpath.bindings.errors import DaemonNotTrusted, DeviceGone, NoGpu, OptionRefused, PeerGone, RegionError
from offpath.bindings.findings import Finding, Severity
from offpath.bindings.loopback.channel import LoopbackConnector
from offpath.bindings.loopback.fabric import redeem_ticket
from offpath.bindings.loopback.gpu import EmulatedGpu
from offpath.bindings.ports import Gpu
from offpath.bindings.runtime import ina_directory, local_socket, make_runtime_directory, runtime_directory
from offpath.bindings.sockets import listening_socket
from offpath.cli.admin_client import AdminClient
from offpath.host_helper import connect
from offpath.host_helper.doctor import check_gpu, check_host, check_ina
from offpath.host_helper.gpus import NO_GPU_ADVICE

from ..support.processes import BOUND_S, Process, until

needs_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can start a process of another user")
OTHER_UID = 65534
TOKEN = "secret+token/of=the tenant"
False_ = Callable[..., tuple[Path, Path]]


@pytest.fixture
def token(tmp_path: Path) -> str:
    path = tmp_path / "token"
    path.write_text(TOKEN)
    path.chmod(0o600)
    return str(path)


@pytest.fixture
def false_daemon() -> Iterator[False_]:
    """``false_daemon(name, kind, place)``: the directory it listens in, and the file of what it was sent. Not below
    ``tmp_path``: each pytest that starts closes the folder of them all to other users."""
    started: list[Process] = []
    folder = Path(tempfile.mkdtemp(prefix="offpath-f-"))
    folder.chmod(0o711)

    def start(name: str = "negotiate.sock", kind: str = "stream", place: str = "own") -> tuple[Path, Path]:
        directory, record = folder / f"false{len(started)}", folder / f"record{len(started)}"
        if place == "sticky":
            directory.mkdir()
            directory.chmod(0o1777)
        arguments = (str(directory), name, kind, str(OTHER_UID), str(record), place)
        process = Process(f"false{len(started)}", folder, "false_daemon_main.py", *arguments)
        started.append(process)
        assert process.hear() == "listening"
        return directory, record

    yield start
    for process in started:
        process.kill()
    shutil.rmtree(folder)


@needs_root
@pytest.mark.parametrize("place", ["own", "sticky"])
def test_a_false_daemon_is_sent_no_token(false_daemon: False_, token: str, place: str) -> None:
    directory, record = false_daemon(place=place)
    with pytest.raises(
        DaemonNotTrusted, match=f"belongs to uid {OTHER_UID}; if that user runs the daemon, set OFFPATH"
    ):
        connect(directory, tenant="ada", token_file=token)
    assert record.read_bytes() == b""


@needs_root
def test_a_false_daemon_behind_files_of_a_trusted_user_is_sent_no_token(false_daemon: False_, token: str) -> None:
    """The files say root; the kernel says who listens."""
    directory, record = false_daemon()
    for path in (directory / "negotiate.sock", directory):
        os.chown(path, 0, 0)
    with pytest.raises(DaemonNotTrusted, match=f"listens there runs as uid {OTHER_UID}"):
        connect(f"unix:{directory}/negotiate.sock", tenant="ada", token_file=token)
    until(lambda: record.read_bytes())
    assert record.read_bytes() == b"connected;"


@needs_root
def test_a_daemon_of_the_configured_user_is_sent_the_token(
    false_daemon: False_, token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is the check that keeps the token back above, and nothing else."""
    directory, record = false_daemon()
    for given in (str(OTHER_UID), "nobody"):
        monkeypatch.setenv("OFFPATH_DAEMON_UID", given)
        with pytest.raises(PeerGone):
            connect(directory, tenant="ada", token_file=token, timeout_s=BOUND_S)
    assert record.read_bytes().count(TOKEN.encode()) == 2
    monkeypatch.setenv("OFFPATH_DAEMON_UID", "no-such-user")
    with pytest.raises(OptionRefused, match="OFFPATH_DAEMON_UID: no such user"):
        connect(directory, tenant="ada", token_file=token)


@needs_root
def test_a_false_daemon_gets_no_helper_no_ticket_and_no_question(false_daemon: False_) -> None:
    for name, kind, ask in (
        ("host.sock", "seqpacket", lambda path: LoopbackConnector(path).connect()),
        ("fabric.sock", "seqpacket", lambda path: redeem_ticket(path, "T" * 43)),
        ("admin.sock", "stream", lambda path: AdminClient(os.path.dirname(path))),
    ):
        directory, record = false_daemon(name, kind)
        with pytest.raises(DaemonNotTrusted):
            ask(str(directory / name))
        assert record.read_bytes() == b""


def test_a_directory_that_others_may_write_to_or_a_link_for_a_socket_is_refused(tmp_path: Path, token: str) -> None:
    run = tmp_path / "run"
    make_runtime_directory(str(run))
    (run / "negotiate.sock").symlink_to("/dev/null")
    with pytest.raises(DaemonNotTrusted, match="is not a socket"):
        connect(run, tenant="ada", token_file=token)
    run.chmod(0o770)
    with pytest.raises(DaemonNotTrusted, match="can be written by others"):
        connect(run, tenant="ada", token_file=token)


def test_no_default_is_a_place_where_another_user_could_be_first(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RUNTIME_DIRECTORY", "XDG_RUNTIME_DIR", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 0)
    assert runtime_directory() == "/run/offpath"
    monkeypatch.setattr(os, "getuid", lambda: 123_456_789)
    with pytest.raises(RegionError, match="set XDG_RUNTIME_DIR"):
        runtime_directory()
    monkeypatch.setenv("HOME", "/home/ada")
    assert runtime_directory() == "/home/ada/.local/state/offpath"
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/7")
    assert runtime_directory() == "/run/user/7/offpath"
    monkeypatch.setenv("RUNTIME_DIRECTORY", "/run/a:/run/b")
    assert runtime_directory() == "/run/a"
    assert ina_directory() == "/run/a/ina"
    monkeypatch.setenv("OFFPATH_INA_DIRECTORY", "/run/ranks")
    assert ina_directory() == "/run/ranks"


def test_a_daemon_of_ones_own_comes_before_the_machines(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    system = tmp_path / "system"
    system.mkdir()
    (system / "admin.sock").touch()
    monkeypatch.setattr("offpath.bindings.runtime.SYSTEM_DIRECTORY", str(system))
    monkeypatch.delenv("RUNTIME_DIRECTORY", raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert local_socket("admin.sock") == str(system / "admin.sock")
    assert local_socket("admin.sock", "/elsewhere") == "/elsewhere/admin.sock"
    assert local_socket("host.sock") == str(tmp_path / "offpath" / "host.sock")
    (tmp_path / "offpath").mkdir()
    (tmp_path / "offpath" / "admin.sock").touch()
    assert local_socket("admin.sock") == str(tmp_path / "offpath" / "admin.sock")


def test_a_signal_during_the_wait_for_a_busy_daemon_makes_it_no_false_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The daemon's backlog is full. Signals come while the client waits; with the fifth the daemon accepts."""
    path = str(tmp_path / "host.sock")
    signals, waiting = [], []
    with listening_socket(path, socket.SOCK_SEQPACKET) as daemon:
        daemon.listen(0)
        first = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        first.connect(path)

        def come(*_: object) -> None:
            signals.append(1)
            if len(signals) == 5:
                waiting.append(daemon.accept()[0])

        before = signal.signal(signal.SIGALRM, come)
        signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)
        try:
            with contextlib.closing(LoopbackConnector(path).connect(BOUND_S)) as connected:
                assert connected.peer_pid == os.getpid()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0.0)
            signal.signal(signal.SIGALRM, before)
            for sock in (first, *waiting):
                sock.close()


def test_a_signal_does_not_prolong_the_wait_for_a_busy_daemon(tmp_path: Path) -> None:
    path = str(tmp_path / "host.sock")
    with listening_socket(path, socket.SOCK_SEQPACKET) as daemon:
        daemon.listen(0)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as first:
            first.connect(path)
            before = signal.signal(signal.SIGALRM, lambda *_: None)
            signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)
            try:
                with pytest.raises(PeerGone, match="Resource temporarily unavailable"):
                    LoopbackConnector(path).connect(0.5)
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0.0)
                signal.signal(signal.SIGALRM, before)


def daemon_finding(directory: Path) -> Finding:
    return next(each for each in check_host(str(directory)) if each.code == "daemon")


class RealGpu(EmulatedGpu):
    """By its own word."""

    is_emulated = False  # type: ignore[misc]


def test_the_hosts_doctor_names_the_gpus_that_a_helper_would_serve_and_which_are_emulated() -> None:
    def nothing() -> list[Gpu]:
        raise NoGpu(f"no GPU to serve kernels on: CUDA shows none. {NO_GPU_ADVICE}")

    missing = check_gpu(nothing)
    assert (missing.severity, missing.what) == (Severity.NOTE, "no GPU to serve kernels on: CUDA shows none")
    assert "--emulate A100-40GB" in missing.fix
    real, other = RealGpu("GPU-a", "A100-40GB", slice_bytes=4096), RealGpu("GPU-a", "A100-40GB", slice_bytes=4096)
    assert check_gpu(lambda: [real]) == Finding("gpu", Severity.OK, "GPU-a (A100-40GB)")
    emulated = EmulatedGpu("GPU-b", "A30-24GB", slice_bytes=4096)
    found = check_gpu(lambda: [other, emulated])
    assert (found.severity, found.what) == (Severity.WARNING, "GPU-a (A100-40GB), GPU-b (A30-24GB, EMULATED)")
    with pytest.raises(DeviceGone):
        emulated.create_instance("1g.6gb", 0)  # closed


@needs_root
def test_the_hosts_doctor_reports_a_false_daemon_and_sends_it_nothing(false_daemon: False_) -> None:
    directory, record = false_daemon("host.sock", "seqpacket")
    found = daemon_finding(directory)
    assert found.severity is Severity.ERROR
    assert f"belongs to uid {OTHER_UID}" in found.what
    assert record.read_bytes() == b""


def test_the_hosts_doctor_names_a_user_that_does_not_exist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OFFPATH_DAEMON_UID", "nobody-of-that-name")
    assert daemon_finding(tmp_path).severity is Severity.ERROR


def test_the_hosts_doctor_says_whose_ranks_can_have_a_tree(tmp_path: Path) -> None:
    assert check_ina(str(tmp_path / "none")).severity is Severity.NOTE
    tmp_path.chmod(0o700)
    assert check_ina(str(tmp_path)).severity is Severity.OK
    tmp_path.chmod(0o770)
    assert check_ina(str(tmp_path)).severity is Severity.WARNING
    tmp_path.chmod(0o700)
    (tmp_path / "file").touch(0o600)
    assert check_ina(str(tmp_path / "file")).severity is Severity.WARNING
    if os.geteuid() == 0:
        os.chown(tmp_path, 4711, 4711)
        found = check_ina(str(tmp_path))
        assert (found.severity, "uid 4711" in found.what) == (Severity.NOTE, True)
