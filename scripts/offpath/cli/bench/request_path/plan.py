"""What is measured: conditions, and which settings' blocks alternate."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from offpath.cli.bench.request_path.backend import SMALL

FLOORS: Final = ("floor", "floor_c", "floor_c_spin")
PYTHON: Final = ("1", "2", "3", "floor", "4")
"""The order in which a round measures: what is compared most lies next to setting 4."""
ALL: Final = ("1", "2", "3", *FLOORS, "4")
_BATCHES: Final = ((8, 120), (32, 40), (128, 10))
_UNPINNED: Final = ("base", "batch32", "kernel4", "in_flight", "load")


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
    settings: tuple[str, ...] = ALL


def plan(*, quick: bool) -> list[Part]:
    """The measured points, pinned: one parameter varied at a time around 600 KB, 1 in flight, no load, kernel 0."""

    def scaled(point: Point, full: int, short: int) -> Point:
        return replace(point, requests=short if quick else full, blocks=point.blocks)

    base = Point(SMALL)
    batches = [
        Part(f"batch{n}", (scaled(Point(n * SMALL), 500 if n < 128 else 100, s),), ALL if n == 32 else PYTHON)
        for n, s in _BATCHES
    ]
    loads = [replace(base, host_load=load) for load in (0, 30, 80, 100)]
    loads += [replace(point, realtime=True) for point in loads]
    return [
        Part("base", (base,)),
        Part("4k", (Point(4096),)),
        Part("in_flight", (replace(base, in_flight=16), Point(4096, in_flight=16))),
        *batches,
        Part("kernel4", (scaled(replace(base, kernel_ms=4), 500, 60),)),
        Part("kernel4_batch32", (scaled(Point(32 * SMALL, kernel_ms=4), 200, 20),), PYTHON),
        Part("load", tuple(loads), PYTHON),
    ]


def unpinned(parts: list[Part]) -> list[Part]:
    """The parts that are measured again without pinning."""
    return [_unpinned(part) for part in parts if part.name in _UNPINNED]


def _unpinned(part: Part) -> Part:
    points = tuple(replace(p, pinned=False) for p in part.points if p.host_load in (0, 80))
    return replace(part, points=points)
