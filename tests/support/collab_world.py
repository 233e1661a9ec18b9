"""Devices and federated jobs for tests, and a book that serves them in the order of time."""

from __future__ import annotations

import heapq
from random import Random
from typing import Any

import numpy as np

from offpath.sched.collab.book import Book
from offpath.sched.collab.port import CollabPolicy
from offpath.sched.collab.records import DAY_NS, MOST_DEADLINE_NS, JobSpec, RoundEnded
from offpath.sched.collab.requirements import Properties, Requirement
from offpath.sched.sim.collab_records import NEVER, CollabJob, Day, Devices

S = 10**9
DAYS = 2
REQUIREMENTS = [Requirement(Properties.of({"mem": mem, "cpu": cpu})) for mem in (0, 4) for cpu in (0, 4)]
KINDS = tuple(
    Properties.of({"mem": mem, "cpu": cpu, "speed": speed}) for mem in (2, 6) for cpu in (2, 6) for speed in range(1, 9)
)


class World:
    """A few devices and jobs, drawn by the seed; all times differ."""

    def __init__(self, seed: int) -> None:
        random = Random(seed)
        count = random.choice((20, 60, 200))
        self.is_rich = random.random() < 0.5
        """Devices abound and stay long, so that tiers are worth their while."""
        kind = np.array([random.randrange(len(KINDS)) for _ in range(count)], np.int32)
        speed = np.array([dict(KINDS[each].numbers)["speed"] for each in kind])
        self.devices = Devices(
            KINDS, kind, (S * 9) // speed, np.array([random.randrange(10 * S) for _ in range(count)], np.int64)
        )
        self.days = [self._day(random, number, count) for number in range(DAYS)]
        self.jobs = [self._job(random, number) for number in range(random.randrange(1, 9))]

    def _day(self, random: Random, number: int, count: int) -> Day:
        visits = 6 * count
        times = sorted(random.sample(range(number * DAY_NS, number * DAY_NS + DAY_NS // 12), visits))
        device = np.array([random.randrange(count) for _ in range(visits)], np.int32)
        longest = (5_000 if self.is_rich else 200) * S
        ends = np.array([each + random.randrange(longest) for each in times], np.int64)
        return Day(np.array(times, np.int64), device, ends)

    def _job(self, random: Random, number: int) -> CollabJob:
        spec = JobSpec(
            f"j{number}", "t", random.choice(REQUIREMENTS), speed="speed", tiers=random.choice((0, 2, 3)),
            alone_ns=random.randrange(S, 900 * S), rounds=random.choice((0, 40)),
        )  # fmt: skip
        return CollabJob(
            spec, random.randrange(DAY_NS // 24), random.randrange(1, 40),
            random.randrange(3, 6) if self.is_rich else random.randrange(1, 12),
            random.randrange(50 * S, 4_000 * S), random.randrange(1, 200 if self.is_rich else 9),
        )  # fmt: skip


class OneByOne:
    """The book, with answers and check-ins in the order of time."""

    def __init__(self, world: World, book: Any) -> None:
        """``book``: a `Book`, or what can be used like one."""
        self.world, self.book = world, book
        self.wanted = {job.spec.name: job for job in world.jobs}
        self.arrivals = sorted(world.jobs, key=lambda job: job.at_ns)
        self.answers: list[tuple[int, int]] = []
        self.ended: list[RoundEnded] = []

    def run(self) -> list[RoundEnded]:
        for day in self.world.days:
            for now, device, end in zip(day.times_ns.tolist(), day.device.tolist(), day.ends_ns.tolist(), strict=True):
                self.pass_time(now)
                if self.arrivals or self.book.jobs:
                    self.check_in(now, device, end)
        self.pass_time(DAYS * DAY_NS - 1)
        return self.ended

    def pass_time(self, now: int) -> None:
        while True:
            tick = self.book.next_ns()
            answer = self.answers[0][0] if self.answers else NEVER
            arrival = self.arrivals[0].at_ns if self.arrivals else NEVER
            due = min(NEVER if tick is None else tick, answer, arrival)
            if due > now:
                return
            if due == tick:
                self.take(self.book.tick(due))
            elif due == answer:
                number = heapq.heappop(self.answers)[1]
                lease = self.book.leases.get(number)
                if lease is not None:
                    self.take(self.book.result(lease.device, number, True, due))
            else:
                job = self.arrivals.pop(0)
                self.book.open(job.spec, due)
                self.ask(job, 0, due)

    def take(self, events: list[Any]) -> None:
        for event in events:
            if isinstance(event, RoundEnded):
                self.ended.append(event)
                job = self.wanted[event.job]
                if self.book.jobs[event.job].rounds < job.rounds:
                    self.ask(job, event.round + 1, event.ended_ns)
                else:
                    self.book.close(event.job, event.ended_ns)

    def ask(self, job: CollabJob, number: int, now: int) -> None:
        self.book.request(job.spec.name, number, job.demand, now + job.deadline_ns, now)

    def check_in(self, now: int, device: int, end: int) -> None:
        devices = self.world.devices
        before = self.book.tally.assigned
        lease = self.book.check_in(str(device), devices.kinds[devices.kind[device]], now)
        if lease is not None and self.book.tally.assigned > before:
            work = self.wanted[lease.job].work
            answer = now + work * int(devices.unit_ns[device]) + int(devices.network_ns[device])
            if answer <= end:
                heapq.heappush(self.answers, (answer, lease.number))


def book_of(policy: CollabPolicy, random: Random) -> Book:
    """Leases last until their round's deadline."""
    return Book(policy, random.randrange, MOST_DEADLINE_NS)
