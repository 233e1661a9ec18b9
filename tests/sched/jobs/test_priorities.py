"""A step of priority is worth a time of waiting, so nobody waits for ever behind its own tenant's urgent requests."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from offpath.sched.jobs import events
from offpath.sched.jobs.commands import Command, Copy
from offpath.sched.jobs.settings import MS, BookSettings, TenantSpec
from offpath.sched.jobs.snapshot import restore, snapshot

from .book_harness import SETTINGS, TENANTS, BookHarness

STEP_MS = 10
ONLY = (TenantSpec("ada", max_share=14),)


def settings(step_ms: float = STEP_MS) -> BookSettings:
    return replace(SETTINGS, priority_step_ns=int(step_ms * MS))


def copied(out: tuple[Command, ...]) -> list[int]:
    return [command.job for command in out if isinstance(command, Copy)]


def served(harness: BookHarness, at_ms: float, count: int) -> list[int]:
    """The jobs in the order in which the only lease, of one lane at a time, takes them."""
    order = copied(harness.warm(at_ms, 1))
    for _ in range(count - 2):  # two lanes hold one each from the beginning
        job = order[-2]
        harness.send(at_ms, events.CopyDone(job, 0))
        order += copied(harness.result(at_ms, job, 1))
    return order


def test_who_waits_long_enough_comes_before_more_urgent_jobs() -> None:
    harness = BookHarness(ONLY, settings())
    for at_ms, job, priority in ((1, 1, 0), (2, 2, 0), (11, 3, 1), (31, 4, 3), (33, 5, 3), (40, 6, 3)):
        harness.submit(at_ms, job, priority=priority)
    assert served(harness, 50, 6) == [1, 3, 4, 2, 5, 6], "at equal times the older one"


def test_an_old_job_is_served_although_urgent_ones_never_end() -> None:
    """Every 5 ms an urgent one comes and one is served: with steps of 10 ms job 1 waits for 7 × 10 ms."""
    harness = BookHarness(ONLY, settings())
    harness.submit(0, 9)
    harness.warm(1, 1)
    harness.submit(1, 10)
    on_lanes = [9, 10]
    harness.submit(2, 1)
    for number in range(100):
        at_ms = 5 + 5 * number
        harness.submit(at_ms, 100 + number, priority=7)
        job = on_lanes.pop(0)
        harness.send(at_ms, events.CopyDone(job, 0))
        on_lanes += copied(harness.result(at_ms, job, 1))
        if 1 in on_lanes:
            break
    assert at_ms == 75, "the first urgent one that came later than 72 is behind it"


@pytest.mark.parametrize(("before_ms", "after_ms", "order"), [(0, 1, [1, 2, 3]), (1, 0, [3, 2, 1])])
def test_a_step_changes_live_for_jobs_that_wait_too(before_ms: int, after_ms: int, order: list[int]) -> None:
    harness = BookHarness(TENANTS, settings(before_ms))
    for job in (1, 2, 3):
        harness.submit(10 * job, job, priority=job)
    harness.send(40, events.ConfigChanged(TENANTS, settings(after_ms), ()))
    again = restore(orjson.loads(orjson.dumps(snapshot(harness.book))))
    assert served(harness, 50, 3) == order
    harness.book = again
    assert served(harness, 50, 3) == order


@given(
    st.lists(st.tuples(st.integers(0, 255), st.integers(0, 40)), min_size=2, max_size=12),
    st.sampled_from((0, 1, STEP_MS, 1_000)),
)
def test_the_order_is_by_priority_less_what_was_waited(jobs: list[tuple[int, int]], step_ms: int) -> None:
    """Of two jobs the one that came first is behind only if it is less urgent by more steps than it came earlier; and
    without ageing whenever it is less urgent."""
    harness = BookHarness(ONLY, settings(step_ms))
    at_ms = 1
    came: dict[int, tuple[int, int]] = {}
    for number, (priority, pause_ms) in enumerate(jobs, 1):
        at_ms += pause_ms
        came[number] = priority, at_ms
        harness.submit(at_ms, number, priority=priority)
    order = served(harness, at_ms + 1, len(jobs))
    assert sorted(order) == sorted(came)
    for ahead, behind in pairwise(order):
        (first, first_ms), (second, second_ms) = came[ahead], came[behind]
        if step_ms:
            assert (first_ms - step_ms * first, ahead) < (second_ms - step_ms * second, behind)
        else:
            assert (-first, ahead) < (-second, behind)


def test_the_largest_steps_are_numbers_of_64_bits() -> None:
    longest = BookSettings(priority_step_ns=0)
    assert -(1 << 63) < longest.turn_ns(255, 0) < longest.turn_ns(254, (1 << 49)) < 0
