"""Plots a request-path run, in the style of Conspirator's figures 6 and 7."""

from __future__ import annotations

import os
from typing import Any, Final

import matplotlib as mpl

mpl.use("svg")
from matplotlib import pyplot as plt

_COLOURS: Final = {
    "floor": "#999999", "floor_c": "#666666", "floor_c_spin": "#222222", "1": "#d95f02", "2": "#1b9e77", "3": "#7570b3",
    "4": "#e7298a",
}  # fmt: skip
_NAMES: Final = {
    "floor": "floor", "floor_c": "floor, C", "floor_c_spin": "floor, C, spins", "1": "① TCP", "2": "② direct",
    "3": "③ host core", "4": "④ offpath",
}  # fmt: skip
_STAGES: Final = ("queued", "copy", "launch", "kernel", "back", "transmission_and_answer")
_IMAGE: Final = 614_400


def draw(data: dict[str, Any], path: str) -> str:
    """Four panels: end-to-end by batch, with a 4 ms kernel, under host load, and offpath's stages. Returns ``path``."""
    rows = [r for r in data["rows"] if r["pinned"] and not r["realtime"]]
    figure, axes = plt.subplots(2, 2, figsize=(12, 8.5), layout="constrained")
    _lines(
        axes[0][0], rows, "bytes", {"in_flight": 1, "host_load": 0, "kernel_ms": 0}, "end to end by batch (kernel 0)"
    )
    axes[0][0].set(xscale="log", yscale="log", xlabel="images per request (600 KB each)")
    _lines(
        axes[0][1], rows, "host_load", {"in_flight": 1, "bytes": _IMAGE, "kernel_ms": 0}, "under host-core load, 600 KB"
    )
    axes[0][1].set(yscale="log", xlabel="background load of the host core, %")
    _bars(axes[1][0], rows)
    _stages(axes[1][1], rows)
    figure.suptitle("request path: settings of Conspirator §4.1, emulated GPU and loopback fabric")
    if os.path.dirname(path):
        os.makedirs(os.path.dirname(path), exist_ok=True)
    figure.savefig(path)
    plt.close(figure)
    return path


def _lines(axis: Any, rows: list[dict[str, Any]], along: str, fixed: dict[str, int], title: str) -> None:
    for setting, colour in _COLOURS.items():
        chosen = [r for r in rows if r["setting"] == setting and all(r[k] == v for k, v in fixed.items())]
        if along == "bytes":
            chosen = [r for r in chosen if r["bytes"] >= _IMAGE]
        chosen.sort(key=lambda r: r[along])
        scale = _IMAGE if along == "bytes" else 1
        x = [r[along] / scale for r in chosen]
        axis.plot(x, [r["p50_us"] for r in chosen], "o-", color=colour, label=_NAMES[setting])
        axis.plot(x, [r["p99_us"] for r in chosen], ":", color=colour, alpha=0.7)
    axis.set(title=f"{title}: p50 (p99 dotted)", ylabel="µs")
    axis.legend(fontsize=8)
    axis.grid(alpha=0.3)


def _bars(axis: Any, rows: list[dict[str, Any]]) -> None:
    chosen = [r for r in rows if r["kernel_ms"] == 4 and r["bytes"] == _IMAGE]
    names = [_NAMES[r["setting"]] for r in chosen]
    values = [r["p50_us"] for r in chosen]
    axis.bar(names, values, color=[_COLOURS[r["setting"]] for r in chosen])
    for n, value in enumerate(values):
        axis.text(n, value, f"{value:.0f}", ha="center", va="bottom", fontsize=8)
    axis.set(title="end to end with a 4 ms kernel, 600 KB: p50", ylabel="µs")


def _stages(axis: Any, rows: list[dict[str, Any]]) -> None:
    chosen = [
        r for r in rows
        if r["setting"] in ("3", "4") and r["in_flight"] == 1 and not r["host_load"] and not r["kernel_ms"]
        and r["bytes"] in (_IMAGE, 8 * _IMAGE)
    ]  # fmt: skip
    labels = [f"{_NAMES[r['setting']]}\n{r['bytes'] // _IMAGE} × 600 KB" for r in chosen]
    left = [0.0] * len(chosen)
    for stage in _STAGES:
        widths = [r["stages_us"][stage] for r in chosen]
        axis.barh(labels, widths, left=left, label=stage.replace("_", " "))
        left = [a + b for a, b in zip(left, widths, strict=True)]
    axis.set(title="where the time goes (p50 of each stage)", xlabel="µs")
    axis.legend(fontsize=8)
