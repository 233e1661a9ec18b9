"""A book that continues an earlier one: it decides as that one would have, and refuses what contradicts itself."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offpath.sched.collab.book import Book
from offpath.sched.collab.errors import CollabRefused
from offpath.sched.collab.policies import make
from offpath.sched.collab.records import DAY_NS, JobSpec, Kept, Lease
from offpath.sched.collab.requirements import Properties, Requirement
from offpath.sched.collab.saved import job_data, job_of, profile_data

S = 10**9
DEVICES = 60
KINDS = [Properties.of({"mem": mem, "cpu": cpu}, {"os": (14, cpu)}, ["wifi"]) for mem in (1, 8) for cpu in (1, 8)]
REQUIREMENTS = [
    Requirement(),
    Requirement(Properties.of({"mem": 4})),
    Requirement(Properties.of({"cpu": 4}, {"os": (14, 2)}, ["wifi"])),
]


def new() -> Book:
    """With a policy that depends on no figure which it learns late (remaining demand, see `Book._tell`)."""
    return Book(make("fifo", lambda below: 0), lambda below: 0, 600 * S)


def kept(book: Book, worked: set[int], day: int, following: int) -> Kept:
    """As a file keeps it: through JSON."""
    jobs = tuple(
        job_of(json.loads(json.dumps(job_data(job))), json.loads(json.dumps(profile_data(job))))
        for job in book.jobs.values()
    )
    return Kept(jobs, tuple(book.leases.values()), worked, day, following)


def lived(seed: int, steps: int) -> tuple[Book, set[int], int, int]:
    """A book after some steps: it, who has worked on its last day, the time, the next lease's number."""
    random, book, now, worked, following = Random(seed), new(), DAY_NS, set[int](), 1
    for step in range(steps):
        now += random.randrange(60 * S)
        book.tick(now)
        act = random.random()
        if act < 0.08:
            book.open(JobSpec(f"j{step}", "t", random.choice(REQUIREMENTS), speed="cpu", tiers=2), now)
        elif act < 0.25 and book.jobs:
            job = random.choice(list(book.jobs.values()))
            if job.request is None:
                book.request(job.spec.name, job.last_round + 1, random.randrange(1, 8), now + 1_800 * S, now)
        elif act < 0.4 and book.leases:
            lease = random.choice(list(book.leases.values()))
            book.result(lease.device, lease.number, random.random() < 0.8, now)
        else:
            device = random.randrange(DEVICES)
            before = len(book.leases)
            lease_or_none = book.check_in(device, KINDS[device % len(KINDS)], now)
            if lease_or_none is not None and len(book.leases) > before:
                worked.add(device)
                following = lease_or_none.number + 1
    return book, worked, now, following


@given(seed=st.integers(0, 10_000), steps=st.integers(0, 120))
def test_a_continued_book_answers_as_the_earlier_one_would_have(seed: int, steps: int) -> None:
    before, worked, now, following = lived(seed, steps)
    after = new()
    after.resume(kept(before, worked, now // DAY_NS, following))
    assert after.leases == before.leases
    for device in range(DEVICES):
        kind = KINDS[device % len(KINDS)]
        assert after.check_in(device, kind, now) == before.check_in(device, kind, now)
    later = now + 7_200 * S
    assert sorted(map(repr, after.tick(later))) == sorted(map(repr, before.tick(later)))
    assert {name: job_data(job) for name, job in after.jobs.items()} == {
        name: job_data(job) for name, job in before.jobs.items()
    }


def one_lease() -> tuple[Book, Lease]:
    book = new()
    book.open(JobSpec("a", "t", Requirement()), 0)
    book.request("a", 0, 1, 1_000 * S, 0)
    lease = book.check_in(7, KINDS[0], 0)
    assert lease is not None
    return book, lease


def test_a_device_that_has_worked_today_does_not_work_again_in_a_new_process() -> None:
    book, lease = one_lease()
    book.result(7, lease.number, False, S)
    after = new()
    after.resume(kept(book, {7}, 0, 2))
    assert after.has_worked(7)
    assert after.check_in(7, KINDS[0], 2 * S) is None
    assert after.check_in(8, KINDS[0], 2 * S) is not None


@pytest.mark.parametrize(
    ("spoil", "text"),
    [
        (lambda k: replace(k, leases=(*k.leases, k.leases[0]._replace(number=0, device=8))), "full"),
        (lambda k: replace(k, leases=(k.leases[0]._replace(round=5),)), "no round that runs"),
        (lambda k: replace(k, leases=(k.leases[0]._replace(job="b"),)), "no round that runs"),
        (lambda k: replace(k, leases=(k.leases[0]._replace(number=9),)), "not issued"),
        (lambda k: replace(k, jobs=(k.jobs[0], k.jobs[0])), "twice"),
    ],
)
def test_what_contradicts_itself_is_refused(spoil: Callable[[Kept], Kept], text: str) -> None:
    book, _ = one_lease()
    with pytest.raises(CollabRefused, match=text):
        new().resume(spoil(kept(book, {7}, 0, 2)))


def test_two_leases_of_one_device_are_refused() -> None:
    book = new()
    book.open(JobSpec("a", "t", Requirement()), 0)
    book.request("a", 0, 2, 1_000 * S, 0)
    lease = book.check_in(7, KINDS[0], 0)
    assert lease is not None
    made = kept(book, {7}, 0, 5)
    with pytest.raises(CollabRefused, match="another one"):
        new().resume(replace(made, leases=(lease, lease._replace(number=2))))


def test_leases_that_have_ended_are_not_kept_for_their_time() -> None:
    """A lease may last a day, and its device answer in a second: the list of expiries follows the leases that run."""
    book = new()
    book.open(JobSpec("a", "t", Requirement()), 0)
    book.request("a", 0, 10_000, 1_000 * S, 0)
    waits = book.check_in(-1, KINDS[0], 0)
    for device in range(5_000):
        lease = book.check_in(device, KINDS[0], S)
        assert lease is not None
        book.result(device, lease.number, False, S)
        assert len(book._expiries) <= 2 * len(book.leases) + 1_025
    assert waits is not None
    assert book.next_ns() == waits.expires_ns
    assert [event.lease for event in book.tick(waits.expires_ns) if hasattr(event, "lease")] == [waits]
