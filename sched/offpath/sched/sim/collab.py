"""Federated jobs in virtual time, many check-ins at a time: the decisions are those of `sched.collab.book`.

Between two events (a request comes or is filled, a round ends, the supply is counted anew) a steady policy has the same
answer for an atom. `collab_kernel` takes the check-ins up to the next event, from columns of devices and of jobs.

A device works for as long as its speed and its network need, and answers if its session lasts so long. If not, nobody
learns of it before the round ends: a lease lasts until the round's deadline. A job that is not done asks for its next
round at once, and repeats one that was aborted.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

import numpy as np

from offpath.sched.collab.fairness import Standing
from offpath.sched.collab.port import CollabPolicy, Draw
from offpath.sched.collab.records import DAY_NS, Job, Request, RoundEnd, RoundEnded
from offpath.sched.collab.requirements import Catalogue
from offpath.sched.collab.rounds import tier_of, waiting
from offpath.sched.collab.supply import HOUR_NS, Supply
from offpath.sched.collab.tiers import Profile
from offpath.sched.errors import SchedError
from offpath.sched.ina.engine import can_compile
from offpath.sched.sim import collab_columns as k
from offpath.sched.sim.collab_kernel import kernels
from offpath.sched.sim.collab_records import NEVER, CollabJob, CollabRun, Day, Devices, Ints, JobOutcome

_NS: Final = 10**9
_OF_ROUND: Final = [
    k.J_REMAINING, k.J_DEADLINE_NS, k.J_ENOUGH_NS, k.J_ROUND, k.J_LEAST_SPEED, k.J_BELOW_SPEED, k.J_HEAP_SIZE
]  # fmt: skip
"""What is set anew for each request."""
_FEW_ATOMS: Final = 8


class CollabSimulation:
    """``days``: by number. ``ended``: is given every round that ends."""

    _width = k.J_WIDTH
    """Columns of jobs."""

    def __init__(
        self,
        policy: CollabPolicy,
        draw: Draw,
        devices: Devices,
        days: Callable[[int], Day],
        ended: Callable[[RoundEnded], None] | None = None,
        *,
        compiled: bool | None = None,
    ) -> None:
        """``compiled``: use numba; None: if installed."""
        self._policy, self._draw, self._devices, self._days, self._ended = policy, draw, devices, days, ended
        self._kernels = kernels(can_compile() if compiled is None else compiled)
        self._columns = _device_columns(devices)
        self._of = np.zeros((0, k.J_WIDTH), np.int64)
        self._leases = np.zeros((k.L_HEIGHT, 0), np.int64)
        self._heap = self._touched = np.zeros(0, np.int64)
        self._catalogue, self._supply = Catalogue(), Supply()
        self._supplied = -1
        self._counts = np.zeros(len(devices.kinds), np.int64)
        """Check-ins by kind that the supply does not have yet."""
        self._jobs: dict[str, Job] = {}
        self._wanted: dict[str, CollabJob] = {}
        self._numbers: dict[str, int] = {}
        self._order: list[str] = []
        self._changed: dict[str, None] = {}
        self._arrivals: list[tuple[int, int, CollabJob]] = []
        self._outcomes: dict[str, JobOutcome] = {}
        self._distinct: list[int] = []
        self._atoms: Ints = np.zeros(len(devices.kinds), np.int64)
        """By kind of device the place of its atom in `_distinct`."""
        self._state = np.zeros(k.STATE, np.int64)
        self._day, self._check_ins = 0, 0

    def run(self, jobs: Sequence[CollabJob], most_days: int) -> CollabRun:
        """Until all jobs are done, or for so many days. Deterministic. Raises: SchedError: two jobs have one name."""
        self._wanted = {job.spec.name: job for job in jobs}
        if len(self._wanted) != len(jobs):
            raise SchedError("two jobs have one name")
        self._numbers = {name: number for number, name in enumerate(self._wanted)}
        self._order = list(self._wanted)
        self._begin(jobs)
        self._arrivals = [(job.at_ns, number, job) for number, job in enumerate(jobs)]
        heapq.heapify(self._arrivals)
        self._outcomes = {job.spec.name: JobOutcome(job.at_ns) for job in jobs}
        for number in range(most_days):
            if not self._arrivals and not self._jobs:
                break
            self._whole_day(number)
        return CollabRun(self._outcomes, self._check_ins, self._day + 1)

    def _begin(self, jobs: Sequence[CollabJob]) -> None:
        names = sorted({job.spec.speed for job in jobs})
        self._speeds = np.array(
            [[dict(each.numbers).get(name, 0) for each in self._devices.kinds] for name in names] or [[0]], np.int64
        )  # fmt: skip
        self._of = _job_columns(jobs, names, self._width)
        self._leases = np.zeros((k.L_HEIGHT, int(self._of[:, k.J_DEMAND].sum())), np.int64)
        self._heap = np.zeros(int(self._of[:, k.J_ANSWERS_AT].sum()), np.int64)
        self._touched = np.zeros(len(jobs), np.int64)
        self._candidates = np.full((1, len(jobs) + 1), k.UNKNOWN, np.int64)
        self._state[k.FORCED] = k.OPEN

    # -- time ------------------------------------------------------------------------------------------------------
    def _whole_day(self, number: int) -> None:
        day, state = self._days(number), self._state
        self._day, state[k.POSITION], state[k.COUNTED] = number, 0, -1
        end_ns = (number + 1) * DAY_NS
        while self._arrivals or self._jobs:
            code = self._advance(day)
            if code == k.EVENT:
                if state[k.NEXT_NS] >= end_ns:
                    break
                self._happen(int(state[k.NEXT_NS]), int(state[k.JOB]))
            elif code == k.FILLED:
                name = self._order[state[k.JOB]]
                request = self._jobs[name].request
                assert request is not None
                request.filled_ns = int(day.times_ns[state[k.POSITION] - 1])
                self._tell()
            elif code == k.SUPPLY:
                self._count(day, int(state[k.POSITION]))
            elif code == k.ATOM:
                self._ask_for(int(state[k.ATOM_OF]))
            else:
                kind = self._columns[day.device[state[k.POSITION]], k.D_KIND]
                state[k.FORCED] = next(self._jobs_for(self._distinct[self._atoms[kind]]), k.NOBODY)
        self._check_ins += int(state[k.POSITION])

    def _advance(self, day: Day) -> int:
        """Check-ins up to the next event."""
        if self._supplied != self._catalogue.version:
            self._state[k.LEFT] = 1
        arrival_ns = self._arrivals[0][0] if self._arrivals else NEVER
        code: int = self._kernels["serve"](
            self._state, day.times_ns, day.device, day.ends_ns, self._day, (self._supply.hour + 1) * HOUR_NS,
            arrival_ns, self._policy.is_steady, self._candidates, self._atoms, self._speeds, self._counts,
            self._columns, self._of, self._leases, self._heap, self._touched,
        )  # fmt: skip
        self._take_over()
        return code

    def _take_over(self) -> None:
        """What the kernel leased."""
        of, count = self._of, int(self._state[k.TOUCHED])
        for number in self._touched[:count].tolist():
            name = self._order[number]
            request = self._jobs[name].request
            assert request is not None
            request.leased = request.demand - int(of[number, k.J_REMAINING])
            self._changed[name] = None
            of[number, k.J_IS_TOUCHED] = 0
        self._state[k.TOUCHED] = 0

    def _happen(self, now_ns: int, number: int) -> None:
        """The round of the job with that number ends, or (below 0) a job comes."""
        if number >= 0:
            self._end(self._jobs[self._order[number]], number, now_ns)
            return
        job = self._open(now_ns)
        self._policy.opened(job.spec.name, job.bit)
        self._request(job, self._wanted[job.spec.name], now_ns)

    def _open(self, now_ns: int) -> Job:
        """The next job comes."""
        spec = heapq.heappop(self._arrivals)[2].spec
        bit = self._catalogue.open(spec.requirement)
        job = Job(spec, bit, now_ns, Profile(max(2, spec.tiers)), Standing(spec.alone_ns, 0))
        self._jobs[spec.name] = job
        return job

    # -- rounds ----------------------------------------------------------------------------------------------------
    def _request(self, job: Job, wanted: CollabJob, now_ns: int) -> None:
        job.last_round += 1
        deadline_ns = now_ns + wanted.deadline_ns
        made = Request(job.last_round, wanted.demand, now_ns, deadline_ns, self._draw(1 << 32))
        job.bounds, made.tier = tier_of(job, self._draw) if self._policy.has_tiers else (None, None)
        job.request = made
        of, number = self._of, self._numbers[job.spec.name]
        least, below = speeds_of(job.bounds.bounds if job.bounds else (), made.tier)
        of[number, _OF_ROUND] = wanted.demand, deadline_ns, NEVER, job.last_round, least, below, 0
        self._changed[job.spec.name] = None
        self._tell()

    def _end(self, job: Job, number: int, now_ns: int) -> None:
        """The round is complete, or its deadline has come."""
        request, name, of = job.request, job.spec.name, self._of
        assert request is not None
        wanted, outcome = self._wanted[name], self._outcomes[name]
        is_complete = bool(of[number, k.J_ENOUGH_NS] < request.deadline_ns)
        tally = self._kernels["tally"]
        done, served_ns = tally(of, self._leases, number, now_ns, now_ns if is_complete else now_ns - 1)
        job.served_ns += int(served_ns)
        job.standing = Standing(job.spec.alone_ns, job.served_ns)
        assigned = request.demand - int(of[number, k.J_REMAINING])
        if request.tier is None and self._policy.has_tiers and job.spec.tiers > 1:
            self._learn(job, number, assigned, now_ns)
        outcome.assigned += assigned
        outcome.wasted += assigned - (int(done) if is_complete else 0)
        if is_complete:
            filled_ns = request.filled_ns if request.filled_ns >= 0 else now_ns
            job.rounds += 1
            job.schedule_ns += filled_ns - request.submitted_ns
            job.response_ns += now_ns - filled_ns
        outcome.completed, outcome.aborted = job.rounds, outcome.aborted + (not is_complete)
        outcome.schedule_ns, outcome.response_ns = job.schedule_ns, job.response_ns
        job.request = None
        of[number, _OF_ROUND] = 0, NEVER, NEVER, k.NO_ROUND, 0, 0, 0
        self._changed[name] = None
        self._tell()
        if self._ended is not None:
            end = RoundEnd.COMPLETE if is_complete else RoundEnd.ABORTED
            self._ended(RoundEnded(
                name, request.round, end, int(done), request.demand, request.submitted_ns, request.filled_ns, now_ns
            ))  # fmt: skip
        if job.rounds < wanted.rounds:
            self._request(job, wanted, now_ns)
            return
        outcome.ended_ns = now_ns
        self._catalogue.close(job.spec.requirement)
        del self._jobs[name]
        self._policy.closed(name)
        self._forget()

    def _learn(self, job: Job, number: int, assigned: int, now_ns: int) -> None:
        """From the answers that came, in their order."""
        first = int(self._of[number, k.J_FIRST])
        began, answers, kinds = self._leases[:, first : first + assigned]
        came = np.argsort(answers, kind="stable")[: int((answers <= now_ns).sum())]
        speeds = self._speeds[self._of[number, k.J_SPEED], kinds[came]]
        job.profile.learn_all(speeds, (answers - began)[came] / _NS)

    def _tell(self) -> None:
        for name in self._changed:
            job = self._jobs.get(name)
            if job is None or job.request is None or job.request.remaining <= 0:
                self._policy.left(name)
            else:
                self._policy.waits(waiting(job))
        self._changed.clear()
        self._forget()

    # -- what the policy says --------------------------------------------------------------------------------------
    def _forget(self) -> None:
        """Something has changed."""
        self._candidates[:, 0] = k.UNKNOWN

    def _ask_for(self, place: int) -> None:
        """An atom's candidates, and while there are few atoms those of the others too: they are wanted soon."""
        for each in range(len(self._distinct)) if len(self._distinct) <= _FEW_ATOMS else (place,):
            self._ask(each)

    def _ask(self, place: int) -> None:
        """The candidates of an atom, up to the first one that takes any device."""
        row, at = self._candidates[place], 0
        for name in self._policy.candidates(self._distinct[place]):
            job = self._jobs[name]
            row[at] = self._numbers[name]
            at += 1
            if job.request is None or job.request.tier is None:
                break
        row[at] = k.NOBODY

    def _jobs_for(self, atom: int) -> Iterator[int]:
        for name in self._policy.candidates(atom):
            job = self._jobs[name]
            if job.request is not None and job.request.remaining > 0:
                yield self._numbers[name]

    # -- supply ----------------------------------------------------------------------------------------------------
    def _left(self) -> int:
        return self._supply.left

    def _count(self, day: Day, place: int) -> None:
        """The check-in there makes the supply be counted anew."""
        kinds = self._devices.kinds
        for kind in np.flatnonzero(self._counts).tolist():
            self._supply.add(kinds[kind], int(self._counts[kind]))
        self._counts[:] = 0
        now_ns = int(day.times_ns[place])
        self._supply.seen(kinds[self._columns[day.device[place], k.D_KIND]], now_ns, self._catalogue.atom)
        if self._supplied != self._catalogue.version:
            self._supplied = self._catalogue.version
            found = [self._catalogue.atom(kind) for kind in kinds]
            self._distinct = sorted(set(found))
            places = {atom: number for number, atom in enumerate(self._distinct)}
            self._atoms = np.array([places[atom] for atom in found], np.int64)
            self._candidates = np.full((len(self._distinct), len(self._order) + 1), k.UNKNOWN, np.int64)
        self._supplied_with(self._supply.by_atom(self._catalogue.atom))
        self._forget()
        self._state[k.COUNTED], self._state[k.LEFT] = place, self._left()

    def _supplied_with(self, by_atom: Mapping[int, int]) -> None:
        self._policy.supplied(by_atom)


