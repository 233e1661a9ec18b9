"""Plots the growth of a decision's cost with the number of GPUs, and with other work on its core."""

from __future__ import annotations

import os
from typing import Any

import matplotlib as mpl

mpl.use("svg")
from matplotlib import pyplot as plt


def draw(data: dict[str, Any], path: str) -> str:
    """Two panels; returns ``path``."""
    figure, axes = plt.subplots(1, 2, figsize=(12, 4.8), layout="constrained")
    for name in dict.fromkeys(row["policy"] for row in data["rows"]):
        rows = [row for row in data["rows"] if row["policy"] == name]
        (line,) = axes[0].plot([r["gpus"] for r in rows], [r["p50_us"] for r in rows], marker="o", label=name)
        axes[0].plot([r["gpus"] for r in rows], [r["p99_us"] for r in rows], linestyle=":", color=line.get_color())
    axes[0].set(xscale="log", yscale="log", xlabel="GPUs", ylabel="place + release, µs (dotted: p99)")
    axes[0].legend()
    panel_8c(axes[1], data.get("figure_8c", []))
    if os.path.dirname(path):
        os.makedirs(os.path.dirname(path), exist_ok=True)
    figure.savefig(path)
    plt.close(figure)
    return path


def panel_8c(axis: Any, rows: list[dict[str, Any]]) -> None:
    """Decision times by background load, into ``axis``."""
    for key in ("p50_us", "p99_us"):
        axis.plot([row["load"] for row in rows], [row[key] for row in rows], marker="o", label=key)
    axis.set(
        yscale="log", xlabel="background load of the deciding core, %", ylabel="place + release, µs", title="figure 8c"
    )
    axis.legend()
