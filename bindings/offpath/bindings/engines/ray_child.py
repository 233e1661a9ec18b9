"""The child process of the engine `ray` that has Ray in it (`ray_driver`): started on demand, and again after its end.

Ray is not imported into the controller: it starts threads, and it ends its process when the GCS is lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import orjson

from offpath.bindings.engines.port import bounded
from offpath.bindings.errors import EngineAnswerInvalid, EngineMissing, EngineRefused, EngineUnavailable, ResourceClosed

_DRIVER: Final = Path(__file__).with_name("ray_driver.py")
_MOST_BYTES: Final = 256 << 20
"""Limit of an answer."""
_KEPT: Final = 4_000
"""Of stderr, in characters: the reason of its end."""


class RayChild:
    """One child at a time. ``python``: an interpreter that has Ray; ``timeout_s``: of each call and of the start.

    A child that ended, or let a call wait for too long, is replaced at the next call.
    """

    def __init__(
        self, python: str, address: str, folder: str, environment: Mapping[str, str], timeout_s: float
    ) -> None:
        self._command = [python, "-I", str(_DRIVER), address or "auto", folder]
        self._environment = dict(environment)
        self._timeout_s = timeout_s
        self._process: asyncio.subprocess.Process | None = None
        self._readers: list[asyncio.Task[None]] = []
        self._calls: dict[int, asyncio.Future[Any]] = {}
        self._numbers = itertools.count(1)
        self._starting = asyncio.Lock()
        self._errors = ""
        self._is_closed = False

    async def call(self, name: str, argument: object = None) -> Any:
        """The answer's value. Raises: EngineRefused, EngineUnavailable, EngineMissing, EngineAnswerInvalid,
        ResourceClosed."""
        if self._is_closed:
            raise ResourceClosed("the engine is closed")
        async with self._starting:
            if self._process is None:
                await self._start()
        process = self._process
        if process is None or process.stdin is None:
            raise EngineUnavailable("the process that speaks to Ray ended")
        number = next(self._numbers)
        answer = self._calls[number] = asyncio.get_running_loop().create_future()
        line = json.dumps({"id": number, "call": name, "argument": argument}) + "\n"
        try:
            with contextlib.suppress(ConnectionError):  # its end is the answer
                process.stdin.write(line.encode())
                await process.stdin.drain()
            return await self._answered(answer, name)
        finally:
            self._calls.pop(number, None)

    async def close(self) -> None:
        """End the child, for good. Idempotent."""
        self._is_closed = True
        await self._stop("the engine was closed")

    async def _stop(self, reason: str) -> None:
        process, self._process = self._process, None
        readers, self._readers = self._readers, []
        if process is None:
            return
        await _end(process)
        for reader in readers:
            if reader is not asyncio.current_task():
                reader.cancel()
        await asyncio.gather(*(each for each in readers if each is not asyncio.current_task()), return_exceptions=True)
        self._fail(reason)

    async def _start(self) -> None:
        self._errors = ""
        try:
            process = await asyncio.create_subprocess_exec(
                *self._command, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE, env=self._environment, cwd="/", limit=_MOST_BYTES,
            )  # fmt: skip
        except (FileNotFoundError, PermissionError) as fault:
            raise EngineMissing(f"{self._command[0]}: {fault.strerror}") from fault
        except OSError as fault:
            raise EngineUnavailable(f"{self._command[0]}: {fault}") from fault
        self._process = process
        connected = self._calls[0] = asyncio.get_running_loop().create_future()
        self._readers = [
            asyncio.create_task(self._read(process), name="ray-answers"),
            asyncio.create_task(self._keep_errors(process), name="ray-errors"),
        ]
        try:
            await self._answered(connected, "connect")
        except BaseException:
            await self._stop("Ray was not reached")
            raise
        finally:
            self._calls.pop(0, None)

    async def _answered(self, answer: asyncio.Future[Any], name: str) -> Any:
        try:
            async with asyncio.timeout(self._timeout_s):
                return await answer
        except TimeoutError:
            reason = f"Ray: no answer to {name} within {self._timeout_s:g} s"
            await self._stop(reason)
            raise EngineUnavailable(reason) from None

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        """Hand out answers until the child ends."""
        assert process.stdout is not None
        reason = ""
        try:
            while line := await process.stdout.readline():
                answer = orjson.loads(line)  # half a character in a name would fail later, where it is sent on
                waiting = self._calls.get(answer["id"])
                if waiting is not None and not waiting.done():
                    _settle(waiting, answer)
        except (ValueError, KeyError, TypeError) as fault:
            reason = f"an answer cannot be read: {fault!r}"
        if process is self._process:
            self._process = None
            await _end(process)
            last = self._errors.strip().splitlines()[-1:]
            self._fail(reason or f"the process that speaks to Ray ended: {bounded(' '.join(last)) or 'no reason'}")

    async def _keep_errors(self, process: asyncio.subprocess.Process) -> None:
        assert process.stderr is not None
        while piece := await process.stderr.read(1 << 16):
            self._errors = (self._errors + piece.decode("utf-8", "replace"))[-_KEPT:]

    def _fail(self, reason: str) -> None:
        for waiting in self._calls.values():
            if not waiting.done():
                waiting.set_exception(EngineUnavailable(reason))


async def _end(process: asyncio.subprocess.Process) -> None:
    """Kill it: it keeps nothing, and Ray's own exit takes seconds."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
    await process.wait()
    if process.stdin is not None:
        process.stdin.close()
        with contextlib.suppress(ConnectionError):
            await process.stdin.wait_closed()


def environment(token: str) -> dict[str, str]:
    """The child's: this process's; ``token``: path of Ray's token file, or empty: as Ray finds it."""
    found = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0"}
    return {**found, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": token} if token else found


def _settle(waiting: asyncio.Future[Any], answer: Mapping[str, Any]) -> None:
    if "fault" not in answer:
        waiting.set_result(answer["value"])
        return
    text = bounded(str(answer["text"]))
    if answer["fault"] == "missing":
        waiting.set_exception(EngineMissing(f"{text}; install offpath's extra: pip install 'offpath[ray]'"))
    elif answer["fault"] == "refused":
        waiting.set_exception(EngineRefused(text))
    elif answer["fault"] == "unavailable":
        waiting.set_exception(EngineUnavailable(text))
    elif answer["fault"] == "broken":
        waiting.set_exception(EngineAnswerInvalid(f"the process that speaks to Ray failed: {text}"))
    else:
        waiting.set_exception(EngineAnswerInvalid(f"unknown fault {bounded(str(answer['fault']))}"))
