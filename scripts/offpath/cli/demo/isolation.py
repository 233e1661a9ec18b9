"""Isolation checks inside a worker, where the lane's own memory is visible.

Each tenant has a canary, 32 bytes derived from its name. Its requests carry it beside the images, and after each job
the worker writes it to the ends of landing buffer and result half. When a lane opens, its worker scans the whole
lane for every other tenant's canary: without a scrub, the previous tenant's would be there.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from offpath.bindings.ports import Gpu
from offpath.host_helper.kernels import LaneContext

GPU_MODEL: Final = "A100-40GB"
CANARY_BYTES: Final = 32


def canary(tenant: str) -> bytes:
    """The tenant's mark."""
    return hashlib.sha256(b"offpath demo canary of " + tenant.encode()).digest()[:CANARY_BYTES]


@dataclass(frozen=True, slots=True)
class LaneReport:
    """A worker's report on its lane, sent with each answer; int64 on the wire, in this order.

    Counts are of this lane opening so far: per (pid, lease, lane) only the last report counts. ``start`` and
    ``memory_slices`` are MIG memory slices of GPU ``gpu``; ``tenant`` is an index into the tenants in order of name;
    times are of the monotonic clock, in ns.
    """

    gpu: int
    start: int
    memory_slices: int
    compute_slices: int
    lane: int
    lease: int
    generation: int
    tenant: int
    pid: int
    opened_ns: int
    started_ns: int
    ended_ns: int
    scans: int
    leaks: int
    stamps: int
    forged: int

    @classmethod
    def parse(cls, values: NDArray[np.int64]) -> LaneReport:
        """From a kernel's third result array. Raises: TypeError: another length."""
        return cls(*(int(v) for v in values))


class LaneAudit:
    """One lane opening, audited by its worker."""

    def __init__(self, lane: LaneContext, tenants: Sequence[str], gpus: Sequence[Gpu]) -> None:
        """Scan the lane before its first job. ``gpus``: those of the helper, in its order."""
        self._lane = lane
        self._opened_ns = time.monotonic_ns()
        self._gpu = next(number for number, gpu in enumerate(gpus) if gpu.uuid == lane.gpu)
        self._profile = gpus[self._gpu].model.profile(lane.profile)
        self._tenant = sorted(tenants).index(lane.tenant)
        self._mark = canary(lane.tenant)
        memory = lane.memory.read(0, lane.memory.landing_bytes + lane.memory.result_bytes)
        others = [canary(t) for t in tenants if t != lane.tenant]
        self._scans = len(others)
        self._leaks = sum(mark in memory for mark in others)
        self._stamps = 0
        self._forged = 0

    def check_owner(self, stamp: NDArray[Any]) -> None:
        """Check at a launch that the request is of the lane's tenant."""
        self._stamps += 1
        self._forged += stamp.tobytes() != self._mark

    def leave_mark(self) -> None:
        """Write the tenant's canary where neither payload nor result reaches."""
        memory = self._lane.memory
        for end in (memory.landing_bytes, memory.landing_bytes + memory.result_bytes):
            memory.write(end - CANARY_BYTES, self._mark)

    def report(self, started_ns: int) -> NDArray[np.int64]:
        """The lane's report after a kernel that began at ``started_ns``."""
        lane = self._lane
        values = LaneReport(
            gpu=self._gpu, start=lane.start, memory_slices=self._profile.memory_slices,
            compute_slices=self._profile.compute_slices, lane=lane.lane, lease=lane.lease, generation=lane.generation,
            tenant=self._tenant, pid=os.getpid(), opened_ns=self._opened_ns, started_ns=started_ns,
            ended_ns=time.monotonic_ns(), scans=self._scans, leaks=self._leaks, stamps=self._stamps,
            forged=self._forged,
        )  # fmt: skip
        return np.array(astuple(values), np.int64)
