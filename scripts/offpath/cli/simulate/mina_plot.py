"""Plots of MINA's table and figures from offpath's rows, with the paper's values."""

from __future__ import annotations

import os
import statistics
from typing import Any

import matplotlib as mpl

mpl.use("svg")
from matplotlib import pyplot as plt

from offpath.cli.simulate.mina_reference import AUTHORS, PAPER
from offpath.cli.simulate.mina_text import gains


def draw(data: dict[str, Any], folder: str) -> list[str]:
    """Write the plots that ``data`` allows; returns their paths."""
    known = {
        "table1": _table_1, "figure_2": _figure_2, "figure_4": _figure_4, "figure_5": _figure_5,
        "figure_12": _figure_12, "figure_13": _figure_13, "figure_14": _figure_14,
        "figure_11": _figure_11, "where": _where,
    }  # fmt: skip
    paths = []
    for name, plot in known.items():
        if name in data:
            figure = plot(data[name])
            paths.append(os.path.join(folder, f"mina-{name.replace('_', '-')}.svg"))
            figure.savefig(paths[-1])
            plt.close(figure)
    return paths


def _one(title: str, x: str, y: str) -> tuple[Any, Any]:
    figure, axis = plt.subplots(figsize=(7, 4.8), layout="constrained")
    axis.set(title=title, xlabel=x, ylabel=y)
    return figure, axis


def _table_1(rows: list[dict[str, Any]]) -> Any:
    figure, axis = _one("MINA Table I", "JP TB RS", "INA efficiency score")
    names = ["".join("-+"[each] for each in cell) for cell in PAPER]
    axis.plot(names, [score for score, _ in PAPER.values()], "k_", markersize=24, label="paper")
    means = [AUTHORS[cell] for cell in PAPER]
    bars = [[each.mean - each.least for each in means], [each.greatest - each.mean for each in means]]
    axis.errorbar(names, [each.mean for each in means], bars, fmt="kx", capsize=4, label="authors' program, ten seeds")
    for variant in dict.fromkeys(row["variant"] for row in rows):
        for name, cell in zip(names, PAPER, strict=True):
            found = [r for r in rows if r["variant"] == variant and (r["jp"], r["tb"], r["rs"]) == cell]
            colour = "#1b9e77" if variant == "figures" else "#7570b3"
            axis.plot([name] * len(found), [r["efficiency_score"] for r in found], "o", color=colour, alpha=0.5)
    axis.legend()
    return figure


def _figure_2(rows: list[dict[str, Any]]) -> Any:
    figure, axis = _one("MINA figure 2", "jobs served", "fragments per job")
    points = rows[0]["points"]
    axis.plot([p["jobs"] for p in points], [p["fragments"] for p in points], color="#d95f02")
    other = axis.twinx()
    other.plot([p["jobs"] for p in points], [p["conflict"] for p in points], color="#1b9e77")
    other.set_ylabel("share of jobs whose trees meet (green)")
    return figure


def _figure_4(rows: list[dict[str, Any]]) -> Any:
    figure, axis = _one(f"MINA figures 3 and 4: a step of {rows[0]['model']}", "s", "")
    for height, (name, each) in enumerate(rows[0]["rows"].items()):
        for begin, end, uses in each["operations"]:
            axis.barh(height, end - begin, left=begin, color="#1b9e77" if uses else "#d95f02", edgecolor="white")
        axis.axvline(each["step_s"], color="black", linewidth=0.6, linestyle=":")
        axis.text(0, height, f"INA for {name}", va="center")
    axis.set_yticks([])
    return figure


def _figure_5(rows: list[dict[str, Any]]) -> Any:
    figure, axis = _one(f"MINA figure 5: {rows[0]['model']}", "algorithm bandwidth, bytes/s", "step, s")
    axis.plot(*zip(*rows[0]["points"], strict=True))
    axis.axvline(rows[0]["turning_point"], color="black", linestyle=":")
    axis.set_xscale("log")
    return figure


def _figure_11(rows: list[dict[str, Any]]) -> Any:
    figure, axis = _one("MINA figure 11", "list of hosts per job", "INA efficiency score")
    _lines(axis, rows, "histogram", "which", "efficiency_score")
    return figure


def _where(rows: list[dict[str, Any]]) -> Any:
    """A panel per world except bandwidth; the saving over bandwidth. Without oversubscription."""
    panels: dict[tuple[Any, ...], list[tuple[float, dict[str, list[float]]]]] = {}
    for (*world, bandwidth), saved in gains([row for row in rows if row["oversubscription"] == "8:8"]).items():
        panels.setdefault(tuple(world[:4]), []).append((bandwidth, saved))
    across = min(4, len(panels))
    down = -(-len(panels) // across)
    size = (3.6 * across, 3.2 * down)
    figure, axes = plt.subplots(down, across, figsize=size, layout="constrained", squeeze=False)
    for axis in axes.flat[len(panels) :]:
        axis.axis("off")
    for axis, ((arrivals, contention, batch, speed), points) in zip(axes.flat, panels.items(), strict=False):
        points.sort(key=lambda point: point[0])
        for name in points[0][1]:
            means = [100 * statistics.fmean(saved[name]) for _, saved in points]
            style = {"color": "black", "linestyle": ":"} if name == "all" else {"marker": "."}
            axis.plot([bandwidth / 1e9 for bandwidth, _ in points], means, label=name, **style)
        axis.set(xscale="log", xlabel="GB/s", ylabel="JCT saved, %")
        axis.set_title(
            f"arrivals {arrivals}{', contention' if contention else ''}; batch {batch}, GPU ×{speed:g}", fontsize=8
        )
    axes.flat[0].legend(fontsize=7)
    return figure


def _figure_12(rows: list[dict[str, Any]]) -> Any:
    figure, axes = plt.subplots(1, len(rows), figsize=(4 * len(rows), 4.2), layout="constrained", squeeze=False)
    for row, axis in zip(rows, axes.flat, strict=True):
        count = len(row["models"])
        grid = [row["scores"][n * count : (n + 1) * count] for n in range(count)]
        axis.imshow(grid, vmin=0.5, vmax=1.0)
        axis.set(title=f"{row['rule']}: {row['mean']:.3f}", xticks=range(count), yticks=range(count))
        axis.set_xticklabels(row["models"], rotation=90)
        axis.set_yticklabels(row["models"])
    return figure


def _figure_13(rows: list[dict[str, Any]]) -> Any:
    figure, axis = _one("MINA figure 13", "oversubscription", "INA efficiency score")
    _lines(axis, rows, "oversubscription", "placement", "efficiency_score")
    return figure


def _figure_14(rows: list[dict[str, Any]]) -> Any:
    figure, axis = _one("MINA figure 14", "candidate trees k", "INA efficiency score")
    _lines(axis, rows, "k", "trees", "efficiency_score")
    other = axis.twinx()
    _lines(other, rows, "k", "rule", "plan_ms")
    other.set_ylabel("a plan, ms")
    return figure


def _lines(axis: Any, rows: list[dict[str, Any]], x: str, line: str, y: str) -> None:
    for name in dict.fromkeys(row[line] for row in rows):
        places = list(dict.fromkeys(row[x] for row in rows if row[line] == name))
        means = [statistics.fmean(r[y] for r in rows if r[line] == name and r[x] == place) for place in places]
        axis.plot(places, means, marker="o", label=name)
    axis.legend()
