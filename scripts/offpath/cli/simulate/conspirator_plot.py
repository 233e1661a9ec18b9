"""Plots of Conspirator's figures 2 and 8 from offpath's data, and of the saving by tenants and load."""

from __future__ import annotations

import os
import statistics
from collections import defaultdict
from collections.abc import Collection
from typing import Any, Final

import matplotlib as mpl

mpl.use("svg")
from matplotlib import pyplot as plt

from offpath.cli.bench.gpu_policy_plot import panel_8c

_COLOURS: Final = {
    "greedy": "#1b9e77", "oldest-gpu-first": "#7570b3", "migrating": "#66a61e", "mps_only": "#d95f02",
    "exclusive": "#999999", "time_sharing": "#e7298a",
}  # fmt: skip
_HOURS: Final = 60.0


def draw(
    windows: list[dict[str, Any]], folder: str, paper: dict[str, float], figures: Collection[str] = ("8a", "8b")
) -> list[str]:
    """Write the plots that the windows allow, of figure 8 only ``figures``; returns their paths."""
    paths = []
    main = [each for each in windows if each["part"] == "reproduction"]
    if main and "8a" in figures:
        paths += [_figure_8a(main, os.path.join(folder, "figure-8a.svg"), paper)]
    if main and "8b" in figures:
        paths += [_figure_8b(main, os.path.join(folder, "figure-8b.svg"))]
    swept = [each for each in windows if each["part"] == "tenants"]
    if swept:
        paths += [_tenants(swept, os.path.join(folder, "tenants.svg"), paper)]
    return paths


def _figure_8a(windows: list[dict[str, Any]], path: str, paper: dict[str, float]) -> str:
    figure, axes = plt.subplots(1, 2, figsize=(12, 4.8), layout="constrained", sharey=True)
    for axis, (which, title) in zip(axes, enumerate(("active GPU-hours (equation 1)", "slice-hours")), strict=True):
        for name, colour in _COLOURS.items():
            curves = [[point[which] for point in each["curves"]["hours"][name]] for each in windows]
            columns = list(zip(*curves, strict=True))
            hours = [_HOURS * (n + 1) / len(columns) for n in range(len(columns))]
            axis.plot(hours, [statistics.fmean(c) for c in columns], color=colour, label=name)
            axis.fill_between(hours, [min(c) for c in columns], [max(c) for c in columns], color=colour, alpha=0.1)
        axis.axhline(paper["greedy"], color="black", linestyle=":", label="paper: greedy = optimum, 233")
        axis.axhline(paper["mps_only"], color="black", linestyle="--", label="paper: no MIG, 345")
        axis.set(xlabel="hours", title=title)
    axes[0].set_ylabel("cumulative GPU-hours")
    axes[0].legend()
    figure.suptitle(f"Conspirator figure 8a: {len(windows)} synthetic streams, mean and range")
    return _saved(figure, path)


def _figure_8b(windows: list[dict[str, Any]], path: str) -> str:
    figure, axis = plt.subplots(figsize=(7, 4.8), layout="constrained")
    decided = sorted(us / 1e3 for each in windows for us in each["curves"]["decision_us"])
    proved = sorted(ms for each in windows for ms in each["curves"]["optimal_ms"])
    for values, name, colour in (
        (decided, "greedy, one decision", "#1b9e77"),
        (proved, "optimum, one proof", "#d95f02"),
    ):
        if values:
            axis.plot(values, [(n + 1) / len(values) for n in range(len(values))], color=colour, label=name)
    axis.axvline(4, color="black", linestyle=":", label="paper: greedy, median 4 ms")
    axis.axvline(100, color="black", linestyle="--", label="paper: optimum, 100 ms at least")
    axis.set(xscale="log", xlabel="ms", ylabel="share of decisions", title="Conspirator figure 8b")
    axis.legend()
    return _saved(figure, path)


def _tenants(windows: list[dict[str, Any]], path: str, paper: dict[str, float]) -> str:
    cells: dict[float, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for each in windows:
        arguments, hours = each["options"], each["slice_hours"]
        cells[arguments["load"]][arguments["tenants"]].append(100 * (1 - hours["greedy"] / hours["mps_only"]))
    figure, axis = plt.subplots(figsize=(7, 4.8), layout="constrained")
    for load, by_tenants in sorted(cells.items()):
        tenants = sorted(by_tenants)
        axis.plot(tenants, [statistics.fmean(by_tenants[t]) for t in tenants], marker="o", label=f"{load:g} GPUs")
        low, high = ([edge(by_tenants[t]) for t in tenants] for edge in (min, max))
        axis.fill_between(tenants, low, high, alpha=0.15)
    axis.axhline(100 * paper["saving"], color="black", linestyle="--", label="paper: 33 %")
    axis.set(xscale="log", xlabel="tenants, Zipf(1.0)", ylabel="saving in slice-hours over MPS only, %")
    axis.legend(title="mean load")
    return _saved(figure, path)


def figure_2(data: dict[str, Any], path: str) -> str:
    """A panel per model, a line per batch size, the knee on each; returns ``path``."""
    models = list(dict.fromkeys(row["model"] for row in data["rows"]))
    across = min(4, len(models))
    down = -(-len(models) // across)
    figure, axes = plt.subplots(
        down, across, figsize=(3.2 * across, 2.8 * down), layout="constrained", sharex=True, sharey=True, squeeze=False
    )
    for model, axis in zip(models, axes.flat, strict=False):
        for row in (row for row in data["rows"] if row["model"] == model):
            parts = {point["share"]: point["normalised"] for point in row["points"]}
            (line,) = axis.plot(list(parts), list(parts.values()), label=f"batch {row['batch_size']}")
            knee = row["knee"]["share"]
            axis.plot([knee], [parts[knee]], marker="o", color=line.get_color())
        axis.plot([0, 100], [0, 1], color="black", linestyle=":", linewidth=0.8)
        axis.axvline(data["paper"]["knee_percent"], color="black", linestyle="--", linewidth=0.8)
        axis.set(title=model)
        axis.legend(fontsize=7)
    figure.supxlabel(f"share of an {data['gpu']}, %")
    figure.supylabel("throughput, whole GPU = 1")
    figure.suptitle("figure 2 from MISO's data; dots: knees, dashed: the paper's half, dotted: proportional")
    return _saved(figure, path)


def figure_8c(rows: list[dict[str, Any]], path: str) -> str:
    """Decision times under load; returns ``path``."""
    figure, axis = plt.subplots(figsize=(7, 4.8), layout="constrained")
    panel_8c(axis, rows)
    axis.set_title("Conspirator figure 8c")
    return _saved(figure, path)


def _saved(figure: Any, path: str) -> str:
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    figure.savefig(path)
    plt.close(figure)
    return path
