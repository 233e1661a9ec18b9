"""`offpath simulate conspirator --figure …` and its fleets: each figure alone, and no more than was asked for."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from offpath.bindings.mig import gpu_models
from offpath.cli.demo import samples
from offpath.cli.gpus import gpu_spec
from offpath.cli.simulate.conspirator import FLEETS, stream_of, work
from offpath.sched.gpu.geometry import GpuSpec
from offpath.sched.sim.conspirator import measure

from ..support.command import offpath

ROOT = Path(__file__).resolve().parents[2]
PODS = str(samples.DATA / "openb_sample.csv")


def test_figure_2_prints_and_draws_a_table_and_runs_no_window(tmp_path: Path) -> None:
    done = offpath("simulate", "conspirator", "--quick", "--figure", "2", "--json", "--out", str(tmp_path))
    assert done.code == 0, done.err
    assert "windows" not in done.document
    assert len(done.document["figure_2"]["rows"]) == 32
    assert [path.name for path in tmp_path.iterdir()] == ["figure-2.svg"]
    table = [line.split() for line in done.err.splitlines()]
    assert ["resnet", "64", "0.58", "0.89", "1.00", "0.96", "1.00", "3g.20gb"] in table
    assert ["bert", "8", "-", "-", "0.52", "0.57", "1.00", "7g.40gb"] in table
    assert "paper: ResNet152" in done.err


def test_figure_2_needs_no_traces_and_writes_below_out(tmp_path: Path) -> None:
    done = offpath("simulate", "conspirator", "--figure", "2", "--json", cwd=tmp_path)
    assert done.code == 0, done.err
    assert len(done.document["figure_2"]["rows"]) == 32
    assert [path.relative_to(tmp_path) for path in tmp_path.rglob("*.svg")] == [Path("out/simulate/figure-2.svg")]
    ignored = subprocess.run(["git", "check-ignore", "-q", "out/simulate/figure-2.svg"], cwd=ROOT)
    assert ignored.returncode == 0 or not (ROOT / ".git").exists()


def test_figures_of_the_windows_run_the_reproduction_alone(tmp_path: Path) -> None:
    done = offpath("simulate", "conspirator", "--quick", "--figure", "8b", "--json", "--out", str(tmp_path))
    assert done.code == 0, done.err
    assert [window["stream"] for window in done.document["windows"]] == ["reproduction"]
    assert {path.name for path in tmp_path.iterdir()} == {"conspirator-quick.jsonl", "figure-8b.svg"}
    assert done.document["plots"] == [str(tmp_path / "figure-8b.svg")]


def test_figure_8c_has_a_row_for_each_load_from_none_to_all_and_may_come_with_another(tmp_path: Path) -> None:
    words = ("--figure", "8c", "--figure", "2")
    done = offpath("simulate", "conspirator", "--quick", *words, "--json", "--out", str(tmp_path), timeout=120)
    assert done.code == 0, done.err
    rows = done.document["figure_8c"]
    assert [row["load"] for row in rows] == [0, 25, 50, 75, 100]
    assert all(row["n"] >= 100 and 0 < row["p50_us"] <= row["p99_us"] for row in rows)
    assert {path.name for path in tmp_path.iterdir()} == {"figure-2.svg", "figure-8c.svg"}
    assert "75 %" in done.err


@pytest.mark.parametrize("words", [("--figure", "9"), ("--figure", "2", "--only", "real")])
def test_a_figure_that_there_is_not_and_a_figure_with_a_part_are_wrong_usage(words: tuple[str, ...]) -> None:
    done = offpath("simulate", "conspirator", *words)
    assert done.code == 2
    assert "--figure" in done.err


@pytest.mark.parametrize(
    ("part", "said"),
    [
        ("all", "no part all: there are reproduction, real, fleet, tenants"),
        ("tenants", "--quick has no window of tenants"),
    ],
)
def test_a_part_without_a_window_is_refused_before_anything_runs(tmp_path: Path, part: str, said: str) -> None:
    done = offpath("simulate", "conspirator", "--quick", "--only", part, "--out", str(tmp_path))
    assert done.code == 1
    assert said in done.err
    assert list(tmp_path.iterdir()) == []


def test_fleets_are_of_models_that_the_geometry_table_has() -> None:
    assert all(model in gpu_models() for models in FLEETS.values() for model in models)


def test_a_fleet_takes_its_models_in_turn_and_keeps_what_holds_always() -> None:
    found = work("fleet", "openb", PODS, None, 20, 0, 6, 5.0, ["greedy", "oldest-gpu-first", "mps_only"], "four models")
    assert found["name"].endswith("on four models")
    active, slices = found["active_gpu_hours"], found["slice_hours"]
    assert found["used_gpu_hours"] <= min(slices.values()) + 1e-6
    assert all(slices[name] <= active[name] + 1e-6 for name in active)
    assert active["mps_only"] == slices["mps_only"]
    assert found["optimal_tried"] == 6
    assert found["optimal_proven"] >= 3
    assert 0 <= found["gap_slice"] < 0.1
    assert found["gap_active"] >= 0


def test_gpus_are_made_by_their_number_as_many_as_jobs_are_ever_alive() -> None:
    made: list[int] = []
    stream = stream_of("openb", PODS, None, 20, 0)

    def gpu(number: int) -> GpuSpec:
        made.append(number)
        return gpu_spec(f"gpu-{number}", FLEETS["four models"][number % 4])

    measure(stream, instants=0, clock=lambda: 0, names=("greedy",), gpu=gpu)
    assert made == list(range(stream.peak_gpus()))
