"""The engine `local`: one machine, or several pretended nodes on it for tests. Guarantees and limits: docs/engines.md.

It starts one supervising process per job (`local_runner`), which outlives the controller, and keeps a ledger in a state
folder. GPUs are given by index; the engine refuses a GPU that another of its jobs has.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import pwd
import re
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, TypeVar

from offpath.bindings.engines.local_ledger import Ledger
from offpath.bindings.engines.plain import tree
from offpath.bindings.engines.port import (
    EngineJob,
    Gpu,
    JobState,
    NodeInfo,
    NodeState,
    PendingJob,
    Place,
    Start,
    check_identity,
    check_start,
)
from offpath.bindings.engines.watching import changes
from offpath.bindings.errors import EngineJobUnknown, EngineRefused, ResourceClosed

_Result = TypeVar("_Result")
_LOOK_S: Final = 1.0
"""At the latest so long after a change `watch` reports it; the end of a job wakes it at once."""


def this_machine() -> NodeInfo:
    """This machine by its host name, with the GPUs that have a device node of NVIDIA's driver."""
    found = sorted(int(match[1]) for name in os.listdir("/dev") if (match := re.fullmatch(r"nvidia([0-9]+)", name)))
    return NodeInfo(socket.gethostname().split(".")[0], tuple(Gpu(index) for index in found))


class LocalEngine:
    """See `Engine`. ``folder``: the state folder, on a local disk, of one controller at a time; made if it is missing.
    ``nodes``: the nodes that it pretends; by default this machine.

    Opened by `adopt`, which raises EngineUnavailable while another controller uses the folder.
    """

    name = "local"
    names_gpus = True

    def __init__(self, folder: Path, nodes: Sequence[NodeInfo] | None = None) -> None:
        self._folder = folder
        self._nodes = {node.name: node for node in (nodes if nodes is not None else [this_machine()])}
        self._ledger: Ledger | None = None
        self._lock = asyncio.Lock()

    async def adopt(self) -> tuple[EngineJob, ...]:
        """See `Engine.adopt`."""
        if self._ledger is None:
            self._ledger = await asyncio.to_thread(Ledger, self._folder)
        return await self.jobs()

    async def inventory(self) -> tuple[NodeInfo, ...]:
        """See `Engine.inventory`."""
        return tuple(self._nodes[name] for name in sorted(self._nodes))

    async def topology(self) -> str:
        """See `Engine.topology`: one switch per `NodeInfo.switch`, and one above."""
        return tree(await self.inventory())

    async def pending(self) -> tuple[PendingJob, ...]:
        """None: there is nobody else to submit to this engine."""
        return ()

    async def release(self, identity: str, places: Sequence[Place]) -> EngineJob:
        """Raises: EngineJobUnknown, see `pending`."""
        raise EngineJobUnknown(f"job {check_identity(identity)}: the engine local holds no jobs")

    async def start(self, start: Start) -> EngineJob:
        """See `Engine.start`. A busy or unknown GPU, a drained node, an unknown user are refused."""
        check_start(start)
        return await self._run(lambda ledger: self._start(ledger, start))

    async def jobs(self) -> tuple[EngineJob, ...]:
        """See `Engine.jobs`."""
        return await self._run(_all)

    async def watch(self) -> AsyncIterator[EngineJob]:
        """See `Engine.watch`. A pidfd per running job wakes it."""
        with contextlib.ExitStack() as stack:
            ends = stack.enter_context(_Ends())

            async def pause() -> None:
                await ends.wait(await self._run(_runners))

            async for job in changes(self.jobs, pause):
                yield job

    async def cancel(self, identity: str) -> None:
        """See `Engine.cancel`."""
        check_identity(identity)

        def cancel(ledger: Ledger) -> None:
            if not _known(ledger, identity).state.is_final:
                ledger.cancel(identity)

        await self._run(cancel)

    async def forget(self, identity: str) -> None:
        """See `Engine.forget`."""
        check_identity(identity)

        def forget(ledger: Ledger) -> None:
            job = ledger.job(identity)
            if job is not None and not job.state.is_final:
                raise EngineRefused(f"job {identity} has not ended")
            ledger.forget(identity)

        await self._run(forget)

    async def close(self) -> None:
        """See `Engine.close`."""
        async with self._lock:
            if self._ledger is not None:
                self._ledger.close()
                self._ledger = None

    def set_node_state(self, name: str, state: NodeState, reason: str = "") -> None:
        """What an operator does with another engine's own commands: drain a node, or take it back."""
        self._nodes[name] = replace(self._nodes[name], state=state, reason=reason)

    async def _run(self, work: Callable[[Ledger], _Result]) -> _Result:
        """One call of the ledger after the other, each in a thread, to its end even if the caller is cancelled."""
        async with self._lock:
            if self._ledger is None:
                raise ResourceClosed("the engine is not open: call adopt")
            working = asyncio.ensure_future(asyncio.to_thread(work, self._ledger))
            try:
                return await asyncio.shield(working)
            except asyncio.CancelledError:
                await asyncio.wait([working])
                raise

    def _start(self, ledger: Ledger, start: Start) -> EngineJob:
        job = ledger.job(start.identity)
        if job is None:
            _check_user(start.user)
            ledger.record(start, self._chosen(ledger, start.places))
        if job is None or job.state is JobState.PENDING:
            ledger.run(start.identity)
        return _known(ledger, start.identity)

    def _chosen(self, ledger: Ledger, places: Sequence[Place]) -> tuple[Place, ...]:
        """The places with GPU indices. Raises: EngineRefused."""
        held: dict[tuple[str, int], str] = {}
        for job in _all(ledger):
            if not job.state.is_final:
                held |= {(place.node, index): job.identity for place in job.places for index in place.gpus}
        return tuple(replace(place, gpus=self._gpus(place, held)) for place in places)

    def _gpus(self, place: Place, held: dict[tuple[str, int], str]) -> tuple[int, ...]:
        node = self._nodes.get(place.node)
        if node is None:
            raise EngineRefused(f"unknown node {place.node}")
        if node.state is not NodeState.READY:
            raise EngineRefused(f"node {node.name} is {node.state}" + (f": {node.reason}" if node.reason else ""))
        there = [gpu.index for gpu in node.gpus if place.model in ("", gpu.model)]
        for index in place.gpus:
            if index not in there:
                raise EngineRefused(f"node {node.name} has no GPU {index}" + (f" of {place.model}" * bool(place.model)))
            if (node.name, index) in held:
                raise EngineRefused(f"GPU {index} of node {node.name} is held by job {held[node.name, index]}")
        free = [index for index in there if (node.name, index) not in held]
        if place.gpu_count > len(free):
            others = ", ".join(sorted({held[node.name, index] for index in there if (node.name, index) in held}))
            text = f"node {node.name} has {len(free)} free GPUs, and the job needs {place.gpu_count}"
            raise EngineRefused(text + (f"; held by {others[:200]}" if others else ""))
        return place.gpus or tuple(free[: place.gpu_count])


