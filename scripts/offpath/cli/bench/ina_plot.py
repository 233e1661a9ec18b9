"""Plots the growth of placement with hosts and job size, the cost of plans beside proofs, and the simulator's speed."""

from __future__ import annotations

import os
from typing import Any

import matplotlib as mpl

mpl.use("svg")
from matplotlib import pyplot as plt


def draw(data: dict[str, Any], path: str) -> str:
    """Three panels; returns ``path``."""
    figure, axes = plt.subplots(1, 3, figsize=(18, 4.8), layout="constrained")
    _growth(axes[0], data["growth"])
    _trees(axes[1], data["trees"])
    _simulator(axes[2], data["simulator"])
    if os.path.dirname(path):
        os.makedirs(os.path.dirname(path), exist_ok=True)
    figure.savefig(path)
    plt.close(figure)
    return path


def _growth(axis: Any, rows: list[dict[str, Any]]) -> None:
    for hosts in dict.fromkeys(row["hosts"] for row in rows):
        mine = [row for row in rows if row["hosts"] == hosts]
        wanted = [row["wanted"] for row in mine]
        (line,) = axis.plot(wanted, [row["fresh_ms"] for row in mine], marker="o", label=f"{hosts} hosts")
        axis.plot(wanted, [row["kept_ms"] for row in mine], marker=".", linestyle="--", color=line.get_color())
        scale = mine[0]["fresh_ms"] / mine[0]["knm2"]
        axis.plot(wanted, [scale * row["knm2"] for row in mine], linestyle=":", color=line.get_color(), linewidth=0.8)
    axis.set(
        xscale="log", yscale="log", xlabel="hosts wanted, M", ylabel="one placement, ms",
        title="from scratch; dashed: with cached tables; dotted: KNM²",
    )  # fmt: skip
    axis.legend()


def _trees(axis: Any, rows: list[dict[str, Any]]) -> None:
    labels = [f"{row['jobs']} {row['limit']}\n{row['placed_by']}" for row in rows]
    at = range(len(rows))
    axis.bar([n - 0.2 for n in at], [row["plan_s"] for row in rows], 0.4, label="plan")
    axis.bar([n + 0.2 for n in at], [row.get("exact_s", 0.0) for row in rows], 0.4, label="exact solver")
    axis.axhline(1.0, color="black", linestyle="--", linewidth=0.8)
    axis.set(yscale="log", ylabel="s", title="trees for running jobs, k = 5")
    axis.set_xticks(list(at), labels, fontsize=7)
    axis.legend()


def _simulator(axis: Any, rows: list[dict[str, Any]]) -> None:
    names = [f"{row['what']}\n{row['name']}" for row in rows]
    axis.barh(range(len(rows)), [row["per_s"] for row in rows])
    for bound, what in ((1e6, "aim, clusters"), (2e5, "bar, contended")):
        axis.axvline(bound, color="black", linestyle="--" if bound == 2e5 else ":", linewidth=0.8, label=what)
    axis.set(xscale="log", xlabel="all-reduces per second of one thread", title="the simulator")
    axis.set_yticks(range(len(rows)), names, fontsize=7)
    axis.legend()
