"""The baselines under random events, and each one's rule by hand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offpath.sched.inc.baselines import Baseline, K8s, Sparrow, Yarn
from offpath.sched.inc.decisions import FlavorChosen, Placed, Preempted, Stopped, Why
from offpath.sched.inc.request import Composite, CompReq, Servers
from offpath.sched.inc.resources import Resources, ServerSpec, SwitchSpec
from offpath.sched.inc.variants import Mode
from offpath.sched.topology.fattree import fat_tree, leaf_spine

from .book import ROUND_MS, World, drive, end, of_kind, rounds
from .worlds import ALL, cluster

POLICIES: tuple[type[Baseline], ...] = (K8s, Yarn, Sparrow)


def world_of(kind: type[Baseline], mode: Mode, resources: Resources, **more: Any) -> World:
    world = World(0)
    world.use(kind(resources, mode, **more))
    return world


@given(st.integers(0, 10**9), st.sampled_from(POLICIES), st.sampled_from(Mode))
def test_whatever_happens_capacity_flavors_and_the_book_hold_and_nothing_leaks(
    seed: int, kind: type[Baseline], mode: Mode
) -> None:
    resources = cluster(leaf_spine(3, 2, 2), seed=seed, is_shared=False)
    end(drive(world_of(kind, mode, resources, fallback_ms=1_200), Random(seed)))


@pytest.mark.parametrize("kind", POLICIES)
def test_decisions_are_deterministic(kind: type[Baseline]) -> None:
    logs = [
        drive(world_of(kind, Mode.CONCURRENT, cluster(leaf_spine(3, 2, 2), seed=5, is_shared=False)), Random(5)).log
        for _ in range(2)
    ]
    assert logs[0] == logs[1] != []


CHAIN = CompReq("j", (Composite("c", "coordinator", Servers(2, 1_000, 1_024)),))


@pytest.mark.parametrize("kind", POLICIES)
@pytest.mark.parametrize("mode", Mode)
def test_an_idle_cluster_serves_the_variant_on_switches(kind: type[Baseline], mode: Mode) -> None:
    world = world_of(kind, mode, cluster(is_shared=False))
    world.submit(CHAIN)
    rounds(world, 8)
    assert world.chosen == {("j", "c"): "netchain"}
    assert len({node for _, node in world.running}) == 3


def narrow() -> Resources:
    """Three switches, of which a test loses one; netchain needs three."""
    topology = leaf_spine(2, 2, 1)
    return Resources(topology, [ServerSpec((8_000, 65_536))] * 4, [SwitchSpec(ALL)] * 3, is_shared=False)


@pytest.mark.parametrize("kind", POLICIES)
def test_after_the_timeout_the_job_falls_back_to_servers(kind: type[Baseline]) -> None:
    world = world_of(kind, Mode.TIMEOUT, narrow(), fallback_ms=3 * ROUND_MS)
    world.take(world.hire.lose(6, 0))
    world.submit(CHAIN)
    first = rounds(world, 3)
    assert {each.implementation for each in of_kind(first, FlavorChosen)} == {"netchain"}
    seen = rounds(world, 4)
    assert [(each.implementation, each.reason.why) for each in of_kind(seen, Preempted)] == [
        ("netchain", Why.TIMED_OUT)
    ]
    assert len({each.node for each in of_kind(seen, Stopped)}) == 2
    assert world.chosen == {("j", "c"): "server"}
    assert all(node < 4 for _, node in world.running)


def test_yarn_reverts_a_decision_for_switches_after_a_minute() -> None:
    world = world_of(Yarn, Mode.CONCURRENT, narrow())
    world.take(world.hire.lose(6, 0))
    world.submit(CHAIN)
    assert of_kind(rounds(world, 60_000 // ROUND_MS), Preempted) == []
    rounds(world, 3)
    assert world.chosen == {("j", "c"): "server"}


def test_yarn_prefers_the_rack_for_100_ms_and_serves_service_jobs_first() -> None:
    world = world_of(Yarn, Mode.CONCURRENT, cluster(fat_tree(4), cpu=2_000, is_shared=False))
    one = Composite("c", "server", Servers(1, 2_000, 1))
    world.submit(CompReq("batch", (one,), priority=90))
    world.submit(CompReq("service", (Composite("c", "server", Servers(3, 2_000, 1)),), priority=10))
    world.now = -ROUND_MS + 1
    placed = of_kind(world.round(), Placed)
    assert [each.group[0] for each in placed] == ["service", "service", "batch"], "its third task waits for the rack"
    assert [each.node for each in placed] == [0, 1, 2]
    assert [each.node for each in of_kind(world.round(), Placed)] == [3]


def test_k8_goes_round_robin_and_backs_off() -> None:
    """16 servers, a sample of one: each task goes to the next server."""
    world = world_of(K8s, Mode.CONCURRENT, cluster(fat_tree(4), cpu=1_000, is_shared=False))
    task = Servers(1, 1_000, 1)
    for n in range(17):
        world.submit(CompReq(f"j{n}", (Composite("c", "server", task),)))
    assert [each.node for each in of_kind(world.round(), Placed)] == list(range(16))
    world.hire.ended(("j3", "c.server"), 3)
    world.running[("j3", "c.server"), 3] = 0
    world.running = +world.running
    waits = [bool(of_kind(world.round(), Placed)) for _ in range(4)]
    assert waits == [False, False, True, False], "1 s after it found no place"


def test_k8_takes_the_least_used_of_its_sample() -> None:
    topology = leaf_spine(10, 2, 1)
    resources = Resources(topology, [ServerSpec((8_000, 8_000))] * 20, [SwitchSpec()] * 11, is_shared=False)
    world = world_of(K8s, Mode.CONCURRENT, resources)
    for name, cpu in (("a", 4_000), ("b", 1_000)):
        world.submit(CompReq(name, (Composite("c", "server", Servers(10, cpu, cpu)),)))
    placed = of_kind(world.round(), Placed)
    assert Counter(each.group[0] for each in placed) == {"a": 10, "b": 10}
    assert {each.group[0]: each.node % 2 for each in placed} == {"a": 0, "b": 1}, "samples of two servers"


def test_sparrow_draws_again_when_its_nodes_are_busy() -> None:
    """One of 16 servers is free; two draws rarely find it, more draws do."""
    world = world_of(Sparrow, Mode.CONCURRENT, cluster(fat_tree(4), cpu=1_000, is_shared=False), seed=3)
    for node in range(15):
        world.hire.lose(node, 0)
    world.submit(CompReq("j", (Composite("c", "server", Servers(1, 1_000, 1)),)))
    needed = next(n for n in range(1, 200) if of_kind(world.round(), Placed))
    assert 1 < needed < 100


def never_withdrawn(decide: Any) -> Any:
    return lambda self, job, is_inc, now: iter(())


BUGS: dict[str, tuple[type, str, Callable[[Any], Any]]] = {
    "the other variant is not withdrawn": (Baseline, "_decide", never_withdrawn),
    "what timed out keeps its tasks": (Baseline, "_stop_all", lambda _: lambda self, groups, reason: iter(())),
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    of, name, change = BUGS[bug]
    monkeypatch.setattr(of, name, change(getattr(of, name)))
    with pytest.raises((AssertionError, KeyError)):
        check_seeds(40)


def check_seeds(count: int) -> None:
    for seed in range(count):
        resources = cluster(leaf_spine(3, 2, 2), seed=seed, is_shared=False)
        end(drive(world_of(K8s, Mode.TIMEOUT, resources, fallback_ms=1_200), Random(seed)))
