"""Runs the demo's processes: a daemon, a helper, a requester per tenant; collects their output.

Every process is a child in its own session (a Ctrl-C reaches only this process), and is always ended here.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

from offpath.bindings.errors import OffpathError
from offpath.cli.demo.isolation import LaneReport
from offpath.cli.demo.place import Place
from offpath.cli.local.child import COMMAND_LINE, ONE_THREAD, command, environment

_READY_S: Final = 180.0
_END_S: Final = 5.0
_LEAD_S: Final = 0.3
_LAST_WORDS: Final = 20
_NOTHING: Final[Mapping[str, str]] = MappingProxyType({})


class DemoFailed(OffpathError):
    """The demo could not complete."""


@dataclass(slots=True)
class Answer:
    """One answered job; ``is_equal`` and ``right`` are set after the replay. Times in ns of the monotonic clock."""

    job: int
    tenant: str
    sent_ns: int
    came_ns: int
    stages: dict[str, int]
    lane: LaneReport
    is_mine: bool
    is_equal: bool = False
    right: int = 0


@dataclass(slots=True)
class Outcome:
    """The output of all processes."""

    answers: dict[int, Answer] = field(default_factory=dict)
    failed: dict[int, str] = field(default_factory=dict)
    statistics: dict[str, int] = field(default_factory=dict)
    start_ns: int = 0
    started_in_s: float = 0.0
    """From the daemon's start until every requester had its session and the kernel list."""
    complaints: list[str] = field(default_factory=list)
    """Lines that the processes wrote to stderr, each with its process."""


class Child:
    """One child process; its stderr is kept for its failure report."""

    def __init__(self, name: str, process: asyncio.subprocess.Process) -> None:
        self.name = name
        self.process = process
        self.complaints: list[str] = []

    @classmethod
    async def start(
        cls, name: str, module: str, *arguments: str, netns: str = "", more: Mapping[str, str] = _NOTHING
    ) -> Child:
        """``python -m offpath.cli.MODULE arguments…``, in this network namespace, with ``more`` environment."""
        inside = ("ip", "netns", "exec", netns) if netns else ()
        process = await asyncio.create_subprocess_exec(
            *inside, *command(module, *arguments),
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
            env=environment({**ONE_THREAD, **more}), start_new_session=True,
        )  # fmt: skip
        return cls(name, process)

    async def listen(self, is_ready: asyncio.Event | None = None) -> None:
        """Keep the last lines of stderr, except the ready line, which sets ``is_ready``."""
        assert self.process.stderr is not None
        async for line in self.process.stderr:
            text = line.decode("utf-8", "replace").rstrip()
            if is_ready is not None and not is_ready.is_set() and "ready" in text:
                is_ready.set()
            else:
                self.complaints = [*self.complaints[1 - _LAST_WORDS :], text]

    async def end(self) -> bytes:
        """Send SIGTERM, then SIGKILL if needed; returns the rest of stdout."""
        if self.process.returncode is None:
            self.process.terminate()
        assert self.process.stdout is not None
        rest = b""
        try:
            async with asyncio.timeout(_END_S):
                rest = await self.process.stdout.read()
                await self.process.wait()
        except TimeoutError:
            self.process.kill()
            await self.process.wait()
        return rest

    def failure(self) -> DemoFailed:
        """Its exit code with its last lines of stderr."""
        output = "\n  ".join(self.complaints) or "(no output)"
        return DemoFailed(f"{self.name} ended with {self.process.returncode}:\n  {output}")


