"""Time-sharing's account: between what the jobs use and a GPU for each, and honest about who is beside whom."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offpath.sched.sim.accounting import HOUR_NS
from offpath.sched.sim.time_sharing import time_shared
from offpath.sched.sim.workload import Stream, TraceJob

END = 20


def stream(*jobs: TraceJob) -> Stream:
    return Stream("s", "real", 0, END, tuple(sorted(jobs, key=lambda job: job.submit_ns)))


JOBS = st.builds(
    TraceJob, st.integers(0, END), st.integers(0, 2 * END), st.sampled_from("abc"), st.sampled_from([10, 40, 60, 100])
)
STREAMS = st.lists(JOBS, max_size=12).map(lambda jobs: stream(*jobs))


def ns(hours: float) -> float:
    return hours * HOUR_NS


def alone(each: Stream) -> int:
    """GPU-ns within the window with a GPU for each job."""
    return sum(max(0, min(END, job.submit_ns + job.duration_ns) - job.submit_ns) for job in each.jobs)


def test_two_tenants_take_turns_on_one_gpu_and_the_third_needs_another() -> None:
    found = time_shared(
        stream(TraceJob(0, 10, "a", 50), TraceJob(2, 10, "b", 50), TraceJob(4, 4, "c", 10)), [1, 5, END]
    )
    assert ns(found.hours.active) == ns(found.hours.slices) == pytest.approx(12 + 4)
    assert ns(found.hours.used) == pytest.approx(5 + 5 + 0.4)
    assert ns(found.mixed) == pytest.approx(8)
    assert [ns(active) for active, _ in found.curve] == pytest.approx([1, 6, 16])


def test_jobs_of_one_tenant_on_a_gpu_mix_nothing() -> None:
    found = time_shared(stream(TraceJob(0, 10, "a", 50), TraceJob(0, 10, "a", 50)))
    assert (ns(found.hours.active), found.mixed) == (pytest.approx(10), 0)


def test_a_turn_that_ends_is_free_in_the_same_moment() -> None:
    found = time_shared(stream(TraceJob(0, 5, "a", 100), TraceJob(5, 5, "b", 100)))
    assert (ns(found.hours.active), found.mixed) == (pytest.approx(10), 0)


def test_a_gang_has_whole_gpus_and_only_the_window_counts() -> None:
    assert ns(time_shared(stream(TraceJob(END - 2, 50, "a", 300))).hours.active) == pytest.approx(3 * 2)


@given(STREAMS)
def test_the_hours_lie_between_what_jobs_use_and_a_gpu_for_each(each: Stream) -> None:
    found = time_shared(each)
    assert found.hours.used <= found.hours.active + 1e-12
    assert ns(found.hours.active) <= alone(each) + 1e-3
    assert found.mixed <= found.hours.active + 1e-12


@given(STREAMS)
def test_one_tenant_mixes_nothing_and_uses_the_same_hours(each: Stream) -> None:
    """Who a job belongs to does not matter to turns."""
    one = stream(*(TraceJob(job.submit_ns, job.duration_ns, "only", job.share) for job in each.jobs))
    assert time_shared(one).mixed == 0
    assert time_shared(one).hours == time_shared(each).hours
