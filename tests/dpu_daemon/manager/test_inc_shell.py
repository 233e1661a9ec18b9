"""The shell of requests for servers and switches, in this process, with the engine `local`: looks at the engine in a
round, and rounds that cannot be decided."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from offpath.bindings.engines.local import LocalEngine
from offpath.bindings.engines.port import EngineJob, NodeInfo, Start
from offpath.bindings.errors import JobEngineError, PlaceUnusable
from offpath.bindings.wire import control
from offpath.bindings.wire.inc_admin import CompositeBody, SubmitRequest
from offpath.dpu_daemon.listening.places import Places
from offpath.dpu_daemon.manager.inc import links, shell
from offpath.dpu_daemon.manager.inc.config import IncTable, ServerTable, SwitchTable
from offpath.dpu_daemon.manager.inc.looks import Looks
from offpath.dpu_daemon.manager.inc.shell import IncShell
from offpath.dpu_daemon.manager.inc.translation import request_of, spec_of
from offpath.dpu_daemon.manager.store import JobsFile
from offpath.dpu_daemon.operation.admin_socket import AdminHandlers, AdminSocket
from offpath.dpu_daemon.switch.inc import messages
from offpath.dpu_daemon.switch.inc.serve import IncSwitch
from offpath.sched.inc.errors import PlacementInvalid
from offpath.sched.inc.live.records import Command, RequestState, TaskState
from offpath.sched.inc.resources import SwitchSpec

from ...support.processes import BOUND_S


class Engine(LocalEngine):
    """It counts its calls to cancel a job."""

    cancels = 0

    async def cancel(self, identity: str) -> None:
        self.cancels += 1
        await super().cancel(identity)


_opened: list[JobsFile] = []


@pytest.fixture(autouse=True)
def _closes() -> Iterator[None]:
    yield
    while _opened:
        _opened.pop().close()


class Rig:
    """A shell, its engine and its file. Nobody looks at the engine but the test."""

    def __init__(self, folder: Path, switch: str = "") -> None:
        table = IncTable(
            round_ms=10, server=[ServerTable(name="n0", cpu_milli=1_000, memory_mib=1_024)],
            switch=[SwitchTable(name="s0", hosts=["n0"], control=switch)],
        )  # fmt: skip
        self.engine = Engine(folder / "engine", [NodeInfo("n0")])
        self.store = JobsFile(str(folder / "jobs.sqlite"))
        _opened.append(self.store)
        self.shell = IncShell(table, self.engine, self.store, self._fatal)
        self.looks = 0

    def _fatal(self, fault: PlaceUnusable) -> None:
        raise fault

    async def submit(self, name: str, script: str, cpu_milli: int = 100, deadline_s: float = 0.0) -> None:
        body = CompositeBody(name="c", argv=["sh", "-c", script], cpu_milli=cpu_milli)
        wanted = SubmitRequest(name=name, tenant="t", composite=[body], gang=deadline_s > 0, deadline_s=deadline_s)
        await self.shell.submit(spec_of(wanted, ""))

    async def until_started(self, name: str) -> None:
        """All tasks of the request run, by looks at the engine."""
        async with asyncio.timeout(BOUND_S):
            while self.state(name) is not RequestState.RUNNING or not self.is_started(name):
                await self.look()
                await asyncio.sleep(0.01)

    def is_started(self, name: str) -> bool:
        return all(each.state is TaskState.RUNNING for each in self.shell.book.get(name).tasks.values())

    async def until_ended(self) -> None:
        """Of the engine's jobs; the shell does not look."""
        async with asyncio.timeout(BOUND_S):
            while not all(job.state.is_final for job in await self.engine.jobs()):
                await asyncio.sleep(0.01)

    async def look(self) -> None:
        """As the job manager does."""
        self.looks += 1
        self.shell.listing()
        self.shell.see(await self.engine.inventory(), await self.engine.jobs())

    def state(self, name: str) -> RequestState:
        return self.shell.book.get(name).state

    def saved(self, name: str) -> str:
        """The request's state in the file."""
        return next(str(each.state) for each in map(request_of, self.store.inc_rows()) if each.spec.name == name)


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    made = Rig(tmp_path)
    await made.engine.adopt()
    running = asyncio.create_task(made.shell.run())
    yield made
    for name in list(made.shell.book.requests):
        await made.shell.cancel(name)
    async with asyncio.timeout(BOUND_S):
        while any(each.tasks for each in made.shell.book.requests.values()):
            await made.look()
            await asyncio.sleep(0.01)
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running
    await made.shell.close()
    await made.engine.close()
    made.store.close()


async def until(claim: Callable[[], bool]) -> None:
    async with asyncio.timeout(BOUND_S):
        while not claim():
            await asyncio.sleep(0.002)


