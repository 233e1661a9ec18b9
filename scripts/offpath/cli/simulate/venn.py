"""Venn §5 in simulation: tables 1 to 4, figures 3 and 11 to 14, the gap to the optimum, and invented parameters.

The population is synthetic (`offpath.cli.venn.population`): the paper's trace of devices is not published. Clients and
participants are a fifth of the paper's, so that their ratio is the paper's; rounds and the time between arrivals are a
twentieth.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

from offpath.cli.files.traces import TraceError
from offpath.cli.simulate.command import Report
from offpath.cli.simulate.sweep import SweepError, sweep
from offpath.cli.simulate.venn_rows import RANDOM, mean_rows, seed_rows, text
from offpath.cli.venn import cells
from offpath.cli.venn.cells import World
from offpath.cli.venn.workloads import WORKLOADS
from offpath.sched.collab.policies import COLLAB_POLICIES
from offpath.sched.errors import SchedError

DESCRIPTION: Final = "Venn: many federated jobs, one population of devices (tables 1 to 4, figures 3 and 11 to 14)"
SEEDS: Final = 10
QUICK_SEEDS: Final = 2
_RULES: Final = 3
"""It increases when pieces of the same name get different results, so that a run does not continue with old ones."""
TABLED: Final = (RANDOM, "fifo", "srsf", "venn-paper", "venn")
CASES: Final = 300
QUICK_CASES: Final = 12
EPSILONS: Final = (0.0, 0.5, 1.0, 2.0, 4.0)
TIERS: Final = (1, 2, 3, 4)
JOBS: Final = (25, 50, 75)
INVENTED: Final = {
    "supply": (0.6, 1.5), "sessions_per_device": (2.0, 5.0), "diurnal": (0.0, 0.9), "session_sigma": (0.5, 2.0),
    "network_sigma": (0.5, 1.5),
}  # fmt: skip
PART_OF: Final = {"1": "tables", "2": "tables", "3": "tables", "4": "tables"}
"""By table."""
FIGURES: Final = {"3": "optimality", "11": "ablation", "12": "jobs", "13": "tiers", "14": "fairness"}
Piece = tuple[str, dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Options:
    """The command line's. ``policies``: None: those of the part."""

    seeds: range
    quick: bool
    policies: tuple[str, ...] | None

    @property
    def world(self) -> World:
        """Of all parts."""
        world = World(RANDOM)
        return replace(world, share=10, shorter=80) if self.quick else world


def run(arguments: argparse.Namespace) -> Report:
    """The requested figures, tables and parts; without any: all, or with ``--quick`` the tables and the optimum."""
    parts, options = _parts(arguments), _options(arguments)
    begun = time.monotonic()
    pieces = [piece for part in parts for piece in DECLARED[part](options)]
    path = os.path.join(arguments.out, "venn-quick.jsonl" if arguments.quick else "venn.jsonl")
    try:
        unique = list(dict(pieces).items())  # parts share runs
        results = sweep(path, unique, work, fresh=arguments.fresh or arguments.quick)
    except SchedError as fault:
        raise SweepError(str(fault)) from None
    by_key = dict(zip((key for key, _ in unique), results, strict=True))
    finished = [(words, by_key[key]) for key, words in pieces]
    optimality = [result for words, result in finished if words["kind"] == "gaps"]
    data: dict[str, Any] = {
        "experiment": "venn", "quick": options.quick, "seeds": len(options.seeds),
        "population": "synthetic: published statistics, invented shapes", "rows": mean_rows(seed_rows(finished)),
        "optimality": optimality[0] if optimality else {}, "seconds": round(time.monotonic() - begun, 1),
    }  # fmt: skip
    from offpath.cli.simulate.venn_plot import draw

    data["plots"] = draw(data, arguments.out)
    return Report(data, text(data))


def work(kind: str, world: dict[str, Any], part: str) -> dict[str, Any]:
    """One piece, in a process of its own."""
    del part
    return _WORK[kind](**world)


