"""NetPack §6: figures 7 to 13, the simulated half of figure 6, and what offpath adds.

All policies get the same jobs of a seed and the same step 1 (which jobs of a batch are placed); they differ in where.
Times are given with queueing (`avg_jct_s`), of queueing (`avg_queue_s`) and without (`avg_run_s`): the authors' program
counts from the start of a job. Figures 14 and 15 and the live half of figure 6 are measured, not simulated.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

from offpath.cli.files.traces import TraceError, found
from offpath.cli.netpack import cells, exact
from offpath.cli.netpack.cells import POLICIES, World
from offpath.cli.netpack.workloads import AUTHORS_FILE, FILE
from offpath.cli.simulate.command import DATA, FIGURES, Report
from offpath.cli.simulate.netpack_rows import beyond_rows, exact_rows, figure_rows, starved_rows
from offpath.cli.simulate.netpack_text import text
from offpath.cli.simulate.sweep import SweepError, sweep
from offpath.sched.errors import SchedError

DESCRIPTION: Final = "NetPack: placement of jobs that share links and switch memory (figures 6 to 13)"
PARTS: Final = (*FIGURES["netpack"], "beyond", "exact")
SEEDS: Final = 10
QUICK_SEEDS: Final = 2
_RULES_VERSION: Final = 2
"""It increases when pieces of the same name get different results, so that a run does not continue with old ones."""
_TESTBED: Final = World("testbed real", racks=1, servers=5, gpus=2, count=200)
_SIMULATOR: Final = World("simulator real", count=600)
_QUICK_JOBS: Final = {1: 100, 16: 500}
"""By racks."""
SCALES: Final = (100, 400, 1_000, 4_000, 10_000)
"""Servers, in 16 racks."""
SCALE_JOBS: Final = 4_000
SCALE_SEEDS: Final = 3
"""One of 4 000 jobs on all policies takes minutes."""
PATS_GBPS: Final = (0.0, 50.0, 100.0, 400.0, 1_000.0)
OVERSUBSCRIPTIONS: Final = (1.0, 2.0, 5.0, 10.0, 20.0)
STARVING_JOBS: Final = 14_000
"""Small jobs that arrive after the large one: their arrivals take longer than the bound of its waiting."""
STARVED_SEEDS: Final = 3
FASTER_GPUS: Final = 8.0
"""A setting in which communication takes most of the time: GPUs this many times as fast as the testbed's."""
Piece = tuple[str, dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Options:
    """The command line's. ``folder``: of the traces; None: the shipped sample."""

    folder: str | None
    seeds: range
    quick: bool


def run(arguments: argparse.Namespace) -> Report:
    """Run the requested figures and parts; without any: all."""
    parts = tuple(dict.fromkeys(arguments.figure or arguments.only or PARTS))
    unknown = [part for part in parts if part not in PARTS]
    if unknown:
        raise TraceError(f"no part {', '.join(unknown)}: there are {', '.join(PARTS)}")
    folder = None if arguments.quick else arguments.data or DATA
    if folder is not None:
        found(folder, (FILE, AUTHORS_FILE))  # reports a missing file before anything runs
    count = arguments.seeds if arguments.seeds is not None else QUICK_SEEDS if arguments.quick else SEEDS
    seeds = range(arguments.first_seed, arguments.first_seed + count)
    options = Options(folder, seeds, arguments.quick)
    begun = time.monotonic()
    pieces = [piece for part in parts for piece in _DECLARED[part](options)]
    path = os.path.join(arguments.out, "netpack-quick.jsonl" if arguments.quick else "netpack.jsonl")
    pieces = [(f"{key} rules {_RULES_VERSION}", words) for key, words in pieces]
    fresh = arguments.fresh or arguments.quick
    unique = list(dict(pieces).items())  # figures 7, 8 and 13 read the same runs
    try:
        results = sweep(path, unique, work, fresh=fresh, engine=arguments.engine)
    except SchedError as fault:
        raise SweepError(str(fault)) from None
    by_key = dict(zip((key for key, _ in unique), results, strict=True))
    finished = [(words, by_key[key]) for key, words in pieces]
    data: dict[str, Any] = {
        "experiment": "netpack", "quick": options.quick, "seeds": count, "first_seed": arguments.first_seed,
        "engine": arguments.engine,
        "figures": figure_rows(finished), "beyond": beyond_rows(finished), "starved": starved_rows(finished),
        "exact": exact_rows(finished), "plots": [],
    }  # fmt: skip
    data["seconds"] = round(time.monotonic() - begun, 1)
    from offpath.cli.simulate.netpack_plot import draw

    data["plots"] = draw(data, arguments.out)
    return Report(data, text(data))


def work(kind: str, **arguments: Any) -> dict[str, Any]:
    """One piece, in a process of its own."""
    arguments.pop("labels")
    return _WORK[kind](**arguments)


def _cells(options: Options, figure: str, world: World, x: float | None = None, *, most_seeds: int = SEEDS) -> list[
    Piece
]:  # fmt: skip
    """Runs of all policies in a world; ``x``: its place on the figure's axis."""
    if options.quick:
        world = replace(world, count=min(world.count, _QUICK_JOBS[world.racks]))
    pieces = []
    for seed in options.seeds[:most_seeds]:
        words: dict[str, Any] = {
            "kind": "cell", "world": world.as_arguments(), "folder": options.folder, "seed": seed,
            "policies": list(POLICIES),
        }  # fmt: skip
        named = {**words, "world": {**words["world"], "setting": ""}}  # equal worlds of two figures run once
        key = " ".join(str(each) for each in named.values())
        pieces.append((key, {**words, "labels": {"figure": figure, "x": x}}))
    return pieces


def workloads(options: Options) -> list[World]:
    """Of figures 7, 8 and 13: the testbed's and the simulator's."""
    worlds = []
    for name, world in (("testbed", _TESTBED), ("simulator", _SIMULATOR)):
        for kind in ("real", "normal", "poisson", *(() if options.quick else ("authors", "real-all"))):
            worlds.append(replace(world, setting=f"{name} {kind}", kind=kind))
    fast = replace(_SIMULATOR, setting=f"simulator real, GPUs x{FASTER_GPUS:g}", gpu_speedup=FASTER_GPUS)
    return [*worlds, fast]


def _of_workloads(figure: str) -> Callable[[Options], list[Piece]]:
    def pieces(options: Options) -> list[Piece]:
        return [piece for world in workloads(options) for piece in _cells(options, figure, world)]

    return pieces


def _figure_9(options: Options) -> list[Piece]:
    """4 000 jobs; the load is the same at every size."""
    pieces = []
    for servers in SCALES[:2] if options.quick else SCALES:
        world = replace(_SIMULATOR, setting=f"{servers} servers", servers=servers // 16, count=SCALE_JOBS)
        pieces += _cells(options, "9", world, float(servers), most_seeds=1 if options.quick else SCALE_SEEDS)
    return pieces


def _figure_10(options: Options) -> list[Piece]:
    pieces: list[Piece] = []
    sizes = [(servers, SCALE_JOBS) for servers in SCALES]
    sizes += [] if options.quick else [(SCALES[-1], jobs) for jobs in (500, 1_000, 2_000)]
    for servers, jobs in sizes:
        labels = {"figure": "10", "setting": f"{servers} servers, {jobs} jobs", "x": float(servers)}
        words: dict[str, Any] = {
            "kind": "time",
            "servers": servers,
            "jobs": jobs,
            "seed": 0,
            "policies": list(POLICIES[:2]),
        }
        pieces.append((f"10 {servers} {jobs}", {**words, "labels": labels}))
    return pieces


def _figure_11(options: Options) -> list[Piece]:
    """The paper's is the testbed; the simulator's cluster beside it."""
    pieces = []
    for name, world in (("testbed", _TESTBED), ("simulator", _SIMULATOR)):
        for pat in PATS_GBPS if not options.quick else PATS_GBPS[::4]:
            setting = replace(world, setting=f"{name}, PAT {pat:g} Gbit/s", pat_gbps=pat)
            pieces += _cells(options, "11", setting, pat)
    return pieces


def _figure_12(options: Options) -> list[Piece]:
    pieces = []
    for ratio in OVERSUBSCRIPTIONS if not options.quick else (1.0, 10.0, 20.0):
        world = replace(_SIMULATOR, setting=f"{ratio:g}:1", oversubscription=ratio)
        pieces += _cells(options, "12", world, ratio)
    return pieces


def _figure_6(options: Options) -> list[Piece]:
    """The simulated half: mean JCT of the testbed's workloads, each policy a point."""
    worlds = [world for world in workloads(options) if world.racks == 1]
    return [piece for world in worlds for piece in _cells(options, "6", world)]


def _beyond(options: Options) -> list[Piece]:
    """(a) the stream on which ageing starves a large job; (b) `netpack` against `netpack-paper` in every setting of
    the figures but those of many servers.
    """
    pieces: list[Piece] = []
    for seed in options.seeds[: 1 if options.quick else STARVED_SEEDS]:
        for policy in ("netpack", "netpack-paper"):
            words: dict[str, Any] = {"kind": "starved", "small_jobs": STARVING_JOBS, "policy": policy, "seed": seed}
            pieces.append((f"starved {list(words.values())}", {**words, "labels": {"figure": "starved"}}))
    for declared in (_of_workloads("beyond"), _figure_11, _figure_12):
        for key, words in declared(options):
            pieces.append((key, {**words, "labels": {**words["labels"], "figure": "beyond"}}))
    for kind in ("normal", "poisson"):
        for ratio in (10.0, 20.0):
            world = replace(_SIMULATOR, setting=f"{ratio:g}:1 {kind}", kind=kind, oversubscription=ratio)
            pieces += _cells(options, "beyond", world, ratio)
    return pieces


def _exact(options: Options) -> list[Piece]:
    count = 6 if options.quick else 100
    return [
        (f"exact {seed} {count}", {"kind": "exact", "seed": seed, "count": count, "labels": {"figure": "exact"}})
        for seed in options.seeds
    ]


_DECLARED: Final[dict[str, Callable[[Options], list[Piece]]]] = {
    "6": _figure_6, "7": _of_workloads("7"), "8": _of_workloads("8"), "9": _figure_9, "10": _figure_10,
    "11": _figure_11, "12": _figure_12, "13": _of_workloads("13"), "beyond": _beyond, "exact": _exact,
}  # fmt: skip
_WORK: Final[dict[str, Callable[..., dict[str, Any]]]] = {
    "cell": cells.cell,
    "time": cells.placement_time,
    "starved": cells.starved,
    "exact": exact.gaps,
}
