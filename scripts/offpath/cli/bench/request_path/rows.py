"""Figures of a run: a row for each setting and condition, and ratios between neighbouring blocks."""

from __future__ import annotations

import statistics
from typing import Any, Final

from offpath.cli.bench.measure import Block, ratio
from offpath.cli.bench.request_path.backend import SMALL
from offpath.cli.bench.request_path.measuring import Blocks
from offpath.cli.bench.request_path.plan import ALL, Point

_STAGES: Final = ("queued", "copy", "launch", "kernel", "back", "total")
_LOAD_BLOCKS: Final = 10
_ROLES: Final = ("daemon", "worker", "requester")
_Pairs = dict[str, tuple[list[float], list[float]]]


def row(setting: str, point: Point, blocks: list[Block]) -> dict[str, Any]:
    """Medians over the blocks."""
    made: dict[str, Any] = {
        "setting": setting, "bytes": point.nbytes, "in_flight": point.in_flight, "host_load": point.host_load,
        "kernel_ms": point.kernel_ms, "pinned": point.pinned, "realtime": point.realtime,
        "p50_us": round(statistics.median(b.p50 for b in blocks), 1),
        "p99_us": round(statistics.median(b.p99 for b in blocks), 1),
        "requests_per_s": round(statistics.median(b.requests_per_s for b in blocks), 1),
        "host_cpu_us": round(statistics.median(b.host_cpu_us for b in blocks), 1),
        "cpu_us_per_request": cpu_us(blocks),
        "blocks": len(blocks), "requests": sum(len(b.latencies_ns) for b in blocks),
    }  # fmt: skip
    stages = [s for b in blocks for s in b.stages]
    if stages:
        medians = [statistics.median(column) / 1e3 for column in zip(*stages, strict=True)]
        made["stages_us"] = {name: round(value, 1) for name, value in zip(_STAGES, medians, strict=True)}
        # invisible to the daemon: the requester's write, both doorbells' wake-ups, reading the answer
        made["stages_us"]["transmission_and_answer"] = round(max(0.0, made["p50_us"] - medians[-1]), 1)
    return made


def cpu_us(blocks: list[Block]) -> dict[str, float]:
    """CPU time per request of each role, µs: median over the blocks. A setting without a middle has no ``daemon``."""
    return {
        role: round(statistics.median(b.cpu_us(role) for b in blocks), 1)
        for role in _ROLES
        if blocks and role in blocks[0].cpu_ns
    }


def find(measured: Blocks, setting: str, **wanted: Any) -> list[Block]:
    """The blocks of a setting at 600 KB, 1 in flight, pinned, without load or kernel, except for what is ``wanted``."""
    base = {"nbytes": SMALL, "in_flight": 1, "host_load": 0, "kernel_ms": 0, "pinned": True, "realtime": False} | wanted
    for (name, point), blocks in measured.items():
        if name == setting and all(getattr(point, key) == value for key, value in base.items()):
            return blocks
    return []


def ratios(measured: Blocks, *, pinned: bool, spin_us: int) -> dict[str, dict[str, float]]:
    """The ratios of docs/design.md, Budgets; those of unmeasured blocks are left out."""
    pairs = _latency(measured, pinned) | _throughput(measured, pinned) | _cpu(measured, pinned)
    pairs |= _inflation(measured, pinned)
    if spin_us:
        pairs |= _spinning(measured, pinned)
    return {name: ratio(*_neighbours(*pair)) for name, pair in pairs.items() if all(pair)}


def _neighbours(above: list[float], below: list[float]) -> tuple[list[float], list[float]]:
    """The blocks of common rounds: a later part may measure one of the two again, after the rounds of both."""
    common = min(len(above), len(below))
    return above[:common], below[:common]


def _p50(measured: Blocks, setting: str, **wanted: Any) -> list[float]:
    return [b.p50 for b in find(measured, setting, **wanted)]


