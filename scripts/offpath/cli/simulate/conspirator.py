"""Conspirator §4.2: GPU-hours of the greedy heuristic, the optimum, and less sharing (figures 8a and 8b).

By ``--figure`` also figures 2 (`figure_2`) and 8c (the measurement of `offpath bench gpu-policy`), by ``--table``
table 4 (`table_4`).

Assumptions, because the paper's trace and its tenants are not published: the main stream is synthetic (published
marginals, Poisson, independent draws); its load is the 233 GPU-hours over 60 hours that the paper reports; tenants are
Zipf(1.0); GPUs are A100s by the paper's capacity model; operations take no time and no job waits. The part "fleet" uses
MIG's real placement rules instead, on A100s and on a fleet of four models in turn; R is percent of the GPU that a job
gets.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any, Final

from offpath.cli.bench.gpu_policy import text_8c, under_load
from offpath.cli.demo import samples
from offpath.cli.files.traces import TraceError, found, openb, pai_marginals, whole_gpus
from offpath.cli.gpus import gpu_spec
from offpath.cli.simulate.command import DATA, Report
from offpath.cli.simulate.figure_2 import figure_2
from offpath.cli.simulate.figure_2 import text as text_2
from offpath.cli.simulate.sweep import SweepError, sweep
from offpath.cli.simulate.table_4 import table_4
from offpath.cli.simulate.table_4 import text as text_of_table_4
from offpath.sched.errors import SchedError
from offpath.sched.sim.conspirator import CUT_OFF_S, MOST_LIVE, ROWS, Window, measure
from offpath.sched.sim.workload import HOUR_S, SECOND_NS, Stream, cut_window, synthetic, thinned, with_tenants

_ROWS: Final = ", rows 2"
"""Of a finished piece: its rows name the policies and options as this build does."""
DESCRIPTION: Final = (
    "Conspirator: GPU-hours and decision times (§4.2, figures 8a to 8c), right-sizing (figure 2), cost (table 4)"
)
PAPER: Final = {"greedy": 233.0, "optimal": 233.0, "mps_only": 345.0, "saving": 1 - 233 / 345}
PAPER_8C: Final = (
    "  paper: a few ms everywhere; a host core is faster than the SmartNIC's until its other work takes 75 %\n"
    "  offpath: one core, with the other work on it; there is no SmartNIC beside it here"
)
LOAD: Final = 233 / 60
HOURS: Final = 60.0
TENANTS: Final = 60
SEEDS: Final = 20
SWEEP_TENANTS: Final = (1, 4, 20, 100, 400, 1_300)
SWEEP_SEEDS: Final = 10
LOADS: Final = (4.0, 20.0, 90.0)
_MARGINALS: Final = "alibaba2020_pai_marginals.json"
_OPENB: Final = "alibaba2023_openb_60h_loadscaled90.csv.gz"
_PHILLY: Final = "philly_60h_ALL.csv.gz"
_ITP: Final = "itp_60h_cluster08.csv.gz"
_FILES: Final = (_MARGINALS, _OPENB, _PHILLY, _ITP)
_PARTS: Final = ("reproduction", "real", "fleet", "tenants")
FLEETS: Final = {
    "A100-40GB": ["A100-40GB"],
    "four models": ["A30-24GB", "A100-40GB", "A100-80GB", "H100-80GB"],
}
"""GPU n is element n modulo the length; the fleet has as many GPUs as the peak needs."""
FLEET_SEEDS: Final = 5
_LOADED: Final = {True: 1_000, False: 8_000}
"""Decisions at each load of figure 8c: with --quick, and without."""


def run(arguments: argparse.Namespace) -> Report:
    """All windows, or the two quick ones, or those that the requested figures need."""
    figures = tuple(arguments.figure or ())
    begun = time.monotonic()
    data: dict[str, Any] = {"experiment": "conspirator", "quick": arguments.quick, "paper": PAPER, "plots": []}
    summary = []
    tables = tuple(arguments.table or ())
    if not (figures or tables) or {"8a", "8b"} & set(figures):
        summary.append(_windows(arguments, figures, data))
    if "2" in figures:
        data["figure_2"] = figure_2(None if arguments.quick else arguments.data)
        summary.append(text_2(data["figure_2"]))
    if "8c" in figures:
        data["figure_8c"] = under_load(_LOADED[arguments.quick])
        summary.append("\n".join([*text_8c(data["figure_8c"]), PAPER_8C]))
    if "4" in tables:
        data["table_4"] = table_4()
        summary.append(text_of_table_4(data["table_4"]))
    _draw(data, arguments.out)
    data["seconds"] = round(time.monotonic() - begun, 1)
    return Report(data, "\n\n".join(summary))


def _windows(arguments: argparse.Namespace, figures: tuple[str, ...], data: dict[str, Any]) -> str:
    """Run the windows and plot them, into ``data``; returns their text."""
    parts = ("reproduction",) if figures else arguments.only
    pieces = _quick(parts) if arguments.quick else _full(arguments.data or DATA, parts or _PARTS)
    path = os.path.join(arguments.out, "conspirator-quick.jsonl" if arguments.quick else "conspirator.jsonl")
    try:
        windows = sweep(path, pieces, work, fresh=arguments.fresh or arguments.quick)
    except SchedError as fault:  # the solver is not installed
        raise SweepError(str(fault)) from None
    data["windows"] = [{k: v for k, v in each.items() if k not in ("curves", "part")} for each in windows]
    data["summary"] = summary(windows)
    from offpath.cli.simulate.conspirator_plot import draw

    data["plots"] += draw(windows, arguments.out, PAPER, figures or ("8a", "8b"))
    return text(data)


def _draw(data: dict[str, Any], folder: str) -> None:
    """The figures that need no window."""
    if not {"figure_2", "figure_8c"} & set(data):
        return
    from offpath.cli.simulate import conspirator_plot as plot

    if "figure_2" in data:
        data["plots"].append(plot.figure_2(data["figure_2"], os.path.join(folder, "figure-2.svg")))
    if "figure_8c" in data:
        data["plots"].append(plot.figure_8c(data["figure_8c"], os.path.join(folder, "figure-8c.svg")))


def _chosen(parts: Sequence[str]) -> None:
    unknown = [part for part in parts if part not in _PARTS]
    if unknown:
        raise TraceError(f"no part {', '.join(unknown)}: there are {', '.join(_PARTS)}")


def _quick(parts: Sequence[str] | None) -> list[tuple[str, dict[str, Any]]]:
    """By default the windows of the reproduction and of the real stream."""
    _chosen(parts or ())
    marginals, pods = (str(samples.DATA / name) for name in ("pai_marginals.json", "openb_sample.csv"))
    pieces = {
        "pai-synthetic seed 0": _piece(
            "reproduction", "synthetic", marginals, load=LOAD, instants=24, limit_s=5.0
        ),
        "openb sample": _piece("real", "openb", pods, instants=12, limit_s=5.0, tenants=20),
        "openb sample on four models": _piece(
            "fleet", "openb", pods, instants=12, limit_s=5.0, tenants=20, fleet="four models"
        ),
    }  # fmt: skip
    chosen = [
        (key + _ROWS, piece) for key, piece in pieces.items() if piece["part"] in (parts or ("reproduction", "real"))
    ]
    if not chosen:
        raise TraceError(f"--quick has no window of {', '.join(parts or ())}: omit it")
    return chosen


def _piece(part: str, kind: str, path: str, **more: Any) -> dict[str, Any]:
    return {
        "part": part, "kind": kind, "path": path, "load": None, "tenants": TENANTS, "seed": 0, "instants": 0,
        "limit_s": CUT_OFF_S, "names": list(ROWS), "fleet": None, **more,
    }  # fmt: skip


def _full(folder: str, parts: Sequence[str]) -> list[tuple[str, dict[str, Any]]]:
    _chosen(parts)
    paths = found(folder, _FILES)
    pieces: dict[str, dict[str, Any]] = {}
    for seed in range(SEEDS):
        more: dict[str, Any] = {"load": LOAD, "seed": seed, "instants": 24}
        pieces[f"reproduction, seed {seed}"] = _piece("reproduction", "synthetic", paths[_MARGINALS], **more)
    for name, kind in ((_OPENB, "openb"), (_OPENB, "openb-created"), (_PHILLY, "philly"), (_ITP, "itp")):
        for load in (None,) if kind == "openb-created" else LOADS:
            more = {"load": load, "instants": 24, "limit_s": 60.0}
            pieces[f"{kind}, {load or 'its own'} GPUs"] = _piece("real", kind, paths[name], **more)
    for fleet in FLEETS:
        for load in LOADS:
            more = {"load": load, "instants": 24, "limit_s": 60.0, "fleet": fleet}
            pieces[f"openb on {fleet}, {load} GPUs"] = _piece("fleet", "openb", paths[_OPENB], **more)
        for seed in range(FLEET_SEEDS):
            more = {"load": LOAD, "seed": seed, "instants": 24, "limit_s": 60.0, "fleet": fleet}
            pieces[f"synthetic on {fleet}, seed {seed}"] = _piece("fleet", "synthetic", paths[_MARGINALS], **more)
    for tenants in SWEEP_TENANTS:
        for load in LOADS:
            for seed in range(SWEEP_SEEDS):
                more = {
                    "load": load,
                    "tenants": tenants,
                    "seed": seed,
                    "names": ["greedy", "oldest-gpu-first", "mps_only"],
                }
                pieces[f"{tenants} tenants at {load:g} GPUs, seed {seed}"] = _piece(
                    "tenants", "openb", paths[_OPENB], **more
                )
    return [(key + _ROWS, piece) for key, piece in pieces.items() if piece["part"] in parts]


def stream_of(kind: str, path: str, load: float | None, tenants: int, seed: int) -> Stream:
    """The stream of one window. Raises: TraceError, ValueError: it has less than that load."""
    random = Random(f"{kind} {load} {tenants} {seed}")
    if kind == "synthetic":
        assert load is not None
        name = f"pai-synthetic seed {seed}"
        return synthetic(name, pai_marginals(path), load_gpus=load, hours=HOURS, tenants=tenants, random=random)
    if kind == "philly":
        stream, has_tenants = whole_gpus(path, tenant="vc", name="philly"), True
    elif kind == "itp":
        stream, has_tenants = whole_gpus(path, tenant="cluster", name="itp cluster08"), False
    elif kind == "openb-created":
        stream, has_tenants = densest(openb(path, hours=None, name=kind, time="orig_creation_time_s")), False
    else:
        stream, has_tenants = openb(path), False
    if load is not None:
        stream = thinned(stream, min(load, stream.load_gpus), random)
    return stream if has_tenants else with_tenants(stream, tenants, random)


def densest(stream: Stream) -> Stream:
    """The window of 60 hours with the highest load, among those that begin 6 hours apart."""
    length, apart = round(HOURS * HOUR_S * SECOND_NS), round(6 * HOUR_S * SECOND_NS)
    begins = range(stream.begin_ns, max(stream.begin_ns + 1, stream.end_ns - length), apart)
    return max((cut_window(stream, begin, begin + length) for begin in begins), key=lambda each: each.load_gpus)


def work(
    part: str, kind: str, path: str, load: float | None, tenants: int, seed: int, instants: int, limit_s: float,
    names: list[str], fleet: str | None,
) -> dict[str, Any]:  # fmt: skip
    """One window, in a process of its own; ``fleet``: on that of `FLEETS`, by MIG's placement rules."""
    stream = stream_of(kind, path, load, tenants, seed)
    more: dict[str, Any] = {}
    if fleet is not None:
        stream = replace(stream, name=f"{stream.name} on {fleet}")
        kinds = [gpu_spec("", model) for model in FLEETS[fleet]]
        more["gpu"] = lambda number: replace(kinds[number % len(kinds)], gpu=f"gpu-{number}")
    window = measure(stream, instants=instants, clock=time.perf_counter_ns, limit_s=limit_s, names=tuple(names), **more)
    return {
        **window.data(),
        "part": part,
        "options": {"load": load, "tenants": tenants, "seed": seed, "fleet": fleet},
        "curves": _curves(window),
    }


