"""MINA §V: Table I and figures 2 to 5 and 11 to 14, the paper's values beside offpath's, and improvements.

Two variants are run. ``figures``: the behaviour of the authors' simulator for the paper's figures (its baseline
only considers trees in transmission; candidates are drawn anew each time; no second category; and what `cell` calls
published). ``paper``: the behaviour that the text describes. Each row names its variant. All jobs arrive at time 0, as
in the paper; only the network takes time.
"""

from __future__ import annotations

import argparse
import csv
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

from offpath.cli.files.traces import TraceError
from offpath.cli.mina.cells import VARIANTS, cell, fragments_and_conflicts, inputs, pairs
from offpath.cli.mina.traces import TRACES
from offpath.cli.simulate import mina_reference as reference
from offpath.cli.simulate import mina_single
from offpath.cli.simulate.command import DATA, FIGURES, Report
from offpath.cli.simulate.mina_text import text
from offpath.cli.simulate.sweep import SweepError, sweep
from offpath.sched.errors import SchedError

DESCRIPTION: Final = "MINA: sharing in-network aggregation (Table I, figures 2 to 5 and 11 to 14)"
PARTS: Final = (*FIGURES["mina"], "beyond", "where")
CELLS: Final = ((0, 0, 0), (1, 0, 0), (1, 1, 0), (1, 1, 1), (0, 1, 1), (1, 0, 1))
"""Table I: job placement, tree building, resource sharing."""
SEEDS: Final = 10
AUTHORS_PARTS: Final = ("table1", "11", "14")
"""The parts for ``--draws llvm``: the authors' simulator draws only jobs and candidates."""
_RULES_VERSION: Final = 2
"""Version of the cells' rules. It increases when cells of the same name get different results, so that a run does
not continue with results of an earlier version.
"""
UPS: Final = tuple(range(1, 9))
KS: Final = tuple(range(1, 11))
BEST: Final = ("mina-gainers", "mina-weighed")
PAIR_RULES: Final = ("mina-paper", "greedy", "plan", "plan-tuned", "mina-weighed")
"""Of figure 12."""
Piece = tuple[str, dict[str, Any]]


@dataclass(frozen=True, slots=True)
class RunOptions:
    """The command line's options. ``folder``: of the inputs, None: the shipped ones; ``draws``: one of
    `offpath.cli.mina.cells.DRAWS`.
    """

    folder: str | None
    seeds: range
    quick: bool
    draws: str


def run(arguments: argparse.Namespace) -> Report:
    """Run the requested parts; with ``--quick`` alone, only Table I."""
    known = PARTS if arguments.draws == "own" else AUTHORS_PARTS
    parts = tuple(arguments.figure or arguments.only or (("table1",) if arguments.quick else known))
    unknown = [part for part in parts if part not in known]
    if unknown:
        raise TraceError(f"no part {', '.join(unknown)} with --draws {arguments.draws}: there are {', '.join(known)}")
    folder = None if arguments.quick else arguments.data or DATA
    inputs(folder)  # reports a missing file before anything runs
    options = RunOptions(folder, _seeds(arguments), arguments.quick, arguments.draws)
    begun = time.monotonic()
    data: dict[str, Any] = {
        "experiment": "mina", "quick": options.quick, "draws": options.draws, "seeds": len(options.seeds), "plots": [],
    }  # fmt: skip
    pieces = [piece for part in parts for piece in _DECLARED[part](options)]
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


def _seeds(arguments: argparse.Namespace) -> range:
    own = arguments.draws == "own"
    first = 0 if own else reference.SEED
    default = SEEDS if own and not arguments.quick else 1
    return range(first, first + (default if arguments.seeds is None or arguments.quick else arguments.seeds))


def work(kind: str, **arguments: Any) -> dict[str, Any]:
    """One piece, in a process of its own."""
    return _WORK[kind](**arguments)


def _table1(options: RunOptions) -> list[Piece]:
    pieces = []
    for variant, (first, mina) in VARIANTS.items():
        for jp, tb, rs in CELLS if variant == "figures" or not (options.quick or options.draws == "llvm") else ():
            labels = {"part": "table1", "variant": variant, "jp": bool(jp), "tb": bool(tb), "rs": bool(rs)}
            labels |= _published(options, bool(jp), bool(tb), bool(rs))
            pieces += _cells(
                f"table1 {variant} {jp}{tb}{rs}", options, labels, "fragments" if jp else "first-n",
                mina if tb else first, "mina-paper" if rs else "greedy", published=variant == "figures",
            )  # fmt: skip
    return pieces


def _published(options: RunOptions, jp: bool, tb: bool, rs: bool) -> dict[str, float]:
    """Reference values of a row: the paper's score, and that of the authors' program on these draws, or over seeds."""
    authors = reference.AUTHORS_42[jp, tb, rs] if options.draws == "llvm" else reference.AUTHORS[jp, tb, rs].mean
    return {"paper_score": reference.PAPER[jp, tb, rs][0], "authors_score": authors}


