"""The root's admission: nothing that was not allowed, one verdict, and a place that is held to the last delivery."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from offpath.sched.ina.protocol.records import Operation, Permission
from offpath.sched.ina.protocol.root import Abort, Reason, Root


def permission(job: str, stamp: int = 1, incarnation: int = 1, term: int = 1, group: str = "") -> Permission:
    return Permission(job, incarnation, term, stamp, f"{job}{stamp}", 2, local=(0, 1), group=group)


def operation(job: str, index: int, stamp: int = 1, nbytes: int = 8, incarnation: int = 1) -> Operation:
    return Operation(job, incarnation, stamp, index, nbytes, "f")


def opened(*jobs: str, capacity: int = 1, group: str = "") -> Root:
    root = Root(capacity)
    for job in jobs:
        assert root.allow(permission(job, group=group))
        assert root.attach(job, 1, 1, 0, f"{job}1")
        assert root.attach(job, 1, 1, 1, f"{job}1")
    return root


def test_nothing_is_admitted_that_was_not_allowed() -> None:
    root = Root()
    assert not root.attach("a", 1, 1, 0, "a1")
    assert root.request(operation("a", 0), 0).reason is Reason.NOT_ALLOWED


def test_a_token_is_asked_for_and_a_rank_joins_once() -> None:
    root = Root()
    root.allow(permission("a"))
    assert not root.attach("a", 1, 1, 0, "b1")
    assert not root.attach("a", 1, 1, 2, "a1")
    assert root.attach("a", 1, 1, 0, "a1")
    assert not root.attach("a", 1, 1, 0, "a1")
    assert root.request(operation("a", 0), 0).reason is Reason.NOT_ATTACHED


def test_the_verdict_sticks_when_the_tree_is_free_again() -> None:
    root = opened("a", "b")
    assert root.request(operation("a", 0), 0).is_admitted
    first = root.request(operation("b", 0), 0)
    assert (first.is_admitted, first.reason, first.is_first) == (False, Reason.FULL, True)
    root.delivered(operation("a", 0), 0)
    assert root.in_flight == 1
    root.delivered(operation("a", 0), 1)
    assert root.in_flight == 0
    again = root.request(operation("b", 0), 1)
    assert (again.is_admitted, again.is_first) == (False, False)


def test_a_group_takes_turns_however_much_room_there_is() -> None:
    root = opened("a", "b", capacity=2, group="g")
    assert root.request(operation("a", 0), 0).is_admitted
    assert not root.request(operation("b", 0), 0).is_admitted
    assert opened("a", "b", capacity=2).request(operation("b", 0), 0).is_admitted


def test_the_next_operation_waits_for_the_last_delivery_of_its_own_job() -> None:
    root = opened("a")
    root.request(operation("a", 0), 0)
    root.delivered(operation("a", 0), 0)
    assert root.request(operation("a", 1), 0).waits
    root.delivered(operation("a", 0), 1)
    (verdict,) = root.decided()
    assert (verdict.operation.index, verdict.is_admitted, verdict.is_first) == (1, True, True)
    assert root.request(operation("a", 1), 1).is_admitted


def test_ranks_that_speak_differently_are_refused_reported_and_nobody_waits() -> None:
    root = opened("a")
    root.request(operation("a", 0), 0)
    odd = root.request(operation("a", 0, nbytes=9), 1)
    assert odd.reason is Reason.MISMATCH
    assert odd.abort == Abort("a", 1, 1, (0, 1), Reason.MISMATCH)
    assert root.mismatches == 1


def test_a_header_that_comes_after_its_successors_is_no_mismatch() -> None:
    root = opened("b", "a")
    root.request(operation("a", 0), 0)
    assert not root.request(operation("b", 0), 0).is_admitted
    root.request(operation("b", 1), 0)
    assert root.request(operation("b", 0), 1).reason is Reason.PAST
    assert root.mismatches == 0


def test_an_aborted_operation_holds_its_place_until_nothing_more_is_handed_out() -> None:
    root = opened("a", "b")
    root.request(operation("a", 0), 0)
    assert root.gone("a", 1, 1, 0) == (Abort("a", 1, 1, (1,), Reason.GONE),)
    assert not root.request(operation("b", 0), 0).is_admitted
    assert root.gone("a", 1, 1, 1) == ()
    assert root.in_flight == 0
    assert not root.attach("a", 1, 1, 0, "a1")
    root.allow(permission("a"))  # said again: what was aborted stays so
    assert not root.attach("a", 1, 1, 0, "a1")


def test_a_fence_is_done_when_all_are_gone_and_holds_for_older_incarnations() -> None:
    root = opened("a")
    root.request(operation("a", 0), 0)
    aborts = root.fence(1, "a", 1, 5)
    assert aborts == (Abort("a", 1, 1, (0, 1), Reason.FENCED),)
    assert not root.is_clear("a", 1, 5)
    for rank in (0, 1):
        root.gone("a", 1, 1, rank)
    assert root.is_clear("a", 1, 5)
    assert root.permissions() == ()
    assert not root.allow(permission("a", stamp=5))
    assert not root.allow(permission("a", stamp=9, incarnation=0))
    assert root.allow(permission("a", stamp=6))


# -- waiting for a place ----------------------------------------------------------------------------------------------
def sharing(left: int, *jobs: str, ranks: int = 4, capacity: int = 1) -> Root:
    """Jobs of one group; ``left`` bytes of any operation in flight are missing."""
    root = Root(capacity, lambda operation: left)
    for job in jobs:
        root.allow(Permission(job, 1, 1, 1, job, ranks, local=tuple(range(ranks)), group="g"))
        assert all(root.attach(job, 1, 1, rank, job) for rank in range(ranks))
    return root


def end(root: Root, done: Operation, ranks: int = 4) -> None:
    for rank in range(ranks):
        root.delivered(done, rank)


def test_who_finds_the_last_operation_of_a_step_near_its_end_waits_and_is_admitted() -> None:
    root = sharing(4, "a", "b")
    assert root.request(operation("a", 0), 0, is_last=True).is_admitted
    verdict = root.request(operation("b", 0), 0)
    assert (verdict.waits, verdict.is_first) == (True, False)
    assert root.request(operation("b", 0), 1).waits
    assert root.awaited() == {operation("b", 0): operation("a", 0)}
    assert root.decided() == ()
    end(root, operation("a", 0))
    (late,) = root.decided()
    assert (late.operation, late.is_admitted, late.is_first) == (operation("b", 0), True, True)
    assert (root.awaited(), root.in_flight) == ({}, 1)


def test_nobody_waits_where_it_would_be_longer_or_more_is_to_come() -> None:
    """Of 8 bytes a ring of four moves 12: four more than a tree."""
    for left, is_last, ranks in ((5, True, 4), (0, False, 4), (1, True, 2)):
        root = sharing(left, "a", "b", ranks=ranks)
        assert root.request(operation("a", 0), 0, is_last=is_last).is_admitted
        assert root.request(operation("b", 0), 0).reason is Reason.FULL
    apart = opened("a", "b")
    assert apart.request(operation("a", 0), 0, is_last=True).is_admitted
    assert apart.request(operation("b", 0), 0).reason is Reason.FULL


def test_one_waits_at_a_time() -> None:
    root = sharing(0, "a", "b", "c")
    assert root.request(operation("a", 0), 0, is_last=True).is_admitted
    assert root.request(operation("b", 0), 0).waits
    assert root.request(operation("c", 0), 0).reason is Reason.FULL


def test_who_is_waited_for_and_at_its_next_step_already_comes_after() -> None:
    root = sharing(0, "a", "b")
    assert root.request(operation("a", 0), 0, is_last=True).is_admitted
    assert root.request(operation("b", 0), 0).waits
    root.delivered(operation("a", 0), 0)
    assert root.request(operation("a", 1), 0).waits
    end(root, operation("a", 0))
    assert [(each.operation.job, each.is_admitted) for each in root.decided()] == [("b", True), ("a", False)]
    late = sharing(0, "a", "b")
    assert late.request(operation("a", 0), 0, is_last=True).is_admitted
    late.delivered(operation("a", 0), 0)
    assert late.request(operation("a", 1), 0).waits
    assert late.request(operation("b", 0), 0).reason is Reason.FULL, "the place is not free soon"


def test_a_wait_that_is_given_up_is_a_refusal_and_nobody_waits_there_again() -> None:
    root = sharing(0, "a", "b", "c")
    assert root.request(operation("a", 0), 0, is_last=True).is_admitted
    assert root.request(operation("b", 0), 0).waits
    root.give_up(operation("c", 0))
    root.give_up(operation("b", 0))
    root.give_up(operation("b", 0))
    (late,) = root.decided()
    assert (late.operation, late.is_admitted, late.reason) == (operation("b", 0), False, Reason.FULL)
    assert root.request(operation("b", 0), 1).reason is Reason.FULL
    assert root.request(operation("c", 0), 0).reason is Reason.FULL
    end(root, operation("a", 0))
    assert root.request(operation("a", 1), 0, is_last=True).is_admitted
    assert root.request(operation("c", 1), 0).waits, "it was that operation, not the job"


def test_a_waiting_job_that_is_fenced_or_loses_a_rank_waits_no_more() -> None:
    root = sharing(0, "a", "b")
    assert root.request(operation("a", 0), 0, is_last=True).is_admitted
    assert root.request(operation("b", 0), 0).waits
    assert root.gone("b", 1, 1, 2)
    assert root.awaited() == {}
    end(root, operation("a", 0))
    assert (root.decided(), root.in_flight) == ((), 0)


def test_a_job_whose_tree_is_lost_waits_no_more_and_takes_nobodys_place() -> None:
    root = sharing(0, "a", "b", "c")
    assert root.request(operation("a", 0), 0, is_last=True).is_admitted
    assert root.holds("a", 1, 1)
    assert root.request(operation("b", 0), 0).waits
    root.lost("b", 1, 1)
    root.lost("b", 1, 9)
    end(root, operation("a", 0))
    assert (root.decided(), root.holds("a", 1, 1), root.holds("b", 1, 1)) == ((), False, False)
    assert root.request(operation("b", 1), 0).reason is Reason.ABORTED
    assert root.request(operation("c", 0), 0).is_admitted
    root.lost("c", 1, 1)
    assert root.holds("c", 1, 1), "some may still be handed the result"
    assert [root.holds("c", 1, 1) for rank in range(4) if root.gone("c", 1, 1, rank) == ()] == [True] * 3 + [False]


def test_the_place_of_an_aborted_operation_is_given_on_when_nothing_more_is_handed_out() -> None:
    root = sharing(0, "a", "b")
    assert root.request(operation("a", 0), 0, is_last=True).is_admitted
    assert root.request(operation("b", 0), 0).waits
    for rank in range(3):
        root.gone("a", 1, 1, rank)
    assert root.decided() == ()
    root.gone("a", 1, 1, 3)
    assert [each.is_admitted for each in root.decided()] == [True]


def test_an_old_controller_is_not_listened_to() -> None:
    root = Root()
    assert root.led_by(2)
    assert not root.allow(permission("a", term=1))
    assert root.fence(1, "a", 1, 1) is None
    assert root.allow(permission("a", term=2))


class Any(RuleBasedStateMachine):
    """Any calls in any order, right and wrong: never too many in flight, and no verdict twice."""

    def __init__(self) -> None:
        super().__init__()
        self.left = 0
        self.root = Root(2, lambda operation: self.left)
        self.verdicts: dict[Operation, bool] = {}
        self.missing: dict[Operation, set[int]] = {}

    @rule(job=st.sampled_from("abc"), stamp=st.integers(1, 3), group=st.sampled_from(["", "g"]))
    def allow(self, job: str, stamp: int, group: str) -> None:
        self.root.allow(permission(job, stamp, group=group))

    @rule(job=st.sampled_from("abc"), stamp=st.integers(1, 3), rank=st.integers(0, 1))
    def attach(self, job: str, stamp: int, rank: int) -> None:
        self.root.attach(job, 1, stamp, rank, f"{job}{stamp}")

    @rule(
        job=st.sampled_from("abc"), stamp=st.integers(1, 3), index=st.integers(0, 5), rank=st.integers(0, 1),
        nbytes=st.sampled_from([8, 8, 8, 9]), is_last=st.booleans(), left=st.sampled_from([0, 0, 1]),
    )  # fmt: skip
    def request(self, job: str, stamp: int, index: int, rank: int, nbytes: int, is_last: bool, left: int) -> None:
        asked, self.left = operation(job, index, stamp, nbytes), left
        verdict = self.root.request(asked, rank, is_last=is_last)
        if not verdict.waits:
            self._hear(asked, verdict.is_admitted, verdict.is_first)

    def _hear(self, asked: Operation, is_admitted: bool, is_first: bool) -> None:
        if is_first:
            assert asked not in self.verdicts
            self.verdicts[asked] = is_admitted
            if is_admitted:
                self.missing[asked] = {0, 1}
        elif is_admitted:
            assert self.verdicts[asked]

    @rule(data=st.data(), rank=st.integers(0, 1))
    def deliver(self, data: st.DataObject, rank: int) -> None:
        if self.missing:
            done = data.draw(st.sampled_from(sorted(self.missing, key=repr)))
            self.root.delivered(done, rank)
            self._miss(done, rank)
        self._decided()

    @rule(job=st.sampled_from("abc"), stamp=st.integers(1, 3), rank=st.integers(0, 1))
    def gone(self, job: str, stamp: int, rank: int) -> None:
        attached = self.root._trees.get((job, 1, stamp))
        was = attached is not None and rank in attached.attached
        self.root.gone(job, 1, stamp, rank)
        for each in [each for each in self.missing if was and (each.job, each.stamp) == (job, stamp)]:
            self._miss(each, rank)
        self._decided()

    @rule()
    def give_up(self) -> None:
        for waiting in self.root.awaited():
            self.root.give_up(waiting)
            self._decided()
            assert waiting not in self.root.awaited()
            assert not self.verdicts[waiting]

    @rule(job=st.sampled_from("abc"), stamp=st.integers(0, 3))
    def fence(self, job: str, stamp: int) -> None:
        for abort in self.root.fence(1, job, 1, stamp) or ():
            for rank in abort.ranks:
                self.gone(abort.job, abort.stamp, rank)
        self._decided()

    def _miss(self, done: Operation, rank: int) -> None:
        self.missing[done].discard(rank)
        if not self.missing[done]:
            del self.missing[done]

    def _decided(self) -> None:
        for verdict in self.root.decided():
            self._hear(verdict.operation, verdict.is_admitted, verdict.is_first)

    @invariant()
    def fits(self) -> None:
        assert len(self.missing) <= 2
        assert self.root.in_flight == len(self.missing)
        assert len({each.job for each in self.missing}) == len(self.missing)
        assert set(self.root.awaited().values()) <= set(self.missing), "what is waited for can end"


TestAny = Any.TestCase
