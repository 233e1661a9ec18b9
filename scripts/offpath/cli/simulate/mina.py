"""MINA §V: Table I and figures 2 to 5 and 11 to 14, the paper's values beside ours, and what does better.

Two variants of trees are run. ``figures``: what the authors' simulator did when the paper's figures were made (its
baseline looks at trees in transmission only; candidates drawn anew each time; no second category). ``paper``: what the
text means. Each row says which. All jobs are there at time 0, as in the paper; nothing but the network takes time.
"""

from __future__ import annotations

import argparse
import csv
import os
import sys
import time
from collections.abc import Callable
from typing import Any, Final

from offpath.cli.simulate import mina_single
from offpath.cli.simulate.command import FIGURES, Report
from offpath.cli.simulate.mina_cells import VARIANTS, cell, fragments_and_conflicts, inputs, pairs
from offpath.cli.simulate.mina_text import text
from offpath.cli.simulate.mina_traces import TRACES
from offpath.cli.simulate.sweep import SweepError, sweep
from offpath.cli.traces import TraceError
from offpath.sched.errors import SchedError

DESCRIPTION: Final = "MINA: sharing in-network aggregation (Table I, figures 2 to 5 and 11 to 14)"
PARTS: Final = (*FIGURES["mina"], "beyond", "where")
CELLS: Final = ((0, 0, 0), (1, 0, 0), (1, 1, 0), (1, 1, 1), (0, 1, 1), (1, 0, 1))
"""Table I: job placement, tree building, resource sharing."""
SEEDS: Final = 10
UPS: Final = tuple(range(1, 9))
KS: Final = tuple(range(1, 11))
BEST: Final = ("mina-gainers", "mina-weighed")
PAIR_RULES: Final = ("mina-paper", "greedy", "plan", "plan-tuned", "mina-weighed")
"""Of figure 12."""
Piece = tuple[str, dict[str, Any]]


def run(arguments: argparse.Namespace) -> Report:
    """What was asked for, or Table I alone where ``--quick`` is all that was said."""
    asked = tuple(arguments.figure or arguments.only or (("table1",) if arguments.quick else PARTS))
    unknown = [part for part in asked if part not in PARTS]
    if unknown:
        raise TraceError(f"no part {', '.join(unknown)}: there are {', '.join(PARTS)}")
    folder = None if arguments.quick else arguments.data
    inputs(folder)  # a missing file is told before anything runs
    seeds = range(1 if arguments.quick else SEEDS if arguments.seeds is None else arguments.seeds)
    begun = time.monotonic()
    data: dict[str, Any] = {"experiment": "mina", "quick": arguments.quick, "seeds": len(seeds), "plots": []}
    pieces = [piece for part in asked for piece in _DECLARED[part](folder, seeds, arguments.quick)]
    path = os.path.join(arguments.out, "mina-quick.jsonl" if arguments.quick else "mina.jsonl")
    try:
        rows = sweep(path, pieces, work, fresh=arguments.fresh or arguments.quick)
    except SchedError as fault:
        raise SweepError(str(fault)) from None
    for row in rows:
        data.setdefault(row["part"], []).append(row)
    data["seconds"] = round(time.monotonic() - begun, 1)
    data["tables"] = _write_tables(data, arguments.out)
    from offpath.cli.simulate.mina_plot import draw

    data["plots"] = draw(data, arguments.out)
    return Report(data, text(data))


def work(kind: str, **arguments: Any) -> dict[str, Any]:
    """One piece, in a process of its own."""
    return _WORK[kind](**arguments)


def _table1(folder: str | None, seeds: range, quick: bool) -> list[Piece]:
    pieces = []
    for variant, (first, mina) in VARIANTS.items():
        for jp, tb, rs in CELLS if variant == "figures" or not quick else ():
            told = {"part": "table1", "variant": variant, "jp": bool(jp), "tb": bool(tb), "rs": bool(rs)}
            pieces += _cells(
                f"table1 {variant} {jp}{tb}{rs}", folder, seeds, told, "fragments" if jp else "first-n",
                mina if tb else first, "mina-paper" if rs else "greedy",
            )  # fmt: skip
    return pieces


def _cells(
    key: str, folder: str | None, seeds: range, told: dict[str, Any], jp: str, trees: str, rule: str, **more: Any
) -> list[Piece]:
    words = {"kind": "cell", "folder": folder, "jp": jp, "trees": trees, "rule": rule, "told": told, **more}
    return [(f"{key} seed {seed}", {**words, "seed": seed}) for seed in seeds]


def _figure_11(folder: str | None, seeds: range, quick: bool) -> list[Piece]:
    first, mina = VARIANTS["figures"]
    pieces = []
    for histogram in range(10):
        for which, words in (("mina", ("fragments", mina, "mina-paper")), ("baseline", ("first-n", first, "greedy"))):
            told = {"part": "figure_11", "variant": "figures", "which": which}
            pieces += _cells(f"11 {which} {histogram}", folder, seeds, told, *words, histogram=histogram)
    return pieces


def _figure_13(folder: str | None, seeds: range, quick: bool) -> list[Piece]:
    pieces = []
    for up in UPS:
        for jp in ("random", "first-n", "fragments"):
            told = {"part": "figure_13", "variant": "figures"}
            pieces += _cells(f"13 {jp} {up}", folder, seeds, told, jp, VARIANTS["figures"][1], "greedy", up=up)
    return pieces


