"""The job book in virtual time: with a device that takes no time it decides as Algorithm 1 does, row by row."""

from __future__ import annotations

from random import Random

import pytest

from offpath.sched.gpu.baselines import BestFit, Exclusive, MpsOnly
from offpath.sched.gpu.checker import tally, violations
from offpath.sched.gpu.conspirator import ConspiratorPaper
from offpath.sched.gpu.exact import Costs, solve
from offpath.sched.gpu.oldest_gpu_first import OldestGpuFirst
from offpath.sched.gpu.paper import FRACTIONS, Transcription, paper_gpu
from offpath.sched.gpu.policy import Policy
from offpath.sched.jobs.commands import OpenLease
from offpath.sched.jobs.states import JobState
from offpath.sched.sim.accounting import HOUR_NS, Meter
from offpath.sched.sim.cluster import Cluster
from offpath.sched.sim.core import EventCore
from offpath.sched.sim.devices import DeviceModel
from offpath.sched.sim.workload import Stream, TraceJob

from ...sizes import sized

STREAMS = sized(quick=5, fast=10, slow=40, full=1_000)
S = 10**9


def drawn(seed: int, jobs: int = 60) -> tuple[Stream, list[tuple[str, str]]]:
    """Jobs that never come or go at the same moment, and more GPUs than they can need."""
    random = Random(f"stream {seed}")
    models = random.sample(sorted(FRACTIONS), random.randint(1, 3))
    shares = random.sample(range(1, 101), 5)
    times = random.sample(range(1, 100 * jobs), 2 * jobs)
    rows = []
    for at, other in zip(times[::2], times[1::2], strict=True):
        model = random.choice(models) if random.random() < 0.2 else ""
        tenant = f"t{random.randint(1, 4)}"
        rows.append(TraceJob(min(at, other) * S, abs(at - other) * S, tenant, random.choice(shares), model))
    rows.sort(key=lambda job: job.submit_ns)
    stream = Stream(f"drawn {seed}", "real", 0, 100 * jobs * S, tuple(rows))
    return stream, [(f"g{n}", models[n % len(models)]) for n in range(len(models) * stream.peak_gpus())]


def test_the_book_decides_as_the_transcription_row_by_row() -> None:
    for seed in range(STREAMS):
        stream, gpus = drawn(seed)
        plain = Transcription(gpus)
        moments = [(job.submit_ns, 1, row) for row, job in enumerate(stream.jobs)]
        moments += [(job.submit_ns + job.duration_ns, 0, row) for row, job in enumerate(stream.jobs)]
        expected = {}
        for _, is_start, row in sorted(moments):
            job = stream.jobs[row]
            if is_start:
                expected[row] = plain.assign(row, job.tenant, job.share, [job.model] if job.model else ())
            else:
                plain.end(row)
        decided: dict[int, tuple[str, int]] = {}

        def note(row: int, lease: OpenLease, decided: dict[int, tuple[str, int]] = decided) -> None:
            decided[row] = lease.gpu, lease.start

        cluster = Cluster(stream, [paper_gpu(*gpu) for gpu in gpus], ConspiratorPaper())
        cluster.on_decision = note
        cluster.run()
        assert decided == expected, seed
        assert len(decided) == len(stream.jobs), seed
        assert max(cluster.waited_ns) == 0


@pytest.mark.parametrize("kind", [ConspiratorPaper, MpsOnly, Exclusive, BestFit, OldestGpuFirst])
def test_every_state_is_legal_and_no_better_than_the_optimum(kind: type[Policy]) -> None:
    stream, gpus = drawn(7)
    specs = [paper_gpu(*gpu) for gpu in gpus]
    cluster = Cluster(stream, specs, OldestGpuFirst(prefetch=False) if kind is OldestGpuFirst else kind())
    for at_ns in range(0, stream.end_ns, 500 * S):
        cluster.run(at_ns)
        jobs = cluster.live()
        places = {job.job: job.place for job in jobs if job.place is not None}
        assert violations(specs, jobs, places) == []
        told = tally(specs, jobs, places)
        assert (told.gpus, told.slices) == (cluster.meter.active, cluster.meter.slices)
        for costs, ours in ((Costs(1), told.gpus), (Costs(0, 0, 1), told.slices)):
            best = solve(specs, jobs, costs, limit_s=10)
            assert best.is_proven
            assert best.objective <= ours
    cluster.run()
    assert cluster.ended == {JobState.COMPLETED: len(stream.jobs)}
    assert (cluster.meter.active, cluster.meter.slices, cluster.meter.used) == (0, 0, 0)


def test_gpu_hours_by_hand() -> None:
    """Two tenants' halves on one GPU for an hour, then one for another: 2 active GPU-hours, 1.71 slice-hours."""
    rows = (TraceJob(0, HOUR_NS, "a", 50), TraceJob(1, 2 * HOUR_NS, "b", 40))
    stream = Stream("two", "real", 0, 3 * HOUR_NS, rows)
    cluster = Cluster(stream, [paper_gpu("g0"), paper_gpu("g1")], ConspiratorPaper())
    cluster.run()
    total = cluster.meter.total(stream.end_ns)
    assert (total.active, total.slices, total.used) == pytest.approx((2.0, 0.57 + 2 * 0.42, 0.5 + 0.8))
    whole = Cluster(stream, [paper_gpu("g0"), paper_gpu("g1")], MpsOnly())
    whole.run()
    assert whole.meter.total(stream.end_ns).active == whole.meter.total(stream.end_ns).slices == pytest.approx(3.0)


def test_a_gang_is_so_many_whole_gpus() -> None:
    stream = Stream("gang", "real", 0, 10 * S, (TraceJob(S, 5 * S, "a", 400),))
    cluster = Cluster(stream, [paper_gpu(f"g{n}") for n in range(stream.peak_gpus())], ConspiratorPaper())
    cluster.run(2 * S)
    assert cluster.meter.active == stream.peak_gpus() == 4
    cluster.run()
    assert cluster.ended == {JobState.COMPLETED: 4}


def test_a_device_takes_its_time_before_the_first_job_and_after_the_last() -> None:
    device = DeviceModel("slow", create_ns=3 * S, warm_ns=4 * S, scrub_ns_per_gib=0, destroy_ns=2 * S)
    stream = Stream("one", "real", 0, 100 * S, (TraceJob(S, 10 * S, "a", 50),))
    cluster = Cluster(stream, [paper_gpu("g0")], ConspiratorPaper(), device=device)
    cluster.run()
    assert cluster.waited_ns == [7 * S]
    assert cluster.meter.total(100 * S).active * HOUR_NS == pytest.approx((7 + 10 + 2) * S)


def test_the_meter_counts_only_its_window() -> None:
    meter = Meter(10, 20)
    meter.held(0, "g", 42)
    meter.freed(15, "g", 42)
    meter.held(18, "g", 100)
    total = meter.total(50)
    assert (total.active * HOUR_NS, total.slices * HOUR_NS) == pytest.approx((7.0, 5 * 0.42 + 2.0))


def test_the_event_core_keeps_the_order_of_time_and_of_asking() -> None:
    core, seen = EventCore(), list[str]()
    core.at(5, lambda: seen.append("c"))
    core.at(1, lambda: (seen.append("a"), core.after(0, lambda: seen.append("b")))[0])
    core.at(5, lambda: seen.append("d"))
    core.at(9, lambda: seen.append("e"))
    core.run(until_ns=5)
    assert (seen, core.now_ns) == (["a", "b", "c", "d"], 5)
    core.run()
    assert (seen, core.now_ns) == (["a", "b", "c", "d", "e"], 9)
