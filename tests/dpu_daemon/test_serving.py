"""A server process works until a signal, and tells the service manager so."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from offpath.dpu_daemon.durability.fdstore import open_notify_socket, read_notification
from offpath.dpu_daemon.durability.notify import Notifier
from offpath.dpu_daemon.operation.serving import until_signal


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[socket.socket]:
    with open_notify_socket(str(tmp_path / "notify")) as sock:
        yield sock


def words(manager: socket.socket) -> list[dict[str, str]]:
    found = []
    while (notification := read_notification(manager)) is not None:
        found.append(notification.fields)
    return found


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_cancels_the_work_which_may_finish(manager: socket.socket, number: signal.Signals) -> None:
    seen: list[str] = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            seen.append("finished")

    def ready() -> None:
        seen.append("ready")
        asyncio.get_running_loop().call_soon(os.kill, os.getpid(), number)

    await until_signal(work(), Notifier(manager.getsockname()), "policy a", ready)
    assert seen == ["ready", "finished"]
    assert words(manager) == [{"READY": "1", "STATUS": "policy a"}, {"STOPPING": "1"}]


async def test_work_that_fails_ends_the_process_with_its_error(manager: socket.socket) -> None:
    async def work() -> None:
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        await until_signal(work(), Notifier(manager.getsockname()), "", lambda: None)
    assert words(manager) == [{"READY": "1"}, {"STOPPING": "1"}]
