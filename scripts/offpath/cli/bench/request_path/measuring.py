"""Runs a part: rounds of one block of each setting, whose order alternates."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from contextlib import nullcontext

import numpy as np

from offpath.cli.bench.measure import Block, Cores, OtherWork, background_load, realtime
from offpath.cli.bench.request_path.backend import Backend, Payload
from offpath.cli.bench.request_path.plan import Part, Point

Blocks = dict[tuple[str, Point], list[Block]]


def measure(
    where: Cores, parts: list[Part], backends: Mapping[str, Backend], measured: Blocks, other: OtherWork
) -> None:  # fmt: skip
    """Fill ``measured``, part by part, with progress on stderr. ``other`` counts blocks without background load."""
    for part in parts:
        begun = time.monotonic()
        _measure_part(where, part, backends, measured, other)
        print(f"  {part.name}: {time.monotonic() - begun:.1f} s", file=sys.stderr)


def _measure_part(
    where: Cores, part: Part, backends: Mapping[str, Backend], measured: Blocks, other: OtherWork
) -> None:  # fmt: skip
    noise = np.random.default_rng(1)
    payloads = {p.nbytes: noise.integers(0, 255, p.nbytes, np.uint8) for p in part.points}
    settings = [name for name in part.settings if name in backends]
    for point in part.points:  # warm up: page tables, caches, branch predictors, the daemon's views
        for name in settings:
            backends[name].block(payloads[point.nbytes], max(point.in_flight, point.requests // 10), point.in_flight, 0)
    for number in range(max(p.blocks for p in part.points)):
        order = settings if number % 2 else settings[::-1]  # a drift of the machine favours neither side of a ratio
        for point in part.points:
            with background_load(point.host_load, where.host):
                for name in order:
                    block = _block(backends[name], point, payloads[point.nbytes], other)
                    if block is not None:
                        measured.setdefault((name, point), []).append(block)


def _block(backend: Backend, point: Point, payload: Payload, other: OtherWork) -> Block | None:
    """None: the system forbids real-time priority."""

    def run() -> Block:
        return backend.block(payload, point.requests, point.in_flight, point.kernel_ms)

    with realtime([0, *backend.realtime_pids()]) if point.realtime else nullcontext(True) as may:
        block = run() if point.host_load else other.measured(run)
    return block if may else None
