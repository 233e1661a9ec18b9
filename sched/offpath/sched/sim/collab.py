"""Federated jobs in virtual time, many check-ins at a time: the decisions are those of `sched.collab.book`.

Between two events (a request comes or is filled, a round ends, the supply is counted anew) a steady policy has the same
answer for an atom. So the check-ins up to the next event are dealt with as columns: who may work, which job each one
gets, and which of these makes the next event. Those behind that one are looked at again after it.

A device works for as long as its speed and its network need, and answers if its session lasts so long. If not, nobody
learns of it before the round ends: a lease lasts until the round's deadline. A job that is not done asks for its next
round at once, and repeats one that was aborted.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from offpath.sched.collab.fairness import Standing
from offpath.sched.collab.port import CollabPolicy, Draw
from offpath.sched.collab.records import DAY_NS, Job, Request, RoundEnd, RoundEnded
from offpath.sched.collab.requirements import Catalogue
from offpath.sched.collab.rounds import tier_of, waiting
from offpath.sched.collab.supply import HOUR_NS, Supply
from offpath.sched.collab.tiers import Profile, Sample
from offpath.sched.errors import SchedError
from offpath.sched.sim.collab_records import NEVER, CollabJob, CollabRun, Day, Devices, Ints, JobOutcome

_LEAST_CHUNK: Final = 256
_MOST_CHUNK: Final = 1 << 16


@dataclass(slots=True)
class _Round:
    """A job's devices, in the order of leases: when each began, its answer (`NEVER`: none), its number."""

    number: int
    answers_at: int
    began: list[Ints] = field(default_factory=list)
    answers: list[Ints] = field(default_factory=list)
    devices: list[NDArray[np.int32]] = field(default_factory=list)
    enough_ns: int = NEVER


