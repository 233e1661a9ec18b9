"""The pattern of a job's steps, from the moments of its own all-reduces; and the Plan that is read from an epoch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from offpath.host_helper.ina.patterns import STEPS, Collector
from offpath.host_helper.ina.plan import Plan
from offpath.sched.ina.patterns import AllReduce, Pattern
from offpath.sched.ina.protocol.records import EpochRecord, Grant, Step, Wants

MS = 1_000_000


class Job:
    """Steps of 100 ms of computation whose operations take ``network_ms`` each, one after the other."""

    def __init__(self) -> None:
        self.collector = Collector("job")
        self.now = 0

    def step(self, nbytes: Sequence[int], network_ms: int = 1) -> Pattern | None:
        begun, free = self.now, self.now
        found = None
        for number, each in enumerate(nbytes):
            self.now = begun + (100 - 10 * (len(nbytes) - 1 - number)) * MS
            if not number:
                found = self.collector.step()
            self.collector.issued(each, self.now)
            free = max(free, self.now) + network_ms * MS
            self.collector.complete(free)
        self.now = max(free, begun + 100 * MS)
        return found


def test_a_pattern_is_there_after_eight_equal_steps_the_first_two_left_out() -> None:
    job = Job()
    found = [job.step([8, 4, 4]) for _ in range(20)]
    assert [n for n, each in enumerate(found) if each] == [2 + STEPS]
    starts = AllReduce(80 * MS, 8), AllReduce(90 * MS, 4), AllReduce(100 * MS, 4)
    assert found[2 + STEPS] == Pattern("job", starts, 100 * MS)
    assert not job.collector.is_watching


def test_it_is_the_same_on_a_slow_network() -> None:
    fast, slow = Job(), Job()
    assert [fast.step([8, 4, 4], 1) for _ in range(15)] == [slow.step([8, 4, 4], 70) for _ in range(15)]


def test_other_bytes_are_another_pattern_and_begin_again() -> None:
    """As when DDP cuts its buckets anew, or with `no_sync`."""
    job = Job()
    found = [job.step([8, 8]) for _ in range(6)] + [job.step([4, 4, 4]) for _ in range(12)]
    patterns = [each for each in found if each]
    assert [[one.nbytes for one in each.operations] for each in patterns] == [[4, 4, 4]]
    assert [n for n, each in enumerate(found) if each] == [6 + 1 + STEPS]


def test_steps_that_differ_by_turns_give_none() -> None:
    job = Job()
    assert [job.step([8] * (1 + n % 2)) for n in range(40)] == [None] * 40


# -- the plan -------------------------------------------------------------------------------------------------------
GRANT = Grant("tree", ("unix:///s",), "token")
STEP = Step(300 * MS, (100 * MS, 300 * MS), (50 * MS, 100 * MS), (25 * MS, 50 * MS))


def wanted(epoch: EpochRecord, operations: int = 3) -> list[bool]:
    plan = Plan()
    plan.adopt(epoch)
    plan.begin()
    found = []
    for _ in range(operations):
        found.append(plan.wants())
        plan.ended(used_ina=found[-1])
    return found


def test_only_what_shortens_the_step_asks_where_the_tree_is_shared() -> None:
    assert wanted(EpochRecord("job", 1, 1, 1, GRANT, step=STEP)) == [False, True, False]


def test_a_job_that_expects_ina_for_the_rest_of_its_step_asks_less() -> None:
    hidden = Step(125 * MS, (0, 50 * MS), (60 * MS, 90 * MS), (30 * MS, 45 * MS))
    assert wanted(EpochRecord("job", 1, 1, 1, GRANT, step=hidden)) == [True, True, False]
    trusting = replace(hidden, trust_percent=100)
    assert wanted(EpochRecord("job", 1, 1, 1, GRANT, step=trusting)) == [False, True, False]


def test_alone_on_its_tree_a_job_asks_for_all_of_its_pattern() -> None:
    assert wanted(EpochRecord("job", 1, 1, 1, GRANT, is_shared=False, step=STEP)) == [True, True, False]


def test_without_a_plan_all_ask_and_without_a_grant_none() -> None:
    assert wanted(EpochRecord("job", 1, 1, 1, GRANT)) == [True] * 3
    assert wanted(EpochRecord("job", 1, 1, 1, GRANT, Wants.ALWAYS, step=STEP)) == [True] * 3
    assert wanted(EpochRecord("job", 1, 1, 1, step=STEP)) == [False] * 3


def test_a_step_that_no_decision_can_be_made_with_counts_as_none() -> None:
    nothing = Step(1, (0,), (0,), (0,))
    assert wanted(EpochRecord("job", 1, 1, 1, GRANT, step=nothing)) == [True] * 3
