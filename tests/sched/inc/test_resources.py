"""Capacity holds with sharing, whatever starts and stops; a release restores the state bit for bit."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offpath.sched.inc.errors import PlacementInvalid, Unhostable
from offpath.sched.inc.poly import TaskGroup
from offpath.sched.inc.request import CompReq, Servers
from offpath.sched.inc.resources import Resources, ServerSpec, SwitchSpec
from offpath.sched.inc.scarcity import check_hostable, scarcity
from offpath.sched.inc.templates import Connectivity
from offpath.sched.inc.transform import transform
from offpath.sched.inc.units import SWITCH_CAPACITY, plus
from offpath.sched.topology.fattree import fat_tree, leaf_spine

from .requests import STORE, composite
from .worlds import ALL, cluster, inc_group, random_groups, server_group

TOR = 16
"""The first switch of the fat-tree of degree 4."""


def used_by_hand(resources: Resources, node: int, groups: dict[tuple[str, str], TaskGroup]) -> tuple[int, ...]:
    """From the definition: own demand of each task, and for each service the most that a task of it shares."""
    running = [groups[each] for each, count in resources.running(node).items() for _ in range(count)]
    total = [sum(each.demand[n] for each in running) for n in range(len(resources.capacity(node)))]
    for service in {each.service for each in running if each.is_inc}:
        shared = [each.shared for each in running if each.service == service]
        for n in range(3):
            total[n] += max(each[n] for each in shared) if resources.is_shared else sum(each[n] for each in shared)
    return tuple(total)


@given(st.integers(0, 10**9), st.booleans())
def test_any_interleaving_keeps_capacity_and_a_release_restores_the_state(seed: int, is_shared: bool) -> None:
    draw = Random(seed)
    resources = cluster(leaf_spine(2, 2, 2), seed=seed, is_shared=is_shared)
    groups = {each.id: each for each in random_groups(draw)}
    idle = resources.state()
    started: list[tuple[TaskGroup, int]] = []
    for _ in range(40):
        if started and draw.random() < 0.4:
            group, node = started.pop(draw.randrange(len(started)))
            resources.stop(group, node)
        else:
            group, node = draw.choice(list(groups.values())), draw.randrange(resources.topology.nodes)
            before, is_fitting = resources.state(), resources.fits(group, node)
            if not is_fitting:
                with pytest.raises(PlacementInvalid):
                    resources.start(group, node)
                assert resources.state() == before
                continue
            expected = tuple(a + b for a, b in zip(resources.used(node), resources.needed(group, node), strict=True))
            resources.start(group, node)
            assert resources.used(node) == expected
            resources.stop(group, node)
            assert resources.state() == before
            resources.start(group, node)
            started.append((group, node))
        for at in range(resources.topology.nodes):
            assert resources.used(at) == used_by_hand(resources, at, groups)
            assert all(0 <= a <= b for a, b in zip(resources.used(at), resources.capacity(at), strict=True))
            if at >= resources.topology.hosts:
                spec = resources.switches[at - resources.topology.hosts]
                assert len(resources.active(at)) <= spec.most_services
                assert all(spec.supports(groups[each]) for each in resources.running(at))
    for group, node in started:
        resources.stop(group, node)
    assert resources.state() == idle


def test_shared_demand_counts_once_and_individual_demand_each() -> None:
    resources = cluster()
    for n in range(3):
        resources.start(inc_group(f"g{n}"), TOR)
    assert resources.used(TOR) == (15, 8 + 3 * 4, 3 * 6_144)
    assert resources.needed(inc_group("other"), TOR) == (5, 4, 6_144)
    assert not resources.fits(inc_group("other"), TOR), "SRAM: 4 × 6 MB of 22"
    apart = cluster(is_shared=False)
    for n in range(3):
        apart.start(inc_group(f"g{n}"), TOR)
    assert apart.used(TOR) == (15, 3 * (8 + 4), 3 * 6_144)


def test_a_fourth_service_needs_a_switch_of_its_own() -> None:
    resources = cluster()
    for service in ("a", "b", "c"):
        resources.start(inc_group(service, service, (0, 1, 1), (0, 1, 0)), TOR)
    assert not resources.fits(inc_group("d", "d", (0, 1, 1), (0, 1, 0)), TOR)
    assert resources.fits(inc_group("e", "a", (0, 1, 1), (0, 1, 0)), TOR)
    assert resources.slots(TOR) == 0


def test_a_switch_runs_one_task_of_a_group_and_a_server_many() -> None:
    resources = cluster()
    resources.start(inc_group(), TOR)
    assert not resources.fits(inc_group(), TOR)
    for _ in range(8):
        resources.start(server_group(), 0)
    assert not resources.fits(server_group(), 0), "8 × 4 of 32 cores"


@pytest.mark.parametrize(
    ("connectivity", "levels"),
    [(Connectivity.TOR, {1}), (Connectivity.LEAF, {1}), (Connectivity.SPINE, {2, 3}), (Connectivity.CHAIN, {1, 2, 3})],
)
def test_connectivity_decides_the_level_of_the_switches(connectivity: Connectivity, levels: set[int]) -> None:
    resources = cluster()
    group = inc_group(connectivity=connectivity)
    fitting = [node for node in range(resources.topology.nodes) if resources.fits(group, node)]
    assert {resources.topology.level[node] for node in fitting} == levels


@pytest.mark.parametrize(
    "spec",
    [SwitchSpec(frozenset({"sharp"})), SwitchSpec(ALL, services=frozenset({"sharp"})), SwitchSpec(ALL, most_services=0),
     SwitchSpec(ALL, capacity=(100, 11, 22_528)), SwitchSpec(ALL, capacity=(0, 0, 0))],
)  # fmt: skip
def test_a_switch_without_feature_service_or_room_is_no_place(spec: SwitchSpec) -> None:
    topology = leaf_spine(1, 1, 0 + 1)
    resources = Resources(topology, [ServerSpec((1, 1))], [spec] * topology.switches)
    assert not any(resources.fits(inc_group(), node) for node in range(topology.nodes))


def test_a_lost_node_takes_nothing_until_it_is_restored() -> None:
    resources = cluster()
    resources.start(inc_group(), TOR)
    resources.lose(TOR)
    assert (resources.free(TOR), resources.slots(TOR)) == ((0, 0, 0), 0)
    assert not resources.fits(inc_group("h"), TOR)
    resources.stop(inc_group(), TOR)
    resources.restore(TOR)
    assert resources.free(TOR) == SWITCH_CAPACITY
    assert resources.fits(inc_group("h"), TOR)


def test_what_does_not_run_cannot_be_stopped() -> None:
    resources = cluster()
    for node in (-1, 0, TOR, 10**9):
        with pytest.raises(PlacementInvalid):
            resources.stop(inc_group(), node)
        with pytest.raises(PlacementInvalid):
            resources.start(inc_group() if node < TOR else server_group(), node)


def request(template: str, servers: Servers, **more: object) -> CompReq:
    return CompReq("j", (composite("c", template, servers, **more),))


@pytest.mark.parametrize(
    ("template", "servers", "more", "is_hostable"),
    [
        ("server", Servers(16 * 8, 4_000, 1), {}, True),
        ("server", Servers(16 * 8 + 1, 4_000, 1), {}, False),
        ("server", Servers(1, 32_001, 1), {}, False),
        ("server", Servers(100_000, 0, 0), {}, True),
        ("cache", Servers(1, 99_000, 1), {}, True),
        ("cache", Servers(1, 99_000, 1), {"among": ("server",)}, False),
        ("coordinator", Servers(7_000, 99_000, 1), {}, False),
    ],
)
def test_what_no_node_could_ever_run_is_refused(
    template: str, servers: Servers, more: dict[str, object], is_hostable: bool
) -> None:
    """The last: 21 switches of the 20 there are."""
    poly = transform(request(template, servers, **more), STORE)
    if is_hostable:
        check_hostable(cluster(fat_tree(4)), poly)
    else:
        with pytest.raises(Unhostable, match="composite c"):
            check_hostable(cluster(fat_tree(4)), poly)


def test_what_is_scarce_is_named() -> None:
    resources = cluster(leaf_spine(2, 1, 1))
    group = inc_group(demand=(0, 4, 20_000), tasks=9)
    assert scarcity(resources, inc_group(service="x", demand=(0, 49, 0))) == "no switch can run x"
    for node, other in ((2, inc_group("a")), (3, group)):
        resources.start(other, node)
    resources.lose(4)
    assert scarcity(resources, group) == "switches: 1 lack sram_kib, 1 lost, 1 run a task of the group already"
    assert scarcity(resources, server_group(demand=(32_000, 1))) == "no server can run it"
    resources.start(server_group(), 0)
    assert scarcity(resources, server_group(demand=(32_000, 1))) == "servers: 1 lack cpu_milli"


@pytest.mark.parametrize("bug", ["shared is never released", "shared counts each", "the limit of services is off"])
def test_a_planted_bug_is_found(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if bug == "the limit of services is off":
        monkeypatch.setattr(Resources, "slots", lambda self, node: 3)
    elif bug == "shared counts each":
        each = lambda self, group, node: plus(group.demand, group.shared[: len(group.demand)])  # noqa: E731
        monkeypatch.setattr(Resources, "needed", each)
    else:
        count = Resources._count

        def grows_only(self: Resources, switch: object) -> None:
            before = switch.used  # type: ignore[attr-defined]
            count(self, switch)  # type: ignore[arg-type]
            switch.used = tuple(max(each) for each in zip(before, switch.used, strict=True))  # type: ignore[attr-defined]

        monkeypatch.setattr(Resources, "_count", grows_only)
    with pytest.raises((AssertionError, PlacementInvalid, ExceptionGroup)):
        test_any_interleaving_keeps_capacity_and_a_release_restores_the_state()
