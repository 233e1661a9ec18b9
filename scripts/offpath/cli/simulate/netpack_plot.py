"""Plots of NetPack's figures from offpath's rows."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import matplotlib as mpl

mpl.use("svg")
from matplotlib import pyplot as plt

Rows = list[dict[str, Any]]


def draw(data: dict[str, Any], folder: str) -> list[str]:
    """Write the plots that ``data`` allows; returns their paths."""
    known: dict[str, Callable[[Rows], Any]] = {
        "7": lambda rows: _bars(rows, "NetPack figure 7", "norm_jct", "JCT / netpack's"),
        "8": lambda rows: _bars(rows, "NetPack figure 8", "de", "distribution efficiency"),
        "13": lambda rows: _bars(_some(rows, ("netpack", "comb")), "NetPack figure 13", "norm_jct", "JCT / netpack's"),
        "9": lambda rows: _lines(rows, "NetPack figure 9", "servers", "norm_jct", "JCT / netpack's", "log"),
        "10": lambda rows: _lines(rows, "NetPack figure 10", "servers", "place_s", "placing the batch, s", "log"),
        "11": lambda rows: _lines(rows, "NetPack figure 11", "PAT, Gbit/s", "norm_jct", "JCT / netpack's", "linear"),
        "12": lambda rows: _lines(rows, "NetPack figure 12", "oversubscription", "norm_jct", "JCT / netpack's"),
    }
    paths = []
    os.makedirs(folder, exist_ok=True)
    for name, plot in known.items():
        rows = [row for row in data["figures"] if row["figure"] == name]
        if rows:
            figure = plot(rows)
            paths.append(os.path.join(folder, f"netpack-figure-{name}.svg"))
            figure.savefig(paths[-1])
            plt.close(figure)
    return paths


def _some(rows: Rows, policies: tuple[str, ...]) -> Rows:
    return [row for row in rows if row["policy"] in policies]


def _bars(rows: Rows, title: str, value: str, label: str) -> Any:
    settings = list(dict.fromkeys(row["setting"] for row in rows))
    policies = list(dict.fromkeys(row["policy"] for row in rows))
    figure, axis = plt.subplots(figsize=(2 + 1.5 * len(settings), 4.8), layout="constrained")
    width = 0.8 / len(policies)
    for n, policy in enumerate(policies):
        mine = {row["setting"]: row for row in rows if row["policy"] == policy}
        at = [place + n * width for place in range(len(settings))]
        errors = [mine[each][f"{value}_sd"] for each in settings]
        axis.bar(at, [mine[each][value] for each in settings], width, yerr=errors, label=policy)
    axis.set(title=title, ylabel=label, xticks=range(len(settings)))
    axis.set_xticklabels([each.replace(" ", "\n", 1) for each in settings], fontsize=8)
    axis.legend(fontsize=7, ncols=2)
    return figure


def _lines(rows: Rows, title: str, x: str, value: str, label: str, scale: str = "linear") -> Any:
    """A panel per group of settings: those whose names agree before the comma."""
    groups = list(dict.fromkeys(_group(row) for row in rows))
    figure, axes = plt.subplots(1, len(groups), figsize=(6 * len(groups), 4.8), layout="constrained", squeeze=False)
    for axis, group in zip(axes.flat, groups, strict=True):
        for policy in dict.fromkeys(row["policy"] for row in rows):
            mine = sorted((r for r in rows if r["policy"] == policy and _group(r) == group), key=lambda r: r["x"])
            errors = [row[f"{value}_sd" if value != "place_s" else "place_sd_s"] for row in mine]
            axis.errorbar([r["x"] for r in mine], [r[value] for r in mine], errors, marker="o", capsize=3, label=policy)
        axis.set(title=f"{title}{f': {group}' if group else ''}", xlabel=x, ylabel=label, xscale=scale)
        axis.legend(fontsize=7)
    return figure


def _group(row: dict[str, Any]) -> str:
    """``testbed, PAT 0`` and ``testbed, PAT 50`` are one panel, ``1000 servers, 500 jobs`` is of its own."""
    before, comma, after = row["setting"].partition(", ")
    if row["figure"] == "11":
        return str(before)
    return after if comma and row["figure"] == "10" else ""
