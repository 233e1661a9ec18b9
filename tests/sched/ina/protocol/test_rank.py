"""A rank's machine: what it applies, what it states, what it does with what was gathered."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from offpath.sched.errors import InvalidTransition
from offpath.sched.ina.protocol.rank import Give, Rank, Receive, Redo, RunPlain, Statement
from offpath.sched.ina.protocol.records import EpochRecord, Grant, stamp

S1, S2 = stamp(1, 1), stamp(1, 2)


def epoch(number: int, granted: bool = True, ranks: int = 3, incarnation: int = 1, term: int = 1) -> EpochRecord:
    grant = Grant("t", ("s",) * ranks, "token") if granted else None
    return EpochRecord("j", incarnation, term, number, grant)


def boundary(ranks: list[Rank], previous: tuple[int, int] | None) -> tuple[int, int]:
    for each in ranks:
        each.agreed(previous)
    gave = [each.boundary() for each in ranks]
    return min(each[0] for each in gave), min(each[1] for each in gave)


def granted(ranks: int = 3) -> list[Rank]:
    """Ranks that have all applied S1, with the boundary after it under way."""
    out = [Rank("j", 1, rank, ranks) for rank in range(ranks)]
    for each in out:
        assert each.hold(epoch(1, ranks=ranks))
        assert each.ready(S1)
    boundary(out, boundary(out, None))
    assert [each.state().applied for each in out] == [S1] * ranks
    return out


def settle(ranks: list[Rank], at: int) -> list[tuple[Redo, ...]]:
    said = [each.statement() for each in ranks]
    assert all(each is not None and each.stamp == at for each in said)
    values = [each.value for each in said if each is not None]
    return [each.gathered(at, values) for each in ranks]


def test_an_epoch_is_applied_one_boundary_after_all_offered_it() -> None:
    ranks = [Rank("j", 1, rank, 2) for rank in range(2)]
    for each in ranks:
        each.hold(epoch(1, granted=False, ranks=2))
    result = boundary(ranks, None)
    assert [each.state().applied for each in ranks] == [0, 0]
    boundary(ranks, result)
    assert [each.state().applied for each in ranks] == [S1, S1]


def test_what_one_rank_lacks_or_cannot_reach_is_not_applied() -> None:
    ranks = [Rank("j", 1, rank, 2) for rank in range(2)]
    ranks[0].hold(epoch(1, ranks=2))
    ranks[0].ready(S1)
    result = boundary(ranks, None)
    ranks[1].hold(epoch(1, ranks=2))  # held, and its tree not attached
    result = boundary(ranks, result)
    boundary(ranks, result)
    assert [each.state().applied for each in ranks] == [0, 0]


@pytest.mark.parametrize(
    "other",
    [epoch(1), epoch(0), epoch(5, incarnation=2), epoch(5, ranks=2), EpochRecord("k", 1, 1, 5)],
    ids=["twice", "older", "incarnation", "ranks", "job"],
)
def test_epochs_that_are_no_news_are_ignored(other: EpochRecord) -> None:
    rank = Rank("j", 1, 0, 3)
    assert rank.hold(epoch(1))
    assert not rank.hold(other)


def test_a_newer_term_is_newer_than_any_number() -> None:
    rank = Rank("j", 1, 0, 3)
    assert rank.hold(epoch(9))
    assert rank.hold(epoch(1, term=2))
    assert not rank.hold(epoch(10))


def test_a_result_that_only_some_have_is_given_to_all() -> None:
    ranks = granted()
    assert all(each.issue(8, "f", True) for each in ranks)
    ranks[1].complete(0)
    for each in ranks:
        assert each.lost(S1)
    assert [each.waits for each in ranks] == [True] * 3
    assert settle(ranks, S1) == [
        (Receive(0, 1, 8, "f", is_needed=True),), (Give(0, 1, 8, "f"),), (Receive(0, 1, 8, "f", is_needed=True),),
    ]  # fmt: skip
    assert [each.waits for each in ranks] == [False] * 3


def test_what_nobody_has_runs_plain() -> None:
    ranks = granted(2)
    for each in ranks:
        each.issue(8, "f", True)
        each.lost(S1)
    assert settle(ranks, S1) == [(RunPlain(0),), (RunPlain(0),)]
    ranks[0].complete(0)
    assert ranks[0].issue(8, "f", True) is None  # never this tree again


def test_who_is_one_ahead_gives_first_and_then_runs_its_own_plain() -> None:
    ranks = granted(2)
    for each in ranks:
        each.issue(8, "f", True)
    ranks[0].complete(0)
    ranks[0].issue(16, "f", True)
    for each in ranks:
        each.lost(S1)
    assert settle(ranks, S1) == [(Give(0, 0, 8, "f"), RunPlain(1)), (Receive(0, 0, 8, "f", is_needed=True),)]


def test_who_knows_a_refusal_tells_the_others_by_its_statement() -> None:
    ranks = granted(2)
    for each in ranks:
        each.issue(8, "f", True)
    assert ranks[0].refused(0)
    for each in ranks:
        each.lost(S1)
    assert settle(ranks, S1) == [(), (RunPlain(0),)]


def test_a_refusal_may_come_before_its_operation() -> None:
    rank = granted(1)[0]
    assert not rank.refused(0)
    assert rank.issue(8, "f", True) is None


def test_who_needs_nothing_may_be_further_when_the_statements_are_in() -> None:
    """Found by the simulation: the others went on without waiting for this rank to read what was gathered."""
    ranks = granted()
    for each in ranks:
        each.issue(8, "f", True)
    for each in ranks[:2]:
        each.complete(0)
        each.issue(16, "f", False)
    for each in ranks:
        each.lost(S1)
    values = [said.value for each in ranks if (said := each.statement())]
    assert ranks[0].gathered(S1, values) == (Give(0, 0, 8, "f"),)
    assert ranks[2].gathered(S1, values) == (Receive(0, 0, 8, "f", is_needed=True),)
    ranks[1].complete(1)
    assert ranks[1].gathered(S1, values) == (Receive(0, 0, 8, "f", is_needed=False),)


def test_leavers_and_losers_state_the_same_epoch_once_and_in_its_order() -> None:
    ranks = granted(2)
    ranks[0].lost(S1)
    for each in ranks:
        each.hold(epoch(2, granted=False, ranks=2))
    boundary(ranks, boundary(ranks, (S1, -S1)))
    assert [each.state().applied for each in ranks] == [S2, S2]
    assert settle(ranks, S1) == [(), ()]
    assert [each.statement() for each in ranks] == [None, None]


def test_statements_are_gathered_one_at_a_time() -> None:
    ranks = granted(2)
    rank = ranks[0]
    rank.hold(epoch(2, ranks=2))
    rank.ready(S2)
    rank.agreed((S1, -S1))
    rank.boundary()
    rank.agreed((S2, -S2))
    rank.lost(S2)
    assert rank.statement() == Statement(S1, 0)
    assert rank.statement() is None
    assert rank.waits
    rank.gathered(S1, [0, 0])
    assert rank.statement() == Statement(S2, 0)


def test_closing_leaves_and_owes_a_statement() -> None:
    rank = granted(1)[0]
    rank.close()
    assert not rank.is_settled
    rank.statement()
    rank.gathered(S1, [0])
    assert rank.is_settled
    with pytest.raises(InvalidTransition):
        rank.issue(8, "f", True)


class Alone(RuleBasedStateMachine):
    """One rank under any calls: it never goes back, keeps little, and says so where a call does not fit."""

    def __init__(self) -> None:
        super().__init__()
        self.rank = Rank("j", 1, 0, 1)
        self.seen = self.rank.state()
        self.result: tuple[int, int] | None = None
        self.running: int | None = None

    @rule(number=st.integers(1, 60), term=st.integers(1, 2), is_granted=st.booleans())
    def hold(self, number: int, term: int, is_granted: bool) -> None:
        self.rank.hold(epoch(number, is_granted, 1, term=term))

    @rule(number=st.integers(1, 60), is_lost=st.booleans())
    def tree(self, number: int, is_lost: bool) -> None:
        at = self.rank.state().held if number > 30 else self.rank.state().applied
        if is_lost:
            self.rank.lost(at)
        else:
            self.rank.ready(at)
        if self.running is not None and self.rank.waits:
            self.settle()

    @precondition(lambda self: self.running is None)
    @rule()
    def step(self) -> None:
        self.rank.agreed(self.result)
        self.result = self.rank.boundary()

    @precondition(lambda self: self.running is None and not self.rank.waits)
    @rule(wants=st.booleans())
    def issue(self, wants: bool) -> None:
        self.running = self.rank.state().index
        operation = self.rank.issue(8, "f", wants)
        applied = self.rank.epoch
        if operation is not None:
            assert applied is not None
            assert applied.grant is not None
            assert operation.index == self.running
            assert operation.stamp == applied.stamp

    @precondition(lambda self: self.running is not None)
    @rule(is_refused=st.booleans())
    def finish(self, is_refused: bool) -> None:
        assert self.running is not None
        if is_refused:
            self.rank.refused(self.running)
        self.rank.complete(self.running)
        self.running = None

    @rule()
    def settle(self) -> None:
        while said := self.rank.statement():
            for redo in self.rank.gathered(said.stamp, [said.value]):
                assert redo == RunPlain(self.running if self.running is not None else -1)

    @invariant()
    def never_back(self) -> None:
        now = self.rank.state()
        assert (now.held, now.applied, now.lost, now.index) >= (0, 0, 0, 0)
        assert now.held >= self.seen.held
        assert now.applied >= self.seen.applied
        assert now.lost >= self.seen.lost
        assert now.index >= self.seen.index
        assert now.applied <= now.held
        self.seen = now

    @invariant()
    def little(self) -> None:
        kept = self.rank._epochs
        unsettled = len(self.rank._unsettled())
        assert len(kept) <= 4 + unsettled
        assert all(each.grant for each in self.rank.trees())


TestAlone = Alone.TestCase


@given(st.integers(1, 5), st.data())
def test_ranks_of_one_collective_agree_on_what_to_redo(ranks: int, data: st.DataObject) -> None:
    """Any rank may have the result, any may be refused or not have begun; all decide alike from one gathering."""
    machines = granted(ranks)
    has = [data.draw(st.booleans()) for _ in machines]
    begun = [True] * ranks if any(has) else [data.draw(st.booleans()) for _ in machines]
    for each, have, began in zip(machines, has, begun, strict=True):
        if began:
            each.issue(8, "f", True)
        if have:
            each.complete(0)
        each.lost(S1)
    redone = settle(machines, S1)
    if all(has) or not any(begun):
        assert redone == [()] * ranks
    elif any(has):
        source = has.index(True)
        for n, steps in enumerate(redone):
            first = Give(0, source, 8, "f") if n == source else Receive(0, source, 8, "f", is_needed=not has[n])
            assert steps == (first,)
    else:
        assert redone == [(RunPlain(0),) if began else () for began in begun]
