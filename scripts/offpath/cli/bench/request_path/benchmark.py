"""`request-path`: offpath's request path beside its floors and the other three settings of Conspirator §4.1.

Blocks alternate among settings (and, for background load, among loads), so that every ratio is taken between
neighbours of one run. Figures: medians over blocks. Ratios: median, min and max over blocks (docs/design.md, Budgets).

`--profile` prints instead the daemon's time by stage; `--against DIR` compares two builds.
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any, Final

from offpath.cli.bench.command import Report
from offpath.cli.bench.compiled import NotBuilt
from offpath.cli.bench.measure import Cores, OtherWork, cores, machine
from offpath.cli.bench.request_path import against, profile, rows, triton
from offpath.cli.bench.request_path.measuring import Blocks, measure
from offpath.cli.bench.request_path.opening import all_settings, close, opened
from offpath.cli.bench.request_path.plan import Part, plan, unpinned
from offpath.cli.bench.request_path.product import Options
from offpath.cli.bench.request_path.report import bars, budgets, text

DESCRIPTION: Final = "latency, throughput and CPU of the request path beside its floors and settings 1-3"


def run(arguments: argparse.Namespace) -> Report:
    """Measure, then report rows, ratios and bars. Raises: OffpathError: a setting does not start."""
    if arguments.profile:
        return profile.run(arguments)
    if arguments.against:
        return against.run(arguments)
    started = time.monotonic()
    here = machine()  # before this process is pinned: it counts the cores
    measured: Blocks = {}
    left_out: dict[str, str] = {}
    other = OtherWork()
    parts = plan(quick=arguments.quick)
    if arguments.only:
        parts = [p for p in parts if p.name in arguments.only]
    pinned = cores(pinned=True)
    for where, chosen in ((pinned, parts), (cores(pinned=False), unpinned(parts))):
        if chosen:
            _measure(where, chosen, measured, other, left_out, arguments.spin)
    data = _data(arguments, here, pinned.is_pinned, measured, left_out)
    if not arguments.only or triton.PART in arguments.only:
        _beside_triton(pinned, arguments, data, other)
    data["other_cpu"] = other.cores()
    data["seconds"] = round(time.monotonic() - started, 1)
    if not arguments.only:
        from offpath.cli.bench.request_path.plot import draw

        data["plot"] = draw(data, arguments.plot or "bench-out/request-path.svg")
    return Report(data, text(data), bars(data))


def _measure(
    where: Cores, parts: list[Part], measured: Blocks, other: OtherWork, left_out: dict[str, str], spin_us: int
) -> None:  # fmt: skip
    print(f"starting all settings ({'pinned' if where.is_pinned else 'unpinned'}) …", file=sys.stderr)
    backends = opened(all_settings(Options(spin_us)), where, left_out)
    try:
        measure(where, parts, backends, measured, other)
    finally:
        close(backends)


def _beside_triton(where: Cores, arguments: argparse.Namespace, data: dict[str, Any], other: OtherWork) -> None:
    """Add the part's rows and ratios, or the reason why it is left out."""
    try:
        blocks = 10 if arguments.quick else 20
        data["triton_rows"], ratios = triton.run(where, blocks=blocks, spin_us=arguments.spin, other=other)
    except NotBuilt as reason:
        data["left_out"][triton.PART] = str(reason)
    else:
        data["ratios"] |= ratios


def _data(
    arguments: argparse.Namespace, here: dict[str, Any], is_pinned: bool, measured: Blocks, left_out: dict[str, str]
) -> dict[str, Any]:
    cpu_us = rows.cpu_us(rows.find(measured, "4", nbytes=4096, in_flight=16))
    return {
        "benchmark": "request-path", "quick": arguments.quick, "machine": here, "is_pinned": is_pinned,
        "spin_us": arguments.spin, "left_out": left_out,
        "rows": [rows.row(setting, point, blocks) for (setting, point), blocks in measured.items()],
        "ratios": rows.ratios(measured, pinned=True, spin_us=arguments.spin),
        "ratios_unpinned": rows.ratios(measured, pinned=False, spin_us=arguments.spin),
        "requests_per_s_600k_16": rows.requests_per_s(measured),
        "cpu_us_per_request": cpu_us, "budgets": {} if arguments.spin else budgets(cpu_us),
    }  # fmt: skip
