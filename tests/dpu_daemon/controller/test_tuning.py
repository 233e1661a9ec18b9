"""What jobs of a group expect of INA: found beside the loop, half until then, and half where it cannot be found."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction

import pytest

from offpath.dpu_daemon.controller.tuning import Tuner
from offpath.sched.ina.patterns import Timed
from offpath.sched.sim.ina.tuning import DEFAULT, trusts

from .test_policies import UP, planner, view

HALF = (DEFAULT, DEFAULT)
GROUP = (Timed("a", (0, 40), (60, 60), (30, 30), 90), Timed("b", (10, 30), (20, 80), (10, 40), 100))


@pytest.fixture
def thread() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as executor:
        yield executor


def settled(tuner: Tuner, thread: ThreadPoolExecutor) -> None:
    """All that was asked for so far has been answered."""
    before = time.monotonic()
    thread.submit(int).result(30)
    assert time.monotonic() - before < 30
    assert not tuner._waiting


def test_half_at_first_and_what_suits_the_group_later(thread: ThreadPoolExecutor) -> None:
    tuner = Tuner(thread)
    assert (tuner.trusts(GROUP), tuner.found) == (HALF, 0)
    settled(tuner, thread)
    assert (tuner.trusts(GROUP), tuner.found) == (trusts(GROUP, False, 200_000), 1)
    assert tuner.trusts(GROUP) != HALF
    renamed = [Timed("c", each.starts, each.plain, each.ina, each.duration_ns) for each in GROUP]
    assert (tuner.trusts(renamed), tuner.found) == (tuner.trusts(GROUP), 1), "whose they are does not matter"


@pytest.mark.parametrize(
    "group",
    [
        GROUP[:1],
        GROUP * 4,
        (Timed("long", (0,), (1,), (1,), 86_400 * 10**9), GROUP[0]),
        (Timed("long", (0,), (1,), (1,), 86_400 * 10**9),) * 2,
        (Timed("wide", (0,) * 3000, (2,) * 3000, (1,) * 3000, 9),) * 2,
    ],
)
def test_half_for_one_alone_a_crowd_and_steps_that_cannot_be_run(
    group: tuple[Timed, ...], thread: ThreadPoolExecutor
) -> None:
    tuner = Tuner(thread)
    for _ in range(2):
        assert set(tuner.trusts(group)) == {DEFAULT}
        settled(tuner, thread)


def test_the_work_for_a_group_is_bounded() -> None:
    """The wider a step, the fewer of them are run; with less than one there is nothing to see."""
    wide = tuple(Timed("w", (0,) * n, (20,) * n, (10,) * n, 5) for n in (200, 300))
    begun = time.process_time()
    found = trusts(wide, False, 20_000)
    assert time.process_time() - begun < 20, "some 0.3 s; unbounded it is 250 times as much"
    assert len(found) == 2
    assert trusts(wide, False, 2_000) == HALF


def test_a_plan_is_made_anew_when_a_groups_answer_has_come(thread: ThreadPoolExecutor) -> None:
    tuner = Tuner(thread)
    plans = planner(link_bytes_per_s=1e9, latency_us=0.0, tuner=tuner)
    both = (view("a", 0, 2), view("b", 1, 3))
    of = {
        "a": {"duration": 0.09, "allreduces": [{"start": 0.0, "size": 60_000_000}, {"start": 0.04, "size": 6_000_000}]},
        "b": {"duration": 0.1, "allreduces": [{"start": 0.01, "size": 20_000_000}, {"start": 0.03, "size": 8_000_000}]},
    }
    assert plans.measured("a", 1, of["a"])
    alone = plans(both, UP, 0)
    assert (alone["a"].step, alone["b"].step) != (None, None)
    assert alone["a"].step is not None
    assert (alone["a"].step.trust_percent, alone["b"].step) == (50, None), "nothing is known of the other"
    assert plans.measured("b", 1, of["b"])
    plans(both, UP, 1)
    settled(tuner, thread)
    timed = [each for view in both if (each := plans._timed(view)) is not None]
    found = [given.step.trust_percent for given in plans(both, UP, 2).values() if given.step is not None]
    assert found == [round(100 * each) for each in tuner.trusts(timed)]
    assert Fraction(found[0], 100) in tuner.trusts(timed)
    assert plans(both, UP, 3) is plans(both, UP, 4)
