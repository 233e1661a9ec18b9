"""The policy as a function of events: capacity, one flavor, no leaks, determinism; and what it decides by hand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offpath.sched.inc import cost_columns
from offpath.sched.inc.columns import Columns
from offpath.sched.inc.decisions import (
    FlavorChosen,
    Placed,
    Postponed,
    Preempted,
    Stopped,
    Why,
)
from offpath.sched.inc.errors import PlacementInvalid, Unhostable
from offpath.sched.inc.flavors import Status
from offpath.sched.inc.pending import PendingJob
from offpath.sched.inc.readings import HIRE, HIRE_CODE, HIRE_PAPER, READINGS, Reading
from offpath.sched.inc.request import Composite, CompReq, Connection, Servers, Tie
from offpath.sched.inc.resources import Resources, ServerSpec, SwitchSpec
from offpath.sched.inc.scheduler import Scheduler
from offpath.sched.topology.fattree import fat_tree, leaf_spine

from .book import World, drive, end, of_kind, rounds
from .requests import web_application
from .worlds import ALL, cluster


def drive_hire(seed: int) -> World:
    draw = Random(seed)
    world = World(seed, draw.choice(list(READINGS.values())))
    world.hire.gang_ms = 1_000
    return drive(world, draw)


@given(st.integers(0, 10**9))
def test_whatever_happens_capacity_flavors_and_the_book_hold_and_nothing_leaks(seed: int) -> None:
    world = drive_hire(seed)
    end(world)
    assert world.hire.network.locality.state() == ((), ())


def test_decisions_are_deterministic() -> None:
    assert [drive_hire(seed).log for seed in range(4)] == [drive_hire(seed).log for seed in range(4)]


# -- by hand -------------------------------------------------------------------------------------------------------
def test_the_papers_application_runs_on_switches_on_an_idle_cluster() -> None:
    world = World(0, resources=cluster())
    world.submit(web_application())
    rounds(world, 12)
    job = world.hire.jobs["web"]
    assert world.chosen.keys() == {("web", "c2"), ("web", "c3"), ("web", "c5")}
    assert "server" not in world.chosen.values()
    assert job.materialized() == [] == job.undecided()
    assert sum(world.running.values()) == sum(
        each.tasks for each in job.request.groups if job.request.statuses(job.active)[each.id] is Status.SELECTED
    )


@pytest.mark.parametrize(("reading", "most"), [(HIRE, 3), (HIRE_PAPER, 20), (HIRE_CODE, 20)])
def test_a_flavor_is_decided_in_time_by_each_reading(reading: Reading, most: int) -> None:
    """The corrected reading does not wait for Φ_pref to choose switches that are free."""
    world = World(0, reading, cluster())
    world.submit(CompReq("j", (Composite("c", "coordinator", Servers(4, 1_000, 1_024)),)))
    needed = next(n for n in range(1, 40) if world.round() and world.chosen)
    assert needed <= most


def without_switches() -> Resources:
    topology = fat_tree(4)
    return Resources(topology, [ServerSpec((32_000, 65_536))] * 16, [SwitchSpec(frozenset())] * topology.switches)


def test_without_capable_switches_the_fallback_runs_on_servers() -> None:
    world = World(0, resources=without_switches())
    world.submit(CompReq("j", (Composite("c", "cache", Servers(4, 1_000, 1_024)),)))
    first = world.round()
    assert {each.reason.text for each in of_kind(first, Postponed) if each.group[1] == "c.netcache"} == {
        "no switch can run netcache"
    }
    rounds(world, 9)
    assert world.chosen == {("j", "c"): "server"}
    assert sum(world.running.values()) == 4


def test_a_lost_switchs_task_moves_to_another_and_at_last_to_servers() -> None:
    world = World(0, resources=cluster(leaf_spine(2, 2, 2)))
    request = CompReq("j", (Composite("c", "coordinator", Servers(4, 1_000, 1_024)),))
    world.submit(request)
    rounds(world, 4)
    assert world.chosen == {("j", "c"): "netchain"}
    on = {node for _, node in world.running}
    assert len(on) == 3
    lost = world.take(world.hire.lose(min(on), world.now))
    assert [(each.node, each.reason.why) for each in of_kind(lost, Stopped)] == [(min(on), Why.NODE_LOST)]
    rounds(world, 2)
    assert len({node for _, node in world.running}) == 3, "the fourth switch"
    for node in (4, 5, 6):
        if not world.hire.resources.is_lost(node):
            world.take(world.hire.lose(node, world.now))
    seen = rounds(world, 14)
    assert [(each.implementation, each.reason.why) for each in of_kind(seen, Preempted)] == [
        ("netchain", Why.TIMED_OUT)
    ]
    assert world.chosen == {("j", "c"): "server"}
    assert {node < 4 for _, node in world.running} == {True}


def test_when_sram_runs_out_the_reason_says_so() -> None:
    world = World(0, resources=cluster(leaf_spine(2, 2, 1)))
    for name in ("first", "second"):
        world.submit(CompReq(name, (Composite("c", "coordinator", Servers(2, 100, 100), among=("netchain",)),)))
        rounds(world, 4)
    last = world.round()[-1]
    assert isinstance(last, Postponed)
    assert last.reason.text == "switches: 3 lack sram_kib"


def test_a_chosen_place_names_the_terms_that_decided() -> None:
    """Server 0 of two is half full in one dimension: utilization and balance decide for server 1."""
    topology = leaf_spine(1, 2, 1)
    world = World(0, resources=Resources(topology, [ServerSpec((8_000, 8_000))] * 2, [SwitchSpec(ALL)] * 2))
    one = Composite("c", "server", Servers(1, 4_000, 0))
    world.submit(CompReq("a", (one,)))
    (first,) = of_kind(world.round(), Placed)
    world.submit(CompReq("b", (one,)))
    (second,) = of_kind(world.round(), Placed)
    assert {first.node, second.node} == {0, 1}
    assert second.reason.why is Why.CHEAPEST
    assert {name for name, _ in second.reason.terms} >= {"utilization", "balance"}


def test_later_tasks_of_a_job_go_near_its_first_ones() -> None:
    """Two connected composites of one task each, on an idle fat-tree: locality decides for the same rack."""
    world = World(0, resources=cluster(fat_tree(4)))
    parts = (Composite("a", "server", Servers(1, 1_000, 1_024)), Composite("b", "server", Servers(1, 1_000, 1_024)))
    world.submit(CompReq("first", parts[:1]))
    (first,) = of_kind(world.round(), Placed)
    request = CompReq("later", parts[1:], ties=(Tie("b", "first", "a"),))
    world.submit(request)
    (second,) = of_kind(world.round(), Placed)
    assert first.node // 2 == second.node // 2, "two servers per ToR"
    assert "locality" in dict(second.reason.terms) or second.reason.why is Why.NO_CHEAPER


def test_a_tied_flavor_follows_the_earlier_requests() -> None:
    world = World(0, resources=cluster())
    world.submit(CompReq("first", (Composite("a", "coordinator", Servers(2, 100, 100)),)))
    rounds(world, 4)
    world.submit(CompReq("later", (Composite("b", "coordinator", Servers(2, 100, 100)),),
                         ties=(Tie("b", "first", "a", True),)))  # fmt: skip
    seen = rounds(world, 4)
    assert of_kind(seen, FlavorChosen) == []
    assert Counter(name for (_, name), _ in world.running) == {"a.netchain": 3, "b.netchain": 3}


def test_an_unhostable_request_is_refused_and_delays_nobody() -> None:
    world, other = World(0, resources=cluster()), World(0, resources=cluster())
    for each in (world, other):
        each.submit(web_application("a"))
    with pytest.raises(Unhostable, match="even idle"):
        world.submit(CompReq("huge", (Composite("c", "server", Servers(1, 10**6, 1)),)))
    assert rounds(world, 4) == rounds(other, 4)


def test_unknown_events_change_nothing() -> None:
    world = World(0, resources=cluster())
    world.submit(web_application())
    before = world.hire.resources.state()
    for wrong in (
        lambda: world.submit(web_application()), lambda: world.hire.cancel("other"),
        lambda: world.hire.ended(("web", "c1.server"), 0), lambda: world.hire.ended(("no", "no"), 0),
    ):  # fmt: skip
        with pytest.raises(PlacementInvalid):
            wrong()
    assert world.hire.resources.state() == before


def test_a_job_whose_tasks_have_all_ended_is_gone() -> None:
    world = World(0, resources=cluster())
    parts = (Composite("a", "server", Servers(2, 1, 1)), Composite("b", "server", Servers(1, 1, 1)))
    world.submit(CompReq("j", parts, (Connection("a", "b"),)))
    rounds(world, 2)
    for group, node in sorted(world.running.elements()):
        assert "j" in world.hire.jobs
        world.hire.ended(group, node)
    assert world.hire.jobs == {}
    assert world.hire.resources.state() == world.idle


# -- planted bugs --------------------------------------------------------------------------------------------------
def keeps_tasks(stop_all: Any) -> Any:
    return lambda self, groups, reason: iter(())


def fits_everywhere(fits: Any) -> Any:
    """Where it does not fit it costs nothing."""
    return lambda *words: (found := fits(*words)) * (found < cost_columns.UNFIT)


BUGS: dict[str, tuple[Any, str, Callable[[Any], Any]]] = {
    "a preempted flavor keeps its tasks": (Scheduler, "_stop_all", keeps_tasks),
    "the room of a server is not asked": (cost_columns, "server_fits", fits_everywhere),
    "the room of a switch is not asked": (cost_columns, "switch_fits", fits_everywhere),
    "the room of a node is not read": (Columns, "refresh", lambda _: lambda self, nodes: None),
    "two flavors can be chosen": (PendingJob, "choose", lambda _: lambda self, group, now: None),
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    of, name, change = BUGS[bug]
    monkeypatch.setattr(of, name, change(getattr(of, name)))
    with pytest.raises((AssertionError, PlacementInvalid, KeyError)):
        check_seeds(40)


def check_seeds(count: int) -> None:
    for seed in range(count):
        world = drive_hire(seed)
        end(world)