def _latency(measured: Blocks, pinned: bool) -> _Pairs:
    def p50(setting: str, **wanted: Any) -> list[float]:
        return _p50(measured, setting, pinned=pinned, **wanted)

    return {
        "p50_over_floor_600k": (p50("4"), p50("floor")),
        "p50_over_floor_4k": (p50("4", nbytes=4096), p50("floor", nbytes=4096)),
        "p50_over_floor_c_600k": (p50("4"), p50("floor_c")),
        "p50_over_floor_c_4k": (p50("4", nbytes=4096), p50("floor_c", nbytes=4096)),
        "p50_over_tcp_600k": (p50("4"), p50("1")),
        "floor_over_tcp_600k": (p50("floor"), p50("1")),
        "floor_over_p50_batch32": (p50("floor", nbytes=32 * SMALL), p50("4", nbytes=32 * SMALL)),
        "p50_over_setting2_4ms": (p50("4", kernel_ms=4), p50("2", kernel_ms=4)),
        "floor_over_setting2_4ms": (p50("floor", kernel_ms=4), p50("2", kernel_ms=4)),
        "p50_over_setting2_4ms_batch32": (
            p50("4", kernel_ms=4, nbytes=32 * SMALL), p50("2", kernel_ms=4, nbytes=32 * SMALL)
        ),
    }  # fmt: skip


def _spinning(measured: Blocks, pinned: bool) -> _Pairs:
    """A daemon that busy-polls is compared with a floor that does."""
    return {
        f"p50_over_floor_c_spin_{name}": (
            _p50(measured, "4", pinned=pinned, nbytes=nbytes),
            _p50(measured, "floor_c_spin", pinned=pinned, nbytes=nbytes),
        )
        for name, nbytes in (("600k", SMALL), ("4k", 4096))
    }


def _throughput(measured: Blocks, pinned: bool) -> _Pairs:
    def rate(setting: str, nbytes: int) -> list[float]:
        return [b.requests_per_s for b in find(measured, setting, pinned=pinned, in_flight=16, nbytes=nbytes)]

    return {
        "throughput_over_floor_600k_16": (rate("4", SMALL), rate("floor", SMALL)),
        "throughput_over_floor_c_600k_16": (rate("4", SMALL), rate("floor_c", SMALL)),
        "throughput_over_floor_4k_16": (rate("4", 4096), rate("floor", 4096)),
        "throughput_over_floor_c_4k_16": (rate("4", 4096), rate("floor_c", 4096)),
    }


def _cpu(measured: Blocks, pinned: bool) -> _Pairs:
    def cpu(setting: str, images: int) -> list[float]:
        return [b.host_cpu_us for b in find(measured, setting, pinned=pinned, nbytes=images * SMALL)]

    return {
        "host_cpu_over_setting3": (cpu("4", 32), cpu("3", 32)),
        "host_cpu_over_setting3_batch1": (cpu("4", 1), cpu("3", 1)),
    }


def _inflation(measured: Blocks, pinned: bool) -> _Pairs:
    def p99(setting: str, load: int, *, realtime: bool) -> list[float]:
        found = find(measured, setting, pinned=pinned, host_load=load, realtime=realtime)
        return [b.p99 for b in found[-_LOAD_BLOCKS:]]  # at load 0, the "base" part's blocks come first

    def inflation(setting: str, *, realtime: bool) -> tuple[list[float], list[float]]:
        return p99(setting, 80, realtime=realtime), p99(setting, 0, realtime=realtime)

    return {
        "p99_inflation_80": inflation("4", realtime=True),
        "p99_inflation_80_setting3": inflation("3", realtime=True),
        "p99_inflation_80_floor": inflation("floor", realtime=True),
        "p99_inflation_80_plain": inflation("4", realtime=False),
        "p99_inflation_80_setting3_plain": inflation("3", realtime=False),
    }


def requests_per_s(measured: Blocks) -> dict[str, float]:
    """Pinned, 600 KB, 16 in flight."""
    found = {s: find(measured, s, in_flight=16) for s in ALL}
    return {s: round(statistics.median(b.requests_per_s for b in blocks)) for s, blocks in found.items() if blocks}
