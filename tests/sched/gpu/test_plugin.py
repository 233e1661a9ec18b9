"""A policy from outside decides within the rules, or not at all."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from offpath.sched.errors import SchedError
from offpath.sched.gpu.baselines import BestFit, FirstFitPolicy
from offpath.sched.gpu.conspirator import ConspiratorPaper
from offpath.sched.gpu.greedy import GreedyFirstFit
from offpath.sched.gpu.oldest_gpu_first import OldestGpuFirst
from offpath.sched.gpu.plugin import PLACE, PLAN, START, PluginDecision, PluginGateway, PluginPolicy
from offpath.sched.gpu.policy import Demand, Obstacle, Policy, PolicyState, Refusal, Unblocker
from offpath.sched.gpu.registry import make
from offpath.sched.plain import from_plain, to_plain

from ...sizes import sized
from ...support.advisors import BAD, Hosted
from .test_policies import STEPS, Story

RUNS = sized(quick=5, fast=6, slow=25, full=500)
INSIDE: dict[str, Callable[[], Policy]] = {
    each.name: each for each in (BestFit, FirstFitPolicy, ConspiratorPaper, GreedyFirstFit, OldestGpuFirst)
}
"""What the plug-ins of these tests are inside."""


class PluginStory(Story):
    """A story whose policy is a plug-in's; it is started again at every going on."""

    def __init__(self, inside: Callable[[], Policy], seed: str, fault: float) -> None:
        self.said: list[PluginDecision] = []
        self.advisor: Hosted | None = None
        self.draws = Random(f"faults of {seed}")

        def kind() -> Policy:
            policy = PluginPolicy("sample")
            policy.gateway = PluginGateway(self.said.append)
            self.advisor = policy.gateway.arriving = Hosted(inside, self.draws, fault)
            return policy

        super().__init__(kind, seed)  # type: ignore[arg-type]
        self.started()

    def started(self) -> None:
        assert isinstance(self.policy, PluginPolicy)
        self.policy.start()

    def go_on(self) -> str:
        state = from_plain(PolicyState, to_plain(self.policy.state()))
        self.policy = self.kind()
        self.policy.restore(state)
        self.started()
        return "started again"


@pytest.mark.parametrize("inside", INSIDE)
def test_whatever_a_plug_in_answers_tenants_geometry_and_lanes_are_kept(inside: str) -> None:
    quarantined = asked = 0
    for seed in range(RUNS):
        story = PluginStory(INSIDE[inside], f"{inside} {seed}", fault=0.02)
        for _ in range(STEPS):
            story.step()
            story.check()
        quarantined += sum(bool(decision.fault) for decision in story.said)
        asked += len(story.said)
    assert asked > 10 * RUNS
    assert quarantined > RUNS / 5


@pytest.mark.parametrize("inside", INSIDE)
def test_a_plug_in_that_answers_decides_as_it_would_inside(inside: str) -> None:
    """Without faults nothing is substituted, and the decisions are the plug-in's own."""
    for seed in range(RUNS):
        plain = Story(INSIDE[inside], f"same {seed}")  # type: ignore[arg-type]
        outside = PluginStory(INSIDE[inside], f"same {seed}", fault=0.0)
        for _ in range(STEPS):
            kinds = {story.random.getstate() for story in (plain, outside)}
            assert len(kinds) == 1
            told, heard = plain.step(), outside.step()
            assert told == heard or (told, heard) == ("went on", "started again")
        assert not [decision for decision in outside.said if decision.fault]


@pytest.mark.parametrize(("asked", "bad"), BAD)
def test_an_answer_that_makes_no_sense_is_the_last_and_the_built_in_decides(asked: str, bad: Any) -> None:
    story = PluginStory(OldestGpuFirst, "bad", fault=0.0)
    while len(story.jobs) < 3:
        story.step()
    advisor, policy = story.advisor, story.policy
    assert advisor is not None
    assert isinstance(policy, PluginPolicy)
    truly = advisor.query
    advisor.query = lambda kind, *more: bad if kind == asked else truly(kind, *more)  # type: ignore[method-assign]
    if asked == START:
        policy.gateway.arriving = advisor
        policy.start()
    else:
        while policy.is_advised:
            story.submit()
            story.check()
    assert advisor.is_dismissed
    last = story.said[-1]
    assert (last.query, last.fault.partition(":")[0]) == (asked, "nonsense")
    if asked == PLACE:
        assert last.decided.placement or last.decided.refusal
    if asked == PLAN:
        assert last.decided.plan or last.decided.refusal
    before = len(story.said)
    for _ in range(STEPS):
        story.submit()
        story.check()
    assert len(story.said) == before, "who is quarantined is not asked"


def test_a_refusal_says_each_reason_once_however_often_it_was_said() -> None:
    """Jobs keep it while they wait, and so does the journal."""
    story = PluginStory(OldestGpuFirst, "refusing", fault=0.0)
    policy = story.policy
    assert isinstance(policy, PluginPolicy)
    advisor = story.advisor
    assert advisor is not None
    lanes, ends = Obstacle.LANES.value, Unblocker.JOB_ENDS.value
    advisor.query = lambda kind, *more: [None, None, [[lanes] * 900, [ends] * 900]]  # type: ignore[method-assign]
    refused = policy.place(Demand(1, "a", 14, 0), 0)
    assert refused == Refusal((Obstacle.LANES,), (Unblocker.JOB_ENDS,)) == story.said[-1].decided.refusal
    assert policy.is_advised


def test_a_fault_names_itself_in_one_short_line() -> None:
    class Wordy(OldestGpuFirst):
        def restore(self, state: PolicyState) -> None:
            raise ValueError("\x1b[31m" + "ä\n" * 1_000)

    said: list[PluginDecision] = []
    policy = PluginPolicy("sample")
    policy.gateway = PluginGateway(said.append)
    policy.gateway.arriving = Hosted(Wordy, Random(0))
    policy.start()
    (decision,) = said
    assert decision.fault.startswith("raised: restore: ValueError: ?[31mä?")
    assert len(decision.fault) <= 160
    assert decision.fault.isprintable()


def test_answers_of_a_journal_come_first_and_must_be_to_the_same_question() -> None:
    story = PluginStory(OldestGpuFirst, "recalled", fault=0.0)
    while not any(decision.query == PLACE for decision in story.said):
        story.step()
    policy = story.policy
    assert isinstance(policy, PluginPolicy)
    policy.gateway.recalled.append(next(decision for decision in story.said if decision.query == START))
    while policy.is_advised:
        story.submit()
    assert story.said[-1].fault == "nonsense: the query is place, the journal's answer is to restore"


def test_a_policy_is_had_by_its_name_or_its_plug_ins() -> None:
    assert make("plugin:worst-fit").name == "plugin:worst-fit"
    assert isinstance(make("oldest-gpu-first"), OldestGpuFirst)
    with pytest.raises(SchedError, match="unknown policy 'best'"):
        make("best")
