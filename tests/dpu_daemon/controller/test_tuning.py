"""What jobs of a group expect of INA: found beside the loop, half until then and where it cannot be found."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction

import pytest

from offpath.dpu_daemon.controller import tuning
from offpath.dpu_daemon.controller.tuning import Tuner
from offpath.sched.ina import tuning as group_tuning
from offpath.sched.ina.patterns import Timed
from offpath.sched.ina.tuning import DEFAULT, tuned

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


def test_nothing_at_first_and_what_suits_the_group_later(thread: ThreadPoolExecutor) -> None:
    tuner = Tuner(thread)
    assert (tuner.trusts([GROUP]), tuner.found) == ([None], 0)
    settled(tuner, thread)
    assert (tuner.trusts([GROUP]), tuner.found) == ([tuned(GROUP, False, 200_000)], 1)
    assert tuner.trusts([GROUP]) != [HALF]
    renamed = [Timed("c", each.starts, each.plain, each.ina, each.duration_ns) for each in GROUP]
    assert (tuner.trusts([renamed]), tuner.found) == (tuner.trusts([GROUP]), 1), "whose they are does not matter"


LONG = Timed("long", (0,), (1,), (1,), 86_400 * 10**9)
WIDE = Timed("wide", (0,) * 3000, (2,) * 3000, (1,) * 3000, 9)


@pytest.mark.parametrize("group", [GROUP[:1], GROUP * 4, (LONG, GROUP[0]), (LONG, LONG), (WIDE, WIDE)])
def test_half_for_one_alone_a_crowd_and_steps_that_cannot_be_run(
    group: tuple[Timed, ...], thread: ThreadPoolExecutor
) -> None:
    tuner = Tuner(thread)
    tuner.trusts([group])
    settled(tuner, thread)
    assert tuner.trusts([group]) == [(DEFAULT,) * len(group)]


def variant(n: int, rows: int = 2) -> tuple[Timed, ...]:
    return tuple(Timed("v", (n,) * rows, (60,) * rows, (30,) * rows, 90) for _ in range(2))


def test_what_nobody_plans_with_any_more_is_not_begun() -> None:
    """A job whose pattern changes all the time must not keep others waiting."""
    begun, go_on = threading.Event(), threading.Event()
    with ThreadPoolExecutor(1) as thread:
        thread.submit(lambda: (begun.set(), go_on.wait(30)))
        assert begun.wait(30)
        tuner = Tuner(thread)
        for n in range(1000):
            assert tuner.trusts([variant(n), GROUP]) == [None, None]
        assert len(tuner._waiting) == 2
        go_on.set()
        settled(tuner, thread)
        assert tuner.found == 2


def test_answers_are_kept_within_bounds(thread: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "_MOST_KEPT_ROWS", 40)
    tuner = Tuner(thread)
    for n in range(30):
        tuner.trusts([variant(n)])
        settled(tuner, thread)
    assert tuner.found == 30
    assert len(tuner._known) == 10
    assert tuner.trusts([variant(29)]) != [None]
    assert tuner.trusts([variant(0)]) == [None]
    settled(tuner, thread)


@pytest.mark.parametrize("jobs", [2, 3])
def test_the_work_for_a_group_is_bounded(jobs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The wider a step, the fewer of them are run; with less than one there is nothing to see."""
    wide = tuple(Timed("w", (0,) * n, (20,) * n, (10,) * n, 5) for n in (200, 300, 100)[:jobs])
    run: list[Fraction] = []

    def saved(group: tuple[Timed, ...], trust: object, until_ns: int, compiled: object = None) -> float:
        run.append(sum((Fraction(until_ns * len(each.starts), each.all_ns) for each in group), Fraction()))
        return 0.0

    monkeypatch.setattr(group_tuning, "saved", saved)
    assert len(tuned(wide, False, 80_000)) == jobs
    assert 40_000 < sum(run) <= 80_000
    assert tuned(wide, False, 2_000) == (DEFAULT,) * jobs


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
    (known,) = tuner.trusts([timed])
    assert known is not None
    assert found == [round(100 * each) for each in known] != [50, 50]
    assert plans(both, UP, 3) is plans(both, UP, 4)
    assert plans.measured("a", 1, {**of["a"], "duration": 0.2})
    changed = plans(both, UP, 5)
    assert changed["b"] == plans(both, UP, 6)["b"]
    assert changed["b"].step is not None
    assert changed["b"].step.trust_percent == found[1], "another's new pattern alone is no new epoch"
    settled(tuner, thread)
