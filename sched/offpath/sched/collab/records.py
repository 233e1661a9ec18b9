"""What the book keeps of federated jobs, requests and leases, and what it tells its shell."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, Literal, NamedTuple

from offpath.sched.collab.fairness import Standing
from offpath.sched.collab.requirements import Requirement
from offpath.sched.collab.tiers import Profile, Tiers

MOST_JOBS: Final = 16_384
MOST_DEMAND: Final = 1_000_000
MOST_DEADLINE_NS: Final = 7 * 86_400 * 10**9
DAY_NS: Final = 86_400 * 10**9
MOST_ALONE_NS: Final = 36_500 * DAY_NS
MOST_TIERS: Final = 16
MOST_ROUNDS: Final = 1_000_000
QUORUM_PERCENT: Final = 80
"""Of the devices of a round that must answer by its deadline (§5.1)."""


Device = int | str
"""A device's identity: its name, or where there are millions of them, a keyed hash of it."""


class RoundEnd(StrEnum):
    """How a round ended."""

    COMPLETE = "complete"
    ABORTED = "aborted"
    """Too few devices had answered by the deadline."""
    CLOSED = "closed"
    """The job was closed."""


@dataclass(frozen=True, slots=True)
class JobSpec:
    """``alone_ns``: what the job would need without others, for fairness. ``speed``: the number among a device's
    properties by which tiers are made; empty: none. ``tiers``: V of §4.3; below 2: none. ``rounds``: of the whole job,
    if known: then demand is that of all rounds that are left (§4.2.1); 0: unknown."""

    name: str
    tenant: str
    requirement: Requirement
    quorum_percent: int = QUORUM_PERCENT
    alone_ns: int = DAY_NS
    speed: str = ""
    tiers: int = 0
    rounds: int = 0

    def fault(self) -> str:
        """What is out of bounds; empty: nothing."""
        if not 1 <= self.quorum_percent <= 100:
            return "the quorum is 1 to 100 percent"
        if not 1 <= self.alone_ns <= MOST_ALONE_NS:
            return "the time alone is above 0 and at most 100 years"
        if not 0 <= self.tiers <= MOST_TIERS:
            return f"a job has 0 to {MOST_TIERS} tiers"
        return "" if 0 <= self.rounds <= MOST_ROUNDS else f"a job has at most {MOST_ROUNDS} rounds"


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
    is_over: bool = False

    @property
    def remaining(self) -> int:
        """Devices that it still needs."""
        return self.demand - self.leased - self.done


@dataclass(slots=True)
class Job:
    """An open job. ``served_ns``: service that it received: its devices' time, divided by the devices of a round."""

    spec: JobSpec
    bit: int
    opened_ns: int
    profile: Profile
    standing: Standing
    """With `served_ns`."""
    request: Request | None = None
    last_round: int = -1
    served_ns: int = 0
    response_ns: int = 0
    schedule_ns: int = 0
    rounds: int = 0
    bounds: Tiers | None = None
    """Of the request's tier, if it has one."""
    leases: dict[int, Lease] = field(default_factory=dict)
    """By number, the oldest first."""

    @property
    def state(self) -> Literal["waits", "filled", "idle"]:
        """It waits for devices, has found all of them, or has no round."""
        if self.request is None:
            return "idle"
        return "waits" if self.request.remaining > 0 else "filled"


class Lease(NamedTuple):
    """A device works for a round until then. A named tuple, which is made twice as fast as a dataclass."""

    number: int
    device: Device
    job: str
    round: int
    issued_ns: int
    expires_ns: int
    speed: int = 0


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


Event = Released | RoundEnded


@dataclass(frozen=True, slots=True)
class Kept:
    """What a book is continued from: its open jobs, with their requests; the leases that have not ended; the devices
    that got a job on ``day``, the last one; the next lease's number. Counters and supply begin anew."""

    jobs: tuple[Job, ...]
    leases: tuple[Lease, ...]
    worked: Iterable[Device]
    day: int
    following: int


@dataclass(slots=True)
class Tally:
    """Counters."""

    check_ins: int = 0
    idle: int = 0
    """No job needed the device."""
    spent: int = 0
    """The device had worked today."""
    assigned: int = 0