def _parts(arguments: argparse.Namespace) -> tuple[str, ...]:
    asked = [FIGURES[each] for each in arguments.figure or ()] + [PART_OF[each] for each in arguments.table or ()]
    default = ("tables", "optimality") if arguments.quick else tuple(DECLARED)
    parts = tuple(dict.fromkeys(asked or arguments.only or default))
    unknown = [part for part in parts if part not in DECLARED]
    if unknown:
        raise TraceError(f"no part {', '.join(unknown)}: there are {', '.join(DECLARED)}")
    return parts


def _options(arguments: argparse.Namespace) -> Options:
    """Reports an unknown policy before anything runs."""
    chosen = tuple(dict.fromkeys(arguments.policy)) if arguments.policy else None
    for name in chosen or ():
        try:
            cells.policy_of(name, lambda below: 0)
        except SchedError as fault:
            raise TraceError(str(fault)) from None
    seeds = QUICK_SEEDS if arguments.quick else SEEDS
    return Options(range(seeds if arguments.seeds is None else arguments.seeds), arguments.quick, chosen)


def _pieces(options: Options, part: str, worlds: list[World]) -> list[Piece]:
    pieces = []
    for world in worlds:
        for seed in options.seeds:
            words = replace(world, seed=seed).as_arguments()
            key = f"cell {' '.join(str(each) for each in words.values())} rules {_RULES}"
            pieces.append((key, {"kind": "cell", "world": words, "part": part}))
    return pieces


def _with(world: World, options: Options, policies: tuple[str, ...]) -> list[World]:
    """Random matching is always there: the others are compared with it."""
    return [replace(world, policy=name) for name in dict.fromkeys((RANDOM, *(options.policies or policies)))]


def _tables(options: Options) -> list[Piece]:
    workloads = ("even", "low", "high") if options.quick else WORKLOADS
    worlds = [each for name in workloads for each in _with(replace(options.world, workload=name), options, TABLED)]
    return _pieces(options, "tables", worlds)


def _ablation(options: Options) -> list[Piece]:
    policies = ("fifo", "venn-paper", "venn-irs", "tiers-fifo", "venn")
    worlds = [each for name in ("low", "high")
              for each in _with(replace(options.world, workload=name), options, policies)]  # fmt: skip
    return _pieces(options, "ablation", worlds)


def _matching(options: Options) -> list[Piece]:
    """The random matching of published systems; slower to simulate, so fewer seeds."""
    policies = ("random-apple", "random-meta", "random-google")
    few = replace(options, seeds=options.seeds[:2])
    return _pieces(few, "matching", _with(replace(options.world, share=20, shorter=200), few, policies))


def _jobs(options: Options) -> list[Piece]:
    counts = [options.world.jobs * each // JOBS[1] for each in JOBS]
    worlds = [each for count in counts for each in _with(replace(options.world, jobs=count), options, TABLED)]
    return _pieces(options, "jobs", worlds)


def _tiers(options: Options) -> list[Piece]:
    low = replace(options.world, workload="low")
    worlds = [low] + [replace(low, policy="venn-paper", tiers=each) for each in TIERS]
    return _pieces(options, "tiers", worlds)


def _fairness(options: Options) -> list[Piece]:
    worlds = [options.world] + [replace(options.world, policy="venn-paper", epsilon=each) for each in EPSILONS]
    return _pieces(options, "fairness", worlds)


def _sensitivity(options: Options) -> list[Piece]:
    worlds = []
    for name, values in INVENTED.items():
        for value in values:
            world = World(**{**options.world.as_arguments(), name: value})
            worlds += _with(world, options, ("srsf", "venn-paper", "venn"))
    return _pieces(options, "sensitivity", worlds)


def _optimality(options: Options) -> list[Piece]:
    policies = list(options.policies or COLLAB_POLICIES)
    words = {"cases": QUICK_CASES if options.quick else CASES, "seed": 0, "policies": policies}
    return [(f"gaps {words} rules {_RULES}", {"kind": "gaps", "world": words, "part": "optimality"})]


DECLARED: Final[dict[str, Callable[[Options], list[Piece]]]] = {
    "tables": _tables, "optimality": _optimality, "ablation": _ablation, "jobs": _jobs, "tiers": _tiers,
    "fairness": _fairness, "matching": _matching, "sensitivity": _sensitivity,
}  # fmt: skip
_WORK: Final[dict[str, Callable[..., dict[str, Any]]]] = {"cell": cells.cell, "gaps": cells.gaps}
