"""What a simulation of federated jobs takes and returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from offpath.sched.collab.records import JobSpec
from offpath.sched.collab.requirements import Properties

Ints = NDArray[np.int64]
NEVER: Final = 2**62
"""ns."""


@dataclass(frozen=True, slots=True)
class CollabJob:
    """``work``: what a device has to compute, in units of `Devices.unit_ns`. ``demand``: devices of a round."""

    spec: JobSpec
    at_ns: int
    rounds: int
    demand: int
    deadline_ns: int
    work: int


@dataclass(frozen=True, slots=True)
class Devices:
    """Columns by device. ``kind``: place in ``kinds``. ``unit_ns``: for a unit of work. ``network_ns``: down and up."""

    kinds: tuple[Properties, ...]
    kind: NDArray[np.int32]
    unit_ns: Ints
    network_ns: Ints


@dataclass(frozen=True, slots=True)
class Day:
    """Check-ins of a day by time. ``ends_ns``: of the session, also after the day."""

    times_ns: Ints
    device: NDArray[np.int32]
    ends_ns: Ints


@dataclass(slots=True)
class JobOutcome:
    """``ended_ns``: -1: it was not done when the simulation ended. ``wasted``: devices that worked, and whose answer
    no completed round has."""

    at_ns: int
    ended_ns: int = -1
    completed: int = 0
    aborted: int = 0
    assigned: int = 0
    wasted: int = 0
    schedule_ns: int = 0
    response_ns: int = 0


@dataclass(frozen=True, slots=True)
class CollabRun:
    """``jobs``: by name. ``check_ins``: that the simulation took. ``days``: begun."""

    jobs: dict[str, JobOutcome]
    check_ins: int
    days: int
