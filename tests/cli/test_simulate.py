"""`offpath simulate conspirator` and `offpath bench gpu-policy`: what they print was measured; a sweep goes on."""

from __future__ import annotations

import fcntl
import gzip
import json
import math
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest

from offpath.cli.demo import samples
from offpath.cli.files.traces import TraceError, openb, pai_marginals, whole_gpus
from offpath.cli.hire.traces import read as read_groups
from offpath.cli.simulate.conspirator import densest, stream_of
from offpath.cli.simulate.sweep import SweepError, sweep
from offpath.sched.sim.workload import SECOND_NS, Marginals, Stream, TraceJob, synthetic, thinned, with_tenants, zipf

from ..support.command import offpath

ROWS = {"greedy", "oldest-gpu-first", "migrating", "mps_only", "exclusive", "time_sharing"}
MARGINALS = str(samples.DATA / "pai_marginals.json")
PODS = str(samples.DATA / "openb_sample.csv")


def test_the_quick_simulation_prints_both_windows_and_keeps_what_holds_always(tmp_path: Path) -> None:
    done = offpath("simulate", "conspirator", "--quick", "--json", "--out", str(tmp_path))
    assert done.code == 0, done.err
    found = done.document
    assert [window["stream"] for window in found["windows"]] == ["reproduction", "real"]
    for window in found["windows"]:
        active, slices = window["active_gpu_hours"], window["slice_hours"]
        assert set(active) == set(slices) == ROWS
        assert window["used_gpu_hours"] <= min(slices.values()) + 1e-6
        assert all(slices[name] <= active[name] + 1e-6 for name in ROWS)
        assert active["greedy"] <= active["mps_only"] == slices["mps_only"] <= active["exclusive"]
        assert active["migrating"] <= active["oldest-gpu-first"] * 1.005
        assert window["used_gpu_hours"] <= active["time_sharing"] == slices["time_sharing"] <= active["exclusive"]
        assert 0 <= window["time_sharing_mixed_gpu_hours"] <= active["time_sharing"]
        assert window["optimal_tried"] >= window["optimal_proven"] >= 3
        assert 0 <= window["gap_slice"] < 0.05
        assert window["gap_active"] >= 0
        assert window["decision_p50_us"] > 0
        assert window["used_gpu_hours"] == pytest.approx(window["load_gpus"] * 60, rel=0.01)
    assert found["paper"]["greedy"] == 233
    assert found["summary"]["reproduction"]["saving_slice"]["mean"] > 0
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "conspirator-quick.jsonl", "figure-8a.svg", "figure-8b.svg",
    ]  # fmt: skip
    assert "the paper's pattern" in done.err


def test_a_full_simulation_names_the_traces_that_are_missing(tmp_path: Path) -> None:
    done = offpath("simulate", "conspirator", "--data", str(tmp_path), "--out", str(tmp_path / "out"))
    assert done.code == 1
    assert "alibaba2020_pai_marginals.json" in done.err
    assert "--data" in done.err
    assert not (tmp_path / "out").exists()


def double(number: int) -> dict[str, int]:
    return {"twice": 2 * number}


def test_a_sweep_goes_on_where_it_was_interrupted(tmp_path: Path) -> None:
    path = tmp_path / "sweep.jsonl"
    path.write_text(json.dumps({"key": "1", "result": {"twice": 99}}) + '\n{"key": "2", "resu')
    pieces = [(str(n), {"number": n}) for n in (1, 2, 3)]
    assert sweep(str(path), pieces, double) == [{"twice": 99}, {"twice": 4}, {"twice": 6}]
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert sorted(each["key"] for each in lines) == ["1", "2", "3"]
    assert sweep(str(path), pieces, double, fresh=True)[0] == {"twice": 2}


def test_two_sweeps_do_not_write_one_file(tmp_path: Path) -> None:
    """Nor does one that starts while the workers of a killed one still end."""
    path = tmp_path / "sweep.jsonl"
    before = json.dumps({"key": "1", "result": {"twice": 99}}) + "\n"
    with path.open("a") as other:
        other.write(before)
        other.flush()
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(SweepError, match="another run"):
            sweep(str(path), [("1", {"number": 1})], double, fresh=True)
    assert path.read_text() == before


