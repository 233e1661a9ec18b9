"""Plots of Venn's figures 11 to 14 from offpath's rows: speed-ups over random matching with 95 % intervals."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import matplotlib as mpl

mpl.use("svg")
from matplotlib import pyplot as plt

Rows = list[dict[str, Any]]
_LINES: Final = {
    "12": ("jobs", "jobs", "number of jobs"),
    "13": ("tiers", "tiers", "V"),
    "14a": ("fairness", "epsilon", "ε"),
}
"""By figure the part, the column of the x-axis, and its label."""


def draw(data: dict[str, Any], folder: str) -> list[str]:
    """Write the plots that ``data`` allows; returns their paths."""
    plots: dict[str, Callable[[], Any]] = {
        "table-1": partial(_bars, _rows(data, "tables"), "Venn tables 1 and 4"),
        "figure-11": partial(_bars, _rows(data, "ablation"), "Venn figure 11"),
        **{f"figure-{number}": partial(_lines, data, number) for number in _LINES},
        "figure-14b": partial(_shares, _rows(data, "fairness")),
    }
    paths = []
    for name, plot in plots.items():
        figure = plot()
        if figure is not None:
            os.makedirs(folder, exist_ok=True)
            paths.append(os.path.join(folder, f"venn-{name}.svg"))
            figure.savefig(paths[-1])
            plt.close(figure)
    return paths


def _rows(data: dict[str, Any], part: str) -> Rows:
    """Of the part, without random matching itself."""
    return [row for row in data["rows"] if row["part"] == part and row["policy"] != "random"]


def _axis(title: str, **words: Any) -> tuple[Any, Any]:
    figure, axis = plt.subplots(figsize=(7.2, 4.8), layout="constrained")
    axis.axhline(1.0, color="black", linewidth=0.8)
    axis.set(title=title, **words)
    return figure, axis


def _bars(rows: Rows, title: str) -> Any:
    if not rows:
        return None
    workloads, policies = ([*dict.fromkeys(row[key] for row in rows)] for key in ("workload", "policy"))
    figure, axis = _axis(title, ylabel="speed-up of the average JCT over random", xticks=range(len(workloads)))
    width = 0.8 / len(policies)
    for n, policy in enumerate(policies):
        mine = [row for row in rows if row["policy"] == policy]
        at = [workloads.index(row["workload"]) + (n - (len(policies) - 1) / 2) * width for row in mine]
        errors = [row["speedup_interval"] or 0 for row in mine]
        axis.bar(at, [row["speedup"] for row in mine], width, yerr=errors, label=policy)
    axis.set_xticklabels(workloads, fontsize=7, rotation=30, ha="right")
    axis.legend(fontsize=7)
    return figure


def _lines(data: dict[str, Any], number: str) -> Any:
    part, column, label = _LINES[number]
    rows = _rows(data, part)
    if not rows:
        return None
    figure, axis = _axis(f"Venn figure {number}", xlabel=label, ylabel="speed-up of the average JCT over random")
    for policy in dict.fromkeys(row["policy"] for row in rows):
        mine = sorted((row for row in rows if row["policy"] == policy), key=lambda row: row[column])
        axis.errorbar([row[column] for row in mine], [row["speedup"] for row in mine],
                      [row["speedup_interval"] or 0 for row in mine], marker="o", capsize=3, label=policy)  # fmt: skip
    axis.legend(fontsize=7)
    return figure


def _shares(rows: Rows) -> Any:
    if not rows:
        return None
    figure, axis = _axis("Venn figure 14b", xlabel="ε", ylabel="jobs within their fair share")
    mine = sorted(rows, key=lambda row: row["epsilon"])
    axis.plot([row["epsilon"] for row in mine], [row["fair_share"] for row in mine], marker="o")
    return figure
