"""Conspirator §4.2: GPU-hours of the greedy heuristic, the optimum, and what shares less (figures 8a and 8b).

Assumed, because the paper's trace cannot be had and its tenants are not told: the main stream is synthetic (published
marginals, Poisson, independent draws), its load is the 233 GPU-hours over 60 hours that the paper reports, tenants are
Zipf(1.0); GPUs are A100s by the paper's capacity model, nothing takes time, nothing waits.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections import defaultdict
from random import Random
from typing import Any, Final

from offpath.cli.demo import samples
from offpath.cli.simulate.command import Report
from offpath.cli.simulate.sweep import SweepError, sweep
from offpath.cli.traces import TraceError, found, openb, pai_marginals, whole_gpus
from offpath.sched.errors import SchedError
from offpath.sched.sim.conspirator import CUT_OFF_S, MAKE, Window, measure
from offpath.sched.sim.workload import HOUR_S, SECOND_NS, Stream, cut_window, synthetic, thinned, with_tenants

DESCRIPTION: Final = "Conspirator §4.2: GPU-hours of greedy, optimum, MPS-only; decision times (figures 8a, 8b)"
PAPER: Final = {"greedy": 233.0, "optimal": 233.0, "mps_only": 345.0, "saving": 1 - 233 / 345}
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
_PARTS: Final = ("reproduction", "real", "tenants")


def run(arguments: argparse.Namespace) -> Report:
    """All windows, or the two quick ones."""
    pieces = _quick() if arguments.quick else _full(arguments.data, arguments.only or _PARTS)
    path = os.path.join(arguments.out, "conspirator-quick.jsonl" if arguments.quick else "conspirator.jsonl")
    begun = time.monotonic()
    try:
        windows = sweep(path, pieces, work, fresh=arguments.fresh or arguments.quick)
    except SchedError as fault:  # the solver is not installed
        raise SweepError(str(fault)) from None
    data: dict[str, Any] = {
        "experiment": "conspirator", "quick": arguments.quick, "paper": PAPER,
        "windows": [{k: v for k, v in each.items() if k not in ("curves", "part")} for each in windows],
        "summary": summary(windows), "seconds": round(time.monotonic() - begun, 1),
    }  # fmt: skip
    from offpath.cli.simulate.conspirator_plot import draw

    data["plots"] = draw(windows, arguments.out, PAPER)
    return Report(data, text(data))


def _quick() -> list[tuple[str, dict[str, Any]]]:
    marginals, pods = (str(samples.DATA / name) for name in ("pai_marginals.json", "openb_sample.csv"))
    return [
        ("pai-synthetic seed 0", _piece("reproduction", "synthetic", marginals, load=LOAD, instants=24, limit_s=5.0)),
        ("openb sample", _piece("real", "openb", pods, instants=12, limit_s=5.0, tenants=20)),
    ]


def _piece(part: str, kind: str, path: str, **more: Any) -> dict[str, Any]:
    return {
        "part": part, "kind": kind, "path": path, "load": None, "tenants": TENANTS, "seed": 0, "instants": 0,
        "limit_s": CUT_OFF_S, "names": list(MAKE), **more,
    }  # fmt: skip


def _full(folder: str, parts: list[str] | tuple[str, ...]) -> list[tuple[str, dict[str, Any]]]:
    unknown = [part for part in parts if part not in _PARTS]
    if unknown:
        raise TraceError(f"no part {', '.join(unknown)}: there are {', '.join(_PARTS)}")
    paths = found(folder, _FILES)
    pieces: dict[str, dict[str, Any]] = {}
    for seed in range(SEEDS):
        more: dict[str, Any] = {"load": LOAD, "seed": seed, "instants": 24}
        pieces[f"reproduction seed {seed}"] = _piece("reproduction", "synthetic", paths[_MARGINALS], **more)
    for name, kind in ((_OPENB, "openb"), (_OPENB, "openb-created"), (_PHILLY, "philly"), (_ITP, "itp")):
        for load in (None,) if kind == "openb-created" else LOADS:
            more = {"load": load, "instants": 24, "limit_s": 60.0}
            pieces[f"{kind} at {load or 'its own'} GPUs"] = _piece("real", kind, paths[name], **more)
    for tenants in SWEEP_TENANTS:
        for load in LOADS:
            for seed in range(SWEEP_SEEDS):
                more = {"load": load, "tenants": tenants, "seed": seed, "names": ["greedy", "shipped", "mps_only"]}
                pieces[f"{tenants} tenants at {load:g} GPUs, seed {seed}"] = _piece(
                    "tenants", "openb", paths[_OPENB], **more
                )
    return [(key, piece) for key, piece in pieces.items() if piece["part"] in parts]


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
    names: list[str],
) -> dict[str, Any]:  # fmt: skip
    """One window, in a process of its own."""
    stream = stream_of(kind, path, load, tenants, seed)
    window = measure(stream, instants=instants, clock=time.perf_counter_ns, limit_s=limit_s, names=tuple(names))
    return {
        **window.data(),
        "part": part,
        "asked": {"load": load, "tenants": tenants, "seed": seed},
        "curves": _curves(window),
    }


def _curves(window: Window) -> dict[str, Any]:
    """For the pictures: GPU-hours so far, and times of decisions and proofs."""
    decided = sorted(window.decisions_ns)
    some = [decided[n * (len(decided) - 1) // 200] / 1e3 for n in range(201)] if decided else []
    return {
        "hours": {name: [[round(a, 2), round(s, 2)] for a, s in each] for name, each in window.curves.items()},
        "decision_us": some,
        "optimal_ms": sorted(round(each.solve_ms, 2) for each in window.instants if each.is_proven),
    }  # fmt: skip


def summary(windows: list[dict[str, Any]]) -> dict[str, Any]:
    """Over the reproduction windows: mean, least and greatest of what the paper's figure 8a could mean; over all: what
    `shipped` and `migrating` do to active GPU-hours."""
    told: dict[str, Any] = {}
    main = [each for each in windows if each["part"] == "reproduction"]
    if main:
        told["reproduction"] = {
            "seeds": len(main),
            "load_gpus": _spread([each["load_gpus"] for each in main]),
            "active": {name: _spread([each["active_gpu_hours"][name] for each in main]) for name in MAKE},
            "slice": {name: _spread([each["slice_hours"][name] for each in main]) for name in MAKE},
            "saving_active": _spread([_saving(each, "active_gpu_hours") for each in main]),
            "saving_slice": _spread([_saving(each, "slice_hours") for each in main]),
            "gap_active": _spread([each["gap_active"] for each in main if each["gap_active"] is not None]),
            "gap_slice": _spread([each["gap_slice"] for each in main if each["gap_slice"] is not None]),
        }
    compared = [each for each in windows if "shipped" in each["active_gpu_hours"] and each["part"] != "tenants"]
    over = [each["active_gpu_hours"]["shipped"] / each["active_gpu_hours"]["greedy"] - 1 for each in compared]
    if over:
        told["shipped_over_greedy_active"] = _spread(over)
    cells: dict[str, list[float]] = defaultdict(list)
    for each in windows:
        if each["part"] == "tenants":
            asked = each["asked"]
            cells[f"{asked['tenants']} tenants, {asked['load']:g} GPUs"].append(_saving(each, "slice_hours"))
    if cells:
        told["saving_slice_by_tenants"] = {name: _spread(values) for name, values in cells.items()}
    return told


def _saving(window: dict[str, Any], what: str) -> float:
    return 1 - float(window[what]["greedy"]) / float(window[what]["mps_only"])


def _spread(values: list[float]) -> dict[str, float] | None:
    if not values:
        return None
    return {"mean": round(statistics.fmean(values), 4), "min": round(min(values), 4), "max": round(max(values), 4)}


def text(data: dict[str, Any]) -> str:
    """For people: windows, then what the paper says beside what came out."""
    lines = [f"{'window':44} {'load':>5} {'ten.':>4}  active GPU-hours / slice-hours", ""]
    for each in data["windows"]:
        hours = "  ".join(
            f"{name} {each['active_gpu_hours'][name]:.0f}/{each['slice_hours'][name]:.0f}"
            for name in each["slice_hours"]
        )
        lines.append(f"{each['name'][:44]:44} {each['load_gpus']:5.1f} {each['tenants']:4}  {hours}")
        if each["optimal_tried"]:
            gaps = ", ".join(
                f"{word} {each[key]:+.1%}" for word, key in (("slices", "gap_slice"), ("GPUs", "gap_active"))
                if each[key] is not None
            )  # fmt: skip
            lines.append(
                f"{'':44} optimum proven at {each['optimal_proven']} of {each['optimal_tried']} instants;"
                f" greedy over it: {gaps or '-'}; decision p50 {each['decision_p50_us']:.1f} µs"
            )
    told = data["summary"].get("reproduction")
    if told:
        lines += ["", *_beside_the_paper(told)]
    over = data["summary"].get("shipped_over_greedy_active")
    if over:
        lines.append(
            f"shipped over greedy, active GPU-hours: {over['mean']:+.2%} [{over['min']:+.2%}, {over['max']:+.2%}]"
        )
    for name, each in data["summary"].get("saving_slice_by_tenants", {}).items():
        lines.append(f"  saving in slice-hours, {name}: {each['mean']:.1%} [{each['min']:.1%}, {each['max']:.1%}]")
    return "\n".join(lines)


def _beside_the_paper(told: dict[str, Any]) -> list[str]:
    def hours(what: str, name: str) -> str:
        each = told[what][name]
        return f"{each['mean']:.0f} [{each['min']:.0f}, {each['max']:.0f}]"

    def part(what: str) -> str:
        each = told[what]
        return f"{each['mean']:.1%} [{each['min']:.1%}, {each['max']:.1%}]" if each else "-"

    return [
        f"figure 8a, {told['seeds']} synthetic streams (mean [least, greatest])",
        "                        paper      slice-hours   active GPU-hours",
        f"  greedy, GPU-hours      233   {hours('slice', 'greedy')}   {hours('active', 'greedy')}",
        f"  MPS only, GPU-hours    345   {hours('slice', 'mps_only')}   {hours('active', 'mps_only')}",
        f"  saving                33 %   {part('saving_slice')}   {part('saving_active')}",
        f"  greedy over optimum    0 %   {part('gap_slice')}   {part('gap_active')}",
        "  the paper's pattern is that of slice-hours against whole GPUs, not that of equation 1's objective",
    ]
