"""Placements that are given back: behind a stream, which may wait for the job."""

from __future__ import annotations

from typing import Final

from offpath.sched.gpu.policy import Demand, Obstacle, Placement, Refusal, Unblocker
from offpath.sched.jobs.ledger import Ledger
from offpath.sched.jobs.records import Lease

_BEHIND_A_STREAM: Final = Refusal((Obstacle.LANES,), (Unblocker.JOB_ENDS, Unblocker.LEASE_OPENS))


def kept(placement: Placement | Refusal, demand: Demand, ledger: Ledger, now_ns: int) -> Placement | Refusal:
    """The placement, or why the job does not take it.

    A stream runs for as long as its requester takes to read it. So no job is bound to a lane where it would wait for a
    stream's share: the requester may be waiting for that job.
    """
    if isinstance(placement, Placement) and placement.is_prefetch:
        lease = ledger.leases[placement.lease]
        if _has_stream(lease, ledger):
            ledger.free_lane(lease, placement, demand.share_on(lease.view.model), now_ns)
            return _BEHIND_A_STREAM
    return placement


def _has_stream(lease: Lease, ledger: Ledger) -> bool:
    kernels = [ledger.kernels.get(job.kernel) for job in lease.jobs.values()]
    return any(kernel is not None and kernel.streams for kernel in kernels)
