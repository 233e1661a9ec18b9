"""The controller's machine, event by event: what the simulation does not come to."""

from __future__ import annotations

from collections.abc import Mapping

from offpath.sched.ina.protocol.agent import Report
from offpath.sched.ina.protocol.controller import Controller
from offpath.sched.ina.protocol.events import (
    AgentUp,
    Allow,
    Allowed,
    Assignment,
    Command,
    Event,
    Fence,
    JobView,
    Publish,
    SwitchUp,
    Tick,
    Tree,
    TreeMember,
)
from offpath.sched.ina.protocol.records import RankState

TREE = Tree("t", (TreeMember("s", "", (0, 1)),), ("s", "s"))
S = 1_000_000_000


def rank(n: int, stamp: int = 0) -> RankState:
    return RankState("j", 1, n, 2, stamp, stamp)


def controller() -> Controller:
    def plan(jobs: tuple[JobView, ...], up: Mapping[str, int], now_ns: int) -> Mapping[str, Assignment]:
        return {each.job: Assignment(TREE, "g") for each in jobs} if "s" in up else {}

    return Controller(5, plan, lambda: "token")


def all_of(it: Controller, *events: Event, now_ns: int = 0) -> tuple[Command, ...]:
    return it.handle_all(events, now_ns=now_ns)


def granted() -> tuple[Controller, int]:
    it = controller()
    out = all_of(
        it, SwitchUp("s", 1, 1), AgentUp("a"), AgentUp("b"), Report("a", 5, (rank(0),), True),
        Report("b", 5, (rank(1),), True),
    )  # fmt: skip
    (allow,) = [each for each in out if isinstance(each, Allow)]
    stamp = allow.permission.stamp
    out = it.handle(Allowed("s", 1, "j", 1, stamp), now_ns=1)
    assert [each.host for each in out if isinstance(each, Publish)] == ["a", "b"]
    all_of(it, Report("a", 5, (rank(0, stamp),)), Report("b", 5, (rank(1, stamp),)), now_ns=2)
    return it, stamp


def test_events_that_come_at_once_come_to_what_they_would_one_by_one() -> None:
    together, _ = granted()
    single = controller()
    for event in (
        SwitchUp("s", 1, 1), AgentUp("a"), AgentUp("b"), Report("a", 5, (rank(0),), True),
        Report("b", 5, (rank(1),), True),
    ):  # fmt: skip
        single.handle(event, now_ns=0)
    assert [hold.permission for hold in single.ledger.holds()] == [hold.permission for hold in together.ledger.holds()]


def test_a_job_whose_ranks_ended_unheard_is_fenced_after_a_while() -> None:
    it, stamp = granted()
    it.handle(Report("b", 5, (), True), now_ns=3)
    assert it.views() == ()
    for second in range(1, 10):
        assert not [each for each in it.handle(Tick(), now_ns=second * S) if isinstance(each, Fence)]
    fences = [each for n in range(11, 14) for each in it.handle(Tick(), now_ns=n * S) if isinstance(each, Fence)]
    assert {(each.switch, each.job, each.stamp) for each in fences} == {("s", "j", stamp)}


def test_a_job_whose_ranks_all_live_keeps_what_it_has() -> None:
    it, _ = granted()
    for second in range(1, 40):
        assert not [each for each in it.handle(Tick(), now_ns=second * S) if isinstance(each, Fence)]
