"""HIRE §6: figures 7 and 8a to 8j in simulation, and what offpath adds.

All policies get the same jobs of a seed and ask the same oracle which node fits. A run is one policy on one stream.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

from offpath.cli.demo.samples import DATA as SHIPPED
from offpath.cli.files.traces import TraceError, found
from offpath.cli.hire import cells
from offpath.cli.hire.cells import PLACING_MS, World
from offpath.cli.hire.traces import read
from offpath.cli.simulate.command import DATA, Report
from offpath.cli.simulate.hire_rows import beyond, claim_rows, mean_rows, run_rows, speed_rows, tuned
from offpath.cli.simulate.hire_text import text
from offpath.cli.simulate.sweep import SweepError, sweep
from offpath.sched.errors import SchedError
from offpath.sched.inc.policies import NINE, POLICIES

DESCRIPTION: Final = "HIRE: servers and switches placed together (figures 7 and 8a to 8j)"
SYNTHETIC: Final = os.path.join("hire", "hire_synth_jobs.csv")
PODS: Final = "alibaba2023_openb_pods.csv.gz"
SAMPLE: Final = "hire_synth_jobs.csv"
"""Shipped."""
SEEDS: Final = 3
"""As the paper."""
HELD_OUT: Final = (100, 101)
"""Seeds of the tuning; no other part uses them."""
TIMEOUTS: Final = (0.02, 0.05, 0.1, 0.2, 0.5)
MUS: Final = (1.0, 0.5, 0.25, 0.05)
QUICK_MUS: Final = (1.0, 0.5)
LOADS: Final = (0.6, 0.9, 1.2, 1.5)
_SERVERS_8, _SERVERS_26 = 128, 4_394
"""Of fat trees of these degrees."""
READINGS: Final = ("hire-paper", "hire-prose", "hire-code")
COMPARED: Final = (*NINE, "hire-paper")
"""What other settings than figure 8's compare."""
PARTS: Final = ("7", "8", "load", "pods", "k12", "tuning", "k26")
_USUAL: Final = PARTS[:-1]
"""Without ``k26``, the paper's cluster: it takes long."""
_RULES_VERSIONS: Final = {"hire": 3}
"""By family of policies, others 1. It increases when pieces of the same name get different results, so that a run does
not continue with old ones."""
Piece = tuple[str, dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Options:
    """The command line's. ``policies``: None: those of the part."""

    synthetic: str
    pods: str | None
    seeds: range
    quick: bool
    policies: tuple[str, ...] | None

    @property
    def world(self) -> World:
        """Of the sweeps over μ."""
        world = World(self.synthetic, "hire")
        return replace(world, degree=4, count=40) if self.quick else world


def run(arguments: argparse.Namespace) -> Report:
    """Run the requested figures and parts; without any: all but the paper's cluster."""
    parts = _parts(arguments)
    options = _options(arguments, parts)
    begun = time.monotonic()
    pieces = [piece for part in parts for piece in _DECLARED[part](options)]
    path = os.path.join(arguments.out, "hire-quick.jsonl" if arguments.quick else "hire.jsonl")
    fresh = arguments.fresh or arguments.quick
    unique = list(dict(pieces).items())
    try:
        results = sweep(path, unique, work, fresh=fresh)
    except SchedError as fault:
        raise SweepError(str(fault)) from None
    by_key = dict(zip((key for key, _ in unique), results, strict=True))
    finished = [(words, by_key[key]) for key, words in pieces]
    rows = run_rows((words, result) for words, result in finished if words["part"] != "7")
    means = mean_rows(rows)
    data: dict[str, Any] = {
        "experiment": "hire", "quick": options.quick, "seeds": len(options.seeds),
        "figure_7": speed_rows((words, result) for words, result in finished if words["part"] == "7"),
        "means": means, "tuning": tuned(means), "claims": claim_rows(means),
        "beyond": beyond(rows, "hire"),
        "runs": [{key: value for key, value in row.items() if key != "detours_by_job"} for row in rows], "plots": [],
    }  # fmt: skip
    data["seconds"] = round(time.monotonic() - begun, 1)
    from offpath.cli.simulate.hire_plot import draw

    data["plots"] = draw(data, arguments.out)
    return Report(data, text(data))


def _parts(arguments: argparse.Namespace) -> tuple[str, ...]:
    figures = ["7" if each == "7" else "8" for each in arguments.figure or ()]
    default = ("7", "8") if arguments.quick else _USUAL
    parts = tuple(dict.fromkeys(figures or arguments.only or default))
    unknown = [part for part in parts if part not in PARTS]
    if unknown:
        raise TraceError(f"no part {', '.join(unknown)}: there are {', '.join(PARTS)}")
    return parts


def _options(arguments: argparse.Namespace, parts: tuple[str, ...]) -> Options:
    """Reports a missing or invalid file, and an unknown policy, before anything runs."""
    chosen = tuple(dict.fromkeys(arguments.policy)) if arguments.policy else None
    for name in chosen or ():
        try:
            cells.known(name)
        except SchedError as fault:
            raise TraceError(str(fault)) from None
    pods = None
    if arguments.trace is not None:
        synthetic = arguments.trace
    elif arguments.quick:
        synthetic = str(SHIPPED / SAMPLE)
    else:
        paths = found(arguments.data or DATA, (SYNTHETIC, PODS) if "pods" in parts else (SYNTHETIC,))
        synthetic, pods = paths[SYNTHETIC], paths.get(PODS)
    if "pods" in parts and pods is None:
        if not arguments.only:
            raise TraceError("the part pods takes no --trace: leave it out with --only")
        raise TraceError("the part pods needs the pods of --data: no --quick, no --trace")
    read(synthetic)
    seeds = range(SEEDS if arguments.seeds is None else arguments.seeds)
    return Options(synthetic, pods, seeds, arguments.quick, chosen)


def work(kind: str, world: dict[str, Any], part: str) -> dict[str, Any]:
    """One piece, in a process of its own."""
    del part
    return _WORK[kind](**world)


def _pieces(options: Options, part: str, worlds: list[World], policies: tuple[str, ...], kind: str = "cell") -> list[
    Piece
]:  # fmt: skip
    pieces = []
    for world in worlds:
        for name in options.policies or policies:
            words = replace(world, policy=name).as_arguments()
            # Pieces that were finished before placing_ms could be chosen stay valid.
            chosen = [str(each) for word, each in words.items() if (word, each) != ("placing_ms", PLACING_MS)]
            key = f"{kind} {' '.join(chosen)} rules {_rules_version(name)}"
            pieces.append((key, {"kind": kind, "world": words, "part": part}))
    return pieces


def _rules_version(policy: str) -> int:
    """Of the policy's family: all of HIRE's are one."""
    return _RULES_VERSIONS.get("hire" if policy in POLICIES and policy.startswith("hire") else policy, 1)


def _both(world: World, seeds: range) -> list[World]:
    """Both kinds of switches, all seeds."""
    return [replace(world, heterogeneous=kind, seed=seed) for kind in (False, True) for seed in seeds]


def _figure_8(options: Options) -> list[Piece]:
    worlds = []
    for mu in QUICK_MUS if options.quick else MUS:
        seeds = options.seeds[:1] if options.quick and mu < 1 else options.seeds
        worlds += _both(replace(options.world, mu=mu), seeds)
    return _pieces(options, "8", worlds, (*NINE, *READINGS[: 2 if options.quick else None]))


def _figure_7(options: Options) -> list[Piece]:
    worlds = [replace(options.world, mu=mu, seed=seed) for mu in (0.0, 0.5, 1.0) for seed in options.seeds[:1]]
    return _pieces(replace(options, policies=None), "7", worlds, ("hire",), "speed")


def _load(options: Options) -> list[Piece]:
    worlds = [replace(options.world, load=load, seed=seed) for load in LOADS for seed in options.seeds]
    return _pieces(options, "load", worlds, COMPARED)


def _pods(options: Options) -> list[Piece]:
    assert options.pods is not None
    worlds = _both(replace(options.world, trace=options.pods, count=300), options.seeds)
    return _pieces(options, "pods", worlds, COMPARED)


def _k12(options: Options) -> list[Piece]:
    worlds = _both(replace(options.world, degree=12, count=900), options.seeds)
    return _pieces(options, "k12", worlds, COMPARED)


def _k26(options: Options) -> list[Piece]:
    """The paper's cluster, each policy once. Its span is that of `_k12`'s, not the paper's 36 hours, so tasks come as
    much faster as there are more servers. A policy that needs 2 ms for each could not keep up, which is no property of
    it: the ones without a flow network think as much shorter, and are busy for the same part of the time as on 128
    servers."""
    world = replace(options.world, degree=26, count=2_500, placing_ms=round(PLACING_MS * _SERVERS_8 / _SERVERS_26, 3))
    return _pieces(options, "k26", [world], (*NINE, *READINGS))


def _tuning(options: Options) -> list[Piece]:
    pieces = []
    for part in TIMEOUTS:
        worlds = [replace(options.world, fallback=part, heterogeneous=kind, seed=seed)
                  for kind in (False, True) for seed in HELD_OUT]  # fmt: skip
        pieces += _pieces(replace(options, policies=None), "tuning", worlds, tuple(cells.FALLBACK))
    return pieces


_DECLARED: Final[dict[str, Callable[[Options], list[Piece]]]] = {
    "7": _figure_7, "8": _figure_8, "load": _load, "pods": _pods, "k12": _k12, "tuning": _tuning, "k26": _k26,
}  # fmt: skip
_WORK: Final[dict[str, Callable[..., dict[str, Any]]]] = {"cell": cells.cell, "speed": cells.speed}
