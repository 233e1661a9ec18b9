"""`hire`: a full round of the policy `hire`: costs, shortcuts, network, solver, decisions, by load and cluster size.

The queue holds 800 task groups. Cold: nothing of an earlier round is kept but the topology's own arrays. Warm: the
round follows another one, in which jobs were placed; others ended and new ones came. Times are CPU time of the one
thread that computes. `arcs`: of the paper's network; `solver_arcs`: without those that no cheapest flow needs.
`solve_floor_ms`: OR-Tools alone on the last graph. Each case runs in a process of its own, so that `rss_mib` is its
own.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from typing import Any, Final

from offpath.cli.bench.command import Bar, Report
from offpath.cli.bench.hire_rounds import Case, words
from offpath.cli.bench.hire_world import GROUPS
from offpath.cli.bench.measure import machine
from offpath.cli.local import child

DESCRIPTION: Final = "a round of HIRE: 800 task groups on 4 394 … 21 296 servers"
SMALL: Final = 26
"""The degree of the paper's fat-tree: 4 394 servers, 845 switches."""
LARGE: Final = 44
"""21 296 servers, 2 420 switches."""
LOADS: Final = (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
_SEED: Final = 20_261_124
COLD_MS: Final = 100.0
COLD_P99_MS: Final = 200.0
WARM_MS: Final = 60.0
COLD_DISTINCT_MS: Final = 200.0
WARM_DISTINCT_MS: Final = 100.0
SOLVE_MS: Final = 26.0
LARGE_MS: Final = 400.0
RSS_MIB: Final = 200.0
_LIMIT_S: Final = 900


def run(arguments: argparse.Namespace) -> Report:
    """``--quick``: three loads, fewer rounds."""
    begun = time.monotonic()
    rows = [row for case in cases(quick=arguments.quick) for row in _rows(case)]
    data: dict[str, Any] = {
        "benchmark": "hire", "quick": arguments.quick, "machine": machine(), "seed": _SEED, "rows": rows,
        "seconds": round(time.monotonic() - begun, 1),
    }  # fmt: skip
    return Report(data, "\n".join(map(line, rows)), bars(rows))


def cases(*, quick: bool) -> list[Case]:
    """Loads with real demands, all demands distinct at one load, and the large cluster at one."""
    rounds = 12 if quick else 50
    loads = (0.2, 0.5, 0.9) if quick else LOADS
    return [
        *(Case(SMALL, load, False, rounds, GROUPS, _SEED) for load in loads),
        *(Case(SMALL, load, True, rounds, GROUPS, _SEED) for load in (loads if not quick else (0.5,))),
        Case(LARGE, 0.5, False, max(5, rounds // 4), GROUPS, _SEED),
    ]


def _rows(case: Case) -> list[dict[str, Any]]:
    kind = "distinct demands" if case.is_distinct else "real demands"
    print(f"fat-tree of degree {case.degree}, load {case.load}, {kind} …", file=sys.stderr)
    done = subprocess.run(
        child.command("bench.hire_rounds", words(case)), env=child.environment(child.ONE_THREAD),
        stdout=subprocess.PIPE, check=True, timeout=_LIMIT_S,
    )  # fmt: skip
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return [{**row, "bar": bound(row)} for row in found]


def bound(row: dict[str, Any]) -> float:
    """What the row's median round must not exceed, ms."""
    if row["servers"] > 10_000:
        return LARGE_MS
    if row["kind"] == "distinct":
        return COLD_DISTINCT_MS if row["mode"] == "cold" else WARM_DISTINCT_MS
    return COLD_MS if row["mode"] == "cold" else WARM_MS


def bars(rows: list[dict[str, Any]]) -> list[Bar]:
    """Of each kind of row the slowest."""
    found = []
    names = dict.fromkeys((row["servers"], row["kind"], row["mode"]) for row in rows)
    for name in names:
        some = [row for row in rows if (row["servers"], row["kind"], row["mode"]) == name]
        servers, kind, mode = name
        what = f"{servers} servers, {kind}, {mode}"
        found.append(Bar(f"{what}: median, ms", max(row["round_ms"] for row in some), some[0]["bar"]))
        if name[1:] == ("pods", "cold") and servers < 10_000:
            found.append(Bar(f"{what}: p99, ms", max(row["round_p99_ms"] for row in some), COLD_P99_MS))
    small = [row for row in rows if row["servers"] < 10_000 and row["kind"] == "pods"]
    found.append(Bar("the solver alone, ms", max(row["solve_ms"] for row in small), SOLVE_MS))
    return [*found, Bar("memory, MiB", max(row["rss_mib"] for row in rows if row["servers"] < 10_000), RSS_MIB)]


def line(row: dict[str, Any]) -> str:
    """One row for people."""
    return (
        f"{row['servers']:6} servers, load {row['load']:.1f}, {row['demands']:4} demands, {row['arcs']:7} arcs"
        f" ({row['solver_arcs']} for the solver),"
        f" {row['mode']}: {row['round_ms']:6.1f} ms (p99 {row['round_p99_ms']:6.1f}; cost {row['cost_ms']:5.1f}, build"
        f" {row['build_ms']:4.1f}, solve {row['solve_ms']:5.1f} (alone {row['solve_floor_ms']:5.1f}), decisions"
        f" {row['decisions_ms']:5.1f} for {row['tasks']} tasks), {row['rss_mib']:.0f} MiB"
    )
