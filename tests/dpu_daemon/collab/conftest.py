"""A controller's shell with a clock of the test's, without sockets."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from offpath.bindings.wire.collab import CHECK_IN, RESULT, Answer
from offpath.bindings.zeromq.gateway import BatchEnd
from offpath.bindings.zeromq.keys import read_public, read_secret
from offpath.dpu_daemon.collab.config import Loaded
from offpath.dpu_daemon.collab.devices import Devices
from offpath.dpu_daemon.collab.gateways import Gateways
from offpath.dpu_daemon.collab.shell import CollabShell
from offpath.dpu_daemon.collab.store import StateFile
from offpath.dpu_daemon.collab.tokens import Tokens
from offpath.sched.collab.records import JobSpec
from offpath.sched.collab.requirements import Properties, Requirement

from ...support.collab import KEY, Clock, loaded, message


class World:
    """A shell and its devices; `again` is the next process with the same file."""

    def __init__(self, folder: Path, **more: Any) -> None:
        self.clock = Clock()
        self.loaded: Loaded = loaded(folder, **more)
        self.devices: Devices
        self.shell: CollabShell
        self._running: asyncio.Task[None] | None = None

    def start(self, *, writes: bool = True) -> None:
        """``writes``: the disk works; else nothing is ever durable."""
        config = self.loaded.config
        self.shell = CollabShell(
            config, StateFile(config.operation.state), clock=self.clock.steady, draw=lambda below: 0
        )
        self.devices = Devices(self.shell, Tokens([KEY.encode()]), config.devices)
        self._running = asyncio.create_task(self.shell.run()) if writes else None

    async def write(self) -> None:
        """The disk works from here on; returns when it has everything."""
        self._running = asyncio.create_task(self.shell.run())
        await self.shell.durable()

    async def stop(self) -> None:
        if self._running is not None:
            self._running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._running
        self.shell.close()

    async def again(self) -> None:
        await self.stop()
        self.start()

    def job(self, name: str = "a", demand: int = 10, least: int = 0, deadline_s: float = 3_600) -> None:
        requirement = Requirement(Properties.of({"mem": least})) if least else Requirement()
        if name not in self.shell.book.jobs:
            self.shell.open(JobSpec(name, "t", requirement))
        last = self.shell.book.jobs[name].last_round
        self.shell.request(name, last + 1, demand, deadline_s)

    def give(self, model: Any) -> list[Answer]:
        """Answers to a message, as far as they are given at once."""
        given: list[Answer] = []
        self.devices.answer(model, lambda answer, is_valid: given.append(answer))
        return given

    async def ask(self, model: Any) -> Answer:
        given = self.give(model)
        async with asyncio.timeout(30):
            while not given:
                await asyncio.sleep(0.001)
        return given[0]

    async def check_in(self, device: str, sent_ms: int | None = None, **more: Any) -> Any:
        sent_ms = self.clock.ms if sent_ms is None else sent_ms
        return await self.ask(CHECK_IN.validate_python(message(device, sent_ms, **more)))

    async def result(self, device: str, lease: int, is_good: bool = True, sent_ms: int | None = None) -> Any:
        sent_ms = self.clock.ms if sent_ms is None else sent_ms
        return await self.ask(RESULT.validate_python(message(device, sent_ms, lease=lease, is_good=is_good)))


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    made = World(tmp_path)
    made.start()
    made.clock.pass_s(1)
    yield made
    await made.stop()


class Served:
    """Gateways of a world; `end` is one of them, driven in a thread."""

    def __init__(self, world: World, folder: Path) -> None:
        assert world.loaded.config.gateways is not None
        self.world, self.folder = world, folder
        self.gateways = Gateways(
            world.loaded.config.gateways, world.devices, world.loaded.gateway_key, world.loaded.gateways
        )
        self.gateways.start()
        self._ends: list[BatchEnd] = []

    def end(self, key: str = "allowed/gw.key") -> BatchEnd:
        """``key``: the file of its secret, below the folder."""
        secret = read_secret(str(self.folder / key))
        self._ends.append(
            BatchEnd(self.gateways.listener.address, read_public(str(self.folder / "controller.pub")), secret)
        )
        return self._ends[-1]

    async def close(self) -> None:
        for end in self._ends:
            end.close()
        self.gateways.close()


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    world = World(tmp_path, gateways=True)
    world.start()
    world.clock.pass_s(1)
    made = Served(world, tmp_path)
    yield made
    await made.close()
    await world.stop()