def _cells(
    key: str, options: RunOptions, labels: dict[str, Any], jp: str, trees: str, rule: str, **more: Any
) -> list[Piece]:
    words = {"kind": "cell", "folder": options.folder, "jp": jp, "trees": trees, "rule": rule, "labels": labels, **more}
    whole = f"{key} draws {options.draws} rules {_RULES_VERSION}"
    return [(f"{whole} seed {seed}", {**words, "draws": options.draws, "seed": seed}) for seed in options.seeds]


def _figure_11(options: RunOptions) -> list[Piece]:
    first, mina = VARIANTS["figures"]
    pieces = []
    for histogram in range(10):
        for which, words in (("mina", ("fragments", mina, "mina-paper")), ("baseline", ("first-n", first, "greedy"))):
            labels = {"part": "figure_11", "variant": "figures", "which": which}
            pieces += _cells(f"11 {which} {histogram}", options, labels, *words, histogram=histogram, published=True)
    return pieces


def _figure_13(options: RunOptions) -> list[Piece]:
    pieces = []
    for up in UPS:
        for jp in ("random", "first-n", "fragments"):
            labels = {"part": "figure_13", "variant": "figures"}
            mina = VARIANTS["figures"][1]
            pieces += _cells(f"13 {jp} {up}", options, labels, jp, mina, "greedy", up=up, published=True)
    return pieces


def _figure_14(options: RunOptions) -> list[Piece]:
    pieces = []
    for k in KS:
        labels = {"part": "figure_14", "variant": "figures"}
        mina = VARIANTS["figures"][1]
        pieces += _cells(f"14 {k}", options, labels, "fragments", mina, "greedy", k=k, published=True)
    return pieces


def _figure_12(options: RunOptions) -> list[Piece]:
    return [
        (f"12 {rule}", {"kind": "pairs", "folder": options.folder, "rule": rule, "labels": {"part": "figure_12"}})
        for rule in PAIR_RULES
    ]


def _figure_2(options: RunOptions) -> list[Piece]:
    count = 1_000 if options.quick else 5_000
    words = {"kind": "figure_2", "folder": options.folder, "count": count, "labels": {"part": "figure_2"}}
    return [(f"2 seed {seed}", {**words, "seed": seed}) for seed in options.seeds]


def _single(part: str) -> Callable[[RunOptions], list[Piece]]:
    return lambda options: [(part, {"kind": part, "folder": options.folder})]


def _beyond(options: RunOptions) -> list[Piece]:
    """The best policy against both variants of MINA on the same jobs: where computation is the bottleneck (Table I's
    setting) and where communication is.
    """
    pieces = []
    for setting, more in {"table1": {}, "bound": {"bandwidth": 5e9, "gpu_speedup": 1.5}}.items():
        for trees, rule in (("mina", "mina-paper"), ("mina-code", "mina-paper"), ("mina-merge", "mina-paper"), BEST):
            labels = {"part": "beyond", "setting": setting}
            pieces += _cells(f"beyond {setting} {trees} {rule}", options, labels, "fragments", trees, rule, **more)
    return pieces


def _where(options: RunOptions) -> list[Piece]:
    """The part of JCT that MINA, its baseline and the best policy save, and of the greatest possible saving: bandwidth
    by batch and GPU speed; then arrivals by contention of links, over bandwidth and over oversubscription. A quick run
    has no trace to read.
    """
    worlds: list[dict[str, Any]] = [
        {"bandwidth": bandwidth, "batch": batch, "gpu_speedup": speed}
        for batch, speed in ((4, 1.0), (4, 2.0), (16, 1.0), (16, 4.0))
        for bandwidth in (1.25e9, 2.5e9, 5e9, 12.5e9, 25e9, 50e9)
    ]
    for arrivals in ("",) if options.quick else ("", *TRACES):
        for contention in (False, True):
            world = {"arrivals": arrivals, "contention": contention}
            for bandwidth in (2.5e9, 5e9, 12.5e9, 25e9) if arrivals or contention else ():
                worlds.append({"bandwidth": bandwidth, **world})
            worlds += [{"bandwidth": 5e9, **world, "up": up} for up in (4, 2, 1)]
    pieces = []
    few = replace(options, seeds=options.seeds[:3])
    for world in worlds:
        plans = [("fragments", "mina", "mina-paper"), ("first-n", "first", "greedy"), ("fragments", *BEST)]
        if world.get("contention"):  # a job's time without INA then needs a run
            plans.append(("fragments", "first", "none"))
        for jp, trees, rule in plans:
            key = " ".join(["where", *(f"{name}={each}" for name, each in world.items()), jp, trees, rule])
            labels = {"part": "where"}
            pieces += _cells(key, few, labels, jp, trees, rule, count=500, **world)
    return pieces


_DECLARED: Final[dict[str, Callable[[RunOptions], list[Piece]]]] = {
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
    """The cells' rows as tables beside the JSON lines: CSV, and Parquet if pyarrow is installed; returns the paths."""
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
