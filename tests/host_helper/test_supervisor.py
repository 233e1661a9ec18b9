"""The supervisor where timing decides: signals just before it waits, descriptors that change hands within a turn."""

from __future__ import annotations

import io
import os
import select
import signal
import subprocess
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from offpath.bindings.loopback.channel import LoopbackConnector
from offpath.host_helper import Helper
from offpath.host_helper.supervisor import Supervisor


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
    helper.run("/nowhere/host.sock")
    assert len(woken) == 1
    assert signal.getsignal(signal.SIGTERM) is before
    assert signal.set_wakeup_fd(-1) == -1


def test_a_worker_that_lives_is_not_waited_for_because_it_got_a_dead_ones_descriptor() -> None:
    """Within one turn an order closes a dead worker's descriptor and forks another, which gets its number; then comes
    the old number's turn. (A soak found it: the helper stood still and took no order any more.)"""
    table = Helper()
    table.kernel("nothing", demand=1)(lambda: None)
    made = Supervisor("host", LoopbackConnector("/nowhere/host.sock"), [], table)
    with subprocess.Popen(["sleep", "60"]) as worker:
        pidfd = os.pidfd_open(worker.pid)
        held: Any = SimpleNamespace(workers={pidfd: worker.pid})
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
