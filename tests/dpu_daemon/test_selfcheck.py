"""The check behind the watchdog: a sound daemon passes, and each broken part is found and named."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from offpath.dpu_daemon import selfcheck
from offpath.dpu_daemon.config import parse_config
from offpath.dpu_daemon.daemon import Daemon
from offpath.dpu_daemon.fdstore import open_notify_socket, read_notification
from offpath.dpu_daemon.negotiation import Negotiator
from offpath.dpu_daemon.notify import Notifier
from offpath.dpu_daemon.selfcheck import SelfCheck, SelfCheckFailed, feed_watchdog
from offpath.dpu_daemon.serve import running_daemon
from offpath.sched.jobs import events

from ..sched.gpus import a100


@contextlib.asynccontextmanager
async def checked(folder: Path) -> AsyncIterator[tuple[Daemon, Negotiator, SelfCheck]]:
    config = parse_config({"tenant": [{"name": "alpha"}]}, "test")
    async with running_daemon(config, str(folder / "run")) as (daemon, negotiator):
        with contextlib.closing(SelfCheck(daemon, negotiator)) as check:
            yield daemon, negotiator, check


@pytest.fixture
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selfcheck, "ANSWER_TIMEOUT_S", 0.3)


async def test_a_sound_daemon_passes_again_and_again_and_counts_nothing(tmp_path: Path) -> None:
    """No violation, no moved byte, no descriptor left behind."""
    async with checked(tmp_path) as (daemon, _, check):
        await check.run()
        await asyncio.sleep(0.05)
        before = daemon.statistics(), len(os.listdir("/proc/self/fd"))
        for _ in range(20):
            await check.run()
        await asyncio.sleep(0.05)
        assert (daemon.statistics(), len(os.listdir("/proc/self/fd"))) == before
        assert daemon.statistics()["dma_bytes"] == 0


async def test_a_copy_engine_whose_thread_has_ended_is_found(tmp_path: Path) -> None:
    async with checked(tmp_path) as (daemon, _, check):
        daemon.engine._thread = ended = threading.Thread(target=lambda: None)
        ended.start()
        ended.join()
        with pytest.raises(SelfCheckFailed, match="copy engine: its thread has ended"):
            await check.run()


@pytest.mark.usefixtures("_impatient")
async def test_a_negotiation_that_takes_nobody_in_is_found(tmp_path: Path) -> None:
    """The socket still listens, so that a peer can connect; but nobody looks."""
    async with checked(tmp_path) as (_, negotiator, check):
        path = negotiator.endpoints.negotiate
        for server in negotiator._servers:
            server.close()
        if os.path.exists(path):
            os.unlink(path)
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as deaf:
            deaf.bind(path)
            with pytest.raises(SelfCheckFailed, match="negotiation"):
                await check.run()
            deaf.listen()
            with pytest.raises(SelfCheckFailed, match="has not answered"):
                await check.run()


@pytest.mark.usefixtures("_impatient")
@pytest.mark.parametrize("which", ["fabric", "host"])
async def test_a_listener_that_nobody_watches_is_found(tmp_path: Path, which: str) -> None:
    async with checked(tmp_path) as (daemon, negotiator, check):
        listener = negotiator._door._listener if which == "fabric" else daemon.host.strangers._listener
        asyncio.get_running_loop().remove_reader(listener.fileno())
        with pytest.raises(SelfCheckFailed, match="has not answered"):
            await check.run()


async def test_a_flood_at_every_door_is_no_fault_of_the_daemon(tmp_path: Path) -> None:
    """Each queue is full when the check comes, and full of peers that say nothing."""
    async with checked(tmp_path) as (daemon, negotiator, check):
        places = [
            (negotiator.endpoints.negotiate, socket.SOCK_STREAM),
            (negotiator.endpoints.fabric, socket.SOCK_SEQPACKET),
            (daemon.host.listener.address, socket.SOCK_SEQPACKET),
        ]
        with contextlib.ExitStack() as held:
            for path, kind in places:
                for _ in range(1000):
                    peer = held.enter_context(socket.socket(socket.AF_UNIX, kind | socket.SOCK_NONBLOCK))
                    if peer.connect_ex(path) == errno.EAGAIN:
                        break
                else:
                    pytest.fail("a queue without end")
            await check.run()


async def test_a_full_queue_that_nobody_empties_is_no_flood(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selfcheck, "FLOOD_PAUSE_S", 0.01)
    async with checked(tmp_path) as (daemon, _, check):
        asyncio.get_running_loop().remove_reader(daemon.host.strangers._listener.fileno())
        with contextlib.ExitStack() as held:
            kind = socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK
            path = daemon.host.listener.address
            while held.enter_context(socket.socket(socket.AF_UNIX, kind)).connect_ex(path) != errno.EAGAIN:
                pass
            with pytest.raises(SelfCheckFailed, match="host channel: its queue stays full"):
                await check.run()


async def test_a_deadline_that_was_forgotten_is_found(tmp_path: Path) -> None:
    """A job with a deadline waits for a lease that no helper opens; then the daemon's timer is lost."""
    async with checked(tmp_path) as (daemon, _, check):
        daemon.dispatch(events.HelperJoined(1, (a100(),), (events.Kernel(1, 14),)))
        daemon.dispatch(events.SessionOpened(1, "alpha", 1))
        daemon.dispatch(events.JobSubmitted(1, 1, 1, 1, 0, 0, daemon.now_ns() + 10_000_000_000, 8, False))
        await check.run()
        assert daemon._timer is not None
        daemon._timer.cancel()
        daemon.now_ns = lambda: time.monotonic_ns() + 1_000_000_000
        await check.run()  # a busy loop may be late
        daemon.now_ns = lambda: time.monotonic_ns() + 13_000_000_000
        with pytest.raises(SelfCheckFailed, match="job book: a deadline has stood for"):
            await check.run()


@pytest.mark.usefixtures("_impatient")
async def test_the_watchdog_starves_while_a_part_is_broken_and_no_longer(tmp_path: Path) -> None:
    loop = asyncio.get_running_loop()
    with open_notify_socket(str(tmp_path / "notify")) as manager:
        async with checked(tmp_path) as (daemon, _, check):
            listener = daemon.host.strangers._listener
            loop.remove_reader(listener.fileno())
            feeding = asyncio.ensure_future(feed_watchdog(Notifier(str(tmp_path / "notify")), 0.1, check))
            await asyncio.sleep(0.5)
            assert read_notification(manager) is None
            loop.add_reader(listener.fileno(), daemon.host.strangers._accept)
            async with asyncio.timeout(20):
                while (said := read_notification(manager)) is None:
                    await asyncio.sleep(0.02)
            assert said.fields == {"WATCHDOG": "1"}
            feeding.cancel()
            await asyncio.gather(feeding, return_exceptions=True)
