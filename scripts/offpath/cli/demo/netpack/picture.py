"""The plots of `demo netpack`: aggregation ratios, bandwidths, completion times."""

from __future__ import annotations

from typing import Any, Final

import matplotlib

matplotlib.use("Agg")

from matplotlib.axes import Axes
from matplotlib.figure import Figure

# Okabe and Ito's palette, distinguishable for colour-blind readers
_COLOURS: Final = ("#0072B2", "#E69F00", "#009E73")


def draw(made: dict[str, Any], path: str) -> None:
    """``made``: the report. Raises: OSError."""
    figure = Figure(figsize=(13, 4.2), layout="constrained")
    ratios, rates, times = figure.subplots(1, 3)
    _ratios(ratios, made["agg_ratio"])
    points = [(est / 1e6, got / 1e6) for job in made["jobs"] for est, got, _ in job["points"]]
    r = made["corr"]["figure_15"]["r"]
    _pairs(rates, points, f"figure 15: bandwidth, Mbit/s (r = {r})", "estimated", "measured")
    points = [(job["simulated_jct_s"], job["jct_s"]) for job in made["jobs"]]
    _pairs(times, points, f"figure 6: JCT, s (r = {made['corr']['figure_6']['r']})", "simulated", "live")
    figure.suptitle(f"NetPack's models against an emulated rack, engine {made['engine']}", fontsize=11)
    figure.savefig(path, metadata={"Date": None} if path.endswith(".svg") else None)


def _ratios(axes: Axes, points: list[dict[str, Any]]) -> None:
    for colour, jobs in zip(_COLOURS, (1, 2), strict=False):
        found = [each for each in points if each["jobs"] == jobs and each["hash"] == "rehash"]
        axes.plot(
            [0, 1], [0, 1 / jobs], color=colour, linewidth=1, label=f"paper's model, {jobs} job{'s' * (jobs > 1)}"
        )
        axes.plot([e["pat_ratio"] for e in found], [e["ratio"] for e in found], "o", color=colour, label="measured")
    rest = [each for each in points if each["hash"] == "plain"]
    axes.plot([e["pat_ratio"] for e in rest], [e["ratio"] for e in rest], "x", color=_COLOURS[2], label="plain hash")
    axes.set(title="figure 14: aggregated part", xlabel="PAT ratio", ylabel="aggregation ratio", ylim=(0, 1.05))
    axes.legend(fontsize=8, frameon=False)


def _pairs(axes: Axes, points: list[tuple[float, float]], title: str, x: str, y: str) -> None:
    most = 1.1 * max([1e-9, *[max(pair) for pair in points]])
    axes.plot([0, most], [0, most], color="#999999", linewidth=1)
    axes.plot([a for a, _ in points], [b for _, b in points], "o", color=_COLOURS[0])
    axes.set(title=title, xlabel=x, ylabel=y, xlim=(0, most), ylim=(0, most))
