"""The plot of `demo ina`: which job was in the tree when, mode by mode, and the gain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import matplotlib

matplotlib.use("Agg")

from matplotlib.axes import Axes
from matplotlib.collections import PatchCollection
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from offpath.cli.demo.ina.log import INA, PLAIN, REDONE, REFUSED, Did, Step

# Okabe and Ito's palette, distinguishable for colour-blind readers
_COLOURS: Final = {INA: "#009E73", REFUSED: "#D55E00", PLAIN: "#999999", REDONE: "#CC79A7"}
_COMPUTES: Final = "#dfe7ee"
_JOBS: Final = ("#0072B2", "#E69F00")
_SHOWN_S: Final = 4.5
_WORDS: Final = {
    INA: "summed in the switch",
    REFUSED: "refused by the root, then plain",
    PLAIN: "plain",
    REDONE: "repeated",
}


@dataclass(frozen=True, slots=True)
class Stretch:
    """Steps of one mode and the operations in them, by job, and when the mode was in force in full, ns."""

    mode: str
    from_ns: int
    steps: tuple[Sequence[Step], ...]
    did: tuple[Sequence[Did], ...]


def draw(settings: Sequence[Mapping[str, Any]], shown: Sequence[Sequence[Stretch]], path: str) -> None:
    """``settings``: as they are printed; ``shown``: by setting and mode. Raises: OSError."""
    modes = len(shown[0])
    figure = Figure(figsize=(7.5 * len(settings), 1.1 * modes + 4.2), layout="constrained")
    rows = figure.subplots(modes + 1, len(settings), squeeze=False, height_ratios=[1] * modes + [2.4])
    for column, (setting, stretches) in enumerate(zip(settings, shown, strict=True)):
        for row, stretch in enumerate(stretches):
            _timeline(rows[row][column], stretch, is_last=row == modes - 1)
        rows[0][column].set_title(
            f"{setting['name']}: plain communication {setting['communication_share']:.0%} of a step, demand for INA "
            f"{setting['ina_demand']:.2f}\n", fontsize=10,
        )  # fmt: skip
        _scores(rows[modes][column], setting)
    handles = [Patch(facecolor=_COLOURS[how], label=_WORDS[how]) for how in _COLOURS]
    handles += [Patch(facecolor=_COMPUTES, label="computing"), *_job_handles()]
    figure.legend(handles=handles, loc="outside lower center", ncols=6, fontsize=9, frameon=False)
    figure.savefig(path, metadata={"Date": None} if path.endswith(".svg") else None)


def _job_handles() -> list[Patch]:
    return [Patch(facecolor=colour, label=f"score of job {n}") for n, colour in enumerate(_JOBS)]


def _timeline(axes: Axes, stretch: Stretch, *, is_last: bool) -> None:
    axes.set(xlim=(0, _SHOWN_S), ylim=(len(stretch.steps), 0))
    axes.set_yticks([n + 0.5 for n in range(len(stretch.steps))], [f"job {n}" for n in range(len(stretch.steps))])
    axes.tick_params(axis="y", length=0, labelsize=8)
    axes.tick_params(axis="x", labelsize=8, labelbottom=is_last)
    axes.set_ylabel(stretch.mode, rotation=0, ha="right", va="center", fontsize=10)
    for job, steps in enumerate(stretch.steps):
        boxes: dict[str, list[Rectangle]] = {_COMPUTES: [], **{colour: [] for colour in _COLOURS.values()}}
        for step in steps:
            boxes[_COMPUTES].append(_box(stretch, job, step.began_ns, step.ended_ns))
            axes.vlines((step.began_ns - stretch.from_ns) / 1e9, job + 0.1, job + 0.9, colors="#333333", linewidth=0.7)
        for each in stretch.did[job]:
            boxes[_COLOURS[each.how]].append(_box(stretch, job, each.began_ns, each.ended_ns))
        for colour, these in boxes.items():
            axes.add_collection(PatchCollection(these, facecolor=colour, linewidth=0))
    if is_last:
        axes.set_xlabel("seconds", fontsize=8)


def _box(stretch: Stretch, job: int, began_ns: int, ended_ns: int) -> Rectangle:
    return Rectangle(((began_ns - stretch.from_ns) / 1e9, job + 0.14), (ended_ns - began_ns) / 1e9, 0.72)


def _scores(axes: Axes, setting: Mapping[str, Any]) -> None:
    width = 0.38
    for n, run in enumerate(setting["runs"]):
        for job, (score, (low, high)) in enumerate(
            zip(run["efficiency_score"], run["efficiency_score_ci90"], strict=True)
        ):
            at = n + (job - 0.5) * width
            axes.bar(at, score, width, color=_JOBS[job % len(_JOBS)])
            axes.errorbar(at, score, [[max(0.0, score - low)], [max(0.0, high - score)]], color="#222222", linewidth=1)
        saved = 1 - sum(run["jct_s"]) / sum(setting["runs"][0]["jct_s"])
        axes.text(n, 0.02, f"{saved:.1%}", ha="center", fontsize=8, color="white", fontweight="bold")
    axes.axhline(sum(setting["bound"]) / len(setting["bound"]), color="#CC79A7", linestyle="--", linewidth=1.2)
    axes.text(
        -0.45, sum(setting["bound"]) / len(setting["bound"]) + 0.015, "best schedule", fontsize=8, color="#CC79A7"
    )
    axes.set_xticks(range(len(setting["runs"])), [run["mode"] for run in setting["runs"]])
    axes.set(ylabel="efficiency score, 90 %", ylim=(min(0, axes.get_ylim()[0]), 1.2))
    axes.set_title("white: time saved over `none`", fontsize=8, loc="right")
