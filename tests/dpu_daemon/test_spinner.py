"""Polling before sleeping (`datapath.spin_us`): what it finds, when it stops, and that it is off unless wanted."""

from __future__ import annotations

import asyncio
import os
import re
import socket
import threading
import time
import urllib.request
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import uvloop

from offpath.bindings.waiting import FineTimer
from offpath.dpu_daemon.requests.spinner import LEAD_NS, MOST_EXPECTED, Spinner

from ..support.cluster import TIMEOUT, free_port
from ..support.clusters import NARROW, Make, seconds
from ..support.processes import until

LONG_US = 20_000_000
"""Longer than any machine takes to run another thread: what ends such a spin is an event."""
MS = 1_000_000
Factory = Callable[[], asyncio.AbstractEventLoop]
loops = pytest.mark.parametrize("loop_factory", [uvloop.new_event_loop, asyncio.SelectorEventLoop])


def run(factory: Factory, body: Callable[[Spinner], Any]) -> None:
    async def main() -> None:
        spinner = Spinner(asyncio.get_running_loop())
        try:
            await body(spinner)
        finally:
            spinner.close()
            spinner.close()

    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(asyncio.wait_for(main(), 60))


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


@loops
def test_an_event_that_comes_while_it_spins_ends_the_spin_and_is_served(loop_factory: Factory) -> None:
    async def body(spinner: Spinner) -> None:
        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair()
        served = loop.create_future()
        ours.setblocking(False)
        loop.add_reader(ours, lambda: served.done() or served.set_result(ours.recv(1)))
        await asyncio.sleep(0.01)  # the loop has registered it

        def ring() -> None:
            until(lambda: spinner.spins == 1)
            theirs.send(b"x")

        thread = threading.Thread(target=ring)
        thread.start()
        spinner.limit(LONG_US)
        spinner.worked()
        assert await served == b"x"
        thread.join()
        assert (spinner.spins, spinner.hits) == (1, 1)
        loop.remove_reader(ours)
        ours.close()
        theirs.close()

    run(loop_factory, body)


@loops
def test_without_an_event_it_gives_up_and_the_loop_sleeps(loop_factory: Factory) -> None:
    async def body(spinner: Spinner) -> None:
        spinner.limit(50)
        spinner.worked()
        spinner.worked()
        await turns(5)
        assert spinner.spins == 1, "one spin for all events of a turn"
        await asyncio.sleep(0.05)
        assert (spinner.spins, spinner.hits) == (1, spinner.hits)

    run(loop_factory, body)


@loops
def test_callbacks_that_were_due_before_are_not_held_up(loop_factory: Factory) -> None:
    async def body(spinner: Spinner) -> None:
        spun_before: list[int] = []
        loop = asyncio.get_running_loop()
        spinner.limit(50)
        loop.call_soon(lambda: spun_before.append(spinner.spins))
        spinner.worked()
        loop.call_soon(lambda: spun_before.append(spinner.spins))
        until_spun = 0
        while not spinner.spins:
            await turns(1)
            until_spun += 1
            assert until_spun < 10
        assert spun_before == [0, 0]

    run(loop_factory, body)


@loops
def test_off_it_does_nothing(loop_factory: Factory) -> None:
    async def body(spinner: Spinner) -> None:
        spinner.worked()
        spinner.expect(time.monotonic_ns() + 5 * MS)
        await asyncio.sleep(0.02)
        assert (spinner.spins, spinner._timer, spinner._expected) == (0, None, [])
        spinner.limit(50)
        spinner.limit(0)
        spinner.worked()
        spinner.expect(time.monotonic_ns() + 5 * MS)
        await asyncio.sleep(0.02)
        assert (spinner.spins, spinner._expected) == (0, [])

    run(loop_factory, body)


@loops
def test_it_is_awake_when_kernels_are_expected_to_end(loop_factory: Factory) -> None:
    async def body(spinner: Spinner) -> None:
        spinner.limit(100)
        now_ns = time.monotonic_ns()
        spinner.expect(now_ns - MS)
        spinner.expect(now_ns + LEAD_NS)
        assert spinner._expected == [], "those end while the loop spins after the launch"
        first, second = now_ns + 200 * MS, now_ns + 400 * MS
        spinner.expect(second)
        spinner.expect(first)
        for wanted, expected_ns in ((1, first), (2, second)):
            while spinner.spins < wanted:
                await asyncio.sleep(0.001)
            assert time.monotonic_ns() >= expected_ns - LEAD_NS
            assert len(spinner._expected) == 2 - wanted
        for n in range(2 * MOST_EXPECTED):
            spinner.expect(time.monotonic_ns() + 10_000 * MS + n)
        assert len(spinner._expected) == MOST_EXPECTED

    run(loop_factory, body)


def test_a_loop_without_a_descriptor_does_not_spin_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    class Loop:
        def call_soon(self, *_: object) -> None:
            raise AssertionError("it does not spin")

    spinner = Spinner(Loop())  # type: ignore[arg-type]
    spinner.limit(100)
    spinner.worked()
    assert spinner.spin_ns == 0
    assert "no epoll descriptor" in caplog.text


def test_a_fine_timer_is_readable_at_its_time_and_once() -> None:
    timer = FineTimer()
    try:
        due_ns = time.monotonic_ns() + 2 * MS
        timer.arm(due_ns)
        until(lambda: time.monotonic_ns() > due_ns + 2 * MS)
        assert os.read(os.dup(timer.fileno()), 8) == (1).to_bytes(8, "little")
        timer.clear()
        with pytest.raises(BlockingIOError):
            os.read(timer.fileno(), 8)
    finally:
        timer.close()
        timer.close()


def test_a_daemon_spins_for_requests_and_kernels_alone_and_a_reload_stops_it(make_cluster: Make) -> None:
    port = free_port()
    operation = {"metrics_listen": f"127.0.0.1:{port}"}
    warm = {"keep_warm_ms": 60_000}
    cluster = make_cluster({"ada": NARROW}, datapath={"spin_us": 1000}, operation=operation, leasing=warm)
    cluster.start_helper()

    def spins() -> tuple[int, ...]:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            text = answer.read().decode()
        return tuple(int(float(found)) for found in re.findall(r"^offpath_spin(?:s|_hits)_total (.*)$", text, re.M))

    with cluster.connect("ada") as ada:
        for n in range(20):
            assert ada.submit("echo", seconds(n), timeout=TIMEOUT).array == n
        assert spins()[0] > 0

        def is_at_rest() -> bool:
            before = spins()
            time.sleep(0.3)  # scrapes and the loop's own timers come meanwhile
            return spins() == before

        assert any(is_at_rest() for _ in range(10)), "an idle daemon sleeps"
        cluster.config["datapath"]["spin_us"] = 0
        assert cluster.reload()
        stopped = spins()
        for n in range(20):
            assert (ada.submit("echo", seconds(n), timeout=TIMEOUT).array == np.array(n)).all()
        assert spins() == stopped
