"""`offpath bench hire`: its cases and bars, its world, and one small case in its own process."""

from __future__ import annotations

import json
import subprocess

import pytest

from offpath.cli.bench import hire
from offpath.cli.bench.hire_rounds import PHASES, Case, words
from offpath.cli.bench.hire_world import World, demands
from offpath.cli.local import child


def row(**more: object) -> dict[str, object]:
    return {"servers": 4_394, "kind": "pods", "mode": "cold", "round_ms": 90.0, "round_p99_ms": 150.0,
            "solve_ms": 20.0, "rss_mib": 90.0, "bar": hire.COLD_MS, **more}  # fmt: skip


def test_the_cases_are_the_papers_cluster_at_several_loads_and_a_large_one() -> None:
    for quick in (True, False):
        cases = hire.cases(quick=quick)
        assert {case.degree for case in cases} == {26, 44}
        loads = {case.load for case in cases if case.degree == 26 and not case.is_distinct}
        assert (min(loads), max(loads)) == (0.2, 0.9)
        assert any(case.is_distinct for case in cases)


def test_each_bar_is_judged_by_its_slowest_row() -> None:
    rows = [row(), row(round_ms=101.0), row(mode="warm", bar=hire.WARM_MS), row(servers=21_296, bar=hire.LARGE_MS)]
    missed = {bar.name: bar.value for bar in hire.bars(rows) if not bar.is_accepted}
    assert missed == {"4394 servers, pods, cold: median, ms": 101.0, "4394 servers, pods, warm: median, ms": 90.0}


@pytest.mark.parametrize(
    ("more", "bound"),
    [({}, 100.0), ({"mode": "warm"}, 60.0), ({"kind": "distinct"}, 200.0),
     ({"kind": "distinct", "mode": "warm"}, 100.0), ({"servers": 21_296}, 400.0)],
)  # fmt: skip
def test_the_bar_of_a_row(more: dict[str, object], bound: float) -> None:
    assert hire.bound(row(**more)) == bound


def test_demands_are_those_of_pods_that_fit() -> None:
    pods, counts = demands()
    assert len(pods) == len(set(pods)) > 90
    assert min(counts) > 0


def test_the_world_has_the_load_and_the_queue_and_is_drawn_from_its_seed() -> None:
    worlds = [World(4, 0.5, is_distinct=False, seed=7, groups=60) for _ in range(2)]
    resources = worlds[0].resources
    assert resources.state() == worlds[1].resources.state()
    used = sum(resources.used(node)[0] for node in range(16)) / (16 * 96_000)
    assert 0.4 < used < 0.7
    for world in worlds:
        world.fill_queue()
        waiting = sum(len(job.materialized()) + len(job.undecided()) for job in world.hire.jobs.values())
        assert waiting >= 60
    assert worlds[0].hire.round(300) == worlds[1].hire.round(300)


def test_nearly_every_composite_has_a_demand_of_its_own_if_they_are_to_be_distinct() -> None:
    world = World(4, 0.2, is_distinct=True, seed=7, groups=200)
    world.fill_queue()
    composites = {
        (each.id[0], each.composite): each.demand
        for job in world.hire.jobs.values() for each in job.request.groups if not each.is_inc
    }  # fmt: skip
    assert len(set(composites.values())) > 0.95 * len(composites)


def test_a_small_case_has_a_cold_and_a_warm_row() -> None:
    case = Case(degree=4, load=0.3, is_distinct=False, rounds=2, groups=40, seed=7)
    done = subprocess.run(
        child.command("bench.hire_rounds", words(case)), env=child.environment(), capture_output=True, timeout=120,
        check=True,
    )  # fmt: skip
    rows = json.loads(done.stdout)
    assert [each["mode"] for each in rows] == ["cold", "warm"]
    for each in rows:
        assert (each["servers"], each["switches"], each["rounds"]) == (16, 20, 2)
        assert each["groups"] <= 40
        assert each["arcs"] > each["groups"]
        assert all(each[f"{phase}_ms"] >= 0 for phase in PHASES)
        assert hire.line({**each, "bar": 1}).startswith("    16 servers")
