"""What an operator may ask of a book: the present plan by groups, why a job has few devices, what another would get.

A report changes nothing that the next check-in would not. Check-ins are those of the window of 24
hours, or since the start if that is later.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from offpath.sched.collab.book import Book
from offpath.sched.collab.records import Job
from offpath.sched.collab.requirements import Requirement, text_of

_NS: Final = 10**9
DAY_S: Final = 86_400


@dataclass(slots=True)
class GroupReport:
    """Jobs with one requirement. ``supply``: check-ins that meet it; ``given``: those of which its first job gets a
    device now. ``remaining``: devices that its jobs wait for."""

    requirement: Requirement
    jobs: list[Job] = field(default_factory=list)
    supply: int = 0
    given: int = 0
    first: str = ""

    @property
    def waiting(self) -> int:
        """Jobs that wait for devices."""
        return sum(_waits(job) for job in self.jobs)

    @property
    def remaining(self) -> int:
        """Devices that they wait for."""
        return sum(job.request.remaining for job in self.jobs if job.request is not None)


@dataclass(frozen=True, slots=True)
class PlanReport:
    """``groups``: that with the fewest check-ins first. ``unused``: check-ins that no job can use now."""

    groups: tuple[GroupReport, ...]
    supply: int
    unused: int


def plan(book: Book) -> PlanReport:
    """Costs a decision for each atom."""
    groups = {bit: GroupReport(requirement) for bit, requirement in book.catalogue.requirements().items()}
    for job in book.jobs.values():
        groups[job.bit].jobs.append(job)
    supply = unused = 0
    for atom, count, first in _decided(book):
        supply += count
        for bit, group in groups.items():
            group.supply += count if atom >> bit & 1 else 0
        if first is None:
            unused += count
        else:
            groups[first.bit].given += count
            groups[first.bit].first = first.spec.name
    ordered = sorted(groups.values(), key=lambda group: (group.supply, text_of(group.requirement)))
    return PlanReport(tuple(ordered), supply, unused)


def reasons(book: Book, job: Job, now_ns: int) -> list[str]:
    """Why the job has as many devices as it has, each a sentence."""
    eligible = given = 0
    rivals: dict[str, int] = {}
    for atom, count, first in _decided(book):
        if not atom >> job.bit & 1:
            continue
        eligible += count
        if first is job:
            given += count
        elif first is not None:
            rivals[first.spec.name] = rivals.get(first.spec.name, 0) + count
    found = [f"it requires: {text_of(job.spec.requirement)}"]
    if not eligible:
        return [*found, "no device that has checked in within the last 24 hours meets that"]
    found.append(f"{eligible} check-ins of the last 24 hours meet that")
    if _waits(job):
        found.append(f"policy {book.policy.name} gives it {given} of them now")
    found += [
        f"{count} of them go to job {name} now"
        for name, count in sorted(rivals.items(), key=lambda e: (-e[1], e[0]))[:8]
    ]
    request = job.request
    if request is not None and request.tier is not None:
        found.append(f"this round takes only devices of speed class {request.tier + 1} of {job.spec.tiers}")
    if request is not None and _waits(job):
        found.append(f"its deadline is in {max(0, request.deadline_ns - now_ns) / _NS:.0f} s")
    return found


@dataclass(frozen=True, slots=True)
class Prospect:
    """``supply``: check-ins that meet a requirement. ``rivals``: jobs that wait for some of them. ``shared``: the part
    of the check-ins for it if each is shared evenly among the jobs that wait for it, and it is one of them."""

    supply: int
    rivals: int
    shared: float

    def wait_s(self, demand: int, per_window: float, window_s: float = DAY_S) -> float:
        """How long ``demand`` devices take at that many check-ins in a window; 0: for ever."""
        return demand * window_s / per_window if per_window else 0.0


def prospect(book: Book, requirement: Requirement) -> Prospect:
    """What a job with that requirement would meet now. The requirement need not be an open job's."""
    waiting = [job.bit for job in book.jobs.values() if _waits(job)]
    supply, shared, rivals = 0, 0.0, set[int]()
    for properties, count in book.supply.counts():
        if not requirement.is_met_by(properties):
            continue
        atom = book.catalogue.atom(properties)
        others = [number for number, bit in enumerate(waiting) if atom >> bit & 1]
        rivals.update(others)
        supply += count
        shared += count / (1 + len(others))
    return Prospect(supply, len(rivals), shared)


def _waits(job: Job) -> bool:
    return job.request is not None and job.request.remaining > 0


def _decided(book: Book) -> Iterator[tuple[int, int, Job | None]]:
    """Each atom with its check-ins and the job that the policy names first among those that wait for such a device."""
    book.refresh()
    counts: dict[int, int] = {}
    for properties, count in book.supply.counts():
        atom = book.catalogue.atom(properties)
        counts[atom] = counts.get(atom, 0) + count
    for atom, count in counts.items():
        named = (book.jobs.get(name) for name in book.policy.candidates(atom))
        yield atom, count, next((job for job in named if job is not None and _waits(job) and atom >> job.bit & 1), None)
