"""`offpath bench request-path`: ratios and bars on made-up blocks, floors, and real runs as short as they get."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from offpath.bindings.errors import OptionRefused
from offpath.cli.bench.command import Bar
from offpath.cli.bench.compiled import NotBuilt, built
from offpath.cli.bench.measure import Block, Cores
from offpath.cli.bench.request_path import report, rows
from offpath.cli.bench.request_path.against import interpreter, parts
from offpath.cli.bench.request_path.backend import SMALL
from offpath.cli.bench.request_path.block_server import Build
from offpath.cli.bench.request_path.floor_c import FloorC
from offpath.cli.bench.request_path.opening import opened
from offpath.cli.bench.request_path.plan import ALL, Point, plan

from ..support.command import offpath
from ..support.compiler import MISSING, find_compiler

NOT_PINNED = Cores(None, None)
needs_compiler = pytest.mark.skipif(not find_compiler(), reason=MISSING)


def blocks(*p50_us: float, cpu_us: float = 10.0) -> list[Block]:
    """A block of two requests for each latency."""
    spent = {role: int(2000 * cpu_us) for role in ("daemon", "worker", "requester")}
    return [Block([int(1000 * us)] * 2, int(2000 * us), spent["worker"], cpu_ns=dict(spent)) for us in p50_us]


def a_run() -> dict[tuple[str, Point], list[Block]]:
    """Setting 4 takes twice as long as the floor at 600 KB, three times at 4 KB."""
    base, small, many = Point(SMALL), Point(4096), Point(SMALL, in_flight=16)
    return {
        ("floor", base): blocks(50, 50), ("4", base): blocks(100, 100), ("floor_c", base): blocks(40, 40),
        ("floor_c_spin", base): blocks(20, 20),
        ("floor", small): blocks(10), ("4", small): blocks(30), ("floor", many): blocks(50), ("4", many): blocks(80),
    }  # fmt: skip


def data_of(measured: dict[tuple[str, Point], list[Block]], spin_us: int) -> dict[str, Any]:
    found = {
        "is_pinned": True, "spin_us": spin_us,
        "ratios": rows.ratios(measured, pinned=True, spin_us=spin_us),
        "ratios_unpinned": {"p50_over_floor_600k": {"median": 1.9}},
    }  # fmt: skip
    return found


# -- ratios and bars --------------------------------------------------------------------------------------------------
def test_ratios_are_those_of_neighbouring_blocks() -> None:
    found = {name: each["median"] for name, each in rows.ratios(a_run(), pinned=True, spin_us=0).items()}
    assert found == {
        "p50_over_floor_600k": 2.0, "p50_over_floor_4k": 3.0, "p50_over_floor_c_600k": 2.5,
        "throughput_over_floor_600k_16": 0.625,
    }  # fmt: skip


def test_only_a_spinning_daemon_is_compared_with_the_spinning_floor() -> None:
    found = rows.ratios(a_run(), pinned=True, spin_us=150)
    assert found["p50_over_floor_c_spin_600k"]["median"] == 5.0
    assert "p50_over_floor_c_spin_600k" not in rows.ratios(a_run(), pinned=True, spin_us=0)


def test_blocks_that_a_later_part_adds_to_one_setting_are_no_neighbours() -> None:
    measured = a_run()
    measured["4", Point(SMALL)] += blocks(1000, 1000)
    assert rows.ratios(measured, pinned=True, spin_us=0)["p50_over_floor_c_600k"]["max"] == 2.5


def test_the_bars_of_a_daemon_that_blocks_and_of_one_that_spins() -> None:
    assert report.bars(data_of(a_run(), 0)) == [
        Bar("p50_over_floor_4k", 3.0, 2.0),
        Bar("p50_over_floor_600k", 2.0, 1.5, aim=1.3),
        Bar("p50_over_floor_600k_unpinned", 1.9, 2.0),
        Bar("throughput_over_floor_600k_16", 0.625, 0.7, is_upper=False),
    ]
    assert report.bars(data_of(a_run(), 150)) == [
        Bar("p50_over_floor_4k", 3.0, 1.2),
        Bar("p50_over_floor_600k", 2.0, 1.2),
        Bar("throughput_over_floor_600k_16", 0.625, 0.8, is_upper=False, aim=0.85),
    ]


def test_every_bar_is_a_ratio_and_cpu_budgets_are_reported_only() -> None:
    assert report.budgets({"daemon": 60.0, "worker": 12.0, "requester": 16.0}) == {
        "daemon": {"us": 60.0, "budget_us": 45.0, "met": False},
        "worker": {"us": 12.0, "budget_us": 18.0, "met": True},
        "requester": {"us": 16.0, "budget_us": 22.0, "met": True},
    }
    assert not [bar for bar in report.bars(data_of(a_run(), 0)) if bar.bound > 2]


def test_a_row_has_the_cpu_time_of_every_process() -> None:
    made = rows.row("4", Point(4096, in_flight=16), blocks(30, 40, cpu_us=12.5))
    assert made["cpu_us_per_request"] == {"daemon": 12.5, "worker": 12.5, "requester": 12.5}
    assert made["p50_us"] == 35.0


def test_the_plan_measures_the_floors_in_c_beside_what_is_compared_with_them() -> None:
    by_name = {part.name: part for part in plan(quick=True)}
    assert all(by_name[name].settings == ALL for name in ("base", "4k", "in_flight", "batch32", "kernel4"))
    assert {len(part.points) for part in parts(quick=True)} == {1, 2}


# -- floors in C ------------------------------------------------------------------------------------------------------
@needs_compiler
@pytest.mark.parametrize("spins", [False, True])
def test_the_floor_in_c_answers_every_request(spins: bool) -> None:
    floor = FloorC(NOT_PINNED, spins=spins)
    try:
        block = floor.block(np.zeros(4096, np.uint8), 50, 16, 0)
        slow = floor.block(np.zeros(4096, np.uint8), 2, 1, 4)
    finally:
        floor.close()
    assert len(block.latencies_ns) == 50
    assert 0 < block.p50 < block.wall_ns / 1e3
    assert set(block.cpu_ns) == {"daemon", "worker", "requester"}
    assert slow.p50 >= 4000


@needs_compiler
def test_a_program_is_built_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    path = built("floor.c")
    made = Path(path).stat().st_mtime_ns
    assert Path(path).is_relative_to(tmp_path)
    assert built("floor.c") == path
    assert Path(path).stat().st_mtime_ns == made


def test_without_a_compiler_the_floors_are_left_out_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("CC", "no-such-compiler")
    with pytest.raises(NotBuilt, match="no compiler: no-such-compiler not found"):
        built("floor.c")
    missing: dict[str, str] = {}
    assert opened({"floor_c": lambda cores: FloorC(cores, spins=False)}, NOT_PINNED, missing) == {}
    assert "no-such-compiler" in missing["floor_c"]


# -- another build ----------------------------------------------------------------------------------------------------
def test_a_checkout_without_an_environment_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionRefused, match=r"run \./scripts/run true in that checkout first"):
        interpreter(str(tmp_path))


def test_a_build_serves_blocks_from_its_own_interpreter() -> None:
    build = Build("after", sys.executable, NOT_PINNED, 0)
    try:
        block = build.block(np.zeros(4096, np.uint8), 20, 4, 0)
    finally:
        build.close()
    assert len(block.latencies_ns) == 20
    assert set(block.cpu_ns) == {"daemon", "worker", "helper", "requester"}


# -- the command ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("flag", [("--profile",), ("--spin", "150"), ("--against", ".")])
def test_its_flags_are_refused_by_other_benchmarks(flag: tuple[str, ...]) -> None:
    done = offpath("bench", "daemon", *flag)
    assert done.code == 2
    assert flag[0] in done.err


def test_a_part_prints_rows_of_all_settings_and_its_bar() -> None:
    done = offpath("bench", "request-path", "--quick", "--json", "--only", "4k", timeout=120)
    assert done.code in (0, 1), done.err
    found = done.document
    measured = {row["setting"] for row in found["rows"]}
    assert measured | set(found["left_out"]) == set(ALL)
    assert {"p50_over_floor_4k"} <= set(found["ratios"])
    assert [bar["name"] for bar in found["bars"]] == (["p50_over_floor_4k"] if found["is_pinned"] else [])
    assert found["spin_us"] == 0