def test_the_synthetic_stream_has_the_published_marginals_and_the_asked_load() -> None:
    marginals = pai_marginals(MARGINALS)
    assert marginals.mean_share() == pytest.approx((442591 + 272243 * 0.25 + 136701 * 0.5 + 116648 * 0.1) / 968183)
    random = Random(1)
    drawn = [marginals.draw_duration_s(random, math.inf) for _ in range(40_000)]
    drawn.sort()
    for (p, seconds), (q, _) in pairwise(marginals.durations):
        if 0 < p < 0.99:
            assert drawn[int(p * len(drawn))] == pytest.approx(seconds, rel=0.15), (p, q)
    capped = [min(each, 216_000.0) for each in drawn]
    assert sum(capped) / len(capped) == pytest.approx(marginals.mean_duration_s(216_000.0), rel=0.06)
    loads = [
        synthetic("s", marginals, load_gpus=4.0, hours=60, tenants=60, random=Random(seed)).load_gpus
        for seed in range(40)
    ]
    assert sum(loads) / len(loads) == pytest.approx(4.0, rel=0.12)


def test_a_stream_is_drawn_the_same_each_time_and_another_with_another_seed() -> None:
    def stream(seed: int) -> Stream:
        return stream_of("synthetic", MARGINALS, 3.9, 60, seed)

    assert stream(3) == stream(3)
    assert stream(3) != stream(4)
    assert stream(3).begin_ns == 60 * 3_600 * SECOND_NS


def test_tenants_are_zipf_and_thinning_keeps_the_load_asked_for() -> None:
    assert zipf(3) == pytest.approx([6 / 11, 3 / 11, 2 / 11])
    pods = openb(PODS)
    many = with_tenants(Stream("s", "real", 0, 1, pods.jobs * 50), 4, Random(2))
    counts = [sum(job.tenant == f"t{n}" for job in many.jobs) for n in (1, 2, 3, 4)]
    assert [count / len(many.jobs) for count in counts] == pytest.approx(zipf(4), abs=0.02)
    thin = [thinned(pods, pods.load_gpus / 2, Random(seed)).load_gpus for seed in range(60)]
    assert sum(thin) / len(thin) == pytest.approx(pods.load_gpus / 2, rel=0.2)
    with pytest.raises(ValueError, match="has a load of"):
        thinned(pods, 1_000, Random(0))


def test_loads_and_peaks_by_hand() -> None:
    jobs = (TraceJob(0, 10, "a", 50), TraceJob(5, 10, "a", 300), TraceJob(5, 100, "b", 100))
    stream = Stream("s", "real", 0, 20, jobs)
    assert stream.load_gpus == pytest.approx((0.5 * 10 + 3 * 10 + 1 * 15) / 20)
    assert stream.peak_gpus() == 5
    assert densest(stream).jobs == jobs


SYNTHETIC = "job,type,submit,duration,task_group,instances,mem,cpu,connections\n"
PODS_OF_HIRE = "name,creation_time_s,run_duration_s,cpu_milli,memory_mib,qos\n"