class Drive:
    """One run. ``progress`` is called after each job."""

    def __init__(self, place: Place, progress: Callable[[Outcome], None]) -> None:
        self._place = place
        self._progress = progress
        self._children: list[Child] = []
        self._listeners: list[asyncio.Task[None]] = []
        self.outcome = Outcome()

    async def run(self) -> Outcome:
        """Set up, replay, tear down. Raises: DemoFailed: a process failed or was not ready in time."""
        try:
            await self._run()
        finally:
            await asyncio.shield(self._end_all())
        return self.outcome

    async def _run(self) -> None:
        place, begun_s = self._place, time.monotonic()
        async with asyncio.TaskGroup() as tasks:
            is_up = asyncio.Event()
            daemon = await self._start(
                tasks, is_up, "the daemon", COMMAND_LINE, "daemon", "run", "--config", place.config,
                "--runtime-dir", place.runtime, "--json", more=place.environment("dpu"),
            )  # fmt: skip
            await self._within(daemon, is_up.wait())
            migd = await self._start_migd(tasks)
            helper = await self._start(
                tasks, None, "the helper", "demo.serving", place.path, more=place.environment("host")
            )
            requesters = [
                await self._start(
                    tasks, None, f"the requester of {name}", "demo.tenant", place.path, name, netns=place.datapath.netns
                )
                for name in place.tenants
            ]
            guards = [tasks.create_task(self._guard(child), name=f"guard-{child.name}") for child in (daemon, helper)]
            for child in requesters:
                await self._within(child, self._ready(child))
            self.outcome.started_in_s = round(time.monotonic() - begun_s, 3)
            self.outcome.start_ns = time.monotonic_ns() + int(_LEAD_S * 1e9)
            async with asyncio.TaskGroup() as replay:
                for name, child in zip(place.tenants, requesters, strict=True):
                    replay.create_task(self._replay(name, child), name=f"replay-{name}")
            for guard in guards:
                guard.cancel()
            output = await daemon.end()
            if daemon.process.returncode != 0:
                raise daemon.failure()
            self.outcome.statistics = json.loads(output)
            await helper.end()
            if migd is not None:  # after the helper, which gives its instances back
                await migd.end()
            self.outcome.complaints = [f"{c.name}: {line}" for c in self._children for line in c.complaints]

    async def _start_migd(self, tasks: asyncio.TaskGroup) -> Child | None:
        """None: no GPU of this demo needs it."""
        words = self._place.gpus.migd(self._place.directory)
        if not words:
            return None
        is_up = asyncio.Event()
        child = await self._start(
            tasks, is_up, "offpath-migd", COMMAND_LINE, *words, more=self._place.environment("host")
        )
        await self._within(child, is_up.wait())
        return child

    async def _start(
        self,
        tasks: asyncio.TaskGroup,
        is_ready: asyncio.Event | None,
        name: str,
        module: str,
        *arguments: str,
        netns: str = "",
        more: Mapping[str, str] = _NOTHING,
    ) -> Child:
        child = await Child.start(name, module, *arguments, netns=netns, more=more)
        self._children.append(child)
        tasks.create_task(child.listen(is_ready), name=f"listen-{name}")
        return child

    @staticmethod
    async def _within(child: Child, ready: Coroutine[Any, Any, Any]) -> None:
        """Wait for a child to be ready, at most until it ends."""
        waiting, ended = asyncio.ensure_future(ready), asyncio.ensure_future(child.process.wait())
        try:
            await asyncio.wait({waiting, ended}, timeout=_READY_S, return_when=asyncio.FIRST_COMPLETED)
            if waiting.done():
                waiting.result()
            elif ended.done():
                await asyncio.sleep(0.1)  # its last lines are still in the pipe
                raise child.failure()
            else:
                raise DemoFailed(f"{child.name} was not ready within {_READY_S:g} s")
        finally:
            waiting.cancel()
            ended.cancel()

    async def _ready(self, child: Child) -> None:
        if (await self._message(child) or {}).get("kind") != "ready":
            await child.process.wait()
            await asyncio.sleep(0.1)
            raise child.failure()

    @staticmethod
    async def _guard(child: Child) -> None:
        """Fail the demo if a daemon or helper ends during the replay."""
        await child.process.wait()
        await asyncio.sleep(0.1)
        raise child.failure()

    @staticmethod
    async def _message(child: Child) -> dict[str, Any] | None:
        assert child.process.stdout is not None
        line = await child.process.stdout.readline()
        message: dict[str, Any] | None = json.loads(line) if line else None
        return message

    async def _replay(self, name: str, child: Child) -> None:
        assert child.process.stdin is not None
        child.process.stdin.write(f"{self.outcome.start_ns}\n".encode())
        await child.process.stdin.drain()
        outcome = self.outcome
        while (message := await self._message(child)) is not None:
            kind, job = message.pop("kind"), message["job"]
            if kind == "check":
                outcome.answers[job].is_equal, outcome.answers[job].right = message["is_equal"], message["right"]
                continue
            if kind == "failed":
                outcome.failed[job] = message["why"]
            else:
                outcome.answers[job] = Answer(tenant=name, **{**message, "lane": LaneReport(*message["lane"])})
            self._progress(outcome)
        if await child.process.wait() != 0:
            await asyncio.sleep(0.1)
            raise child.failure()

    async def _end_all(self) -> None:
        for child in reversed(self._children):
            await child.end()
