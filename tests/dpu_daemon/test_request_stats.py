"""Histograms by bits: every number in its bucket, quantiles inside it."""

from __future__ import annotations

import gc
import weakref
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from offpath.bindings.wire.codes import Reason, Status
from offpath.bindings.wire.header import RequestHeader
from offpath.dpu_daemon.requests.histogram import BOUNDS_NS, Histogram
from offpath.dpu_daemon.requests.inflight import JobRef
from offpath.dpu_daemon.requests.request_stats import RequestStats
from offpath.sched.jobs.commands import Answer
from offpath.sched.jobs.states import EndReason, JobState


def filled(numbers: list[int]) -> Histogram:
    histogram = Histogram()
    for ns in numbers:
        histogram.bits[ns.bit_length()] += 1
        histogram.sum_ns += ns
    return histogram


@given(st.lists(st.integers(0, 2**40), min_size=1, max_size=50))
def test_a_bucket_counts_what_lies_below_its_bound_and_above_the_one_before(numbers: list[int]) -> None:
    counts = filled(numbers).counts()
    total = 0
    for bound, count in zip(BOUNDS_NS, counts, strict=False):
        total += count
        assert total == sum(ns < bound for ns in numbers)
    assert total + counts[-1] == len(numbers)


@given(st.lists(st.integers(2**13, 2**35), min_size=1, max_size=200), st.floats(0.01, 0.99))
def test_a_quantile_is_within_a_factor_of_two(numbers: list[int], q: float) -> None:
    exact = sorted(numbers)[max(0, -int(-q * len(numbers) // 1) - 1)]
    assert exact / 2 <= filled(numbers).quantile_ns(q) <= exact * 2


def test_an_empty_histogram_has_no_quantile() -> None:
    assert Histogram().quantile_ns(0.5) == 0


class Peer:
    """What the tally asks of a session."""

    number = 3
    tenant = "ada"


def test_an_ended_job_that_is_remembered_does_not_hold_its_session() -> None:
    """Thousands of short sessions with a job each would else stay in memory for as long as the jobs are remembered."""
    session: Any = Peer()
    ref = JobRef(7, session, 0, RequestHeader(0, 9, 1, 14, 2, 50, 0, 64, 0, b""))
    answer = Answer(7, 3, JobState.COMPLETED, EndReason.NONE, 0, 1, 1, (1, 2, 3, 4, 5, 15))
    stats = RequestStats()
    stats.answered(ref, answer, Status.COMPLETED, Reason.NONE, 1_000)
    there = weakref.ref(session)
    del session, ref
    gc.collect()
    assert there() is None
    kept = stats.find(session=3, request_id=9)
    assert kept == stats.find(job=7)
    assert kept is not None
    assert (kept.tenant, kept.priority, kept.payload_bytes, kept.budget_ms) == ("ada", 2, 64, 50)
    assert stats.find(job=8) is None


def test_ended_jobs_are_listed_by_number_and_page_whatever_the_order_of_their_ends() -> None:
    session: Any = Peer()
    stats = RequestStats()
    for job in (5, 2, 9, 1, 7):
        ref = JobRef(job, session, 0, RequestHeader(0, job, 1, 14, 2, 50, 0, 64, 0, b""))
        is_done = job != 9
        state, reason = (JobState.COMPLETED, EndReason.NONE) if is_done else (JobState.FAILED, EndReason.KERNEL_RAISED)
        answer = Answer(job, 3, state, reason, 0, 1, 1, (1, 2, 3, 4, 5, 15))
        stats.answered(ref, answer, Status[state.name], Reason[reason.name], 1_000)

    def numbers(*states: JobState, **options: Any) -> list[int]:
        return [kept.job for kept in stats.ended(states=states, **options)]

    assert numbers(JobState.COMPLETED, JobState.FAILED) == [1, 2, 5, 7, 9]
    assert numbers(JobState.COMPLETED, after=2, limit=2) == [5, 7]
    assert numbers(JobState.FAILED) == [9]
    assert [kept.job for kept in stats.last_ended(8)] == [7, 1, 9, 2, 5]
    assert [kept.job for kept in stats.last_ended(2)] == [7, 1]
    assert numbers(JobState.COMPLETED, tenant="bob") == numbers(JobState.COMPLETED, session=4) == []
