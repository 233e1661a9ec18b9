"""What the book keeps of federated jobs, requests and leases, and what it tells its shell."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from offpath.sched.collab.requirements import Requirement
from offpath.sched.collab.tiers import Profile, Tiers

MOST_JOBS: Final = 16_384
MOST_DEMAND: Final = 1_000_000
MOST_DEADLINE_NS: Final = 7 * 86_400 * 10**9
DAY_NS: Final = 86_400 * 10**9
QUORUM_PERCENT: Final = 80
"""Of the devices of a round that must answer by its deadline (§5.1)."""


class RoundEnd(StrEnum):
    """How a round ended."""

    COMPLETE = "complete"
    ABORTED = "aborted"
    """Too few devices had answered by the deadline."""
    CLOSED = "closed"
    """The job was closed."""


@dataclass(frozen=True, slots=True)
class JobSpec:
    """``alone_s``: what the job would need without others, for fairness. ``speed``: the number among a device's
    properties by which tiers are made; empty: none. ``tiers``: V of §4.3; below 2: none."""

    name: str
    tenant: str
    requirement: Requirement
    quorum_percent: int = QUORUM_PERCENT
    alone_s: float = 1.0
    speed: str = ""
    tiers: int = 0


@dataclass(slots=True)
class Request:
    """A round's call for devices. ``leased`` of them work for it now; ``done`` have answered."""

    round: int
    demand: int
    submitted_ns: int
    deadline_ns: int
    rank: int
    tier: int | None = None
    leased: int = 0
    done: int = 0
    filled_ns: int = -1

    @property
    def remaining(self) -> int:
        """Devices that it still needs."""
        return self.demand - self.leased - self.done


@dataclass(slots=True)
class Job:
    """An open job. ``served_ns``: devices' time that it received."""

    spec: JobSpec
    bit: int
    opened_ns: int
    profile: Profile
    request: Request | None = None
    last_round: int = -1
    served_ns: int = 0
    response_ns: int = 0
    schedule_ns: int = 0
    rounds: int = 0
    bounds: Tiers | None = None
    """Of the request's tier, if it has one."""


@dataclass(frozen=True, slots=True)
class Lease:
    """A device works for a round until then."""

    number: int
    device: str
    job: str
    round: int
    issued_ns: int
    expires_ns: int
    speed: int = 0


@dataclass(frozen=True, slots=True)
class Assigned:
    """A device got a job."""

    lease: Lease


@dataclass(frozen=True, slots=True)
class Released:
    """A lease ended: ``answered``, or it expired, failed, or its round ended."""

    lease: Lease
    answered: bool
    why: str


@dataclass(frozen=True, slots=True)
class RoundEnded:
    """``done`` of ``demand`` devices answered; the first was sought at ``submitted_ns``, the last found at
    ``filled_ns`` (-1: never)."""

    job: str
    round: int
    end: RoundEnd
    done: int
    demand: int
    submitted_ns: int
    filled_ns: int
    ended_ns: int


Event = Assigned | Released | RoundEnded


@dataclass(slots=True)
class Tally:
    """Counters."""

    check_ins: int = 0
    idle: int = 0
    """No job needed the device."""
    spent: int = 0
    """The device had worked today."""
    assigned: int = 0
    by_code: dict[str, int] = field(default_factory=dict)
