"""The supervisor where timing decides: signals just before it waits, descriptors that change hands within a turn."""

from __future__ import annotations

import io
import os
import select
import signal
import socket
import subprocess
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from offpath.bindings.errors import DaemonNotTrusted, NoGpu, OptionRefused, PeerGone
from offpath.bindings.loopback.channel import LoopbackConnector
from offpath.bindings.loopback.gpu import EmulatedGpu
from offpath.bindings.sockets import listening_socket
from offpath.bindings.wire import control
from offpath.bindings.zeromq.connection import ZmqConnector
from offpath.host_helper import Helper
from offpath.host_helper.kernels import KernelTable
from offpath.host_helper.migd.errors import MigdUnreachable
from offpath.host_helper.supervisor import Supervisor
from offpath.host_helper.worker import Worker

from ..support.processes import BOUND_S


def test_a_signal_wakes_the_supervisor_even_before_a_handler_could_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python runs handlers between two of its steps: of a signal that comes when the last step before the wait is done,
    only the wake-up descriptor tells."""
    helper = Helper()
    helper.kernel("nothing", demand=1)(lambda: None)
    woken: list[int] = []

    def serve(supervisor: Supervisor, connection: Any) -> None:
        signal.raise_signal(signal.SIGTERM)
        woken.extend(select.select([supervisor._stop_read], [], [], 5)[0])
        supervisor._stopping = True

    monkeypatch.setattr(Supervisor, "stop", lambda _: None)  # the handler, which runs too early here
    monkeypatch.setattr(Supervisor, "_serve", serve)
    monkeypatch.setattr(LoopbackConnector, "connect", lambda _: io.BytesIO())
    before = signal.getsignal(signal.SIGTERM)
    helper.run("/nowhere/host.sock", emulate=["A100-40GB"])
    assert len(woken) == 1
    assert signal.getsignal(signal.SIGTERM) is before
    assert signal.set_wakeup_fd(-1) == -1


@pytest.mark.parametrize("gpus", ["auto", "cuda", []], ids=str)
def test_a_helper_without_a_gpu_does_not_emulate_one_on_its_own(
    gpus: list[Any] | str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OFFPATH_GPU_PATH", "/nowhere")
    monkeypatch.setenv("OFFPATH_MIGD_DIR", "/nowhere")
    helper = Helper()
    helper.kernel("nothing", demand=1)(lambda: None)
    with pytest.raises(NoGpu, match="--emulate A100-40GB"):
        helper.run("/nowhere/host.sock", gpus=gpus)


def test_where_gpus_are_is_one_of_a_few_words_and_migd_is_reached_or_named(monkeypatch: pytest.MonkeyPatch) -> None:
    helper = Helper()
    helper.kernel("nothing", demand=1)(lambda: None)
    with pytest.raises(OptionRefused, match="'amd' is no kind of GPU; use auto, migd, cuda"):
        helper.run("/nowhere/host.sock", gpus="amd")
    monkeypatch.setenv("OFFPATH_MIGD_DIR", "/nowhere")
    with pytest.raises(MigdUnreachable, match=r"/nowhere/migd\.sock"):
        helper.run("/nowhere/host.sock", gpus="migd")


def test_a_worker_that_lives_is_not_waited_for_because_it_got_a_dead_ones_descriptor() -> None:
    """Within one turn an order closes a dead worker's descriptor and forks another, which gets its number; then comes
    the old number's turn. (A soak found it: the helper stood still and took no order any more.)"""
    table = Helper()
    table.kernel("nothing", demand=1)(lambda: None)
    made = Supervisor("host", LoopbackConnector("/nowhere/host.sock"), [], table)
    with subprocess.Popen(["sleep", "60"]) as worker:
        pidfd = os.pidfd_open(worker.pid)
        held: Any = SimpleNamespace(workers={pidfd: worker.pid}, mps=None)
        made._instances[1] = held
        reaping = threading.Thread(target=made._reap, args=(None, pidfd))
        reaping.start()
        reaping.join(5)
        was_stuck = reaping.is_alive()
        kept = dict(held.workers)
        worker.kill()
        worker.wait()
        reaping.join(5)
    os.close(pidfd)
    made._selector.close()
    for fd in (made._stop_read, made._stop_write):
        os.close(fd)
    assert not was_stuck
    assert kept == {pidfd: worker.pid}


def test_a_daemon_that_may_not_be_joined_is_reported_once_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a directory that others may write to, of a user who is not known just now: the helper stays, because it
    may hold instances."""
    table = Helper()
    table.kernel("nothing", demand=1)(lambda: None)
    told: list[str] = []
    path = str(tmp_path / "host.sock")
    made = Supervisor("host", LoopbackConnector(path), [], table, log_line=told.append)
    with listening_socket(path, socket.SOCK_SEQPACKET):
        tmp_path.chmod(0o777)
        assert not made._serve_once()
        assert not made._serve_once()
        monkeypatch.setenv("OFFPATH_DAEMON_UID", "nobody-of-that-name")
        assert not made._serve_once()
    made._selector.close()
    for fd in (made._stop_read, made._stop_write):
        os.close(fd)
    assert [line.endswith("; trying again") for line in told] == [True, True]
    assert f"not joined: {tmp_path} can be written by others" in told[0]
    assert "not joined: OFFPATH_DAEMON_UID: no such user" in told[1]


def test_a_worker_whose_daemon_may_not_be_joined_just_now_tries_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """It had a connection, and lost it; its lease waits for it to come back."""
    gpu = EmulatedGpu("gpu0", "A100-40GB", slice_bytes=1 << 16)
    order = control.OpenInstance(
        lease=1, generation=1, tenant="ada", gpu="gpu0", profile="1g.5gb", start=0, lanes=1, landing_bytes=4096,
        result_bytes=4096, scrub_first=False, token="t" * 43,
    )  # fmt: skip
    worker = Worker(order, 0, gpu, gpu.create_instance("1g.5gb", 0), Helper(), {}, pid=os.getpid(), linger_s=BOUND_S)
    served: list[Any] = []

    def serve(self: Worker, connection: Any, context: Any) -> None:
        served.append(connection)
        self._is_unwanted = len(served) == 2
        raise PeerGone("the daemon is restarted")

    attempts: list[Any] = [io.BytesIO(), OptionRefused("no such user"), DaemonNotTrusted("not now"), io.BytesIO()]

    def connect(timeout_s: float = 5.0) -> Any:
        attempt = attempts.pop(0)
        if isinstance(attempt, Exception):
            raise attempt
        return attempt

    monkeypatch.setattr(Worker, "_serve", serve)
    connector: Any = SimpleNamespace(connect=connect)
    worker.serve(connector)
    assert len(served) == 2
    gpu.close()


def test_why_it_does_not_join_is_told_and_logged_once_until_that_changes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Each try fails on a key file: first there is none, then one that is no key."""
    key = tmp_path / "host.key"
    told: list[str] = []
    connector = ZmqConnector("tcp://127.0.0.1:9", str(key), str(tmp_path / "daemon.pub"))
    made = Supervisor("host", connector, [], KernelTable(), log_line=told.append)
    (tmp_path / "daemon.pub").write_text("A" * 40)
    for _ in range(3):
        assert not made._serve_once()
    key.write_text("no key")
    key.chmod(0o600)
    for _ in range(3):
        assert not made._serve_once()
    assert [line.startswith("not joined: ") for line in told] == [True, True]
    assert ["No such file" in told[0], "one line of 40 characters" in told[1]] == [True, True]
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING"]
    made._selector.close()
    os.close(made._stop_read)
    os.close(made._stop_write)
