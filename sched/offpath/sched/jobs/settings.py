"""What configuration gives the job book: tenants' rights, pinned leases, parameters and limits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

MS = 1_000_000
_FOR_EVER_NS: Final = 1 << 50
"""Thirteen days. 255 steps of it, and any time since boot, are numbers of 64 bits."""


@dataclass(frozen=True, slots=True)
class TenantSpec:
    """A tenant's rights.

    ``weight`` splits contended GPUs. ``max_jobs``: jobs accepted and unanswered. ``max_share``: sum of α of its leases,
    in percent of a GPU (250 = two and a half GPUs). ``max_demand``: the largest R of a request. ``profile``: the MIG
    profile of leases that are opened on a need; None selects the smallest that holds R. ``kernels``: names of those
    that it may call; None: all. ``max_sequences``: sequences at a time.
    """

    name: str
    weight: int = 1
    max_jobs: int = 256
    max_share: int = 100_000
    max_demand: int = 100
    profile: str | None = None
    kernels: tuple[str, ...] | None = None
    max_sequences: int = 64


@dataclass(frozen=True, slots=True)
class PinnedLease:
    """A lease from configuration: opened when the helper joins, never closed for idleness or for another tenant.
    ``gpu_index``: position in the order of the helper's GPUs."""

    tenant: str
    gpu_index: int
    profile: str
    start: int
    helper: str = ""


@dataclass(frozen=True, slots=True)
class BookSettings:
    """Parameters of the leasing loop and bounds of the book; times in ns, sizes in bytes.

    ``max_sequences``: of all tenants at a time. ``sequence_idle_ns``: how long a sequence without a job lasts.
    ``sequence_leave_ns``: how long sequences may stay on a lease whose room others need. Both are never 0.
    ``lanes``: the least that a lease has. ``max_lanes``: the most, if more of the jobs that it is opened for fit its
    share at once and its memory has room; 0: as ``lanes``.
    ``keep_warm_ns``: how long an idle lease stays. ``grow_after_ns``: how long a backlog lasts before another lease is
    opened. ``priority_step_ns``: what a step of priority is worth in time of waiting, so that no job waits for ever
    behind more urgent ones of its tenant; 0: so long that it never matters. ``reclaim_after_ns``: how long a tenant
    starves before busy leases of others are taken. ``min_hold_ns``: how long a new lease is safe from that.
    ``retry_open_ns``: the pause after an instance failed, doubled with each failure in a row up to ``retry_limit_ns``.

    Limits, 0 for none. ``kernel_ns``: run time of a launch. ``linger_ns``: run time after the job was answered (if the
    job expired, only where ``kills_expired``, else until ``kernel_ns``). ``open_ns``: time a lease may be CREATING
    until all its lanes are reserved. ``load_ns``: time that its workers may take from then on to load their models.
    ``scrub_ns``: time its workers may take to scrub. ``drain_ns``: time that running jobs of a removed tenant may take
    to finish (0: no time at all). ``kernel_gone_ns``: time without a helper that serves a kernel before its name is
    forgotten and its queued jobs end. ``policy``: name of a policy of `offpath.sched.gpu.registry`; "" keeps the
    current one.
    """

    lanes: int = 2
    max_lanes: int = 0
    landing_bytes: int = 1 << 20
    result_bytes: int = 1 << 20
    max_jobs: int = 65_536
    keep_warm_ns: int = 5_000 * MS
    grow_after_ns: int = 20 * MS
    priority_step_ns: int = 1_000 * MS
    reclaim_after_ns: int = 100 * MS
    min_hold_ns: int = 200 * MS
    retry_open_ns: int = 1_000 * MS
    retry_limit_ns: int = 60_000 * MS
    kernel_ns: int = 0
    linger_ns: int = 0
    kills_expired: bool = True
    open_ns: int = 0
    load_ns: int = 0
    scrub_ns: int = 0
    drain_ns: int = 30_000 * MS
    kernel_gone_ns: int = 0
    policy: str = ""
    max_sequences: int = 4_096
    sequence_idle_ns: int = 10_000 * MS
    sequence_leave_ns: int = 1_000 * MS

    def turn_ns(self, priority: int, accepted_ns: int) -> int:
        """When a job counts as accepted in the order of its tenant's queue: each step of priority counts as
        `priority_step_ns` that it has waited. So the order of two jobs never changes, and at most so long for each step
        of difference can more urgent jobs arrive that precede one that waits."""
        return accepted_ns - priority * (self.priority_step_ns or _FOR_EVER_NS)
