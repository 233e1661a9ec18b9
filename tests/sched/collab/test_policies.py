"""Policies that follow changes answer as one that is given the present state at once; fairness; chances of samplers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offpath.sched.collab.baselines import By, Ordered
from offpath.sched.collab.fairness import Standing, demand, queue
from offpath.sched.collab.irs import JOB
from offpath.sched.collab.lines import Entry, Line
from offpath.sched.collab.policies import COLLAB_POLICIES, make
from offpath.sched.collab.port import CollabPolicy, Waiting
from offpath.sched.collab.scarce import Scarcest
from offpath.sched.collab.venn import Venn
from offpath.sched.errors import SchedError

STANDINGS = st.builds(Standing, st.integers(1, 10**6), st.integers(0, 10**6))
WAITING = st.builds(
    Waiting,
    job=st.sampled_from("abcdef"),
    bit=st.integers(0, 3),
    remaining=st.integers(1, 50),
    arrived_ns=st.just(0),
    rank=st.integers(0, 99),
    standing=STANDINGS,
    demand=st.integers(0, 50),
)
FOLLOWERS: dict[str, Callable[[], CollabPolicy]] = {
    "venn": Scarcest,
    "venn-paper": Venn,
    "fair venn": lambda: Venn(epsilon=2.0),
    "fifo": lambda: Ordered("fifo", By.ARRIVAL),
    "srsf": lambda: Ordered("srsf", By.REMAINING),
    "random": lambda: Ordered("random", By.RANK),
}


def follow(name: str, seed: int) -> None:
    """After each change the policy answers as one that is given the present state at once."""
    random = Random(seed)
    followed, waiting, supply = FOLLOWERS[name](), dict[str, Waiting](), dict[int, int]()
    for _ in range(30):
        job, act = random.choice("abcdef"), random.random()
        if act < 0.7:
            standing = Standing(random.randrange(1, 99), random.randrange(99))
            bit = waiting[job].bit if job in waiting and act < 0.6 else random.randrange(4)
            remaining, rank, whole = random.randrange(1, 50), random.randrange(9), random.randrange(50)
            waiting[job] = Waiting(job, bit, remaining, 0, rank, standing, whole)
            followed.waits(waiting[job])
        elif act < 0.9:
            waiting.pop(job, None)
            followed.left(job)
        else:
            supply = {atom: random.randrange(99) for atom in range(16) if random.random() < 0.7}
            followed.supplied(supply)
        fresh = FOLLOWERS[name]()
        fresh.supplied(supply)
        for each in waiting.values():
            fresh.waits(each)
        for atom in range(16):
            answer = list(followed.candidates(atom))
            assert answer == list(fresh.candidates(atom))
            assert sorted(answer) == sorted(job for job, each in waiting.items() if atom >> each.bit & 1)


def follow_often(name: str) -> None:
    for seed in range(100):
        follow(name, seed)


@given(st.sampled_from(sorted(FOLLOWERS)), st.integers(0, 10**9))
def test_a_policy_that_followed_changes_answers_as_a_new_one(name: str, seed: int) -> None:
    follow(name, seed)


def keeps_its_place(self: Line, old: Entry, new: Entry) -> None:
    self._entries[self._entries.index(old)] = new


@pytest.mark.parametrize(
    ("policy", "where", "name", "planted"),
    [
        ("venn-paper", Line, "replace", keeps_its_place),
        ("venn-paper", Venn, "_queued", lambda self, bit, group: None),
        ("venn", Scarcest, "_placed", lambda self, bit, group: self._best.clear()),
    ],
)
def test_a_policy_that_loses_a_change_is_found(
    policy: str, where: type, name: str, planted: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(where, name, planted)
    with pytest.raises((AssertionError, IndexError)):
        follow_often(policy)


@given(st.lists(WAITING, min_size=1, unique_by=lambda each: each.job))
def test_an_order_is_that_of_its_key(some: list[Waiting]) -> None:
    policy = make("srsf", Random(0).randrange)
    for each in some:
        policy.waits(each)
    expected = [each.job for each in sorted(some, key=lambda each: (each.remaining, each.job))]
    assert list(policy.candidates(15)) == expected


# -- the order by demand, scarcity and queue ---------------------------------------------------------------------------
@given(
    st.lists(WAITING, min_size=1, unique_by=lambda each: each.job),
    st.lists(st.integers(0, 99), min_size=16, max_size=16),
)
def test_venn_orders_jobs_by_whole_demand_times_devices_by_queue(some: list[Waiting], counts: list[int]) -> None:
    policy, supply = Scarcest(), dict(enumerate(counts))
    for each in some:
        policy.waits(each)
    policy.supplied(supply)

    def key(each: Waiting) -> tuple[float, int, str]:
        size = max(1, sum(count for atom, count in supply.items() if atom >> each.bit & 1))
        queue = sum(other.bit == each.bit for other in some)
        return float(each.demand or each.remaining) * size / queue, each.arrived_ns, each.job

    for atom in range(16):
        able = [each for each in some if atom >> each.bit & 1]
        assert list(policy.candidates(atom)) == [each.job for each in sorted(able, key=key)]


def test_of_equal_jobs_the_one_that_was_served_goes_on() -> None:
    """With what remains, the other one would have its turn."""
    order = {}
    for name in ("venn", "srsf"):
        policy = make(name, Random(0).randrange)
        policy.waits(Waiting("served", 0, 10, 0, 0, Standing(1, 0), 10))  # its next round
        policy.waits(Waiting("begun", 0, 4, 1, 0, Standing(1, 0), 10))
        order[name] = list(policy.candidates(1))
    assert order == {"venn": ["served", "begun"], "srsf": ["begun", "served"]}


# -- fairness ---------------------------------------------------------------------------------------------------------
@given(st.lists(st.tuples(st.integers(1, 1000), STANDINGS), min_size=1, max_size=8))
def test_as_epsilon_grows_the_job_furthest_below_its_fair_share_comes_first(jobs: list[tuple[int, Standing]]) -> None:
    """The ranks of shares decide from some ε on; below it the demand does."""
    lowest = min(standing.share for _, standing in jobs)
    others = [standing.share for _, standing in jobs if standing.share > lowest * 1.000_1]
    if others:
        policy = Venn(epsilon=1e6)
        for n, (remaining, standing) in enumerate(jobs):
            policy.waits(Waiting(str(n), 0, remaining, n, 0, standing))
        first = next(iter(policy.candidates(1)))
        assert jobs[int(first)][1].share < min(others)


def test_a_little_fairness_moves_a_starved_job_forward_and_much_moves_it_to_the_front() -> None:
    large_starved, small_served = (100, Standing(1000, 10)), (10, Standing(1000, 500))
    keys = [[demand(*job, epsilon) for job in (large_starved, small_served)] for epsilon in (0.0, 0.25, 1.0, 4.0)]
    assert [large < small for large, small in keys] == [False, False, True, True]


def test_a_group_below_its_share_gets_a_longer_queue_and_without_epsilon_it_counts_jobs() -> None:
    assert queue(3, 1000, 10, 0.0) == queue(3, 1000, 999, 0.0) == 3 * JOB
    assert queue(3, 1000, 10, 1.0) == 300 * JOB
    assert queue(3, 1000, 10, 1.0) > queue(3, 1000, 20, 1.0)
    assert queue(0, 0, 0, 2.0) == 0
    assert queue(1, 10**6, 0, 1e9) > queue(1, 10**6, 10, 1.0), "any ε is a number"


# -- sampling ---------------------------------------------------------------------------------------------------------
def shares_of(name: str) -> dict[str, float]:
    """Of devices that meet all requirements: jobs a and b wait for 10 and 30, c waits for none."""
    random = Random(7)
    policy = make(name, random.randrange)
    for bit, job in enumerate("abc"):
        policy.opened(job, bit)
    for bit, remaining in enumerate((10, 30)):
        policy.waits(Waiting("ab"[bit], bit, remaining, 0, 0, Standing(1, 0)))
    counts = Counter(job for _ in range(6000) for job in policy.candidates(0b111))
    return {job: count / 6000 for job, count in counts.items()}


def test_the_chances_of_random_matching() -> None:
    assert shares_of("random-apple") == pytest.approx({"a": 1 / 3, "b": 1 / 3, "c": 1 / 3}, abs=0.03)
    assert shares_of("random-meta") == pytest.approx({"a": 0.5, "b": 0.5}, abs=0.03)
    assert shares_of("random-google") == pytest.approx({"a": 0.25, "b": 0.75}, abs=0.03)


def test_a_closed_job_is_sampled_no_more() -> None:
    policy = make("random-apple", Random(7).randrange)
    policy.opened("a", 0)
    policy.closed("a")
    assert list(policy.candidates(1)) == []


def test_policies_are_known_by_name() -> None:
    assert all(make(name, Random(0).randrange).name == name for name in COLLAB_POLICIES)
    with pytest.raises(SchedError, match="known are venn, venn-paper"):
        make("best", Random(0).randrange)
