"""`--profile`: the daemon's time per request by stage, beside its CPU time in a run that is not instrumented.

Two daemons serve alternating blocks: one whose functions are wrapped (`profiled_daemon`), one as it is. The wrapper's
calibrated cost is subtracted from each stage, and reported.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from typing import Any, Final

import numpy as np

from offpath.bindings.build import compiled
from offpath.bindings.errors import OptionRefused
from offpath.cli.bench.command import Report
from offpath.cli.bench.measure import cores, machine, pin
from offpath.cli.bench.request_path.backend import DEPTH, SMALL
from offpath.cli.bench.request_path.product import Offpath, Options
from offpath.cli.bench.request_path.profiled_daemon import FILE, Cost, StageSum, Sums, located
from offpath.cli.bench.request_path.stages import STAGES

POINTS: Final = {"4k_1": (4096, 1), "600k_1": (SMALL, 1), "600k_16": (SMALL, DEPTH)}
_TITLES: Final = {"4k_1": "4 KB × 1", "600k_1": "600 KB × 1", "600k_16": "600 KB × 16"}
_QUICK_BLOCKS, _BLOCKS = 10, 30
_REQUESTS: Final = 500
_MODULE: Final = "bench.request_path.profiled_daemon"
_Samples = dict[str, list[float]]


def run(arguments: argparse.Namespace) -> Report:
    """Profile; there are no bars.

    Raises: OptionRefused: the fast build, whose compiled callers do not see a wrapped function. OffpathError: a
        function of `STAGES` does not exist.
    """
    if portions := compiled():
        raise OptionRefused(f"--profile needs interpreted modules; {' and '.join(portions)} are compiled in this build")
    for names in STAGES.values():
        for name in names:
            located(name)
    started = time.monotonic()
    here = machine()
    where = cores(pinned=True)
    pin(where.host)
    with tempfile.TemporaryDirectory(prefix="offpath-bench-") as directory:
        path = os.path.join(directory, "sums")
        sums = Sums(path, is_new=True)
        traced = Options(arguments.spin, _MODULE, {FILE: path})
        plain = Offpath("4", where, daemon_on_host=False, options=Options(arguments.spin))
        try:
            profiled = Offpath("profiled", where, daemon_on_host=False, options=traced)
            try:
                found = {
                    name: _point(plain, profiled, sums, *POINTS[name], _QUICK_BLOCKS if arguments.quick else _BLOCKS)
                    for name in POINTS
                    if not arguments.only or name in arguments.only
                }
            finally:
                profiled.close()
        finally:
            plain.close()
        cost = sums.cost
    data = {
        "benchmark": "request-path", "quick": arguments.quick, "machine": here, "is_pinned": where.is_pinned,
        "spin_us": arguments.spin, "profile": found,
        "wrapper_ns": {"inside": round(cost.inside_ns, 1), "around": round(cost.around_ns, 1)},
        "seconds": round(time.monotonic() - started, 1),
    }  # fmt: skip
    return Report(data, _text(data))


def _point(plain: Offpath, profiled: Offpath, sums: Sums, nbytes: int, in_flight: int, blocks: int) -> dict[str, Any]:
    """Medians over the blocks of µs per request."""
    print(f"profiling {nbytes} bytes × {in_flight} …", file=sys.stderr)
    payload = np.random.default_rng(1).integers(0, 255, nbytes, np.uint8)
    for backend in (plain, profiled):
        backend.block(payload, _REQUESTS // 5, in_flight, 0)
    stages: _Samples = {name: [] for name in STAGES}
    other: _Samples = {"plain": [], "profiled": [], "wrapping": []}
    for _ in range(blocks):
        other["plain"].append(plain.block(payload, _REQUESTS, in_flight, 0).cpu_us("daemon"))
        before = sums.read()
        other["profiled"].append(profiled.block(payload, _REQUESTS, in_flight, 0).cpu_us("daemon"))
        after = sums.read()
        calls = 0
        for name in STAGES:
            spent = StageSum(*(a - b for a, b in zip(after[name], before[name], strict=True)))
            stages[name].append(own_us(spent, sums.cost) / _REQUESTS)
            calls += spent.calls
        other["wrapping"].append(calls * sum(sums.cost) / 1e3 / _REQUESTS)
    return _summary(
        {name: statistics.median(each) for name, each in stages.items()},
        {name: statistics.median(each) for name, each in other.items()},
    )


def own_us(spent: StageSum, cost: Cost) -> float:
    """A stage's own time without the cost of wrapping its calls and those that they made, µs."""
    return (spent.own_ns - spent.calls * cost.inside_ns - spent.inner_calls * cost.around_ns) / 1e3


def _summary(stages: dict[str, float], other: dict[str, float]) -> dict[str, Any]:
    total = sum(stages.values())
    return {
        "stages_us": {name: round(us, 2) for name, us in stages.items()},
        "stages_percent": {name: round(100 * us / total, 1) for name, us in stages.items()},
        "sum_us": round(total, 2),
        "cpu_us": round(other["plain"], 2),
        "profiled_cpu_us": round(other["profiled"], 2),
        "wrapping_us": round(other["wrapping"], 2),
        "loop_us": round(other["profiled"] - other["wrapping"] - total, 2),
    }


def _text(data: dict[str, Any]) -> str:
    found: dict[str, dict[str, Any]] = data["profile"]
    cost = data["wrapper_ns"]
    lines = [
        f"the daemon's time per request by stage, spin {data['spin_us']} µs; µs and % of the stages' sum",
        f"{'':44}" + "".join(f"{_TITLES[name]:>18}" for name in found),
    ]
    for stage in STAGES:
        cells = (f"{p['stages_us'][stage]:10.1f} {p['stages_percent'][stage]:5.1f} %" for p in found.values())
        lines.append(f"{stage:44}" + "".join(f"{cell:>18}" for cell in cells))
    for title, key in (
        ("sum of the stages", "sum_us"),
        ("event loop, waiting and waking", "loop_us"),
        ("wrapping (subtracted above)", "wrapping_us"),
        ("the instrumented daemon's CPU", "profiled_cpu_us"),
        ("the daemon's CPU without instrumentation", "cpu_us"),
    ):
        lines.append(f"{title:44}" + "".join(f"{p[key]:>16.1f}  " for p in found.values()))
    lines += [
        "",
        f"A wrapped call costs {cost['inside'] + cost['around']:.0f} ns ({cost['inside']:.0f} within its own time, "
        f"{cost['around']:.0f} in its caller's). Callbacks are timed by the clock, so a stage includes cache misses.",
    ]
    return "\n".join(lines)
