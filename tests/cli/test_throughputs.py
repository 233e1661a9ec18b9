"""Measured throughputs from files: what is read, and what is refused with its line."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from offpath.cli.demo import samples
from offpath.cli.files.throughputs import gavel_pairs, miso
from offpath.cli.files.traces import TraceError
from offpath.cli.simulate.figure_2 import figure_2
from offpath.sched.gpu.rightsizing import Rate, ThroughputProfile

MISO = str(samples.DATA / "miso_iteration_times.csv")
HEAD = "mig_profile,model,batch_size,mean_iter_s\n"
ALONE = "gpu_type,job_type,scale_factor,steps_per_s\n"
TOGETHER = "gpu_type,job_type_1,scale_factor_1,job_type_2,scale_factor_2,steps_per_s_1,steps_per_s_2\n"


def test_iteration_times_become_rates_by_rising_slices(tmp_path: Path) -> None:
    path = tmp_path / "times.csv.gz"
    path.write_bytes(gzip.compress((HEAD + "7g.40gb,m,8,0.1\n2g.10gb,m,8,0.25\n7g.40gb,n,1,2\n").encode()))
    assert miso(str(path)) == [
        ThroughputProfile("m", 8, (Rate("2g.10gb", 2, 4.0), Rate("7g.40gb", 7, 10.0))),
        ThroughputProfile("n", 1, (Rate("7g.40gb", 7, 0.5),)),
    ]


def test_the_sample_has_eight_models_in_four_sizes_each_on_the_whole_gpu() -> None:
    profiles = miso(MISO)
    assert len(profiles) == 32
    assert len({each.model for each in profiles}) == 8
    assert sum(len(each.rates) for each in profiles) == 145
    assert all(each.rates[-1].profile == "7g.40gb" for each in profiles)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no column mig_profile, model, batch_size, mean_iter_s"),
        (HEAD, "contains no measurement"),
        (HEAD + "9g.99gb,m,1,1\n", ":2: A100-40GB has no MIG profile '9g.99gb'"),
        (HEAD + ",m,1,1\n", ":2: A100-40GB has no MIG profile ''"),
        (HEAD + "7g.40gb,,1,1\n", ":2: model is ''"),
        (HEAD + "7g.40gb,m,1.5,1\n", ":2: batch_size is 1.5, not a whole number"),
        (HEAD + "7g.40gb,m,0,1\n", ":2: batch_size is 0, not in 1"),
        (HEAD + "7g.40gb,m,1,0\n", ":2: mean_iter_s is 0, not in"),
        (HEAD + "7g.40gb,m,1,-1\n", ":2: mean_iter_s is -1, not in"),
        (HEAD + "7g.40gb,m,1,nan\n", ":2: mean_iter_s is nan"),
        (HEAD + "7g.40gb,m,1\n", ":2: mean_iter_s is None"),
        (HEAD + "7g.40gb,m,1,1\n7g.40gb,m,1,2\n", ":3: m, batch 1: 7g.40gb twice"),
        (HEAD + "7g.40gb,m,1,1\n1g.5gb,m,1,2\n1g.10gb,m,1,2\n", ":4: m, batch 1: 1g.10gb twice"),
        (HEAD + "4g.20gb,m,1,1\n", "m, batch 1: not measured on the whole GPU"),
    ],
)
def test_iteration_times_that_make_no_sense_are_named_with_their_line(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "times.csv"
    path.write_text(text)
    with pytest.raises(TraceError, match=said):
        miso(str(path))


@pytest.mark.parametrize("held", [b"\x1f\x8b\x08 no gzip", b"\xff\xfe,\x00"])
def test_iteration_times_of_other_bytes_are_refused(tmp_path: Path, held: bytes) -> None:
    path = tmp_path / "times.csv.gz"
    path.write_bytes(held)
    with pytest.raises(TraceError):
        miso(str(path))


def pairs(folder: Path, alone: str, together: str) -> dict[str, list[float | None]]:
    (folder / "alone.csv").write_text(ALONE + alone)
    (folder / "together.csv").write_text(TOGETHER + together)
    return gavel_pairs(str(folder / "alone.csv"), str(folder / "together.csv"))


def test_a_pair_counts_by_what_each_job_makes_of_its_own_throughput(tmp_path: Path) -> None:
    alone = "v100,a,1,10\nv100,b,1,4\nv100,a,2,19\nrtx,a,1,5\n"
    together = "v100,a,1,b,1,6,3\nv100,a,1,a,1,0,0\nv100,a,2,a,2,1,1\nrtx,a,1,c,1,1,1\n"
    assert pairs(tmp_path, alone, together) == {"v100": [pytest.approx(0.6 + 0.75), None], "p100": [], "k80": []}


@pytest.mark.parametrize(
    ("alone", "together", "said"),
    [
        ("v100,a,1,10\n", "v100,a,1,b,1,1,1\n", ":2: a or b was not measured alone on v100"),
        ("v100,a,1,0\n", "v100,a,1,a,1,1,1\n", ":2: a or a was not measured alone on v100"),
        ("v100,a,1,10\nv100,a,1,11\n", "", ":3: a on v100 twice"),
        ("v100,,1,10\n", "", ":2: a job without a name"),
        ("v100,a,1,10\n", "v100,a,1,,1,1,1\n", ":2: a job without a name"),
        ("v100,a,1,x\n", "", ":2: steps_per_s is 'x', not a number"),
        ("v100,a,1,10\n", "v100,a,1,a,1,1,inf\n", ":2: steps_per_s_2 is inf"),
        ("v100,a,0,10\n", "", ":2: scale_factor is 0, not in 1"),
    ],
)
def test_pairs_that_make_no_sense_are_named_with_their_line(
    tmp_path: Path, alone: str, together: str, said: str
) -> None:
    with pytest.raises(TraceError, match=said):
        pairs(tmp_path, alone, together)


def test_a_folder_without_the_measurements_is_told_what_it_lacks(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"miso_a100_mig_iteration_times.csv.gz.*gavel_throughputs_colocated.csv.gz"):
        figure_2(str(tmp_path))


def test_figure_2_normalises_to_the_whole_gpu_and_counts_each_knee_once() -> None:
    found = figure_2(None)
    assert found["paper"]["knee_percent"] == 50
    for row in found["rows"]:
        points = {point["share"]: point["normalised"] for point in row["points"]}
        assert points[100] == 1
        assert set(points) <= {14, 28, 42, 57, 100}
        assert max(part for share, part in points.items() if share >= row["knee"]["share"]) <= (
            (1 + found["gain"]) * points[row["knee"]["share"]] + 1e-3
        )
    assert all(sum(knees.values()) == 32 for knees in found["knees_by_gain"].values())
    knees = [row["knee"]["share"] for row in found["rows"]]
    assert found["right_sized"]["mean_share"] == pytest.approx(sum(knees) / 32, abs=0.05)
    assert 1 / (1 + found["gain"]) <= found["right_sized"]["mean_throughput"] <= 1.01
    assert found["pairs_on_a_whole_gpu"] is None
