"""`offpath simulate netpack`: its rows are complete, come from its inputs, and keep what must hold."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from offpath.cli.demo import samples
from offpath.cli.files.traces import TraceError
from offpath.cli.netpack.cells import POLICIES, World, cell, placement_time, starved
from offpath.cli.netpack.workloads import AUTHORS_FILE, KINDS, LOAD, SAMPLE, authors, stream
from offpath.cli.simulate.netpack_reference import paper_of
from offpath.cli.simulate.netpack_rows import beyond_rows, figure_rows, interval, starved_rows
from offpath.sched.ina.statistical.network import regular
from offpath.sched.placement.batch_port import JobRequest
from offpath.sched.placement.batch_registry import make
from offpath.sched.placement.models import MODELS
from offpath.sched.sim.batches import BatchJob, BatchSimulationError, distribution_efficiency, simulated

from ..support.command import offpath

TESTBED = World("testbed real", racks=1, servers=5, gpus=2, count=60)
COLUMNS = {"figure", "setting", "policy", "avg_jct_s", "avg_queue_s", "norm_jct", "de", "paper"}
HAS_RAY = importlib.util.find_spec("ray") is not None


def runs(world: World, seed: int = 0, policies: tuple[str, ...] = POLICIES) -> dict[str, Any]:
    found: dict[str, Any] = cell(world.as_arguments(), None, seed, list(policies))["runs"]
    return found


def philly(folder: Path, lines: str) -> str:
    (folder / "philly_jobs.csv.gz").write_bytes(b"")
    import gzip

    with gzip.open(folder / "philly_jobs.csv.gz", "wt") as file:
        file.write("submit_time_s,duration_s,num_gpus,vc\n" + lines)
    return str(folder)


def lists(folder: Path, content: object) -> str:
    (folder / "netpack").mkdir()
    (folder / AUTHORS_FILE).write_text(json.dumps(content))
    return str(folder)


def test_the_command_prints_rows_with_all_columns_and_the_papers_numbers(tmp_path: Path) -> None:
    words = ("--quick", "--figure", "6", "--figure", "10", "--seeds", "1", "--json", "--out", str(tmp_path))
    done = offpath("simulate", "netpack", *words, timeout=180)
    assert done.code == 0, done.err
    rows = done.document["figures"]
    assert all(row.keys() >= COLUMNS for row in rows)
    simulated_rows = [row for row in rows if row["figure"] == "6"]
    assert {row["policy"] for row in simulated_rows} == set(POLICIES)
    assert {row["setting"] for row in simulated_rows} == {f"testbed {kind}" for kind in KINDS[:3]}
    for row in simulated_rows:
        assert row["avg_jct_s"] == pytest.approx(row["avg_queue_s"] + row["avg_run_s"], abs=0.2)
        assert 0 < row["de"] <= 1
        assert row["norm_jct"] == 1 or row["policy"] != "netpack"
        assert row["paper"] == {"correlation": 0.98}
    times = [row for row in rows if row["figure"] == "10"]
    assert [row["paper"]["per_job_ms"] for row in times if row["paper"]] == [0.325, 0.325, 13.6, 13.6]
    assert all(0 < row["place_s"] < 60 for row in times)
    assert done.document["plots"] == [str(tmp_path / "netpack-figure-10.svg")]
    assert "figure 6" in done.err


@pytest.mark.parametrize(
    "words",
    [("netpack", "--figure", "14"), ("netpack", "--table", "4"), ("netpack", "--seeds", "0"),
     ("mina", "--engine", "ray"), ("netpack", "--draws", "llvm")],
)  # fmt: skip
def test_what_the_experiment_does_not_have_is_refused(words: tuple[str, ...]) -> None:
    done = offpath("simulate", *words)
    assert done.code == 2
    assert words[1] in done.err


def test_a_seed_gives_the_same_rows_again_and_another_seed_other_jobs() -> None:
    some = ("netpack", "tetris")
    assert runs(TESTBED, 0, some) == runs(TESTBED, 0, some)
    assert runs(TESTBED, 0, some) != runs(TESTBED, 1, some)


def test_a_stream_has_the_load_and_each_kind_the_mean_size_of_the_rows() -> None:
    """By hand from the definition: what the jobs take with an idle network, over the span of their arrivals."""
    means = {}
    for kind in KINDS[:3]:
        jobs = stream(None, kind, 0, 500, 256, 4)
        assert [job.request.arrival_s for job in jobs] == sorted(job.request.arrival_s for job in jobs)
        idle_s = [job.iterations * _idle_s(job.request, 4) for job in jobs]
        work = sum(took * job.request.gpus for took, job in zip(idle_s, jobs, strict=True))
        assert work / jobs[-1].request.arrival_s / 1_024 == pytest.approx(LOAD, rel=1e-6)
        assert max(idle_s) <= 86_400 * (1 + 1e-9)
        means[kind] = sum(job.request.gpus for job in jobs) / len(jobs)
    assert means["normal"] == pytest.approx(means["real"], rel=0.15)
    assert means["poisson"] == pytest.approx(means["real"], rel=0.15)


def _idle_s(request: JobRequest, gpus: int) -> float:
    return request.compute_s + (request.data_gbit / 100 if request.gpus > gpus else 0.0)


def test_less_switch_memory_and_narrower_uplinks_never_make_a_fixed_placement_faster() -> None:
    """`gpu-balance` looks at no network. What runs longer is longer in GPUs' use too, so compare the jobs' own time."""
    cluster = World("", racks=4, servers=4, count=80)
    usual = runs(cluster, 0, ("gpu-balance",))["gpu-balance"]
    for worse in (
        World("", racks=4, servers=4, count=80, pat_gbps=0.0),
        World("", racks=4, servers=4, count=80, oversubscription=20.0),
    ):
        found = runs(worse, 0, ("gpu-balance",))["gpu-balance"]
        assert found["run_s"] > usual["run_s"]
        assert found["de"] < usual["de"]


def test_two_jobs_by_hand() -> None:
    """Two servers of one GPU: VGG-16 on both computes and moves d at 50 Gbit/s, since its PS is beside a worker; the
    other waits for both and the next batch."""
    model = MODELS["vgg16"]
    request = JobRequest("wide", 2, model.data_gbit, model.compute_s)
    wide = BatchJob(request, 100 * model.compute_s)
    after = BatchJob(JobRequest("after", 1, model.data_gbit, model.compute_s, arrival_s=0.5), 5.0)
    first, second = simulated(regular(1, 2), 1, make("gpu-balance"), [wide, after], 1.0)
    assert first.started_s == 1.0
    assert first.ran_s == pytest.approx(100 * (model.compute_s + model.data_gbit / 50))
    assert first.ended_s < second.started_s <= first.ended_s + 1.0
    assert second.ran_s == pytest.approx(5.0)
    assert distribution_efficiency([second]) == pytest.approx(1.0)
    with pytest.raises(BatchSimulationError, match="3 GPUs"):
        simulated(regular(1, 2), 1, make("gpu-balance"), [BatchJob(JobRequest("huge", 3, 1.0, 1.0), 1.0)])


def test_the_reservation_starts_what_ageing_never_does() -> None:
    """With a patience of 20 batches; the command runs the shipped one."""
    from offpath.cli.netpack import cells
    from offpath.sched.placement.netpack.policy import NetPack

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cells, "PATIENCE", 20)
        patch.setattr(cells, "make", lambda name: NetPack(patience=20) if name == "netpack" else make(name))
        ours, papers = (starved(600, policy, 0) for policy in ("netpack", "netpack-paper"))
    assert ours["started_while_small_arrive"]
    assert ours["queue_s"] <= ours["bound_s"]
    assert not papers["started_while_small_arrive"]
    rows = starved_rows([({"kind": "starved", "policy": "netpack"}, ours)])
    assert (rows[0]["started"], rows[0]["within_bound"]) == (1, True)


def test_rows_are_means_with_deviations_over_the_same_seeds() -> None:
    world = {**TESTBED.as_arguments(), "oversubscription": 10.0}
    labels = {"figure": "12", "x": 10.0}
    results = [(4.0, 5.0), (6.0, 9.0)]
    finished = []
    for ours, papers in results:
        each = {"queue_s": 1.0, "run_s": 2.0, "de": 0.5, "spanning": 0.1}
        by = {"netpack": {**each, "jct_s": ours}, "netpack-paper": {**each, "jct_s": papers}}
        finished.append(({"kind": "cell", "world": world, "labels": labels}, {"runs": by}))
    row = next(row for row in figure_rows(finished) if row["policy"] == "netpack-paper")
    assert (row["avg_jct_s"], row["norm_jct"], row["seeds"]) == (7.0, round((1.25 + 1.5) / 2, 4), 2)
    assert row["saved"] == round((0.2 + 1 / 3) / 2, 4)
    beyond = beyond_rows([({**words, "labels": {**labels, "figure": "beyond"}}, held) for words, held in finished])
    assert (beyond[0]["bar"], beyond[0]["met"], beyond[0]["seeds"]) == (0.05, True, 2)
    assert beyond[0]["saved_low"] < 0 < beyond[0]["saved"] < beyond[0]["saved_high"]
    assert interval([1.0, 1.0, 1.0]) == (1.0, 1.0)
    assert paper_of("12", "5:1", 5.0) is None


def test_placing_a_batch_has_a_time_per_policy() -> None:
    assert {name: each["place_s"] > 0 for name, each in placement_time(100, 50, 0, ["netpack"])["runs"].items()} == {
        "netpack": True
    }


# -- hostile traces -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("lines", "said"),
    [("1,10,2,v\n", "1 jobs that can be used, 2"), ("1,nan,2,v\n", "duration_s"), ("1,10,-4,v\n", "num_gpus"),
     ("1,10,1e9,v\n", "num_gpus"), ("1,10,1,v\n", "no job of 2 GPUs"), ("1,0,4,v\n2,0,4,v\n", "no job of 2"),
     ("", "contains no job")],
)  # fmt: skip
def test_a_trace_that_cannot_be_used_is_named(tmp_path: Path, lines: str, said: str) -> None:
    with pytest.raises(TraceError, match=said):
        stream(philly(tmp_path, lines), "real", 0, 2, 4, 4)


@pytest.mark.parametrize(
    "content",
    [[], {}, {"job_gpus": 3, "period_s": [1]}, {"job_gpus": [[1], [1]], "period_s": [1.0]},
     {"job_gpus": [[1], [1], []], "period_s": [1.0]}, {"job_gpus": [[1], [1], [2.5]], "period_s": [1.0]},
     {"job_gpus": [[1], [1], [-2]], "period_s": [1.0]}, {"job_gpus": [[1], [1], [2]], "period_s": []},
     {"job_gpus": [[1], [1], [2]], "period_s": [0.0]}, {"job_gpus": [[1], [1], [2]], "period_s": ["x"]},
     {"job_gpus": [[1], [1], [2]], "period_s": [float("nan")]}, {"job_gpus": [[1], [True], [2]], "period_s": [1]}],
)  # fmt: skip
def test_lists_of_the_authors_that_are_none_are_refused(tmp_path: Path, content: object) -> None:
    with pytest.raises(TraceError, match="netpack_traces"):
        authors(str(Path(lists(tmp_path, content)) / AUTHORS_FILE))


def test_the_authors_lists_give_jobs_of_their_sizes_and_durations(tmp_path: Path) -> None:
    where = lists(tmp_path, {"job_gpus": [[8], [3, 0], [5]], "period_s": [30.0]})
    jobs = stream(where, "authors", 0, 40, 5, 2)
    assert {job.request.gpus for job in jobs} == {3, 5}
    assert {round(job.iterations * _idle_s(job.request, 2), 6) for job in jobs} == {30.0}
    assert {job.request.gpus for job in stream(where, "authors", 0, 9, 256, 4)} == {8}


def test_what_the_shipped_sample_cannot_give_is_said() -> None:
    for kind in ("real-all", "authors"):
        with pytest.raises(TraceError, match="--data"):
            stream(None, kind, 0, 10, 5, 2)
    with pytest.raises(TraceError, match=f"{SAMPLE}.* 1000 jobs"):
        stream(None, "real", 0, 1_001, 5, 2)
    assert (samples.DATA / SAMPLE).exists()


def test_a_full_run_without_its_traces_names_them(tmp_path: Path) -> None:
    done = offpath("simulate", "netpack", "--data", str(tmp_path), "--out", str(tmp_path))
    assert done.code != 0
    assert "philly_jobs.csv.gz" in done.err
    assert "Traceback" not in done.err


@pytest.mark.skipif(HAS_RAY, reason="Ray is installed")
def test_without_ray_the_engine_ray_says_what_to_install(tmp_path: Path) -> None:
    words = ("--quick", "--figure", "6", "--engine", "ray", "--out", str(tmp_path))
    done = offpath("simulate", "netpack", *words)
    assert done.code != 0
    assert "extra `ray`" in done.err
    assert "Traceback" not in done.err


@pytest.mark.skipif(not HAS_RAY, reason="Ray is not installed (extra `ray`)")
def test_on_ray_the_rows_are_the_same(tmp_path: Path) -> None:
    found = []
    for engine in ("local", "ray"):
        words = ("--quick", "--figure", "6", "--seeds", "1", "--json", "--out", str(tmp_path / engine))
        done = offpath("simulate", "netpack", *words, "--engine", engine, timeout=300)
        assert done.code == 0, done.err
        found.append(done.document["figures"])
    assert found[0] == found[1]


def test_the_first_seed_chooses_other_inputs(tmp_path: Path) -> None:
    """Held-out seeds: a policy's numbers may have been chosen on the default ones."""
    words = ("simulate", "netpack", "--quick", "--only", "exact", "--seeds", "1", "--json", "--out", str(tmp_path))
    default, held_out = (offpath(*words, "--first-seed", str(first), timeout=180).document for first in (0, 10))
    assert (default["first_seed"], held_out["first_seed"]) == (0, 10)
    assert len(default["exact"]) == len(held_out["exact"]) > 0
    assert default["exact"] != held_out["exact"]


@pytest.mark.parametrize("words", [("netpack", "--first-seed", "-1"), ("mina", "--first-seed", "1")])
def test_a_first_seed_that_means_nothing_is_refused(words: tuple[str, ...], tmp_path: Path) -> None:
    done = offpath("simulate", *words, "--quick", "--out", str(tmp_path))
    assert done.code == 2
    assert "--first-seed" in done.err