def test_traces_are_read_with_their_columns(tmp_path: Path) -> None:
    pods = openb(PODS)
    assert len(pods.jobs) == 210
    assert all(1 <= job.share <= 100 or job.share % 100 == 0 for job in pods.jobs)
    path = tmp_path / "jobs.csv.gz"
    path.write_bytes(gzip.compress(b"submit_time_s,duration_s,num_gpus,vc\n30,2.5,4,x\n10,1,1,y\n"))
    stream = whole_gpus(str(path), tenant="vc", name="two")
    assert stream.jobs == (
        TraceJob(10 * SECOND_NS, SECOND_NS, "y", 100), TraceJob(30 * SECOND_NS, 2_500_000_000, "x", 400),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("submit_time_s,duration_s,num_gpus\n1,2,1\n", "no column vc"),
        ("submit_time_s,duration_s,num_gpus,vc\n", "contains no job"),
        ("submit_time_s,duration_s,num_gpus,vc\n1,nan,1,a\n", ":2: duration_s is nan"),
        ("submit_time_s,duration_s,num_gpus,vc\n1,2,0,a\n", ":2: num_gpus is 0"),
        ("submit_time_s,duration_s,num_gpus,vc\n1,x,1,a\n", ":2: duration_s is 'x', not a number"),
        ("submit_time_s,duration_s,num_gpus,vc\n1,1e99,1,a\n", "not in 0 to"),
        ("submit_time_s,duration_s,num_gpus,vc\n1\n", ":2: duration_s is None"),
        ("submit_time_s,duration_s,num_gpus,vc\n1,2,1\n", ":2: vc is None"),
        ("submit_time_s,duration_s,num_gpus,vc\n1,2,2.0,a\n1,2,1.5,a\n", ":3: num_gpus is 1.5, not a whole number"),
        ("submit_time_s,duration_s,num_gpus,vc\n1,2,0.5,a\n", ":2: num_gpus is 0.5, not in 1 to 1024"),
    ],
)
def test_a_trace_that_makes_no_sense_is_named_with_its_line(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "jobs.csv"
    path.write_text(text)
    with pytest.raises(TraceError, match=said):
        whole_gpus(str(path), tenant="vc", name="bad")


def test_several_gpus_of_a_shared_gpus_trace_are_whole(tmp_path: Path) -> None:
    path = tmp_path / "pods.csv"
    path.write_text("submit_time_s,duration_s,gpu_request_fraction,num_gpu\n0,1,0.25,1\n0,1,2.0,2\n")
    assert [job.share for job in openb(str(path)).jobs] == [25, 200]
    path.write_text("submit_time_s,duration_s,gpu_request_fraction,num_gpu\n0,1,0.25,1\n0,1,1.5,2\n")
    with pytest.raises(TraceError, match=r"pods\.csv:3: gpu_request_fraction is 1\.5, not a whole number"):
        openb(str(path))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"{SYNTHETIC}j0,DAG,2,13,1,2.5,1.00,50,\n", ":2: instances is 2.5, not a whole number"),
        (f"{SYNTHETIC}j0,DAG,2,13,1.5,2,1.00,50,\n", ":2: task_group is 1.5, not a whole number"),
        (f"{PODS_OF_HIRE}p0,0,5,100.5,1,LS\n", ":2: cpu_milli is 100.5, not a whole number"),
        (f"{PODS_OF_HIRE}p0,0,5,100,1.5,LS\n", ":2: memory_mib is 1.5, not a whole number"),
    ],
)
def test_counts_of_a_trace_of_task_groups_are_whole(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "groups.csv"
    path.write_text(text)
    with pytest.raises(TraceError, match=said):
        read_groups(str(path))


@pytest.mark.parametrize("held", [b"\x1f\x8b\x08 no gzip", b"\xff\xfe,\x00"])
def test_a_trace_of_other_bytes_is_refused(tmp_path: Path, held: bytes) -> None:
    path = tmp_path / "jobs.csv.gz"
    path.write_bytes(held)
    with pytest.raises(TraceError):
        whole_gpus(str(path), tenant="vc", name="bad")


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"task_table_full": {"plan_gpu_percent_counts": {"10": "x"}}}'])
def test_marginals_that_are_none_are_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "marginals.json"
    path.write_text(text)
    with pytest.raises(TraceError, match="not the marginals"):
        pai_marginals(str(path))


def test_a_mean_duration_by_hand() -> None:
    """Half of the jobs 1 to e seconds, log-uniform: mean e - 1; half e seconds."""
    marginals = Marginals(((100, 1.0),), ((0.0, 1.0), (0.5, math.e), (1.0, math.e)))
    assert marginals.mean_duration_s(100) == pytest.approx(0.5 * (math.e - 1) + 0.5 * math.e)
    assert marginals.mean_duration_s(1) == pytest.approx(1)


def test_the_policy_bench_prints_its_rows_and_bars() -> None:
    done = offpath("bench", "gpu-policy", "--quick", "--json", "--only", "mps-only", timeout=120)
    assert done.code in (0, 1), done.err
    rows = done.document["rows"]
    assert [row["gpus"] for row in rows] == [10, 16, 100, 1_000, 10_000]
    assert all(row["policy"] == "mps-only" and row["queued"] == 1_000 for row in rows)
    assert all(0 < row["p50_us"] <= row["p99_us"] for row in rows)
    assert set(done.document["growth"]) == {"mps-only"}
