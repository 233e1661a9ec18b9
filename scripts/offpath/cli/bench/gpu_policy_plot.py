"""How a decision's cost grows with the number of GPUs, and with other work on its core."""

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
    loaded = data.get("figure_8c", [])
    for key in ("p50_us", "p99_us"):
        axes[1].plot([row["load"] for row in loaded], [row[key] for row in loaded], marker="o", label=key)
    axes[1].set(yscale="log", xlabel="background load of the deciding core, %", title="figure 8c")
    axes[1].legend()
    if os.path.dirname(path):
        os.makedirs(os.path.dirname(path), exist_ok=True)
    figure.savefig(path)
    plt.close(figure)
    return path
