"""The check behind the watchdog: a sound daemon passes, and each broken part is found and named."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import itertools
import os
import selectors
import socket
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from offpath.dpu_daemon.config import parse_config
from offpath.dpu_daemon.daemon import Daemon
from offpath.dpu_daemon.durability.fdstore import open_notify_socket, read_notification
from offpath.dpu_daemon.durability.notify import Notifier
from offpath.dpu_daemon.ingress.negotiation import Negotiator
from offpath.dpu_daemon.listening.checkup import Checkup
from offpath.dpu_daemon.operation import selfcheck
from offpath.dpu_daemon.operation.selfcheck import SelfCheck, SelfCheckFailed, feed_watchdog
from offpath.dpu_daemon.requests.probe import TESTS
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


async def test_a_copy_that_does_not_end_in_place_is_waited_for_and_no_error_of_the_loop(tmp_path: Path) -> None:
    """As with pages of 64 KiB on an engine that copies less than that in place. The health probe copies meanwhile."""
    errors: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
    async with checked(tmp_path) as (daemon, _, check):
        daemon.requests.engine._inline_bytes = -1
        for _ in range(10):
            ended = asyncio.Event()
            daemon.requests.probe.run(checkup := Checkup(TESTS, ended.set))
            await check.run()
            await ended.wait()
            assert checkup.is_healthy
        assert daemon.requests.copies.in_flight == {}
        assert daemon.statistics()["dma_bytes"] == 0
        assert errors == []


@pytest.mark.usefixtures("_impatient")
async def test_a_page_that_never_arrives_is_found_each_time_and_posted_once(tmp_path: Path) -> None:
    async with checked(tmp_path) as (daemon, _, check):
        engine, stop = daemon.requests.engine, threading.Event()
        engine._inline_bytes = -1
        engine._thread = stuck = threading.Thread(target=stop.wait)
        stuck.start()
        for _ in range(2):
            with pytest.raises(SelfCheckFailed, match="copy engine: a page has not arrived"):
                await check.run()
            assert len(daemon.requests.copies.in_flight) == 1, (
                "its pages are not used again while a copy may land in them"
            )
        stop.set()
        stuck.join()
        engine._thread = threading.Thread(target=engine._run)
        engine._thread.start()
        await check.run()
        assert daemon.requests.copies.in_flight == {}


async def test_a_copy_engine_whose_thread_has_ended_is_found(tmp_path: Path) -> None:
    async with checked(tmp_path) as (daemon, _, check):
        daemon.requests.engine._thread = ended = threading.Thread(target=lambda: None)
        ended.start()
        ended.join()
        with pytest.raises(SelfCheckFailed, match="copy engine: its thread has ended"):
            await check.run()


@pytest.mark.usefixtures("_impatient")
async def test_a_negotiation_that_takes_nobody_in_is_found(tmp_path: Path) -> None:
    """The socket still listens, so that a peer can connect; but nobody looks. Then it does not listen any more."""
    async with checked(tmp_path) as (_, negotiator, check):
        assert negotiator._unix is not None
        negotiator._unix.acceptor.close()
        with pytest.raises(SelfCheckFailed, match="has not answered"):
            await check.run()
        negotiator._unix.stop()
        with pytest.raises(SelfCheckFailed, match="negotiation"):
            await check.run()


async def test_a_socket_that_was_removed_is_made_anew_and_a_path_that_somebody_took_is_no_fault(
    tmp_path: Path,
) -> None:
    """The first under the check itself; the second would find the path taken after a restart too."""
    async with checked(tmp_path) as (daemon, negotiator, check):
        ask = check._negotiation

        async def ask_late() -> None:
            if not asked:
                asked.append(None)
                os.unlink(negotiator.endpoints.negotiate)
            await ask()

        asked: list[None] = []
        check._negotiation = ask_late  # type: ignore[method-assign]
        await check.run()
        assert daemon.places.lost == {}
        await check.run()
        for path in (negotiator.endpoints.negotiate, negotiator.endpoints.fabric, daemon.host.listener.address):
            os.unlink(path)
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
                other.bind(path)
                await check.run()
                assert list(daemon.places.lost) == [path]
            await check.run()
            assert daemon.places.lost == {}


@pytest.mark.usefixtures("_impatient")
@pytest.mark.parametrize("which", ["fabric", "host"])
async def test_a_listener_that_nobody_watches_is_found(tmp_path: Path, which: str) -> None:
    async with checked(tmp_path) as (daemon, negotiator, check):
        listener = negotiator._fabric_acceptor._listener if which == "fabric" else daemon.host.pending._listener
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
        asyncio.get_running_loop().remove_reader(daemon.host.pending._listener.fileno())
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
        daemon.requests.book_loop.dispatch(events.HelperJoined(1, (a100("helper/gpu-0"),), (events.Kernel(1, 14),)))
        daemon.requests.book_loop.dispatch(events.SessionOpened(1, "alpha", 1))
        daemon.requests.book_loop.dispatch(
            events.JobSubmitted(1, 1, 1, 1, 0, 0, daemon.requests.now_ns() + 10_000_000_000, 8, False)
        )
        await check.run()
        assert daemon.requests.book_loop._timer is not None
        daemon.requests.book_loop._timer.cancel()
        daemon.requests.book_loop.now_ns = lambda: time.monotonic_ns() + 1_000_000_000
        await check.run()  # a busy loop may be late
        daemon.requests.book_loop.now_ns = lambda: time.monotonic_ns() + 13_000_000_000
        with pytest.raises(SelfCheckFailed, match="job book: a deadline is overdue by"):
            await check.run()


@pytest.mark.usefixtures("_impatient")
async def test_the_watchdog_starves_while_a_part_is_broken_and_no_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = asyncio.get_running_loop()
    with open_notify_socket(str(tmp_path / "notify")) as manager:
        async with checked(tmp_path) as (daemon, _, check):
            listener = daemon.host.pending._listener
            loop.remove_reader(listener.fileno())
            failed: list[SelfCheckFailed] = []
            run = check.run

            async def counted() -> None:
                try:
                    await run()
                except SelfCheckFailed as fault:
                    failed.append(fault)
                    raise

            monkeypatch.setattr(check, "run", counted)
            feeding = asyncio.ensure_future(feed_watchdog(Notifier(str(tmp_path / "notify")), 0.1, check))
            async with asyncio.timeout(20):
                while not failed:
                    await asyncio.sleep(0.01)
                while read_notification(manager) is not None:
                    pass  # fed while the first check was under way: until it ends READY=1 counts
                while len(failed) < 3:
                    await asyncio.sleep(0.01)
            assert read_notification(manager) is None
            loop.add_reader(listener.fileno(), daemon.host.pending.acceptor._readable)
            async with asyncio.timeout(20):
                while (said := read_notification(manager)) is None:
                    await asyncio.sleep(0.02)
            assert said.fields == {"WATCHDOG": "1"}
            feeding.cancel()
            await asyncio.gather(feeding, return_exceptions=True)


class _LeapingSelector(selectors.DefaultSelector):
    """Waits in a time of its own, which passes at once."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 1.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self.now_s += timeout or 0.0
        return super().select(0)


