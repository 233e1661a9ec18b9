"""The controller's order of doing things; what must hold under faults is the simulation's (tests/ina/simulation)."""

from __future__ import annotations

from collections.abc import Mapping

from offpath.sched.ina.protocol.agent import Agent, Handed, Report
from offpath.sched.ina.protocol.controller import Controller
from offpath.sched.ina.protocol.events import (
    AgentUp,
    Allow,
    Allowed,
    Ask,
    Assignment,
    Command,
    Event,
    Fence,
    Fenced,
    HostQuarantined,
    HostReleased,
    JobView,
    Publish,
    SwitchUp,
    Tick,
    Tree,
    TreeMember,
)  # fmt: skip
from offpath.sched.ina.protocol.modes import Mode, planner
from offpath.sched.ina.protocol.records import MOST_NUMBER, EpochRecord, RankState, stamp

TURN_NS, PATIENCE_NS = 10, 1_000


def tree_of(view: JobView, switches: Mapping[str, int]) -> Tree | None:
    ranks = tuple(range(len(view.hosts)))
    return Tree("t", (TreeMember("s0", local=ranks),), ("s0",) * len(ranks)) if "s0" in switches else None


class Driven:
    """A controller in the given mode, with one switch of one place and two jobs of two ranks on host h0."""

    def __init__(self, mode: Mode) -> None:
        tokens = iter(range(100))
        self.controller = Controller(
            1, planner(mode, tree_of, turn_ns=TURN_NS), lambda: str(next(tokens)), proof="of 1",
            is_proven=lambda term, proof: proof == f"of {term}", patience_ns=PATIENCE_NS,
        )  # fmt: skip
        self.now_ns = 0

    def __call__(self, event: Event) -> tuple[Command, ...]:
        return self.controller.handle(event, now_ns=self.now_ns)

    def start(self) -> tuple[Command, ...]:
        self(SwitchUp("s0", 7, 1))
        return self(Report("h0", 1, tuple(RankState(job, 1, rank, 2) for job in "ab" for rank in (0, 1)), True))

    def applied(self, job: str, *stamps: int, incarnation: int = 1) -> tuple[Command, ...]:
        states = (RankState(job, incarnation, rank, 2, at, at) for rank, at in enumerate(stamps))
        return self(Report("h0", 1, tuple(states)))


def kinds(commands: tuple[Command, ...]) -> list[type[Command]]:
    return [type(each) for each in commands]


def test_an_agent_that_comes_is_asked_until_it_answers() -> None:
    drive = Driven(Mode.NONE)
    assert drive(AgentUp("h0")) == (Ask("h0", 1, "of 1"),)
    drive.now_ns = 10**9
    assert drive(Tick()) == (Ask("h0", 1, "of 1"),)
    drive(Report("h0", 1, (), True))
    drive.now_ns = 2 * 10**9
    assert drive(Tick()) == ()


def test_an_epoch_goes_out_when_the_switch_has_confirmed() -> None:
    drive = Driven(Mode.EXCLUSIVE)
    (allow,) = drive.start()
    assert isinstance(allow, Allow)
    assert (allow.permission.job, allow.permission.stamp) == ("a", stamp(1, 1))
    (publish,) = drive(Allowed("s0", 7, "a", 1, stamp(1, 1)))
    assert isinstance(publish, Publish)
    assert publish.epoch.grant is not None
    assert publish.epoch.grant.token == allow.permission.token


def test_turns_go_over_revoked_drained_granted() -> None:
    drive = Driven(Mode.ALTERNATE)
    drive.start()
    drive(Allowed("s0", 7, "a", 1, stamp(1, 1)))
    drive.applied("a", stamp(1, 1), stamp(1, 1))
    drive.now_ns = TURN_NS
    (revoked,) = drive(Tick())
    assert isinstance(revoked, Publish)
    assert revoked.epoch == EpochRecord("a", 1, 1, 2, proof="of 1")
    assert drive.applied("a", stamp(1, 2), stamp(1, 1)) == ()  # one rank is not out of it
    assert drive.applied("a", stamp(1, 2), stamp(1, 2)) == (Fence("s0", 7, 1, "a", 1, stamp(1, 1)),)
    (allow,) = drive(Fenced("s0", 7, "a", 1, stamp(1, 1)))  # ranks may lie; the switch knows
    assert isinstance(allow, Allow)
    assert allow.permission.job == "b"


def test_a_new_incarnation_gets_nothing_before_the_old_one_is_fenced() -> None:
    drive = Driven(Mode.EXCLUSIVE)
    drive.start()
    drive(Allowed("s0", 7, "a", 1, stamp(1, 1)))
    commands = drive.applied("a", 0, 0, incarnation=5)
    assert Allow not in kinds(commands)
    (fence,) = [each for each in commands if isinstance(each, Fence)]
    assert fence.incarnation == 4
    (_, allow) = (None, *[each for each in drive(Fenced("s0", 7, "a", 4, fence.stamp)) if isinstance(each, Allow)])
    assert allow.permission.incarnation == 5


