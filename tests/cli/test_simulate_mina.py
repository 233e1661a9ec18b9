"""`offpath simulate mina`: what it prints was computed from its inputs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from offpath.cli.demo import samples
from offpath.cli.simulate.mina import CELLS
from offpath.cli.simulate.mina_cells import MODELS, cell, inputs, pairs, patterns
from offpath.cli.simulate.mina_text import TABLE_1, interval, within
from offpath.cli.traces import TraceError

from ..support.command import offpath


def folder(path: Path, change: dict[str, Any] | None = None) -> str:
    """The shipped inputs as a data folder; ``change``: other patterns."""
    data = inputs(None)
    (path / "mina").mkdir()
    for name, pattern in {**data["patterns"], **(change or {})}.items():
        (path / "mina" / f"{name}.json").write_text(json.dumps(pattern))
    (path / "mina" / "mina_host_count_weights.json").write_text(json.dumps(data["host_counts"]))
    return str(path)


def test_figures_of_single_steps_come_from_the_shipped_pattern(tmp_path: Path) -> None:
    words = ("--figure", "4", "--figure", "5", "--json", "--out", str(tmp_path))
    done = offpath("simulate", "mina", "--quick", *words, timeout=120)
    assert done.code == 0, done.err
    rows = done.document["figure_4"][0]["rows"]
    assert rows["needed"]["step_s"] == rows["all"]["step_s"] < rows["none"]["step_s"]
    assert rows["needed"]["ina_s"] < rows["all"]["ina_s"]
    assert rows["all"]["gaps_s"] > rows["none"]["gaps_s"]
    points = done.document["figure_5"][0]["points"]
    assert [step for _, step in points] == sorted((step for _, step in points), reverse=True)
    assert {path.name for path in tmp_path.glob("*.svg")} == {"mina-figure-4.svg", "mina-figure-5.svg"}


def test_a_cell_reports_time_beside_the_score() -> None:
    row = cell(None, 0, "fragments", "mina", "mina-paper", count=150)
    assert row["jobs"] == 150
    assert row["avg_jct_all_ina_s"] <= row["avg_jct_s"] <= row["avg_jct_no_ina_s"]
    score = (row["avg_jct_no_ina_s"] - row["avg_jct_s"]) / (row["avg_jct_no_ina_s"] - row["avg_jct_all_ina_s"])
    assert row["efficiency_score"] == pytest.approx(score, abs=1e-4)
    again = cell(None, 0, "fragments", "mina", "mina-paper", count=150)
    assert {name: again[name] for name in ("efficiency_score", "avg_jct_s")} == {
        name: row[name] for name in ("efficiency_score", "avg_jct_s")
    }


def test_other_inputs_give_other_results(tmp_path: Path) -> None:
    """A model without communication worth the name gains nothing, whatever the paper says."""
    still = {f"{model}-4": {"duration": 0.1, "allreduces": [{"start": 0.01, "size": 8}]} for model in MODELS}
    where = folder(tmp_path, still)
    row = cell(where, 0, "first-n", "first-in-transmission", "greedy", count=80)
    assert row["avg_jct_all_ina_s"] == row["avg_jct_no_ina_s"] == row["avg_jct_s"]
    shipped = cell(None, 0, "first-n", "first-in-transmission", "greedy", count=80)
    assert shipped["avg_jct_s"] != row["avg_jct_s"]


def test_pairs_share_better_by_the_papers_rule_than_greedily() -> None:
    """Figure 12's mean is 0.939; ten seconds of each pair are near it."""
    scores = {rule: pairs(None, rule, seconds=10)["mean"] for rule in ("mina-paper", "greedy")}
    assert scores["mina-paper"] == pytest.approx(0.939, abs=0.005)
    assert scores["greedy"] < scores["mina-paper"]


def test_a_folder_without_a_model_is_named_before_anything_runs(tmp_path: Path) -> None:
    done = offpath("simulate", "mina", "--data", str(tmp_path), "--out", str(tmp_path / "out"))
    assert done.code == 1
    assert "--data" in done.err
    assert not (tmp_path / "out").exists()
    where = folder(tmp_path, {"opt-125m-4": {"duration": 1}})
    with pytest.raises(TraceError, match="opt-125m-4"):
        patterns(inputs(where), 4)


@pytest.mark.parametrize(
    "words", [("mina", "--figure", "8a"), ("mina", "--seeds", "0"), ("conspirator", "--seeds", "3")]
)
def test_what_the_experiment_does_not_have_is_wrong_usage(words: tuple[str, ...]) -> None:
    done = offpath("simulate", *words)
    assert done.code == 2
    assert words[1] in done.err


def test_the_bar_is_the_mean_or_the_range() -> None:
    assert within(0.5, [0.51, 0.52])
    assert within(0.5, [0.4, 0.8])
    assert not within(0.5, [0.53, 0.54])
    assert interval([1.0, 1.0, 1.0]) == "+1.0000 [+1.0000, +1.0000], 3 seeds"
    assert set(TABLE_1) == {(bool(jp), bool(tb), bool(rs)) for jp, tb, rs in CELLS}


def test_shipped_patterns_are_all_there() -> None:
    assert [each.name for each in patterns(inputs(None), 4)] == [f"{model}-4" for model in MODELS]
    assert (samples.DATA / "mina.json").stat().st_size < 64_000