class _LeapingLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self.clock = _LeapingSelector()
        super().__init__(self.clock)

    def time(self) -> float:
        return self.clock.now_s


class _SlowCheck:
    """Takes ``each_s``, and finds a fault from the time ``broken_s`` on."""

    def __init__(self, each_s: float, broken_s: float) -> None:
        self.each_s = each_s
        self.broken_s = broken_s
        self.running = self.at_once = 0

    async def run(self) -> None:
        self.running += 1
        self.at_once = max(self.at_once, self.running)
        try:
            await asyncio.sleep(self.each_s)
        finally:
            self.running -= 1
        if asyncio.get_running_loop().time() >= self.broken_s:
            raise SelfCheckFailed("broken")

    def close(self) -> None:
        pass


@pytest.mark.parametrize("each_s", [0.0, 1.0, 2.5, 4.9, 5.0, 7.0, 10.0, 10.3])
def test_a_check_that_takes_long_delays_no_watchdog_and_its_fault_still_starves_it(each_s: float) -> None:
    """A daemon under a flood is slow to answer its own check, and is not to be aborted for it. Virtual time."""
    interval_s, broken_s, end_s = 10.0, 100.0, 200.0
    check, fed = _SlowCheck(each_s, broken_s), [1.0]  # READY=1

    async def feed() -> None:
        loop = asyncio.get_running_loop()
        notifier = SimpleNamespace(watchdog=lambda: fed.append(loop.time()))
        feeding = asyncio.ensure_future(feed_watchdog(cast(Notifier, notifier), interval_s, cast(SelfCheck, check)))
        await asyncio.sleep(end_s)
        feeding.cancel()
        await asyncio.gather(feeding, return_exceptions=True)

    with asyncio.Runner(loop_factory=_LeapingLoop) as runner:
        runner.run(feed())
    assert max(after - before for before, after in itertools.pairwise(fed)) <= interval_s * 0.75 + 0.001
    assert broken_s - interval_s * 0.75 <= fed[-1] <= broken_s + 2 * each_s + interval_s / 2
    assert (check.at_once, check.running) == (1, 0)
