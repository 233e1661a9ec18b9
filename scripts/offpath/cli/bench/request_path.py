"""`request-path`: offpath's request path beside its floor and the other three settings of Conspirator §4.1.

Blocks alternate among settings (and, for background load, among loads), so that every ratio is taken between
neighbours of one run. Figures: medians over blocks. Ratios: median, min and max over blocks (docs/design.md, Budgets).
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections import defaultdict
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from offpath.cli.bench.backends import SMALL, Backend, open_backends
from offpath.cli.bench.command import Bar, Report
from offpath.cli.bench.measure import Block, Cores, background_load, cores, machine, ratio, realtime

DESCRIPTION: Final = "latency, throughput and host CPU of the request path beside its floor and settings 1-3"
SETTINGS: Final = ("floor", "1", "2", "3", "4")
_STAGES: Final = ("queued", "copy", "launch", "kernel", "back", "total")


@dataclass(frozen=True, slots=True)
class Point:
    """One condition. ``requests`` per block, ``blocks`` of them for each setting."""

    nbytes: int
    in_flight: int = 1
    host_load: int = 0
    kernel_ms: int = 0
    requests: int = 500
    blocks: int = 10
    pinned: bool = True
    realtime: bool = False
    """Run the requester, which stands for another machine, and offpath's helper and workers SCHED_RR."""


@dataclass(frozen=True, slots=True)
class Part:
    """Points whose blocks alternate with one another."""

    name: str
    points: tuple[Point, ...]
    settings: tuple[str, ...] = SETTINGS


Blocks = dict[tuple[str, Point], list[Block]]


def plan(*, quick: bool) -> list[Part]:
    """The measured points, pinned: one parameter varied at a time around 600 KB, 1 in flight, no load, kernel 0."""

    def scaled(point: Point, full: int, short: int) -> Point:
        return replace(point, requests=short if quick else full, blocks=point.blocks)

    base = Point(SMALL)
    batches = (Part(f"batch{n}", (scaled(Point(n * SMALL), 500 if n < 128 else 100, s),)) for n, s in _BATCHES)
    loads = [replace(base, host_load=load) for load in (0, 30, 80, 100)]
    loads += [replace(point, realtime=True) for point in loads]
    return [
        Part("base", (base,)),
        Part("4k", (Point(4096),)),
        Part("in_flight", (replace(base, in_flight=16), Point(4096, in_flight=16))),
        *batches,
        Part("kernel4", (scaled(replace(base, kernel_ms=4), 500, 60),)),
        Part("kernel4_batch32", (scaled(Point(32 * SMALL, kernel_ms=4), 200, 20),)),
        Part("load", tuple(loads)),
    ]


_LOAD_BLOCKS: Final = 10
_BATCHES: Final = ((8, 120), (32, 40), (128, 10))
_UNPINNED: Final = ("base", "batch32", "kernel4", "in_flight", "load")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """No additional flags."""


def run(arguments: argparse.Namespace) -> Report:
    """Measure, then report rows, ratios and bars."""
    started = time.monotonic()
    here = machine()  # before this process is pinned: it counts the cores
    pinned, unpinned = cores(pinned=True), cores(pinned=False)
    measured: Blocks = {}
    parts = plan(quick=arguments.quick)
    if arguments.only:
        parts = [p for p in parts if p.name in arguments.only]
    again = [_unpinned(p) for p in parts if p.name in _UNPINNED]
    for where, chosen in ((pinned, parts), (unpinned, again)):
        if chosen:
            _measure(where, chosen, measured)
    rows = [_row(setting, point, blocks) for (setting, point), blocks in measured.items()]
    ratios = _ratios(measured, pinned=True)
    data: dict[str, Any] = {
        "benchmark": "request-path", "quick": arguments.quick, "machine": here,
        "is_pinned": pinned.is_pinned, "rows": rows, "ratios": ratios,
        "ratios_unpinned": _ratios(measured, pinned=False),
        "requests_per_s_600k_16": _throughput(measured),
        "seconds": round(time.monotonic() - started, 1),
    }  # fmt: skip
    report = Report(data, _text(data), _bars(data, pinned))
    if not arguments.only:
        from offpath.cli.bench.plot import draw

        data["plot"] = draw(data, arguments.plot or "bench-out/request-path.svg")
    return report


