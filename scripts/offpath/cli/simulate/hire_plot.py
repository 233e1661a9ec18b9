"""Plots of HIRE's figure 8 from offpath's rows."""

from __future__ import annotations

import os
from typing import Any, Final

import matplotlib as mpl

mpl.use("svg")
from matplotlib import pyplot as plt

Rows = list[dict[str, Any]]
_BY_MU: Final = {
    "a": ("inc_satisfied", "satisfied jobs"), "b": ("inc_groups_satisfied", "task groups on switches"),
    "c": ("detours", "additional levels"),
}  # fmt: skip
_BARS: Final = {"d": ("load_sram_kib", "load_stages", "load_recirculation"), "e": ("p50_s", "p90_s", "p99_s")}
_LETTERS: Final = {False: "abcde", True: "fghij"}


def draw(data: dict[str, Any], folder: str) -> list[str]:
    """Write the plots that ``data`` allows; returns their paths."""
    rows = [row for row in data["means"] if row["part"] == "8"]
    paths = []
    for is_heterogeneous, letters in _LETTERS.items():
        mine = [row for row in rows if row["heterogeneous"] == is_heterogeneous]
        for letter, key in zip(letters, "abcde", strict=True):
            figure = _lines(mine, letter, *_BY_MU[key]) if key in _BY_MU else _bars(mine, letter, _BARS[key])
            if figure is not None:
                os.makedirs(folder, exist_ok=True)
                paths.append(os.path.join(folder, f"hire-figure-8{letter}.svg"))
                figure.savefig(paths[-1])
                plt.close(figure)
    return paths


def _lines(rows: Rows, letter: str, value: str, label: str) -> Any:
    rows = [row for row in rows if row[value] is not None]
    if not rows:
        return None
    figure, axis = plt.subplots(figsize=(6.4, 4.8), layout="constrained")
    for name in dict.fromkeys(row["name"] for row in rows):
        mine = sorted((row for row in rows if row["name"] == name), key=lambda row: row["mu"])
        axis.errorbar([row["mu"] for row in mine], [row[value] for row in mine], [row[f"{value}_sd"] for row in mine],
                      marker="o", capsize=3, label=name)  # fmt: skip
    axis.set(title=f"HIRE figure 8{letter}", xlabel="μ", ylabel=label)
    axis.legend(fontsize=7, loc="upper right")
    return figure


def _bars(rows: Rows, letter: str, values: tuple[str, ...]) -> Any:
    """At μ = 1."""
    rows = [row for row in rows if row["mu"] == 1 and all(row[each] is not None for each in values)]
    if not rows:
        return None
    figure, axis = plt.subplots(figsize=(8.4, 4.8), layout="constrained")
    width = 0.8 / len(values)
    for n, value in enumerate(values):
        axis.bar([at + n * width for at in range(len(rows))], [row[value] for row in rows], width,
                 yerr=[row[f"{value}_sd"] for row in rows], label=value)  # fmt: skip
    axis.set(title=f"HIRE figure 8{letter}, μ = 1", xticks=range(len(rows)))
    axis.set_xticklabels([row["name"] for row in rows], fontsize=7, rotation=30, ha="right")
    if values[0].endswith("_s"):
        axis.set(ylabel="s", yscale="log")
    axis.legend(fontsize=7, loc="upper right")
    return figure