class CollabSimulation:
    """``days``: by number. ``ended``: is given every round that ends."""

    def __init__(
        self,
        policy: CollabPolicy,
        draw: Draw,
        devices: Devices,
        days: Callable[[int], Day],
        ended: Callable[[RoundEnded], None] | None = None,
    ) -> None:
        self._policy, self._draw, self._devices, self._days, self._ended = policy, draw, devices, days, ended
        count = len(devices.kind)
        self._worked = np.full(count, -1, np.int64)
        """The last day on which the device got a job."""
        self._free_ns = np.zeros(count, np.int64)
        self._held_by = np.zeros(count, np.int32)
        self._held_round = np.full(count, -1, np.int64)
        self._rounds_of = np.zeros(0, np.int64)
        """By job: the round that runs, counted from 0 over the job's requests."""
        self._catalogue, self._supply = Catalogue(), Supply()
        self._supplied = -1
        self._counts = np.zeros(len(devices.kinds), np.int64)
        """Check-ins by kind that the supply does not have yet."""
        self._counted = -1
        self._jobs: dict[str, Job] = {}
        self._live: dict[str, _Round] = {}
        self._wanted: dict[str, CollabJob] = {}
        self._numbers: dict[str, int] = {}
        self._order: list[str] = []
        self._changed: dict[str, None] = {}
        self._arrivals: list[tuple[int, int, CollabJob]] = []
        self._outcomes: dict[str, JobOutcome] = {}
        self._distinct: list[int] = []
        self._atoms: Ints = np.zeros(0, np.int64)
        """By kind of device the place of its atom in `_distinct`."""
        self._answers: list[list[str]] | None = None
        """By atom the jobs that may get a device; None: something has changed."""
        self._first: Ints = np.zeros(0, np.int64)
        """By atom the number of the job that gets any device, -1: it depends on the tier, or there is none."""
        self._speeds: dict[str, Ints] = {}
        self._chunk = _LEAST_CHUNK
        self._day, self._position = 0, 0
        self._check_ins = 0

    def run(self, jobs: Sequence[CollabJob], most_days: int) -> CollabRun:
        """Until all jobs are done, or for so many days. Deterministic. Raises: SchedError: two jobs have one name."""
        self._wanted = {job.spec.name: job for job in jobs}
        if len(self._wanted) != len(jobs):
            raise SchedError("two jobs have one name")
        self._numbers = {name: number for number, name in enumerate(self._wanted)}
        self._order = list(self._wanted)
        self._rounds_of = np.zeros(len(jobs), np.int64)
        self._arrivals = [(job.at_ns, number, job) for number, job in enumerate(jobs)]
        heapq.heapify(self._arrivals)
        self._outcomes = {job.spec.name: JobOutcome(job.at_ns) for job in jobs}
        for number in range(most_days):
            if not self._arrivals and not self._jobs:
                break
            self._whole_day(number)
        return CollabRun(self._outcomes, self._check_ins, self._day + 1)

    # -- time ------------------------------------------------------------------------------------------------------
    def _whole_day(self, number: int) -> None:
        day = self._days(number)
        self._day, self._position, self._counted = number, 0, -1
        before = _before(day.device)
        end_ns = (number + 1) * DAY_NS
        while self._arrivals or self._jobs:
            next_ns = self._next_ns()
            stop = int(np.searchsorted(day.times_ns, next_ns))
            if self._position < stop:
                self._advance(day, before, stop)
            elif next_ns < end_ns:
                self._happen(next_ns)
            else:
                break
        self._check_ins += self._position

    def _next_ns(self) -> int:
        ends = [
            min(live.enough_ns, request.deadline_ns)
            for name, live in self._live.items() if (request := self._jobs[name].request) is not None
        ]  # fmt: skip
        return min([*ends, self._arrivals[0][0] if self._arrivals else NEVER])

    def _happen(self, now_ns: int) -> None:
        """Rounds that end first, then jobs that come."""
        for name, live in list(self._live.items()):
            request = self._jobs[name].request
            if request is not None and min(live.enough_ns, request.deadline_ns) <= now_ns:
                self._end(self._jobs[name], live, now_ns)
                return
        _, _, wanted = heapq.heappop(self._arrivals)
        bit = self._catalogue.open(wanted.spec.requirement)
        spec = wanted.spec
        job = Job(spec, bit, now_ns, Profile(max(2, spec.tiers)), Standing(spec.alone_ns, 0))
        self._jobs[spec.name] = job
        self._policy.opened(spec.name, bit)
        self._request(job, wanted, now_ns)

    # -- rounds ----------------------------------------------------------------------------------------------------
    def _request(self, job: Job, wanted: CollabJob, now_ns: int) -> None:
        job.last_round += 1
        made = Request(
            job.last_round, wanted.demand, now_ns, now_ns + wanted.deadline_ns, self._draw(1 << 32)
        )  # fmt: skip
        job.bounds, made.tier = tier_of(job, self._draw) if self._policy.has_tiers else (None, None)
        job.request = made
        quorum = -(-job.spec.quorum_percent * wanted.demand // 100)
        self._live[job.spec.name] = _Round(job.last_round, quorum)
        self._rounds_of[self._numbers[job.spec.name]] = job.last_round
        self._changed[job.spec.name] = None
        self._tell()

    def _end(self, job: Job, live: _Round, now_ns: int) -> None:
        """The round is complete, or its deadline has come."""
        request, name = job.request, job.spec.name
        assert request is not None
        wanted, outcome = self._wanted[name], self._outcomes[name]
        began, answers = _joined(live.began), _joined(live.answers)
        is_complete = live.enough_ns < request.deadline_ns
        done = int((answers <= now_ns).sum()) if is_complete else int((answers < now_ns).sum())
        job.served_ns += int(((np.minimum(answers, now_ns) - began) // request.demand).sum())
        job.standing = Standing(job.spec.alone_ns, job.served_ns)
        if request.tier is None and self._policy.has_tiers and job.spec.tiers > 1:
            self._learn(job, live, began, answers, now_ns)
        outcome.assigned += len(began)
        outcome.wasted += len(began) - (done if is_complete else 0)
        if is_complete:
            filled_ns = request.filled_ns if request.filled_ns >= 0 else now_ns
            job.rounds += 1
            job.schedule_ns += filled_ns - request.submitted_ns
            job.response_ns += now_ns - filled_ns
        outcome.completed, outcome.aborted = job.rounds, outcome.aborted + (not is_complete)
        outcome.schedule_ns, outcome.response_ns = job.schedule_ns, job.response_ns
        job.request = None
        del self._live[name]
        self._rounds_of[self._numbers[name]] = -2
        self._changed[name] = None
        self._tell()
        if self._ended is not None:
            end = RoundEnd.COMPLETE if is_complete else RoundEnd.ABORTED
            self._ended(RoundEnded(
                name, request.round, end, done, request.demand, request.submitted_ns, request.filled_ns, now_ns
            ))  # fmt: skip
        if job.rounds < wanted.rounds:
            self._request(job, wanted, now_ns)
            return
        outcome.ended_ns = now_ns
        self._catalogue.close(job.spec.requirement)
        del self._jobs[name]
        self._policy.closed(name)
        self._answers = None

    def _learn(self, job: Job, live: _Round, began: Ints, answers: Ints, now_ns: int) -> None:
        devices = np.concatenate(live.devices) if live.devices else np.zeros(0, np.int32)
        speeds = self._speed(job.spec.speed)[self._devices.kind[devices]]
        for place in np.argsort(answers, kind="stable").tolist():
            if answers[place] > now_ns or answers[place] == NEVER:
                break
            job.profile.learn(Sample(int(speeds[place]), int(answers[place] - began[place]) / 10**9))

    def _tell(self) -> None:
        for name in self._changed:
            job = self._jobs.get(name)
            if job is None or job.request is None or job.request.remaining <= 0:
                self._policy.left(name)
            else:
                self._policy.waits(waiting(job))
        self._changed.clear()
        self._answers = None

    # -- check-ins -------------------------------------------------------------------------------------------------
    def _advance(self, day: Day, before: Ints, stop: int) -> None:
        """Take check-ins from the present one to below ``stop``, or fewer."""
        begin = self._position
        hour = int(day.times_ns[begin]) // HOUR_NS
        stop = min(stop, begin + self._chunk, int(np.searchsorted(day.times_ns, (hour + 1) * HOUR_NS)))
        again = np.flatnonzero(before[begin:stop] >= begin)  # a device comes twice
        stop = begin + int(again[0]) if len(again) else stop
        times, device = day.times_ns[begin:stop], day.device[begin:stop]
        is_held = (self._free_ns[device] > times) & (self._held_round[device] == self._rounds_of[self._held_by[device]])
        able = np.flatnonzero((self._worked[device] != self._day) & ~is_held)
        counted = able[able != self._counted - begin] if self._counted >= begin else able
        due = 1 if hour > self._supply.hour or self._supplied != self._catalogue.version else self._left()
        if len(counted) >= due:
            place = int(counted[due - 1])
            able = able[able < place]
            if not len(able):
                self._count(day, begin + place)
                return
            stop = begin + place
        if len(able) and not self._policy.is_steady:
            stop, able = begin + int(able[0]) + 1, able[:1]
        cut = self._assign(day, begin, stop, able)
        taken = able[able < cut - begin]
        taken = taken[taken != self._counted - begin]
        self._counts += np.bincount(self._devices.kind[device[taken]], minlength=len(self._counts))
        self._chunk = min(_MOST_CHUNK, 2 * self._chunk) if cut == stop else max(_LEAST_CHUNK, 2 * (cut - begin))
        self._position = cut

    def _left(self) -> int:
        return self._supply.left - int(self._counts.sum())

    def _count(self, day: Day, place: int) -> None:
        """The check-in there makes the supply be counted anew."""
        kinds = self._devices.kinds
        for kind in np.flatnonzero(self._counts).tolist():
            self._supply.add(kinds[kind], int(self._counts[kind]))
        self._counts[:] = 0
        now_ns = int(day.times_ns[place])
        self._supply.seen(kinds[self._devices.kind[day.device[place]]], now_ns, self._catalogue.atom)
        if self._supplied != self._catalogue.version:
            self._supplied = self._catalogue.version
            found = [self._catalogue.atom(kind) for kind in kinds]
            self._distinct = sorted(set(found))
            places = {atom: number for number, atom in enumerate(self._distinct)}
            self._atoms = np.array([places[atom] for atom in found], np.int64)
        self._policy.supplied(self._supply.by_atom(self._catalogue.atom))
        self._answers = None
        self._counted, self._position = place, place

    def _assign(self, day: Day, begin: int, stop: int, able: Ints) -> int:
        """Lease the devices up to the first event that this makes; returns the place behind it."""
        device = day.device[begin:stop][able]
        got = self._got(device)
        chosen = {number: np.flatnonzero(got == number) for number in np.unique(got).tolist() if number >= 0}
        names = self._order
        cut, answers = stop, dict[int, Ints]()
        for number, mine in chosen.items():
            request = self._jobs[names[number]].request
            assert request is not None
            if len(mine) >= request.remaining:
                chosen[number] = mine = mine[: request.remaining]
                cut = min(cut, begin + int(able[mine[-1]]) + 1)
            answers[number] = self._answered(self._wanted[names[number]], day, begin + able[mine])
            enough_ns = self._enough(self._live[names[number]], answers[number])
            cut = min(cut, int(np.searchsorted(day.times_ns[begin:stop], enough_ns)) + begin)
        is_filled = False
        for number, mine in chosen.items():
            keep = mine[begin + able[mine] < cut]
            if len(keep):
                is_filled |= self._lease(names[number], day, begin + able[keep], answers[number][: len(keep)])
        if is_filled:
            self._tell()
        return cut

    def _got(self, device: NDArray[np.int32]) -> Ints:
        """By device the number of the job that it gets, -1: none."""
        places = self._atoms[self._devices.kind[device]]
        if not self._policy.is_steady:
            return np.array([next(self._jobs_for(int(place)), -1) for place in places], np.int64)
        if self._answers is None:
            self._answers = [self._names(self._distinct[place]) for place in range(len(self._distinct))]
            self._first = np.array([
                self._numbers[names[0]] if names and self._tier(names[0]) is None else -1 for names in self._answers
            ], np.int64)  # fmt: skip
        got = self._first[places]
        for place, names in enumerate(self._answers):
            if names and self._first[place] < 0:
                self._by_tier(got, np.flatnonzero(places == place), names, device)
        return got

    def _jobs_for(self, place: int) -> Iterator[int]:
        for name in self._policy.candidates(self._distinct[place]):
            job = self._jobs[name]
            if job.request is not None and job.request.remaining > 0:
                yield self._numbers[name]

    def _names(self, atom: int) -> list[str]:
        """The atom's jobs, up to the first one that takes any device."""
        found = []
        for name in self._policy.candidates(atom):
            found.append(name)
            if self._tier(name) is None:
                break
        return found

    def _tier(self, name: str) -> int | None:
        request = self._jobs[name].request
        return None if request is None else request.tier

    def _by_tier(self, got: Ints, here: Ints, names: Sequence[str], device: NDArray[np.int32]) -> None:
        for name in names:
            job = self._jobs[name]
            tier, bounds = self._tier(name), job.bounds
            if tier is None or bounds is None:
                got[here] = self._numbers[name]
                return
            speed = self._speed(job.spec.speed)[self._devices.kind[device[here]]]
            fits = np.searchsorted(bounds.bounds, speed, "right") == tier
            got[here[fits]] = self._numbers[name]
            here = here[~fits]

    def _speed(self, name: str) -> Ints:
        """By kind."""
        if name not in self._speeds:
            kinds = self._devices.kinds
            self._speeds[name] = np.array([dict(each.numbers).get(name, 0) for each in kinds], np.int64)
        return self._speeds[name]

    def _answered(self, wanted: CollabJob, day: Day, places: Ints) -> Ints:
        device = day.device[places]
        answers = day.times_ns[places] + wanted.work * self._devices.unit_ns[device] + self._devices.network_ns[device]
        return np.where(answers <= day.ends_ns[places], answers, NEVER)

    def _enough(self, live: _Round, more: Ints) -> int:
        """When so many have answered that the round is complete."""
        answers = np.concatenate([*live.answers, more])
        if len(answers) < live.answers_at:
            return NEVER
        return int(np.partition(answers, live.answers_at - 1)[live.answers_at - 1])

    def _lease(self, name: str, day: Day, places: Ints, answers: Ints) -> bool:
        """True: the request is filled."""
        job, live, device = self._jobs[name], self._live[name], day.device[places]
        request = job.request
        assert request is not None
        self._worked[device] = self._day
        self._free_ns[device] = answers
        self._held_by[device] = self._numbers[name]
        self._held_round[device] = live.number
        live.began.append(day.times_ns[places])
        live.answers.append(answers)
        live.devices.append(device)
        live.enough_ns = self._enough(live, answers[:0])
        request.leased += len(places)
        self._changed[name] = None
        if request.remaining > 0:
            return False
        request.filled_ns = int(day.times_ns[places[-1]])
        return True


def _joined(parts: Sequence[Ints]) -> Ints:
    return np.concatenate(parts) if parts else np.zeros(0, np.int64)


def _before(device: NDArray[np.int32]) -> Ints:
    """By check-in the place of the same device's last one, -1: none."""
    order = np.argsort(device, kind="stable")
    before = np.full(len(device), -1, np.int64)
    is_same = device[order][1:] == device[order][:-1]
    before[order[1:][is_same]] = order[:-1][is_same]
    return before