def _unpinned(part: Part) -> Part:
    points = tuple(replace(p, pinned=False) for p in part.points if p.host_load in (0, 80))
    return replace(part, points=points)


def _measure(where: Cores, parts: list[Part], measured: Blocks) -> None:
    """Fill ``measured``, part by part, with progress on stderr."""
    print(f"starting all settings ({'pinned' if where.is_pinned else 'unpinned'}) …", file=sys.stderr)
    backends = {b.name: b for b in open_backends(where)}
    try:
        for part in parts:
            begun = time.monotonic()
            _measure_part(where, part, backends, measured)
            print(f"  {part.name}: {time.monotonic() - begun:.1f} s", file=sys.stderr)
    finally:
        for backend in backends.values():
            backend.close()


def _measure_part(where: Cores, part: Part, backends: dict[str, Backend], measured: Blocks) -> None:
    noise = np.random.default_rng(1)
    payloads = {p.nbytes: noise.integers(0, 255, p.nbytes, np.uint8) for p in part.points}
    for point in part.points:  # warm up: page tables, caches, branch predictors, the daemon's views
        for setting in part.settings:
            backends[setting].block(payloads[point.nbytes], max(4, point.requests // 10), point.in_flight, 0)
    for _ in range(max(p.blocks for p in part.points)):
        for point in part.points:
            with background_load(point.host_load, where.host):
                for setting in part.settings:
                    backend = backends[setting]
                    with realtime([0, *backend.realtime_pids()]) if point.realtime else nullcontext(True) as may:
                        block = backend.block(payloads[point.nbytes], point.requests, point.in_flight, point.kernel_ms)
                    if may:
                        measured.setdefault((setting, point), []).append(block)


def _row(setting: str, point: Point, blocks: list[Block]) -> dict[str, Any]:
    row: dict[str, Any] = {
        "setting": setting, "bytes": point.nbytes, "in_flight": point.in_flight, "host_load": point.host_load,
        "kernel_ms": point.kernel_ms, "pinned": point.pinned, "realtime": point.realtime,
        "p50_us": round(statistics.median(b.p50 for b in blocks), 1),
        "p99_us": round(statistics.median(b.p99 for b in blocks), 1),
        "requests_per_s": round(statistics.median(b.requests_per_s for b in blocks), 1),
        "host_cpu_us": round(statistics.median(b.host_cpu_us for b in blocks), 1),
        "blocks": len(blocks), "requests": sum(len(b.latencies_ns) for b in blocks),
    }  # fmt: skip
    stages = [s for b in blocks for s in b.stages]
    if stages:
        medians = [statistics.median(column) / 1e3 for column in zip(*stages, strict=True)]
        row["stages_us"] = {name: round(value, 1) for name, value in zip(_STAGES, medians, strict=True)}
        # invisible to the daemon: the requester's write, both doorbells' wake-ups, reading the answer
        row["stages_us"]["transmission_and_answer"] = round(max(0.0, row["p50_us"] - medians[-1]), 1)
    return row


def _find(measured: Blocks, setting: str, **wanted: Any) -> list[Block]:
    base = {"nbytes": SMALL, "in_flight": 1, "host_load": 0, "kernel_ms": 0, "pinned": True, "realtime": False} | wanted
    for (name, point), blocks in measured.items():
        if name == setting and all(getattr(point, key) == value for key, value in base.items()):
            return blocks
    return []


def _ratios(measured: Blocks, *, pinned: bool) -> dict[str, dict[str, float]]:
    """The ratios of docs/design.md, Budgets; those of unmeasured blocks are left out."""

    def p50(setting: str, **wanted: Any) -> list[float]:
        return [b.p50 for b in _find(measured, setting, pinned=pinned, **wanted)]

    def p99(setting: str, load: int, *, realtime: bool) -> list[float]:
        found = _find(measured, setting, pinned=pinned, host_load=load, realtime=realtime)
        return [b.p99 for b in found[-_LOAD_BLOCKS:]]  # at load 0, the "base" part's blocks come first

    def cpu(setting: str, images: int) -> list[float]:
        return [b.host_cpu_us for b in _find(measured, setting, pinned=pinned, nbytes=images * SMALL)]

    pairs = {
        "p50_over_floor_600k": (p50("4"), p50("floor")),
        "p50_over_tcp_600k": (p50("4"), p50("1")),
        "floor_over_tcp_600k": (p50("floor"), p50("1")),
        "floor_over_p50_batch32": (p50("floor", nbytes=32 * SMALL), p50("4", nbytes=32 * SMALL)),
        "p50_over_setting2_4ms": (p50("4", kernel_ms=4), p50("2", kernel_ms=4)),
        "p50_over_setting2_4ms_batch32": (
            p50("4", kernel_ms=4, nbytes=32 * SMALL), p50("2", kernel_ms=4, nbytes=32 * SMALL)
        ),
        "host_cpu_over_setting3": (cpu("4", 32), cpu("3", 32)),
        "host_cpu_over_setting3_batch1": (cpu("4", 1), cpu("3", 1)),
        "p99_inflation_80": (p99("4", 80, realtime=True), p99("4", 0, realtime=True)),
        "p99_inflation_80_setting3": (p99("3", 80, realtime=True), p99("3", 0, realtime=True)),
        "p99_inflation_80_floor": (p99("floor", 80, realtime=True), p99("floor", 0, realtime=True)),
        "p99_inflation_80_plain": (p99("4", 80, realtime=False), p99("4", 0, realtime=False)),
        "p99_inflation_80_setting3_plain": (p99("3", 80, realtime=False), p99("3", 0, realtime=False)),
    }  # fmt: skip
    return {
        name: ratio(above, below)
        for name, (above, below) in pairs.items()
        if above and below and len(above) == len(below)
    }


def _throughput(measured: Blocks) -> dict[str, float]:
    found = {s: _find(measured, s, in_flight=16) for s in SETTINGS}
    return {s: round(statistics.median(b.requests_per_s for b in blocks)) for s, blocks in found.items() if blocks}


def _bars(data: dict[str, Any], where: Cores) -> list[Bar]:
    """The bars of docs/design.md, Budgets; they apply to pinned cores."""
    bounds = {
        "p50_over_floor_600k": (2.0, True),
        "p50_over_tcp_600k": (1.0, True),
        "floor_over_p50_batch32": (0.8, False),
        "p50_over_setting2_4ms": (1.10, True),
        "host_cpu_over_setting3": (0.3, True),
        "p99_inflation_80": (1.2, True),
    }
    if not where.is_pinned:
        return []
    bars = [Bar(n, data["ratios"][n]["median"], *b) for n, b in bounds.items() if n in data["ratios"]]
    if "4" in data["requests_per_s_600k_16"]:
        bars.append(Bar("requests_per_s_600k_16", data["requests_per_s_600k_16"]["4"], 15_000, False))
    return bars


def _text(data: dict[str, Any]) -> str:
    lines = [f"request path on {data['machine']['cpu']}, {data['machine']['cores']} cores, {data['seconds']} s", ""]
    by_point: dict[tuple[Any, ...], dict[str, dict[str, Any]]] = defaultdict(dict)
    for row in data["rows"]:
        key = (not row["pinned"], row["bytes"], row["in_flight"], row["kernel_ms"], row["host_load"], row["realtime"])
        by_point[key][row["setting"]] = row
    lines.append(
        f"{'bytes':>10} {'fly':>3} {'ms':>2} {'load':>4} {'pin':>3}    p50/p99 µs by setting, host CPU µs in []"
    )
    for key in sorted(by_point):
        unpinned, nbytes, in_flight, kernel_ms, load, is_realtime = key
        cells = [f"{s}: {r['p50_us']:.0f}/{r['p99_us']:.0f} [{r['host_cpu_us']:.0f}]" for s, r in by_point[key].items()]
        pin, scheduler = "no" if unpinned else "yes", "rr" if is_realtime else ""
        lines.append(f"{nbytes:>10} {in_flight:>3} {kernel_ms:>2} {load:>4} {pin:>3} {scheduler:2} " + "  ".join(cells))
    for title, name in (("ratios (pinned)", "ratios"), ("ratios (unpinned)", "ratios_unpinned")):
        lines += ["", title]
        lines += [f"  {n}: {r['median']:.3f} [{r['min']:.3f}, {r['max']:.3f}]" for n, r in data[name].items()]
    lines += ["", f"requests/s, 600 KB, 16 in flight: {data['requests_per_s_600k_16']}", "", "bars"]
    return "\n".join(lines)