def _curves(window: Window) -> dict[str, Any]:
    """For the plots: cumulative GPU-hours, and times of decisions and proofs."""
    decided = sorted(window.decisions_ns)
    some = [decided[n * (len(decided) - 1) // 200] / 1e3 for n in range(201)] if decided else []
    return {
        "hours": {name: [[round(a, 2), round(s, 2)] for a, s in each] for name, each in window.curves.items()},
        "decision_us": some,
        "optimal_ms": sorted(round(each.solve_ms, 2) for each in window.instants if each.is_proven),
    }  # fmt: skip


def summary(windows: list[dict[str, Any]]) -> dict[str, Any]:
    """Over the reproduction windows: mean, least and greatest of what the paper's figure 8a could mean. Over all
    windows: the effect of `oldest-gpu-first` and `migrating` on active GPU-hours.
    """
    summary: dict[str, Any] = {}
    main = [each for each in windows if each["part"] == "reproduction"]
    if main:
        summary["reproduction"] = {
            "seeds": len(main),
            "load_gpus": _spread([each["load_gpus"] for each in main]),
            "active": {name: _spread([each["active_gpu_hours"][name] for each in main]) for name in ROWS},
            "slice": {name: _spread([each["slice_hours"][name] for each in main]) for name in ROWS},
            "saving_active": _spread([_saving(each, "active_gpu_hours") for each in main]),
            "saving_slice": _spread([_saving(each, "slice_hours") for each in main]),
            "gap_active": _spread([each["gap_active"] for each in main if each["gap_active"] is not None]),
            "gap_slice": _spread([each["gap_slice"] for each in main if each["gap_slice"] is not None]),
        }
    for key, parts in (("", ("reproduction", "real")), ("_fleet", ("fleet",))):
        hours = [each["active_gpu_hours"] for each in windows if each["part"] in parts]
        if hours:
            summary["oldest_gpu_first_over_greedy_active" + key] = _spread(
                [each["oldest-gpu-first"] / each["greedy"] - 1 for each in hours]
            )
    cells: dict[str, list[float]] = defaultdict(list)
    for each in windows:
        if each["part"] == "tenants":
            options = each["options"]
            cells[f"{options['tenants']} tenants, {options['load']:g} GPUs"].append(_saving(each, "slice_hours"))
    if cells:
        summary["saving_slice_by_tenants"] = {name: _spread(values) for name, values in cells.items()}
    return summary


def _saving(window: dict[str, Any], what: str) -> float:
    return 1 - float(window[what]["greedy"]) / float(window[what]["mps_only"])


def _spread(values: list[float]) -> dict[str, float] | None:
    if not values:
        return None
    return {"mean": round(statistics.fmean(values), 4), "min": round(min(values), 4), "max": round(max(values), 4)}


def text(data: dict[str, Any]) -> str:
    """As text: windows, then the paper's values beside the measured ones."""
    lines = [f"{'window':44} {'load':>5} {'ten.':>4}  active GPU-hours / slice-hours", ""]
    for each in data["windows"]:
        hours = "  ".join(
            f"{name} {each['active_gpu_hours'][name]:.0f}/{each['slice_hours'][name]:.0f}"
            for name in each["slice_hours"]
        )
        lines.append(f"{each['name'][:44]:44} {each['load_gpus']:5.1f} {each['tenants']:4}  {hours}")
        mixed = each.get("time_sharing_mixed_gpu_hours")  # None: the window was finished by an earlier build
        if mixed:
            lines.append(f"{'':44} time_sharing has several tenants on a GPU for {mixed:.0f} of its GPU-hours")
        if each["optimal_tried"]:
            lines.append(
                f"{'':44} optimum proven at {each['optimal_proven']} of {each['optimal_tried']} instants"
                f" ({each['optimal_part_of_time']:.0%} of the time has 1 to {MOST_LIVE} jobs);"
                f" greedy over it: {_gaps(each, '')}; decision p50 {each['decision_p50_us']:.1f} µs"
            )
            if each["gap_slice_any"] != each["gap_slice"]:
                lines.append(
                    f"{'':44} whatever the number of jobs: {each['optimal_any_proven']} of {each['optimal_any_tried']};"
                    f" greedy over it: {_gaps(each, '_any')}"
                )
    summary = data["summary"].get("reproduction")
    if summary:
        lines += ["", *_beside_the_paper(summary)]
    for key, where in (("", ""), ("_fleet", ", fleets with MIG's placement rules")):
        over = data["summary"].get("oldest_gpu_first_over_greedy_active" + key)
        if over:
            lines.append(
                f"oldest-gpu-first over greedy, active GPU-hours{where}:"
                f" {over['mean']:+.2%} [{over['min']:+.2%}, {over['max']:+.2%}]"
            )
    for name, each in data["summary"].get("saving_slice_by_tenants", {}).items():
        lines.append(f"  saving in slice-hours, {name}: {each['mean']:.1%} [{each['min']:.1%}, {each['max']:.1%}]")
    return "\n".join(lines)


def _gaps(window: dict[str, Any], which: str) -> str:
    found = (("slices", window[f"gap_slice{which}"]), ("GPUs", window[f"gap_active{which}"]))
    return ", ".join(f"{word} {gap:+.1%}" for word, gap in found if gap is not None) or "-"


def _beside_the_paper(summary: dict[str, Any]) -> list[str]:
    def hours(what: str, name: str) -> str:
        each = summary[what][name]
        return f"{each['mean']:.0f} [{each['min']:.0f}, {each['max']:.0f}]"

    def part(what: str) -> str:
        each = summary[what]
        return f"{each['mean']:.1%} [{each['min']:.1%}, {each['max']:.1%}]" if each else "-"

    return [
        f"figure 8a, {summary['seeds']} synthetic streams (mean [least, greatest])",
        "                        paper      slice-hours   active GPU-hours",
        f"  greedy, GPU-hours      233   {hours('slice', 'greedy')}   {hours('active', 'greedy')}",
        f"  MPS only, GPU-hours    345   {hours('slice', 'mps_only')}   {hours('active', 'mps_only')}",
        f"  saving                33 %   {part('saving_slice')}   {part('saving_active')}",
        f"  greedy over optimum    0 %   {part('gap_slice')}   {part('gap_active')}",
        f"  exclusive, GPU-hours         {hours('slice', 'exclusive')}   {hours('active', 'exclusive')}",
        f"  time-sharing at best         {hours('slice', 'time_sharing')}   {hours('active', 'time_sharing')}",
        "  the paper's pattern is that of slice-hours against whole GPUs, not that of equation 1's objective",
    ]
