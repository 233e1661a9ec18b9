"""Clients and helpers without a free descriptor: typed errors, and nothing is left behind."""

from __future__ import annotations

import os
import resource
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from offpath.bindings.errors import PeerGone
from offpath.bindings.loopback.channel import LoopbackConnector
from offpath.bindings.loopback.fabric import redeem_ticket
from offpath.bindings.sockets import listening_socket
from offpath.host_helper import Helper
from offpath.host_helper.supervisor import Supervisor


@contextmanager
def descriptors_left(count: int) -> Iterator[None]:
    """This process may open ``count`` more, from the lowest free number on."""
    lowest = os.dup(0)
    os.close(lowest)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest + count, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def open_descriptors() -> list[str]:
    return os.listdir("/proc/self/fd")


CONNECTS: dict[str, Callable[[str], Any]] = {
    "host channel": lambda path: LoopbackConnector(path).connect(),
    "ticket": lambda path: redeem_ticket(path, "t" * 43),
}


@pytest.mark.parametrize(("way", "count"), [("host channel", 0), ("host channel", 1), ("ticket", 0)])
def test_without_a_descriptor_the_daemon_counts_as_gone(tmp_path: Path, way: str, count: int) -> None:
    path = str(tmp_path / "host.sock")
    with closing(listening_socket(path, socket.SOCK_SEQPACKET)):
        before = open_descriptors()
        with descriptors_left(count), pytest.raises(PeerGone, match="Too many open files"):
            CONNECTS[way](path)
        assert len(open_descriptors()) == len(before)


def test_a_worker_that_cannot_be_watched_is_ended_and_reaped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its instance is scrubbed and given to others next: nobody may be left in it."""
    table = Helper()
    table.kernel("nothing", demand=1)(lambda: None)
    made = Supervisor("host", LoopbackConnector("/nowhere/host.sock"), [], table)
    monkeypatch.setattr(Supervisor, "_become_worker", lambda *_: signal.pause())
    held: Any = SimpleNamespace(workers={}, order=SimpleNamespace(lease=1))
    connection: Any = SimpleNamespace(close=lambda: None)
    children = set(children_of_ours())
    try:
        with descriptors_left(0), pytest.raises(OSError, match="Too many open files"):
            made._fork(connection, held, 0)
        left = set(children_of_ours()) - children
        for pid in left:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    finally:
        made._selector.close()
        os.close(made._stop_read)
        os.close(made._stop_write)
    assert not left
    assert not held.workers


def children_of_ours() -> list[int]:
    with open(f"/proc/self/task/{os.getpid()}/children") as children:
        return [int(pid) for pid in children.read().split()]
