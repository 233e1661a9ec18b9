"""Figures 8a and 8b of Conspirator from our windows, and the saving by tenants and load."""

from __future__ import annotations

import os
import statistics
from collections import defaultdict
from typing import Any, Final

import matplotlib as mpl

mpl.use("svg")
from matplotlib import pyplot as plt

_COLOURS: Final = {
    "greedy": "#1b9e77", "shipped": "#7570b3", "migrating": "#66a61e", "mps_only": "#d95f02", "exclusive": "#999999",
}  # fmt: skip
_HOURS: Final = 60.0


def draw(windows: list[dict[str, Any]], folder: str, paper: dict[str, float]) -> list[str]:
    """Write the pictures that the windows allow; returns their paths."""
    paths = []
    main = [each for each in windows if each["part"] == "reproduction"]
    if main:
        paths += [_figure_8a(main, os.path.join(folder, "figure-8a.svg"), paper)]
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
        asked, hours = each["asked"], each["slice_hours"]
        cells[asked["load"]][asked["tenants"]].append(100 * (1 - hours["greedy"] / hours["mps_only"]))
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


def _saved(figure: Any, path: str) -> str:
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    figure.savefig(path)
    plt.close(figure)
    return path