class SlowRounds:
    """Rounds that begin, and end when they are let go."""

    def __init__(self, rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
        self.began, self._go = threading.Event(), threading.Event()
        self._round = rig.shell.book.round
        monkeypatch.setattr(rig.shell.book, "round", self._wait)

    def _wait(self, now_ms: int) -> list[Command]:
        self.began.set()
        assert self._go.wait(BOUND_S)
        return self._round(now_ms)

    def let_go(self) -> None:
        """This one, and all that follow."""
        self._go.set()


async def test_one_look_that_falls_into_a_round_is_enough_to_see_an_end(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await rig.submit("r", f"until [ -e {tmp_path}/go ]; do sleep 0.01; done")
    await rig.until_started("r")
    rounds = SlowRounds(rig, monkeypatch)
    await until(rounds.began.is_set)
    (tmp_path / "go").touch()
    await rig.until_ended()
    rig.looks = 0
    await rig.look()
    assert rig.state("r") is RequestState.RUNNING, "the round is being computed"
    rounds.let_go()
    await until(lambda: rig.state("r") is RequestState.SUCCEEDED)
    assert rig.looks == 1
    await until(lambda: rig.saved("r") == "succeeded")


async def test_an_error_that_leaves_a_round_half_decided_ends_the_shell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Places are taken that no task has: only a restart, which reads the file, puts that right."""
    rig = Rig(tmp_path)
    await rig.engine.adopt()

    def half(now_ms: int) -> list[Command]:
        raise PlacementInvalid("does not fit")

    monkeypatch.setattr(rig.shell.book, "round", half)
    with pytest.raises(ExceptionGroup) as raised:
        async with asyncio.timeout(BOUND_S):
            await rig.shell.run()
    assert raised.group_contains(PlacementInvalid)
    await rig.shell.close()
    await rig.engine.close()
    rig.store.close()


async def test_the_end_of_a_task_that_is_stopped_during_a_look_is_seen_in_that_look(rig: Rig) -> None:
    await rig.submit("r", "exec sleep 900")
    await rig.until_started("r")
    rig.shell.listing()
    await rig.shell.cancel("r")
    await rig.until_ended()
    rig.shell.see(await rig.engine.inventory(), await rig.engine.jobs())
    await until(lambda: rig.shell.book.get("r").tasks == {})
    assert rig.state("r") is RequestState.CANCELLED


async def test_a_call_that_fails_in_the_same_way_again_and_again_is_logged_once(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)

    async def fails(order: Start) -> EngineJob:
        raise JobEngineError("the engine is away")

    with monkeypatch.context() as patch:
        patch.setattr(rig.engine, "start", fails)
        await rig.submit("r", "exec sleep 900")
        await until(lambda: rig.shell.counters["faults"] > 4)
    codes = [getattr(each, "code", "") for each in caplog.records]
    assert codes.count("engine_call_failed") == 1
    await rig.until_started("r")


async def test_a_stop_that_the_engine_has_accepted_is_not_repeated_at_once(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shell, "STOP_AGAIN_MS", 600_000)
    await rig.submit("r", f"trap '' TERM; touch {tmp_path}/on; until [ -e {tmp_path}/go ]; do sleep 0.01; done")
    await rig.until_started("r")
    await until((tmp_path / "on").exists)
    await rig.shell.cancel("r")
    await until(lambda: rig.engine.cancels > 0)
    for _ in range(12):
        await rig.look()
        await asyncio.sleep(0.01)
    assert rig.engine.cancels == 1
    (tmp_path / "go").touch()
    await rig.until_ended()
    await rig.look()
    await until(lambda: rig.shell.book.get("r").tasks == {})


def test_a_look_decides_nothing_of_a_task_with_a_call_in_flight_since_it_began() -> None:
    looks = Looks()
    looks.call_began("before")
    look = looks.begin()
    looks.call_ended("before")
    looks.call_began("during")
    looks.call_ended("during")
    after = looks.begin()
    looks.call_began("later")
    looks.end(look)
    looks.call_began("ended")
    assert look.stale == {"before", "during", "later"}
    assert after.stale == {"later", "ended"}
    assert looks.busy == {"later", "ended"}
    looks.end(look)


class SlowStops(IncSwitch):
    """A switch that replies to no stop until it is let go."""

    def __init__(self) -> None:
        super().__init__("s0", SwitchSpec())
        self.stops = 0
        self.go = asyncio.Event()

    async def answer(self, request: messages.ToSwitch, uid: int) -> messages.FromSwitch:
        if isinstance(request, messages.StopTask):
            self.stops += 1
            await self.go.wait()
        return await super().answer(request, uid)


async def test_requests_are_accepted_while_a_switch_stops_a_task_that_only_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(links, "ANSWER_S", 10 * BOUND_S)
    path, switch = str(tmp_path / "s.sock"), SlowStops()
    handlers = AdminHandlers(lambda body: control.decode(messages.TO_SWITCH, body), switch.answer, tuple)
    socket = AdminSocket(handlers, path, places=Places())
    await socket.start()
    orphan = messages.StartTask(identity="orphan", service="r2p2", demand=[0, 1, 1], shared=[0, 0, 0], token="00" * 16)
    assert isinstance(await links.query_switch(path, orphan, messages.Started), messages.Started)
    rig = Rig(tmp_path, path)
    await rig.engine.adopt()
    running = asyncio.create_task(rig.shell.run())
    try:
        await until(lambda: switch.stops > 0)
        async with asyncio.timeout(BOUND_S):
            await rig.submit("r", "true")
        assert switch.admission.identities == ["orphan"], "it is being stopped"
        switch.go.set()
        await until(lambda: switch.admission.identities == [])
        assert rig.shell.counters["orphans"] == 1
        await rig.until_ended()
    finally:
        switch.go.set()
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running
        await rig.shell.close()
        await socket.close()
        switch.close()
        await rig.engine.close()
        rig.store.close()


async def test_a_gang_that_is_too_late_has_ended_on_the_disk_where_no_round_can_be_decided(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "ortools.graph.python", None)
    await rig.submit("waits", "exec sleep 900")
    await rig.submit("late", "exec sleep 900", deadline_s=0.001)
    await until(lambda: "OR-Tools" in rig.shell.round_fault)
    await until(lambda: rig.saved("late") == "expired")
    assert rig.saved("waits") == "waiting"
    codes = [getattr(each, "code", "") for each in caplog.records]
    assert codes.count("inc_round_failed") == 1, "once, and not in each round"
