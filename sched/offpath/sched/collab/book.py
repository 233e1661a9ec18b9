"""The book of federated jobs: which job asks for which devices, which device works for whom, until when.

No clock, no input or output, no random numbers of its own: times and draws are given. Three shells drive it: the
controller, the simulator and the property tests. What holds after every call:

- a device has one lease at most, and gets one a day;
- a lease is for a job whose requirement the device meets;
- a round never has more devices, working and done, than it requested;
- a round ends once: complete with its quorum, or by its deadline.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Final

from offpath.sched.collab.errors import CollabRefused
from offpath.sched.collab.fairness import Standing
from offpath.sched.collab.port import CollabPolicy, Draw
from offpath.sched.collab.records import (
    DAY_NS,
    MOST_DEADLINE_NS,
    MOST_DEMAND,
    MOST_JOBS,
    Device,
    Event,
    Job,
    JobSpec,
    Kept,
    Lease,
    Released,
    Request,
    RoundEnd,
    RoundEnded,
    Tally,
)  # fmt: skip
from offpath.sched.collab.requirements import Catalogue, Properties
from offpath.sched.collab.rounds import fits, speed_of, tier_of, waiting
from offpath.sched.collab.supply import Supply
from offpath.sched.collab.tiers import Profile, Sample

_NS: Final = 10**9
_LEAST_EXPIRIES: Final = 1_024


class Book:
    """``policy`` decides; the book keeps it to the rules above. ``lease_ns``: how long a device may work.
    ``period_ns``: a device gets one job in each; the paper's is a day."""

    def __init__(self, policy: CollabPolicy, draw: Draw, lease_ns: int, period_ns: int = DAY_NS) -> None:
        self.policy, self._draw, self._lease_ns = policy, draw, lease_ns
        self._period_ns = period_ns
        self.catalogue = Catalogue()
        self.supply = Supply()
        self.jobs: dict[str, Job] = {}
        self.leases: dict[int, Lease] = {}
        self.tally = Tally()
        self._of_device: dict[Device, int] = {}
        self._day, self._worked = -1, set[Device]()
        """The devices that got a job on that day, the last one."""
        self._expiries: list[tuple[int, int]] = []
        self._deadlines: list[tuple[int, str, int]] = []
        self._next = 1
        self._changed: dict[str, None] = {}
        """Jobs whose figures the policy does not know yet."""
        self._supplied = -1
        """The catalogue's version that the policy's supply is of."""

    # -- jobs -----------------------------------------------------------------------------------------------------
    def open(self, spec: JobSpec, now_ns: int) -> None:
        """Raises: CollabRefused: the name is taken, too many jobs, or a figure out of bounds. TooManyRequirements."""
        if spec.name in self.jobs:
            raise CollabRefused("job_exists", f"a job {spec.name} is open")
        if len(self.jobs) >= MOST_JOBS:
            raise CollabRefused("too_many_jobs", f"{MOST_JOBS} jobs are open")
        if fault := spec.fault():
            raise CollabRefused("job", fault)
        bit = self.catalogue.open(spec.requirement)
        self.jobs[spec.name] = Job(spec, bit, now_ns, Profile(max(2, spec.tiers)), Standing(spec.alone_ns, 0))
        self.policy.opened(spec.name, bit)

    def request(self, name: str, number: int, demand: int, deadline_ns: int, now_ns: int) -> None:
        """The job wants ``demand`` devices for round ``number``; the same call again changes nothing.

        Raises: CollabRefused.
        """
        job = self._job(name)
        running = job.request
        if running is not None and (running.round, running.demand) == (number, demand):
            return
        if running is not None:
            raise CollabRefused("round_runs", f"round {running.round} of {name} has not ended")
        if number <= job.last_round:
            raise CollabRefused("round_over", f"round {number} of {name} has ended")
        if not 1 <= demand <= MOST_DEMAND:
            raise CollabRefused("demand", f"a round needs 1 to {MOST_DEMAND} devices")
        if not now_ns < deadline_ns <= now_ns + MOST_DEADLINE_NS:
            raise CollabRefused("deadline", "the deadline has passed, or is more than a week ahead")
        made = Request(number, demand, now_ns, deadline_ns, self._draw(1 << 32))
        job.bounds, made.tier = tier_of(job, self._draw) if self.policy.has_tiers else (None, None)
        job.request, job.last_round = made, number
        heapq.heappush(self._deadlines, (deadline_ns, name, number))
        self._changed[name] = None
        self._tell()

    def close(self, name: str, now_ns: int) -> list[Event]:
        """No device works for the job any more. Raises: CollabRefused."""
        job = self._job(name)
        events = list(self._end(job, RoundEnd.CLOSED, now_ns)) if job.request is not None else []
        self.catalogue.close(job.spec.requirement)
        del self.jobs[name]
        self._tell()
        self.policy.closed(name)
        return events

    # -- devices --------------------------------------------------------------------------------------------------
    def check_in(self, device: Device, properties: Properties, now_ns: int) -> Lease | None:
        """The lease that the device has, or gets; None: no job needs it now, or it has worked today.

        The caller calls `tick` first if time has passed. A check-in of a device that has worked today is no supply.
        """
        self.tally.check_ins += 1
        held = self._of_device.get(device)
        if held is not None:
            return self.leases[held]
        if now_ns // self._period_ns > self._day:
            self._day, self._worked = now_ns // self._period_ns, set()
        if device in self._worked:
            self.tally.spent += 1
            return None
        atom = self.catalogue.atom(properties)
        is_due = self.supply.seen(properties, now_ns, self.catalogue.atom)
        self.refresh(is_due=is_due)
        for name in self.policy.candidates(atom):
            job = self.jobs.get(name)
            if job is not None and _can_use(job, atom, properties, now_ns):
                return self._lease(job, device, properties, now_ns)
        self.tally.idle += 1
        return None

    def refresh(self, *, is_due: bool = False) -> None:
        """The policy learns the present supply, if it is due or requirements have come or gone. A check-in does it."""
        if is_due or self._supplied != self.catalogue.version:
            self._supplied = self.catalogue.version
            self.policy.supplied(self.supply.by_atom(self.catalogue.atom))

    def lease_of(self, device: Device) -> Lease | None:
        """The lease that the device has; it gets none by this."""
        number = self._of_device.get(device)
        return None if number is None else self.leases[number]

    def has_worked(self, device: Device) -> bool:
        """It got a job on the last day that the book knows, and gets none on that day again."""
        return device in self._worked

    @property
    def worked(self) -> int:
        """Devices that got a job on that day."""
        return len(self._worked)

    def result(self, device: Device, number: int, is_good: bool, now_ns: int) -> list[Event]:
        """A device has finished, or gives up. Raises: CollabRefused: it has no such lease (any more)."""
        lease = self.leases.get(number)
        if lease is None or lease.device != device:
            raise CollabRefused("no_lease", "the device has no such lease, or it has ended")
        job = self.jobs[lease.job]
        request = job.request
        assert request is not None, "a round that ends releases its leases"
        request.done += is_good
        events: list[Event] = [self._release(lease, is_good, "" if is_good else "the device gave up", now_ns)]
        if is_good and request.tier is None:  # those of one tier alone would shift the thresholds to it
            job.profile.learn(Sample(lease.speed, (now_ns - lease.issued_ns) / _NS))
        if 100 * request.done >= job.spec.quorum_percent * request.demand:
            events += self._end(job, RoundEnd.COMPLETE, now_ns)
        return events

    def tick(self, now_ns: int) -> list[Event]:
        """Leases that have expired and rounds whose deadline has come."""
        events: list[Event] = []
        while self._expiries and self._expiries[0][0] <= now_ns:
            lease = self.leases.get(heapq.heappop(self._expiries)[1])
            if lease is not None:
                events.append(self._release(lease, False, "the lease expired", now_ns))
        while self._deadlines and self._deadlines[0][0] <= now_ns:
            _, name, number = heapq.heappop(self._deadlines)
            job = self.jobs.get(name)
            if job is not None and job.request is not None and job.request.round == number:
                events += self._end(job, RoundEnd.ABORTED, now_ns)
        return events

    def next_ns(self) -> int | None:
        """When `tick` has something to do, at the earliest."""
        times = [each[0][0] for each in (self._expiries, self._deadlines) if each]
        return min(times) if times else None

    # -- another configuration ------------------------------------------------------------------------------------
    def lease_for(self, lease_ns: int) -> None:
        """How long a device may work, for leases from here on."""
        self._lease_ns = lease_ns

    def adopt(self, policy: CollabPolicy) -> None:
        """``policy``, a new one, decides from here on: it learns every open job, what each waits for, and the supply.
        Leases, rounds and tiers stay as they are."""
        self.policy = policy
        for job in self.jobs.values():
            policy.opened(job.spec.name, job.bit)
            self._changed[job.spec.name] = None
        self._tell()
        self._supplied = -1

    # -- a new process --------------------------------------------------------------------------------------------
    def resume(self, kept: Kept) -> None:
        """Continue an earlier book; this one is new. `tick` then ends what has ended meanwhile. The policy knows all
        present figures; the earlier book's may have been behind (§4.2).

        Raises: CollabRefused: a lease is for no round that runs, a device has two, or a figure is out of bounds.
        TooManyRequirements.
        """
        self._day, self._worked, self._next = kept.day, set(kept.worked), kept.following
        for job in kept.jobs:
            if job.spec.name in self.jobs or (fault := job.spec.fault()):
                raise CollabRefused("job", fault if job.spec.name not in self.jobs else "a job is kept twice")
            job.bit = self.catalogue.open(job.spec.requirement)
            self.jobs[job.spec.name] = job
            self.policy.opened(job.spec.name, job.bit)
            if job.request is not None:
                job.request.leased = 0
                heapq.heappush(self._deadlines, (job.request.deadline_ns, job.spec.name, job.request.round))
                self._changed[job.spec.name] = None
        for lease in kept.leases:
            holder = self.jobs.get(lease.job)
            request = holder.request if holder is not None else None
            if holder is None or request is None or request.round != lease.round or request.remaining <= 0:
                raise CollabRefused("lease", f"lease {lease.number} is for no round that runs, or for one that is full")
            if lease.device in self._of_device or lease.number >= self._next:
                raise CollabRefused(
                    "lease", f"lease {lease.number}: its device has another one, or it is not issued yet"
                )
            request.leased += 1
            self.leases[lease.number] = holder.leases[lease.number] = lease
            self._of_device[lease.device] = lease.number
            heapq.heappush(self._expiries, (lease.expires_ns, lease.number))
        self._tell()

    # -- inside ---------------------------------------------------------------------------------------------------
    def _job(self, name: str) -> Job:
        if name not in self.jobs:
            raise CollabRefused("no_job", f"no job {name} is open")
        return self.jobs[name]

    def _tell(self) -> None:
        """The policy learns what has changed: when a request comes or needs no more, and when a round ends (§4.2)."""
        for name in self._changed:
            job = self.jobs.get(name)
            if job is None or job.request is None or job.request.remaining <= 0:
                self.policy.left(name)
            else:
                self.policy.waits(waiting(job))
        self._changed.clear()

    def _lease(self, job: Job, device: Device, properties: Properties, now_ns: int) -> Lease:
        request = job.request
        assert request is not None
        until_ns = min(now_ns + self._lease_ns, request.deadline_ns)
        number, speed = self._next, speed_of(job, properties)
        lease = Lease(number, device, job.spec.name, request.round, now_ns, until_ns, speed)
        self._next += 1
        self.leases[number] = job.leases[number] = lease
        self._of_device[device] = number
        self._worked.add(device)
        heapq.heappush(self._expiries, (until_ns, number))
        request.leased += 1
        self.tally.assigned += 1
        self._changed[job.spec.name] = None
        if request.remaining == 0:
            request.filled_ns = now_ns
            self._tell()
        return lease

    def _release(self, lease: Lease, answered: bool, why: str, now_ns: int) -> Released:
        """The device is free; the round may get another one."""
        del self.leases[lease.number], self._of_device[lease.device]
        if len(self._expiries) > 2 * len(self.leases) + _LEAST_EXPIRIES:  # most are of leases that have ended
            self._expiries = [(each.expires_ns, each.number) for each in self.leases.values()]
            heapq.heapify(self._expiries)
        job = self.jobs[lease.job]
        del job.leases[lease.number]
        assert job.request is not None
        job.served_ns += max(0, now_ns - lease.issued_ns) // job.request.demand
        job.request.leased -= 1
        self._changed[lease.job] = None
        if job.request.remaining == 1 and not answered and not job.request.is_over:  # it waits again
            self._tell()
        return Released(lease, answered, why)

    def _end(self, job: Job, end: RoundEnd, now_ns: int) -> Iterator[Event]:
        """The round is over: what still works for it works for nobody."""
        request = job.request
        assert request is not None
        request.is_over = True
        for lease in list(job.leases.values()):
            yield self._release(lease, False, f"the round is {end}", now_ns)
        job.standing = Standing(job.spec.alone_ns, job.served_ns)
        if end is RoundEnd.COMPLETE:
            filled_ns = request.filled_ns if request.filled_ns >= 0 else now_ns
            job.rounds += 1
            job.schedule_ns += filled_ns - request.submitted_ns
            job.response_ns += now_ns - filled_ns
        job.request = None
        self._changed[job.spec.name] = None
        self._tell()
        yield RoundEnded(
            job.spec.name, request.round, end, request.done, request.demand, request.submitted_ns, request.filled_ns,
            now_ns,
        )  # fmt: skip


def _can_use(job: Job, atom: int, properties: Properties, now_ns: int) -> bool:
    """The policy is not trusted to name jobs that can use the device."""
    request = job.request
    if request is None or not atom >> job.bit & 1 or request.remaining <= 0 or request.deadline_ns <= now_ns:
        return False
    return request.tier is None or fits(job, request, properties)