def _figure_14(folder: str | None, seeds: range, quick: bool) -> list[Piece]:
    pieces = []
    for k in KS:
        told = {"part": "figure_14", "variant": "figures"}
        pieces += _cells(f"14 {k}", folder, seeds, told, "fragments", VARIANTS["figures"][1], "greedy", k=k)
    return pieces


def _figure_12(folder: str | None, seeds: range, quick: bool) -> list[Piece]:
    return [
        (f"12 {rule}", {"kind": "pairs", "folder": folder, "rule": rule, "told": {"part": "figure_12"}})
        for rule in PAIR_RULES
    ]


def _figure_2(folder: str | None, seeds: range, quick: bool) -> list[Piece]:
    count = 1_000 if quick else 5_000
    told = {"part": "figure_2"}
    return [
        (f"2 seed {n}", {"kind": "figure_2", "folder": folder, "seed": n, "count": count, "told": told}) for n in seeds
    ]


def _single(part: str) -> Callable[[str | None, range, bool], list[Piece]]:
    return lambda folder, seeds, quick: [(part, {"kind": part, "folder": folder})]


def _beyond(folder: str | None, seeds: range, quick: bool) -> list[Piece]:
    """The best against MINA as the paper means it and as its figures were made, on the same jobs: where computation
    binds (Table I's setting) and where communication does."""
    pieces = []
    for setting, more in {"table1": {}, "bound": {"bandwidth": 5e9, "gpu_speedup": 1.5}}.items():
        for trees, rule in (("mina", "mina-paper"), ("mina-code", "mina-paper"), ("mina-merge", "mina-paper"), BEST):
            told = {"part": "beyond", "setting": setting}
            pieces += _cells(f"beyond {setting} {trees} {rule}", folder, seeds, told, "fragments", trees, rule, **more)
    return pieces


def _where(folder: str | None, seeds: range, quick: bool) -> list[Piece]:
    """What MINA, its baseline and the best gain in JCT, and of what INA could gain which part: bandwidth by batch and
    GPU speed; then arrivals by contention of links, over bandwidth and over oversubscription. A quick run has no
    trace to read."""
    worlds: list[dict[str, Any]] = [
        {"bandwidth": bandwidth, "batch": batch, "gpu_speedup": speed}
        for batch, speed in ((4, 1.0), (4, 2.0), (16, 1.0), (16, 4.0))
        for bandwidth in (1.25e9, 2.5e9, 5e9, 12.5e9, 25e9, 50e9)
    ]
    for arrivals in ("",) if quick else ("", *TRACES):
        for contention in (False, True):
            world = {"arrivals": arrivals, "contention": contention}
            for bandwidth in (2.5e9, 5e9, 12.5e9, 25e9) if arrivals or contention else ():
                worlds.append({"bandwidth": bandwidth, **world})
            worlds += [{"bandwidth": 5e9, **world, "up": up} for up in (4, 2, 1)]
    pieces = []
    for world in worlds:
        plans = [("fragments", "mina", "mina-paper"), ("first-n", "first", "greedy"), ("fragments", *BEST)]
        if world.get("contention"):  # then nobody can tell without a run what a job takes without INA
            plans.append(("fragments", "first", "none"))
        for jp, trees, rule in plans:
            key = " ".join(["where", *(f"{name}={each}" for name, each in world.items()), jp, trees, rule])
            told = {"part": "where"}
            pieces += _cells(key, folder, seeds[:3], told, jp, trees, rule, count=500, **world)
    return pieces


_DECLARED: Final[dict[str, Callable[[str | None, range, bool], list[Piece]]]] = {
    "table1": _table1, "11": _figure_11, "12": _figure_12, "13": _figure_13, "14": _figure_14, "2": _figure_2,
    "3": _single("figure_4"), "4": _single("figure_4"), "5": _single("figure_5"), "beyond": _beyond, "where": _where,
}  # fmt: skip
_WORK: Final[dict[str, Callable[..., dict[str, Any]]]] = {
    "cell": cell,
    "pairs": pairs,
    "figure_2": fragments_and_conflicts,
    "figure_4": lambda folder: {"part": "figure_4", **mina_single.steps(folder)},
    "figure_5": lambda folder: {"part": "figure_5", **mina_single.by_bandwidth(folder)},
}


def _write_tables(data: dict[str, Any], folder: str) -> list[str]:
    """The cells' rows as tables beside the JSON lines: CSV, and Parquet where pyarrow is; returns what was written."""
    rows = [row for part in data.values() if isinstance(part, list) for row in part if "efficiency_score" in row]
    if not rows:
        return []
    names = list(dict.fromkeys(name for row in rows for name in row))
    paths = [os.path.join(folder, "mina.csv")]
    with open(paths[0], "w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, names)
        writer.writeheader()
        writer.writerows(rows)
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        print("no mina.parquet: pyarrow is not installed; offpath's extra `sim` has it", file=sys.stderr)
        return paths
    columns = {name: [row.get(name) for row in rows] for name in names}
    paths.append(os.path.join(folder, "mina.parquet"))
    pyarrow.parquet.write_table(pyarrow.table(columns), paths[1])
    return paths