def _check_user(user: str) -> None:
    if not user:
        return
    try:
        uid = pwd.getpwnam(user).pw_uid
    except KeyError:
        raise EngineRefused(f"unknown user {user}") from None
    if os.geteuid() not in (0, uid):
        raise EngineRefused(f"only root starts jobs of another user: {user}")


def _all(ledger: Ledger) -> tuple[EngineJob, ...]:
    return tuple(job for identity in ledger.identities() if (job := ledger.job(identity)) is not None)


def _known(ledger: Ledger, identity: str) -> EngineJob:
    job = ledger.job(identity)
    if job is None:
        raise EngineJobUnknown(f"unknown job {identity}")
    return job


def _runners(ledger: Ledger) -> set[int]:
    return {pid for identity in ledger.identities() if (pid := ledger.runner(identity)) is not None}


class _Ends:
    """Waits for the first end of a process, by pidfds."""

    def __init__(self) -> None:
        self._pidfds: dict[int, int] = {}
        self._event = asyncio.Event()

    def __enter__(self) -> _Ends:
        return self

    def __exit__(self, *_: object) -> None:
        for pid in list(self._pidfds):
            self._drop(pid)

    async def wait(self, pids: set[int]) -> None:
        """Until one of ``pids`` ends, at most `_LOOK_S`."""
        for pid in self._pidfds.keys() - pids:
            self._drop(pid)
        for pid in pids - self._pidfds.keys():
            self._add(pid)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._event.wait(), _LOOK_S)
        self._event.clear()

    def _add(self, pid: int) -> None:
        try:
            pidfd = os.pidfd_open(pid)
        except ProcessLookupError:
            self._event.set()
            return
        self._pidfds[pid] = pidfd
        asyncio.get_running_loop().add_reader(pidfd, self._ended, pid)

    def _ended(self, pid: int) -> None:
        self._drop(pid)
        self._event.set()

    def _drop(self, pid: int) -> None:
        pidfd = self._pidfds.pop(pid)
        asyncio.get_running_loop().remove_reader(pidfd)
        os.close(pidfd)
