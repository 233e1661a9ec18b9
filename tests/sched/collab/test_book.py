"""The book of federated jobs, driven at random: a device serves one job, and only what it can run; all rounds end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offpath.sched.collab.baselines import By, Ordered
from offpath.sched.collab.book import Book
from offpath.sched.collab.errors import CollabRefused, RequirementInvalid
from offpath.sched.collab.fairness import Standing
from offpath.sched.collab.policies import COLLAB_POLICIES, make
from offpath.sched.collab.port import CollabPolicy, Draw, Waiting
from offpath.sched.collab.records import DAY_NS, Event, JobSpec, Lease, Released, RoundEnd, RoundEnded
from offpath.sched.collab.requirements import Properties, Requirement
from offpath.sched.collab.venn import Venn

S = 10**9
REQUIREMENTS = [Requirement(Properties.of({"mem": mem, "cpu": cpu})) for mem in (0, 4) for cpu in (0, 4)]
LEASE = 60 * S
STEPS = 150


class Life:
    """A book, and what a reader of its events must find."""

    def __init__(self, policy: str, seed: int) -> None:
        self.random = Random(seed)
        self.book = Book(make(policy, self.random.randrange), self.random.randrange, LEASE)
        self.now = 0
        self.leases: dict[int, Lease] = {}
        self.day: dict[str, set[int]] = {}
        self.ended: Counter[RoundEnd] = Counter()
        self.rounds: dict[str, int] = {}
        self.deadlines: dict[tuple[str, int], int] = {}

    def take(self, events: list[Event]) -> None:
        for event in events:
            if isinstance(event, Released):
                assert self.leases.pop(event.lease.number) == event.lease
            if isinstance(event, RoundEnded):
                self.ended[event.end] += 1
                assert event.ended_ns <= self.deadlines.pop((event.job, event.round)) + S
                assert (event.end is RoundEnd.COMPLETE) == (100 * event.done >= 80 * event.demand)

    def step(self) -> None:
        random, book = self.random, self.book
        self.pass_time(random.randrange(S) if random.random() < 0.99 else 30_000 * S)
        act = random.random()
        if act < 0.05 and len(book.jobs) < 12:
            name = f"j{len(self.rounds)}"
            self.rounds[name] = 0
            book.open(JobSpec(name, "t", random.choice(REQUIREMENTS), speed="cpu", tiers=2), self.now)
        elif act < 0.06 and book.jobs:
            self.take(book.close(random.choice(list(book.jobs)), self.now))
        elif act < 0.2 and book.jobs:
            self.request(random.choice(list(book.jobs)))
        elif act < 0.45 and self.leases:
            lease = random.choice(list(self.leases.values()))
            self.take(book.result(lease.device, lease.number, random.random() < 0.9, self.now))
        else:
            self.check_in()
        self.look()

    def pass_time(self, wait: int) -> None:
        """All that is due happens within a second of its time, as a shell has it."""
        end = self.now + wait
        while (due := self.book.next_ns()) is not None and due <= end:
            self.now = min(end, due + self.random.randrange(S))
            self.take(self.book.tick(self.now))
            assert self.book.next_ns() != due, "a tick deals with what is due"
        self.now = end

    def request(self, name: str) -> None:
        if self.book.jobs[name].request is not None:
            return
        self.rounds[name] += 1
        deadline = self.now + self.random.randrange(1, 300) * S
        self.deadlines[name, self.rounds[name]] = deadline
        self.book.request(name, self.rounds[name], self.random.randrange(1, 9), deadline, self.now)

    def check_in(self) -> None:
        device = f"d{self.random.randrange(400)}"
        properties = Properties.of({"mem": self.random.randrange(8), "cpu": self.random.randrange(8)})
        before = {lease.device: lease for lease in self.leases.values()}
        lease = self.book.check_in(device, properties, self.now)
        if lease is None:
            assert device not in before
            return
        if device in before:
            assert lease == before[device], "the same answer again"
            return
        day = self.now // DAY_NS
        assert day not in self.day.setdefault(device, set()), "one job a day"
        self.day[device].add(day)
        self.leases[lease.number] = lease
        assert self.book.jobs[lease.job].spec.requirement.is_met_by(properties)

    def look(self) -> None:
        book = self.book
        assert book.leases == self.leases
        working = Counter(lease.job for lease in self.leases.values())
        assert len({lease.device for lease in self.leases.values()}) == len(self.leases)
        for name, job in book.jobs.items():
            request = job.request
            assert working[name] == (request.leased if request is not None else 0)
            if request is not None:
                assert request.leased + request.done <= request.demand
                assert request.deadline_ns > self.now - S


def live(policy: str, seed: int) -> None:
    life = Life(policy, seed)
    for _ in range(STEPS):
        life.step()
    life.pass_time(400 * S)
    assert not life.leases
    assert not life.deadlines, "every round ends by its deadline"


@given(st.sampled_from(sorted(COLLAB_POLICIES)), st.integers(0, 10**9))
def test_no_life_breaks_a_rule(policy: str, seed: int) -> None:
    live(policy, seed)


@given(st.sampled_from(sorted(COLLAB_POLICIES)), st.integers(0, 10**9))
def test_the_same_calls_give_the_same_answers(policy: str, seed: int) -> None:
    lives = [Life(policy, seed) for _ in range(2)]
    for _ in range(100):
        for life in lives:
            life.step()
    assert lives[0].leases == lives[1].leases
    assert lives[0].ended == lives[1].ended


def worn(patch: pytest.MonkeyPatch, where: str, planted: object) -> None:
    patch.setattr(f"offpath.sched.collab.{where}", planted)


def has_short_days(self: Book, policy: CollabPolicy, draw: Draw, lease_ns: int, period_ns: int = DAY_NS) -> None:
    NEW_BOOK(self, policy, draw, lease_ns, 1)


def forgets_leases(self: Book, *words: Any) -> Lease | None:
    self._of_device.clear()
    self._worked.clear()
    return CHECK_IN(self, *words)


CHECK_IN, NEW_BOOK = Book.check_in, Book.__init__
PLANTED: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "ineligible": lambda patch: worn(patch, "requirements.Catalogue.atom", lambda self, device: (1 << 128) - 1),
    "overshot": lambda patch: worn(patch, "records.Request.remaining", property(lambda self: self.demand - self.done)),
    "never-ends": lambda patch: worn(patch, "book.Book.tick", lambda self, now_ns: []),
    "two-jobs": lambda patch: worn(patch, "book.Book.check_in", forgets_leases),
    "twice-a-day": lambda patch: worn(patch, "book.Book.__init__", has_short_days),
}


@pytest.mark.parametrize("bug", sorted(PLANTED))
def test_a_planted_bug_is_found(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    PLANTED[bug](monkeypatch)
    with pytest.raises((AssertionError, KeyError)):
        many(lambda seed: live("venn-paper", seed))


def many(life: Callable[[int], None]) -> None:
    for seed in range(50):
        life(seed)


class Everybody(Ordered):
    """Names all jobs for all devices, as the public program does for devices that its merge gave to others."""

    def candidates(self, atom: int) -> Iterator[str]:
        return super().candidates((1 << 128) - 1)


def live_with_everybody(seed: int) -> None:
    life = Life("fifo", seed)
    life.book.policy = Everybody("everybody", By.ARRIVAL)
    for _ in range(STEPS):
        life.step()


@given(st.integers(0, 10**9))
def test_a_policy_that_names_jobs_which_cannot_use_the_device_does_no_harm(seed: int) -> None:
    live_with_everybody(seed)


def test_without_that_check_it_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    worn(monkeypatch, "book._can_use", lambda job, *_: job.request is not None and job.request.remaining > 0)
    with pytest.raises(AssertionError):
        many(live_with_everybody)


@given(st.integers(0, 10**9))
def test_with_epsilon_0_service_changes_nothing(seed: int) -> None:
    class Blind(Venn):
        def waits(self, waiting: Waiting) -> None:
            super().waits(waiting._replace(standing=Standing(1, 0)))

    lives = [Life("fifo", seed) for _ in range(2)]
    for life, policy in zip(lives, (Venn(epsilon=0.0), Blind()), strict=True):
        life.book.policy = policy
        for _ in range(STEPS):
            life.step()
    assert lives[0].leases == lives[1].leases


# -- refusals ---------------------------------------------------------------------------------------------------------
def opened() -> Book:
    book = Book(make("fifo", Random(0).randrange), Random(0).randrange, LEASE)
    book.open(JobSpec("a", "t", REQUIREMENTS[0]), 0)
    return book


@pytest.mark.parametrize(
    ("call", "code"),
    [
        (lambda book: book.request("b", 1, 1, S, 0), "no_job"),
        (lambda book: book.request("a", 1, 0, S, 0), "demand"),
        (lambda book: book.request("a", 1, 10**7, S, 0), "demand"),
        (lambda book: book.request("a", 1, 1, 5 * S, 5 * S), "deadline"),
        (lambda book: book.request("a", 1, 1, 10**18, 0), "deadline"),
        (lambda book: book.open(JobSpec("a", "t", REQUIREMENTS[1]), 0), "job_exists"),
        (lambda book: book.open(JobSpec("b", "t", REQUIREMENTS[1], quorum_percent=0), 0), "job"),
        (lambda book: book.open(JobSpec("b", "t", REQUIREMENTS[1], alone_ns=0), 0), "job"),
        (lambda book: book.open(JobSpec("b", "t", REQUIREMENTS[1], tiers=10**9), 0), "job"),
        (lambda book: book.open(JobSpec("b", "t", REQUIREMENTS[1], rounds=-1), 0), "job"),
        (lambda book: book.result("d", 7, True, 0), "no_lease"),
    ],
)
def test_what_cannot_be_is_refused_and_changes_nothing(call: Callable[[Book], object], code: str) -> None:
    book = opened()
    with pytest.raises(CollabRefused) as refused:
        call(book)
    assert refused.value.code == code
    assert book.jobs["a"].request is None
    assert len(book.catalogue) == 1


def test_a_request_twice_is_one_and_a_round_comes_once() -> None:
    book = opened()
    for _ in range(2):
        book.request("a", 1, 2, 9 * S, 0)
    with pytest.raises(CollabRefused, match="has not ended"):
        book.request("a", 2, 2, 9 * S, 0)
    assert [type(event) for event in book.tick(9 * S)] == [RoundEnded]
    with pytest.raises(CollabRefused, match="has ended"):
        book.request("a", 1, 2, 20 * S, 10 * S)


def test_a_device_cannot_answer_for_another() -> None:
    book = opened()
    book.request("a", 1, 2, 9 * S, 0)
    lease = book.check_in("d", Properties.of({"mem": 1, "cpu": 1}), 1)
    assert lease is not None
    with pytest.raises(CollabRefused):
        book.result("e", lease.number, True, 2)
    assert book.leases == {lease.number: lease}


@pytest.mark.parametrize(
    "numbers",
    [{"": 1}, {"x" * 65: 1}, {"a\n": 1}, {"a": -1}, {"a": 2**60}, {"a": True}, {f"n{n}": 1 for n in range(40)}],
)
def test_properties_out_of_bounds_are_refused(numbers: dict[str, int]) -> None:
    with pytest.raises(RequirementInvalid):
        Properties.of(numbers)