def speeds_of(bounds: tuple[int, ...], tier: int | None) -> tuple[int, int]:
    """The least speed of the tier, and that above it. ``bounds``: `Tiers.bounds`."""
    if tier is None:
        return -NEVER, NEVER
    speeds = (-NEVER, *bounds, NEVER)
    return speeds[tier], speeds[tier + 1]


def _device_columns(devices: Devices) -> Ints:
    found = np.zeros((len(devices.kind), k.D_WIDTH), np.int64)
    found[:, [k.D_KIND, k.D_UNIT_NS, k.D_NETWORK_NS]] = np.stack((devices.kind, devices.unit_ns, devices.network_ns), 1)
    found[:, [k.D_WORKED, k.D_HELD_ROUND]] = -1
    return found


def _job_columns(jobs: Sequence[CollabJob], names: list[str], width: int) -> Ints:
    """Of jobs that have not come. ``names``: of the speeds."""
    found = np.zeros((len(jobs), width), np.int64)
    leases = answers = 0
    for row, job in zip(found, jobs, strict=True):
        quorum = -(-job.spec.quorum_percent * job.demand // 100)
        row[[k.J_DEMAND, k.J_WORK, k.J_ANSWERS_AT]] = job.demand, job.work, quorum
        row[[k.J_SPEED, k.J_FIRST, k.J_HEAP]] = names.index(job.spec.speed), leases, answers
        row[_OF_ROUND] = 0, NEVER, NEVER, k.NO_ROUND, 0, 0, 0
        leases, answers = leases + job.demand, answers + quorum
    return found
