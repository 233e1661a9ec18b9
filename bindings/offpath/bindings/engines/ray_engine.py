"""The engine `ray`, by Ray 2.60 or later. Guarantees, set-up and limits: docs/engines.md.

Ray lives in a child process (`ray_child`, `ray_driver`); in the cluster a supervising actor per node runs the jobs
whose first place is that node (`ray_supervisor`, which argues what makes a command run at most once).
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from offpath.bindings.engines.plain import places_of, start_document, tree
from offpath.bindings.engines.port import (
    EngineJob,
    Gpu,
    JobState,
    NodeInfo,
    NodeState,
    PendingJob,
    Place,
    Start,
    bounded,
    check_identity,
    check_start,
)
from offpath.bindings.engines.ray_child import RayChild, environment
from offpath.bindings.engines.watching import Memory, changes
from offpath.bindings.errors import EngineAnswerInvalid, EngineJobUnknown, EngineRefused

FOLDER: Final = "/var/tmp/offpath-ray"
"""Records of jobs on each node, with the user's id behind it."""
_FORGOTTEN: Final = "Ray does not know the job any more"


class RayEngine:
    """See `Engine`.

    Args:
        address: HOST:PORT of Ray's GCS; empty: the cluster that this machine is a node of. The controller must run on a
            node of the cluster.
        python: an interpreter of the cluster's Python version, with its version of Ray; empty: this one.
        token: path of Ray's token file; empty: where Ray looks.
        folder: of the jobs' records on each node's local disk.
        timeout_s: of each call.
        poll_s: `watch` looks so often.
    """

    name = "ray"
    names_gpus = False

    def __init__(
        self, address: str = "", *, python: str = "", token: str = "", folder: str = FOLDER, timeout_s: float = 60.0,
        poll_s: float = 1.0,
    ) -> None:  # fmt: skip
        self._child = RayChild(python or sys.executable, address, folder, environment(token), timeout_s)
        self._poll_s = poll_s
        self._memory = Memory()
        self._last: dict[str, EngineJob] = {}

    async def adopt(self) -> tuple[EngineJob, ...]:
        """See `Engine.adopt`."""
        return await self.jobs()

    async def inventory(self) -> tuple[NodeInfo, ...]:
        """See `Engine.inventory`: a node's name and switch are its labels ``offpath.io/host`` and
        ``offpath.io/switch``; without the first it is the machine's host name."""
        nodes = _read(lambda found: [_node(each) for each in found], await self._child.call("inventory"))
        return tuple(sorted(nodes, key=lambda node: node.name))

    async def topology(self) -> str:
        """See `Engine.topology`: one switch per label ``offpath.io/switch``, and one above."""
        return tree(await self.inventory())

    async def pending(self) -> tuple[PendingJob, ...]:
        """None: Ray has no hook for jobs of others."""
        return ()

    async def release(self, identity: str, places: Sequence[Place]) -> EngineJob:
        """Raises: EngineJobUnknown, see `pending`."""
        raise EngineJobUnknown(f"job {check_identity(identity)}: the engine ray holds no jobs")

    async def start(self, start: Start) -> EngineJob:
        """See `Engine.start`. Ray chooses the GPU indices: those of `Place.gpus` are not followed."""
        check_start(start)
        places = [replace(place, gpus=()) for place in start.places]
        job = _read(_job, await self._child.call("start", start_document(start, places)))
        self._last[job.identity] = job
        return self._memory.saw(job)

    async def jobs(self) -> tuple[EngineJob, ...]:
        """See `Engine.jobs`. A job whose supervisor does not answer now is as it was last, or PENDING."""
        found = await self._child.call("jobs")
        jobs = _read(lambda answer: [_job(each) for each in answer["jobs"]], found)
        jobs += _read(lambda answer: [self._silent(each) for each in answer["silent"]], found)
        self._last = {job.identity: job for job in jobs}
        return self._memory.complete(jobs, _FORGOTTEN)

    async def watch(self) -> AsyncIterator[EngineJob]:
        """See `Engine.watch`."""
        async for job in changes(self.jobs, lambda: asyncio.sleep(self._poll_s)):
            yield job

    async def cancel(self, identity: str) -> None:
        """See `Engine.cancel`."""
        check_identity(identity)
        if not await self._child.call("cancel", identity) and not self._memory.knows(identity):
            raise EngineJobUnknown(f"unknown job {identity}")

    async def forget(self, identity: str) -> None:
        """See `Engine.forget`."""
        check_identity(identity)
        if not await self._child.call("forget", identity):
            raise EngineRefused(f"job {identity} has not ended")
        self._memory.forget(identity)
        self._last.pop(identity, None)

    async def close(self) -> None:
        """See `Engine.close`."""
        await self._child.close()

    def _silent(self, found: Mapping[str, Any]) -> EngineJob:
        identity = str(found["identity"])
        if identity in self._last:
            return self._last[identity]
        reason = "the job's supervisor does not answer now"
        return EngineJob(identity, identity, JobState.PENDING, places_of(found["places"]), reason=reason)


def _read(reading: Any, answer: Any) -> Any:
    """Raises: EngineAnswerInvalid."""
    try:
        return reading(answer)
    except (KeyError, TypeError, ValueError, IndexError) as fault:
        raise EngineAnswerInvalid(f"answer of the process that speaks to Ray: {fault!r}"[:200]) from fault


def _node(found: Mapping[str, Any]) -> NodeInfo:
    gpus = tuple(Gpu(index, str(found["model"])) for index in range(int(found["gpus"])))
    return NodeInfo(
        str(found["name"]), gpus, str(found["switch"]), NodeState(found["state"]), bounded(str(found["reason"]))
    )


def _job(found: Mapping[str, Any]) -> EngineJob:
    code = found["code"]
    identity = str(found["identity"])
    return EngineJob(
        identity, f"offpath:{identity}", JobState(found["state"]), places_of(found["places"]),
        None if code is None else int(code), bounded(str(found["reason"])),
        has_begun=bool(found["has_begun"]) or found["state"] != JobState.LOST,
    )  # fmt: skip
