"""What a job asks for in a round; the book and the simulator have it from here."""

from __future__ import annotations

from typing import Final

from offpath.sched.collab.port import Draw, Waiting
from offpath.sched.collab.records import Job, Request
from offpath.sched.collab.requirements import Properties
from offpath.sched.collab.tiers import Tiers, chosen

_NS: Final = 10**9


def waiting(job: Job) -> Waiting:
    """Of a job whose request needs devices. Demand is that of all rounds that are left, where their number is known."""
    request = job.request
    assert request is not None
    later = max(0, job.spec.rounds - job.rounds - 1) * request.demand
    return Waiting(
        job.spec.name, job.bit, request.remaining + later, job.opened_ns, request.rank, job.standing,
        request.demand + later,
    )  # fmt: skip


def tier_of(job: Job, draw: Draw) -> tuple[Tiers | None, int | None]:
    """Algorithm 2, once for each request: the bounds and the tier that it is restricted to."""
    if job.spec.tiers < 2 or not job.spec.speed or not job.rounds:
        return None, None
    tiers = job.profile.tiers()
    tier = chosen(tiers, job.response_ns / job.rounds / _NS, job.schedule_ns / job.rounds / _NS, draw)
    return (None, None) if tier is None else (tiers, tier)


def fits(job: Job, request: Request, properties: Properties) -> bool:
    """The device is of the request's tier."""
    return job.bounds is None or job.bounds.of(speed_of(job, properties)) == request.tier


def speed_of(job: Job, properties: Properties) -> int:
    """0 of a device that does not state it."""
    return dict(properties.numbers).get(job.spec.speed, 0) if job.spec.speed else 0
