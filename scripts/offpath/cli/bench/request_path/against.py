"""`--against DIR`: this checkout's build and another's, in alternating blocks of one run, beside the same floors.

Each build is a process with its own interpreter (`block_server`). A gain is judged by the ratio of neighbouring blocks,
with its least and greatest block.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from offpath.bindings.errors import OptionRefused
from offpath.cli.bench.command import Report
from offpath.cli.bench.measure import Block, Cores, OtherWork, cores, machine, ratio
from offpath.cli.bench.request_path import rows
from offpath.cli.bench.request_path.backend import DEPTH, SMALL
from offpath.cli.bench.request_path.bare import Direct
from offpath.cli.bench.request_path.block_server import Build
from offpath.cli.bench.request_path.measuring import Blocks, measure
from offpath.cli.bench.request_path.opening import Makers, close, floors, opened
from offpath.cli.bench.request_path.plan import Part, Point
from offpath.cli.bench.request_path.report import other_work

SIDES: Final = ("before", "after")
_SETTINGS: Final = ("floor", *SIDES, "floor_c")
_QUICK_BLOCKS, _BLOCKS = 10, 30
_Figure = tuple[Callable[[Block], float], dict[str, int]]
_FIGURES: Final[dict[str, _Figure]] = {
    "p50_us_4k": (lambda b: b.p50, {"nbytes": 4096}),
    "p99_us_4k": (lambda b: b.p99, {"nbytes": 4096}),
    "p50_us_600k": (lambda b: b.p50, {}),
    "p99_us_600k": (lambda b: b.p99, {}),
    "p50_us_batch32": (lambda b: b.p50, {"nbytes": 32 * SMALL}),
    "p50_us_600k_4ms": (lambda b: b.p50, {"kernel_ms": 4}),
    "requests_per_s_4k_16": (lambda b: b.requests_per_s, {"nbytes": 4096, "in_flight": DEPTH}),
    "requests_per_s_600k_16": (lambda b: b.requests_per_s, {"in_flight": DEPTH}),
    "cpu_us_daemon_4k_16": (lambda b: b.cpu_us("daemon"), {"nbytes": 4096, "in_flight": DEPTH}),
    "cpu_us_worker_4k_16": (lambda b: b.cpu_us("worker"), {"nbytes": 4096, "in_flight": DEPTH}),
    "cpu_us_requester_4k_16": (lambda b: b.cpu_us("requester"), {"nbytes": 4096, "in_flight": DEPTH}),
    "cpu_us_daemon_4k": (lambda b: b.cpu_us("daemon"), {"nbytes": 4096}),
    "cpu_us_daemon_600k": (lambda b: b.cpu_us("daemon"), {}),
}


def parts(*, quick: bool) -> list[Part]:
    """What is compared, pinned."""
    blocks = _QUICK_BLOCKS if quick else _BLOCKS

    def part(name: str, *points: Point, more: tuple[str, ...] = ()) -> Part:
        return Part(name, points, (*more, *_SETTINGS))

    return [
        part("4k", Point(4096, blocks=blocks)),
        part("base", Point(SMALL, blocks=blocks)),
        part("in_flight", Point(SMALL, DEPTH, blocks=blocks), Point(4096, DEPTH, blocks=blocks)),
        part("batch32", Point(32 * SMALL, requests=30, blocks=blocks)),
        part("kernel4", Point(SMALL, kernel_ms=4, requests=40, blocks=blocks), more=("2",)),
    ]


def interpreter(directory: str) -> str:
    """The Python of a checkout's environment. Raises: OptionRefused: it has none."""
    path = os.path.join(os.path.abspath(directory), ".venv", "bin", "python")
    if not os.access(path, os.X_OK):
        raise OptionRefused(f"--against {directory}: no {path}; run ./scripts/run true in that checkout first")
    return path


def run(arguments: argparse.Namespace) -> Report:
    """Compare; there are no bars. Raises: OptionRefused, OffpathError: a build does not start."""
    before = interpreter(arguments.against)
    started = time.monotonic()
    here = machine()
    chosen = [p for p in parts(quick=arguments.quick) if not arguments.only or p.name in arguments.only]
    where = cores(pinned=True)
    makers: Makers = {name: make for name, make in floors().items() if name in _SETTINGS} | {
        "2": Direct,
        "before": partial(_build, "before", before, arguments.against_spin),
        "after": partial(_build, "after", sys.executable, arguments.spin),
    }
    left_out: dict[str, str] = {}
    measured: Blocks = {}
    other = OtherWork()
    backends = opened(makers, where, left_out)
    try:
        measure(where, chosen, backends, measured, other)
    finally:
        close(backends)
    data = {
        "benchmark": "request-path", "against": arguments.against, "quick": arguments.quick, "machine": here,
        "is_pinned": where.is_pinned, "spin_us": {"before": arguments.against_spin, "after": arguments.spin},
        "python": {side: backend.python for side, backend in backends.items() if isinstance(backend, Build)},
        "left_out": left_out, "other_cpu": other.cores(),
        "ratios": {side: _ratios(measured, side) for side in SIDES},
        "figures": {side: _figures(measured, side) for side in SIDES},
        "after_over_before": _gains(measured),
        "seconds": round(time.monotonic() - started, 1),
    }  # fmt: skip
    return Report(data, _text(data))


def _build(name: str, python: str, spin_us: int, where: Cores) -> Build:
    return Build(name, python, where, spin_us)


def _ratios(measured: Blocks, side: str) -> dict[str, dict[str, float]]:
    """The keys of a plain run, with this side as setting 4."""
    relabelled = {("4" if name == side else name, point): blocks for (name, point), blocks in measured.items()}
    return rows.ratios(relabelled, pinned=True, spin_us=0)


def _figures(measured: Blocks, side: str) -> dict[str, float]:
    found = {name: (figure, rows.find(measured, side, **wanted)) for name, (figure, wanted) in _FIGURES.items()}
    return {
        name: round(statistics.median(figure(b) for b in blocks), 2)
        for name, (figure, blocks) in found.items()
        if blocks
    }


def _gains(measured: Blocks) -> dict[str, dict[str, float]]:
    """Each figure's ratio of neighbouring blocks."""
    gains = {}
    for name, (figure, wanted) in _FIGURES.items():
        before, after = (rows.find(measured, side, **wanted) for side in SIDES)
        if before and after:
            gains[name] = ratio([figure(b) for b in after], [figure(b) for b in before])
    return gains


def _text(data: dict[str, Any]) -> str:
    spin, python = data["spin_us"], data["python"]
    lines = [
        f"before: {data['against']}, Python {python['before']}, spin {spin['before']} µs; "
        f"after: this checkout, Python {python['after']}, spin {spin['after']} µs; {data['seconds']} s",
        other_work(data),
        *(f"{name} left out: {reason}" for name, reason in data["left_out"].items()),
        "",
        f"{'figure (median of blocks)':34}{'before':>10}{'after':>10}  after/before [least, greatest block]",
    ]
    for name, gain in data["after_over_before"].items():
        before, after = (data["figures"][side][name] for side in SIDES)
        lines.append(f"  {name:32}{before:>10.1f}{after:>10.1f}  {_span(gain)}")
    lines += ["", f"{'ratio':34}{'before':26}after"]
    for name, before in data["ratios"]["before"].items():
        lines.append(f"  {name:32}{_span(before):26}{_span(data['ratios']['after'][name])}")
    return "\n".join(lines)


def _span(found: dict[str, float]) -> str:
    return f"{found['median']:.3f} [{found['min']:.3f}, {found['max']:.3f}]"
