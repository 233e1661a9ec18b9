"""Another policy in the middle of a life: it decides as one that is given the present state, and no rule is broken."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offpath.sched.collab.book import Book
from offpath.sched.collab.policies import make
from offpath.sched.collab.port import CollabPolicy
from offpath.sched.collab.requirements import Properties
from offpath.sched.collab.rounds import waiting
from offpath.sched.errors import SchedError

from .test_book import STEPS, Life, S, many

POLICIES = [("venn", 0.0), ("venn-paper", 0.0), ("venn-paper", 2.0), ("venn-irs", 0.5), ("srsf", 0.0), ("fifo", 0.0)]
KINDS = [Properties.of({"mem": mem, "cpu": cpu}) for mem in (0, 4) for cpu in (0, 4)]


def given_the_state(book: Book, policy: CollabPolicy) -> CollabPolicy:
    for job in book.jobs.values():
        policy.opened(job.spec.name, job.bit)
        if job.request is not None and job.request.remaining > 0:
            policy.waits(waiting(job))
    policy.supplied(book.supply.by_atom(book.catalogue.atom))
    return policy


def live(first: tuple[str, float], other: tuple[str, float], seed: int) -> None:
    life = Life(first[0], seed)
    for _ in range(STEPS):
        life.step()
    book, draw = life.book, life.random.randrange
    leases = dict(book.leases)
    book.adopt(make(other[0], draw, other[1]))
    assert book.leases == leases
    book.refresh()
    expected = given_the_state(book, make(other[0], draw, other[1]))
    for kind in KINDS:
        atom = book.catalogue.atom(kind)
        assert list(book.policy.candidates(atom)) == list(expected.candidates(atom))
    for _ in range(STEPS // 2):
        life.step()
    life.pass_time(400 * S)
    assert not life.leases
    assert not life.deadlines


@given(st.sampled_from(POLICIES), st.sampled_from(POLICIES), st.integers(0, 10**9))
def test_an_adopted_policy_decides_as_one_that_is_given_the_present_state(
    first: tuple[str, float], other: tuple[str, float], seed: int
) -> None:
    live(first, other, seed)


def without_supply(self: Book, policy: CollabPolicy) -> None:
    supplied = self._supplied
    ADOPT(self, policy)
    self._supplied = supplied


def without_what_waits(self: Book, policy: CollabPolicy) -> None:
    self.policy, self._supplied = policy, -1


def with_its_predecessor(self: Book, policy: CollabPolicy) -> None:
    """The new one is told, the old one decides."""
    before = self.policy
    ADOPT(self, policy)
    self.policy = before


ADOPT = Book.adopt


@pytest.mark.parametrize("planted", [without_supply, without_what_waits, with_its_predecessor])
def test_a_planted_bug_is_found(planted: Callable[[Book, CollabPolicy], None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Book, "adopt", planted)
    with pytest.raises((AssertionError, KeyError)):
        many(lambda seed: live(("fifo", 0.0), ("venn-paper", 2.0), seed))


@pytest.mark.parametrize(("epsilon", "name"), [(0.5, "venn"), (1.0, "srsf"), (-0.1, "venn-paper"), (16.5, "venn-irs")])
def test_an_epsilon_that_a_policy_cannot_have_is_refused(epsilon: float, name: str) -> None:
    with pytest.raises(SchedError, match="epsilon"):
        make(name, lambda below: 0, epsilon)


def test_no_epsilon_is_the_policy_without_it() -> None:
    assert make("venn-paper", lambda below: 0, 0.0).has_tiers
    assert not make("venn-irs", lambda below: 0, 2.0).has_tiers