def test_a_successor_counts_what_the_switch_still_allows() -> None:
    first = Driven(Mode.EXCLUSIVE)
    (allow,) = first.start()
    assert isinstance(allow, Allow)
    second = Driven(Mode.TRYLOCK)
    second.controller.term = 2
    second(SwitchUp("s0", 7, 1, (allow.permission,)))
    commands = second(Report("h0", 2, tuple(RankState(job, 1, rank, 2) for job in "ab" for rank in (0, 1)), True))
    assert second.controller.is_deposed is False
    assert Allow not in kinds(commands)
    (revoked,) = commands
    assert isinstance(revoked, Publish)
    assert (revoked.epoch.job, revoked.epoch.term) == ("a", 2)
    (fence,) = second.applied("a", revoked.epoch.stamp, revoked.epoch.stamp)
    assert isinstance(fence, Fence)
    freed = second(Fenced("s0", 7, "a", 1, fence.stamp))
    assert {each.permission.job for each in freed if isinstance(each, Allow)} == {"a", "b"}


def test_what_does_not_drain_is_fenced_and_a_lost_tree_is_taken_back() -> None:
    drive = Driven(Mode.EXCLUSIVE)
    drive.start()
    drive(Allowed("s0", 7, "a", 1, stamp(1, 1)))
    lost = drive(Report("h0", 1, (RankState("a", 1, 0, 2, stamp(1, 1), stamp(1, 1), stamp(1, 1)),)))
    assert Publish in kinds(lost)
    assert Allow not in kinds(lost)
    drive.now_ns = 1
    drive(Tick())
    drive.now_ns = 1 + PATIENCE_NS
    assert Fence("s0", 7, 1, "a", 1, stamp(1, 1)) in drive(Tick())


def test_a_report_of_a_later_term_ends_the_controller() -> None:
    drive = Driven(Mode.EXCLUSIVE)
    drive(Report("h0", 2, (), proof="of 2"))
    assert drive.controller.is_deposed
    assert drive.start() == ()


def test_a_term_without_its_proof_ends_nobody_and_the_report_counts_for_nothing() -> None:
    drive = Driven(Mode.EXCLUSIVE)
    for proof in ("", "of 1", "of 3"):
        assert drive(Report("h0", 2, (RankState("a", 1, 0, 1),), True, proof)) == ()
    assert not drive.controller.is_deposed
    assert drive.controller.states("a") == ()
    assert drive.start() != ()


def test_what_a_quarantined_hosts_jobs_hold_is_fenced_and_its_word_counts_again_when_it_is_released() -> None:
    drive = Driven(Mode.EXCLUSIVE)
    drive.start()
    drive(Allowed("s0", 7, "a", 1, stamp(1, 1)))
    commands = drive(HostQuarantined("h0"))
    assert Fence("s0", 7, 1, "a", 1, stamp(1, 1)) in commands
    drive.applied("a", stamp(1, 1), stamp(1, 1))
    assert drive(AgentUp("h0")) == ()
    assert drive.controller.views() == ()
    assert [hold.permission.job for hold in drive.controller.ledger.holds()] == ["a"], "until the switch confirms"
    drive(Fenced("s0", 7, "a", 1, stamp(1, 1)))
    assert drive.controller.ledger.holds() == ()
    assert drive(HostReleased("h0", is_up=True)) == (Ask("h0", 1, "of 1"),)
    (allow, *_) = (each for each in drive.start() if isinstance(each, Allow))
    assert allow.permission.stamp > stamp(1, 1), "above the fence"


def test_a_term_is_spent_before_its_numbers_run_into_the_next() -> None:
    drive = Driven(Mode.EXCLUSIVE)
    assert not drive.controller.is_spent
    drive.controller._number = MOST_NUMBER - (1 << 20)
    drive.start()
    assert drive.controller.is_spent
    assert stamp(1, drive.controller._number + (1 << 16)) < stamp(2, 0)


def test_an_agent_hands_on_what_a_rank_can_use_and_no_old_controllers_word() -> None:
    agent = Agent("h0")
    record = EpochRecord("a", 1, 2, 1)
    assert agent.epoch(record) is None  # no rank of it here
    assert agent.on_state(RankState("a", 1, 0, 1)) is not None
    assert agent.on_state(RankState("a", 1, 0, 1, index=9)) is None
    assert agent.epoch(record) == Handed(record)
    assert agent.epoch(EpochRecord("a", 1, 1, 9)) is None
    assert agent.on_query(1) is None
    whole = agent.on_query(3)
    assert whole is not None
    assert whole.is_whole
    assert whole.states == (RankState("a", 1, 0, 1, index=9),)


def test_the_modes_say_who_gets_what() -> None:
    views = tuple(JobView(job, 1, ("h0", "h0"), n) for n, job in enumerate("ab"))
    plans: dict[Mode, Mapping[str, Assignment]] = {
        mode: planner(mode, tree_of, turn_ns=TURN_NS)(views, {"s0": 1}, TURN_NS) for mode in Mode
    }
    assert {mode: sorted(plan) for mode, plan in plans.items()} == {
        Mode.NONE: [], Mode.ALL: ["a", "b"], Mode.EXCLUSIVE: ["a"], Mode.ALTERNATE: ["b"], Mode.TRYLOCK: ["a", "b"],
        Mode.SHARED: ["a", "b"],
    }  # fmt: skip
    assert {each.slot for each in plans[Mode.SHARED].values()} == {"shared@s0"}
    assert {each.slot for each in plans[Mode.ALL].values()} == {"a@s0", "b@s0"}
