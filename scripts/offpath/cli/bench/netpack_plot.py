"""Plots the time of a batch over servers and over jobs, with the bars and the paper's bound."""

from __future__ import annotations

import os
from typing import Any

import matplotlib as mpl

mpl.use("svg")
from matplotlib import pyplot as plt


def draw(rows: list[dict[str, Any]], path: str) -> str:
    """Two panels; returns ``path``."""
    figure, axes = plt.subplots(1, 2, figsize=(12, 4.8), layout="constrained")
    most_jobs, most_servers = max(row["jobs"] for row in rows), max(row["servers"] for row in rows)
    for axis, x, fixed, value in (
        (axes[0], "servers", "jobs", most_jobs),
        (axes[1], "jobs", "servers", most_servers),
    ):
        for kind, policy in dict.fromkeys((row["kind"], row["policy"]) for row in rows):
            mine = [row for row in rows if (row["kind"], row["policy"], row[fixed]) == (kind, policy, value)]
            axis.plot([row[x] for row in mine], [row["total_s"] for row in mine], marker="o", label=f"{kind}, {policy}")
        axis.set(xscale="log", yscale="log", xlabel=x, ylabel="a batch, s", title=f"{value} {fixed}")
        axis.axhline(60.0, color="black", linestyle=":", label="the paper's bound")
        axis.legend(fontsize=7)
    if os.path.dirname(path):
        os.makedirs(os.path.dirname(path), exist_ok=True)
    figure.savefig(path)
    plt.close(figure)
    return path
