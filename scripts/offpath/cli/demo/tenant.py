"""One tenant's requester process: sends its jobs of the trace at their times, then checks the answers.

`python -m offpath.cli.demo.tenant PLACE NAME` writes JSON lines to stdout, which `drive` reads. First ``ready``. Then,
once stdin has given the start (ns of the monotonic clock), one ``answer`` or ``failed`` per job. Then one ``check`` per
answer, made against this process's own computation of the same job.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from dataclasses import astuple
from typing import Any, Final

import numpy as np
import uvloop
from numpy.typing import NDArray

from offpath.bindings.errors import OffpathError
from offpath.cli.demo import model
from offpath.cli.demo.isolation import LaneReport, canary
from offpath.cli.demo.place import PAYLOAD_BYTES, RESULT_BYTES, SLOTS, Place
from offpath.cli.demo.samples import DEMANDS, STAGES, Job, draw, kernel_name, load_digits, load_plan, payload
from offpath.cli.local.child import end_with_parent
from offpath.host_helper.aio import AsyncRequester
from offpath.host_helper.negotiate import Rdma
from offpath.host_helper.slots import Result

_PATIENCE: Final = 3  # times the replay's duration
_JOIN_S: Final = 120.0


def emit(**message: Any) -> None:
    """Write one line to the driver."""
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


class Tenant:
    """The jobs of one tenant and their answers."""

    def __init__(self, place: Place, name: str) -> None:
        self._place = place
        self._name = name
        self._index = sorted(place.tenants).index(name)
        self._jobs = [job for job in load_plan(place.seconds, place.jobs).jobs if job.tenant == name]
        self._stamp = np.frombuffer(canary(name), np.uint8)
        self._answers: dict[int, Result] = {}

    async def run(self) -> None:
        """Join, replay and check."""
        requester = await self._join()
        try:
            emit(kind="ready")
            loop = asyncio.get_running_loop()
            start_ns = int(await loop.run_in_executor(None, sys.stdin.readline))
            async with asyncio.TaskGroup() as tasks:
                for job in self._jobs:
                    await asyncio.sleep(start_ns / 1e9 + job.at_s - time.monotonic())
                    tasks.create_task(self._one(requester, job), name=f"job-{job.job}")
        finally:
            await requester.close()
        self._check()

    async def _join(self) -> AsyncRequester:
        """A session with a kernel list, which the daemon has only once the helper has joined."""
        until, path = time.monotonic() + _JOIN_S, self._place.datapath
        while True:
            requester = await AsyncRequester.open(
                self._place.address, tenant=self._name, token_file=self._place.tenants[self._name], slots=SLOTS,
                payload_bytes=PAYLOAD_BYTES, result_bytes=RESULT_BYTES, timeout_s=_JOIN_S,
                rdma=Rdma(device=path.host_device) if path.fabric == "verbs" else None,
            )  # fmt: skip
            if {k.name for k in requester.welcome.kernels} >= {kernel_name(demand) for demand in DEMANDS}:
                return requester
            await requester.close()
            if time.monotonic() > until:
                raise OffpathError(f"no helper joined within {_JOIN_S:g} s")
            await asyncio.sleep(0.1)

    async def _one(self, requester: AsyncRequester, job: Job) -> None:
        images = payload(draw(self._place.seed, job.job, job.images))
        sent_ns = time.monotonic_ns()
        try:
            result = await requester.submit(job.kernel, [images, self._stamp], timeout=_PATIENCE * self._place.seconds)
        except OffpathError as fault:
            emit(kind="failed", job=job.job, why=str(fault))
            return
        came_ns = time.monotonic_ns()
        self._answers[job.job] = result
        lane = LaneReport.parse(result.arrays[2])
        is_mine = (lane.tenant, lane.lease, lane.generation) == (self._index, result.lease, result.generation)
        emit(
            kind="answer", job=job.job, sent_ns=sent_ns, came_ns=came_ns,
            stages={stage: getattr(result.stages, stage) for stage in STAGES}, lane=astuple(lane), is_mine=is_mine,
        )  # fmt: skip

    def _check(self) -> None:
        """Recompute every answered job and compare the bytes; compare the digits with their labels."""
        networks = model.load(self._place.model)
        labels = load_digits().held_labels
        for job in self._jobs:
            result = self._answers.get(job.job)
            if result is None:
                continue
            indices = draw(self._place.seed, job.job, job.images)
            direct = networks[job.demand].classify(payload(indices))
            digits = result.arrays[0]
            right = int((digits == labels[indices]).sum()) if digits.shape == indices.shape else 0
            emit(kind="check", job=job.job, is_equal=same_bytes(result.arrays[:2], direct), right=right)


def same_bytes(one: tuple[NDArray[Any], ...], other: tuple[NDArray[Any], ...]) -> bool:
    """True when arrays agree in type, shape and every bit."""
    return len(one) == len(other) and all(
        a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
        for a, b in zip(one, other, strict=True)
    )


def main(path: str, name: str) -> int:
    """Run one tenant; 1 on failure."""
    end_with_parent()
    try:
        uvloop.run(Tenant(Place.read(path), name).run())
    except OffpathError as fault:
        print(f"{name}: {fault}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2]))
