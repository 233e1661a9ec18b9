"""`offpath bench venn`: its cases and bars, its shapes, and small parts in their own processes."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from offpath.cli.bench import venn
from offpath.cli.bench.venn_world import SHAPES, Case, words
from offpath.cli.local import child


def case(shape: str, **more: int) -> Case:
    return replace(Case(shape, jobs=60, groups=8, atoms=40, plans=30, decisions=50, seed=7), **more)


def row(shape: str = "random", **more: float) -> dict[str, Any]:
    return {"shape": shape, "policy": "venn", "atoms": 9, "replan_p99_ms": 9.0, "decide_us": 4.0,
            "decide_p99_us": 19.0, "rss_mib": 90.0, **more}  # fmt: skip


def live(**more: float) -> dict[str, Any]:
    return {"shape": "live", "atoms": 9, "zmq_checkins_per_s": 20_000, "http_checkins_per_s": 4_999, "zmq_cpu_us": 30.0,
            "http_cpu_us": 90.0, "devices": 10, "rss_mib": 300.0, "empty_rss_mib": 80.0, **more}  # fmt: skip


def measured(some: Case) -> dict[str, Any]:
    done = subprocess.run(
        child.command("bench.venn_world", words(some)), env=child.environment(), capture_output=True, timeout=120,
        check=True,
    )  # fmt: skip
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_the_cases_have_the_size_of_the_bars_also_if_they_are_quick() -> None:
    for quick in (True, False):
        cases = venn.cases(quick=quick)
        assert [each.shape for each in cases] == [*SHAPES, *SHAPES, "devices", "simulation", "simulation", "live"]
        assert {(each.jobs, each.groups, each.atoms) for each in cases[:-3]} == {(10_000, 100, 2_048)}
        assert [each.decisions for each in cases[-4:]] == [1_000_000, 107_749, 107_749, 1_000_000]


def test_each_bar_is_judged_for_each_shape() -> None:
    rows = [
        row(),
        row("nested", replan_p99_ms=10.5),
        row("thresholds", decide_us=5.1),
        row("devices", rss_mib=301.0),
        {"shape": "simulation", "policy": "venn", "atoms": 5, "checkins_per_s": 9e5, "rss_mib": 400.0},
        live(),
    ]
    missed = {bar.name: bar.value for bar in venn.bars(rows) if not bar.is_accepted}
    assert missed == {
        "venn, nested: re-plan, p99, ms": 10.5, "venn, thresholds: decision, median, µs": 5.1,
        "1 000 000 known devices: memory, MiB": 301.0, "venn: simulated check-ins, 1/s": 9e5,
        "live check-ins by http, 1/s": 4_999,
    }  # fmt: skip
    assert venn.figures(rows)["live_checkins_per_s"] == {"zmq": 20_000, "http": 4_999}
    assert venn.figures(rows)["replan_ms"] == 10.5
    assert venn.figures(rows)["rss_mib"] == 301.0
    assert venn.figures(rows)["sim_checkins_per_s"] == 9e5


@pytest.mark.parametrize("shape", sorted(SHAPES))
def test_a_shape_has_distinct_atoms_that_somebody_can_use(shape: str) -> None:
    atoms = SHAPES[shape](case(shape), Random(7))
    assert len(set(atoms)) == len(atoms) <= 40
    assert all(0 < atom < 1 << 8 for atom in atoms)


def test_the_adversarial_jobs_coming_and_going_changes_most_turns() -> None:
    turns = {shape: measured(case(shape))["turns"] for shape in ("adversarial", "random")}
    assert turns["adversarial"] > 4 > turns["random"]


def test_devices_have_leases_or_have_worked_today() -> None:
    found = measured(case("devices", decisions=20_100))
    assert 0 < found["leases"] <= 20_000
    assert found["checkin_us"] > 0


def test_the_simulation_takes_the_days_check_ins() -> None:
    found = measured(case("simulation", plans=1, decisions=400, jobs=4))
    assert found["check_ins"] > 1_000
    assert found["checkins_per_s"] > 0


def test_live_devices_all_get_leases_and_are_known_afterwards() -> None:
    """A small population: every answer is looked at by the part itself, which fails if a device got no lease."""
    some = replace(case("live"), jobs=4, groups=2, atoms=8, plans=100, decisions=3_000)
    done = subprocess.run(
        child.command("bench.venn_live", words(some)), env=child.environment(), capture_output=True, timeout=120,
        check=True,
    )  # fmt: skip
    found = json.loads(done.stdout)
    assert (found["shape"], found["devices"]) == ("live", 3_000)
    assert found["commits"] > 10
    assert found["zmq_checkins_per_s"] > 0
    assert "3000 devices" in venn.line(found)
