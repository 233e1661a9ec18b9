"""Where optima are asked for: evenly over the time at which there are jobs, but not too many."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from offpath.sched.gpu.conspirator import ConspiratorPaper
from offpath.sched.gpu.paper import paper_gpu
from offpath.sched.sim.cluster import Cluster
from offpath.sched.sim.conspirator import MOST_LIVE, measure
from offpath.sched.sim.workload import Stream, TraceJob, evenly, live_spans

END = 1_000


def stream(*jobs: TraceJob) -> Stream:
    return Stream("s", "real", 0, END, tuple(sorted(jobs, key=lambda job: job.submit_ns)))


JOBS = st.builds(TraceJob, st.integers(0, END), st.integers(0, END), st.just("a"), st.sampled_from([10, 100, 200, 300]))
STREAMS = st.lists(JOBS, max_size=20).map(lambda jobs: stream(*jobs))


def live(each: Stream, at: int) -> int:
    return sum(max(1, j.share // 100) for j in each.jobs if j.submit_ns <= at < j.submit_ns + j.duration_ns)


def test_spans_have_some_jobs_but_no_more_than_asked() -> None:
    each = stream(TraceJob(100, 300, "a", 50), TraceJob(200, 100, "a", 200), TraceJob(600, 900, "b", 100))
    assert live_spans(each, 2) == [(100, 200), (300, 400), (600, END)]
    assert live_spans(each, 3) == [(100, 400), (600, END)]


def test_a_job_from_before_the_window_is_alive_in_it() -> None:
    each = Stream("s", "real", 100, END, (TraceJob(0, 300, "a", 50),))
    assert live_spans(each, 60) == [(100, 300)]


def test_moments_are_where_they_would_be_in_the_whole_window_if_all_of_it_will_do() -> None:
    each = stream(TraceJob(0, END, "a", 50))
    assert evenly(live_spans(each, 60), 4) == [125, 375, 625, 875]


def test_moments_skip_what_lies_between_spans() -> None:
    assert evenly([(0, 10), (100, 110), (500, 520)], 4) == [5, 105, 505, 515]


def test_there_are_no_more_moments_than_time() -> None:
    assert evenly([], 5) == []
    assert evenly([(7, 9)], 100) == [7, 8]


@given(STREAMS, st.integers(1, 8), st.integers(1, 30))
def test_every_moment_is_in_a_span_and_every_span_is_as_promised(each: Stream, most: int, count: int) -> None:
    spans = live_spans(each, most)
    inside = {at for begin, end in spans for at in range(begin, end)}
    assert inside == {at for at in range(END) if 1 <= live(each, at) <= most}
    moments = evenly(spans, count)
    assert set(moments) <= inside
    assert len(moments) == min(count, len(inside))


@given(STREAMS, st.integers(1, 8))
def test_the_cluster_has_as_many_jobs_at_a_moment_as_the_stream_says(each: Stream, most: int) -> None:
    cluster = Cluster(each, [paper_gpu(f"g{n}") for n in range(each.peak_gpus())], ConspiratorPaper())
    for at in evenly(live_spans(each, most), 5):
        cluster.run(at)
        assert 1 <= len(cluster.live()) == live(each, at) <= most


def test_a_window_with_more_jobs_than_are_asked_for_is_looked_at_as_a_whole_besides() -> None:
    """Half of the time 61 jobs are alive: six instants are among the single job's, six among all."""
    crowd = [TraceJob(END // 2, END // 2, "a", 100)] * MOST_LIVE
    found = measure(stream(TraceJob(0, END, "a", 100), *crowd), instants=6, clock=lambda: 0, names=("greedy",))
    assert found.live_part == 0.5
    assert [each.jobs for each in found.instants] == [1] * 6
    assert [each.jobs for each in found.any_instants] == [1] * 3 + [MOST_LIVE + 1] * 3
    assert all(each.is_proven and each.gpus == each.best_gpus for each in found.any_instants)


def test_a_quiet_window_is_asked_once() -> None:
    found = measure(stream(TraceJob(0, END, "a", 50)), instants=6, clock=lambda: 0, names=("greedy",))
    assert found.live_part == 1
    assert found.any_instants == found.instants
    assert len(found.instants) == 6
