"""Bounds against a look at every node; the flow network's shape; what is kept between rounds equals a rebuilt one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import offpath.sched.inc.bounds as bounds_module
from offpath.sched.inc.bounds import Bounds
from offpath.sched.inc.flow import solve
from offpath.sched.inc.layers import children
from offpath.sched.inc.locality import Locality
from offpath.sched.inc.network import FlowNetwork, Limits, Round
from offpath.sched.inc.pending import PendingJob
from offpath.sched.inc.poly import TaskGroup
from offpath.sched.inc.readings import HIRE, HIRE_CODE, HIRE_PAPER, READINGS
from offpath.sched.inc.request import Composite, CompReq, Servers
from offpath.sched.inc.resources import Resources
from offpath.sched.inc.scarcity import scarcity
from offpath.sched.inc.shortcuts import Shortcuts
from offpath.sched.inc.templates import Connectivity
from offpath.sched.inc.transform import transform
from offpath.sched.topology.fattree import fat_tree, leaf_spine

from .requests import STORE, web_application
from .worlds import cluster, inc_group, random_groups, random_request, server_group

RESTRICTED = (Connectivity.TOR, Connectivity.LEAF, Connectivity.SPINE)


def below(resources: Resources, switch: int) -> set[int]:
    """All nodes of the subtree, its top included."""
    found, waiting = {switch}, [switch]
    while waiting:
        for child in children(resources.topology)[waiting.pop()]:
            if child not in found:
                found.add(child)
                waiting.append(child)
    return found


def places(resources: Resources, switch: int, is_inc: bool) -> set[int]:
    """Of the subtree: its servers, or its switches that run INC."""
    hosts = resources.topology.hosts
    return {
        node for node in below(resources, switch)
        if (node >= hosts) == is_inc and (not is_inc or resources.switches[node - hosts].most_services)
    }  # fmt: skip


@given(st.integers(0, 10**9))
def test_bounds_promise_only_what_every_node_keeps_and_hide_nothing(seed: int) -> None:
    draw = Random(seed)
    resources = cluster(draw.choice([leaf_spine(3, 2, 2), fat_tree(2)]), seed=seed)
    groups = random_groups(draw)
    bounds = Bounds(resources)
    started: list[tuple[TaskGroup, int]] = []
    for _ in range(25):
        node = draw.randrange(resources.topology.nodes)
        group = draw.choice(groups)
        if draw.random() < 0.1:
            (resources.restore if resources.is_lost(node) else resources.lose)(node)
        elif started and draw.random() < 0.3:
            group, node = started.pop(draw.randrange(len(started)))
            resources.stop(group, node)
        elif resources.fits(group, node):
            resources.start(group, node)
            started.append((group, node))
        bounds.update([node])
    assert bounds.state() == Bounds(resources).state()
    for group in (replace(each, id=("other", "group")) for each in groups):
        for switch in range(resources.topology.hosts, resources.topology.nodes):
            fitting = {node for node in below(resources, switch) if resources.fits(group, node)}
            everywhere = places(resources, switch, group.is_inc)
            at = switch - resources.topology.hosts
            if bounds.all_fit(group)[at]:
                assert fitting == everywhere != set()
            elif not group.is_inc:
                assert fitting != everywhere or not everywhere
            if fitting:
                assert bounds.some_may_fit(group)[at]


def test_a_subtree_whose_switches_all_run_the_service_needs_only_the_own_demand() -> None:
    resources = cluster(leaf_spine(2, 1, 1))
    group = inc_group(demand=(0, 1, 1), shared=(0, 40, 0), tasks=9)
    for node in (2, 3, 4):
        resources.start(group, node)
    bounds = Bounds(resources)
    assert bounds.all_fit(replace(group, id=("j", "h")))[4 - 2]
    assert bounds.is_active_on_all(group)[4 - 2]
    assert not bounds.all_fit(inc_group("i", "netchain", (0, 1, 1), (0, 40, 0)))[4 - 2]


# -- shape ---------------------------------------------------------------------------------------------------------
def pending(request: CompReq, number: int = 0, at_ms: int = 0) -> PendingJob:
    return PendingJob(transform(request, STORE), number, at_ms)


def reachable(built: Round, start: int) -> set[int]:
    out: dict[int, list[int]] = {}
    for tail, head in zip(built.problem.tails, built.problem.heads, strict=True):
        out.setdefault(tail, []).append(head)
    found, waiting = {start}, [start]
    while waiting:
        for head in out.get(waiting.pop(), ()):
            if head not in found:
                found.add(head)
                waiting.append(head)
    return found


def test_the_papers_application_is_one_job_with_a_selector_and_eleven_groups() -> None:
    """Figure 6's parts: 2 groups are materialised, 12 tasks each; the others get flow from F only."""
    network = FlowNetwork(cluster(), HIRE)
    built = network.round([pending(web_application())], 0)
    supplies = {of.group.id[1]: built.problem.supply[node] for node, of in built.groups.items()}
    assert {name: units for name, units in supplies.items() if units} == {"c1.server": 12, "c4.server": 12}
    assert len(supplies) == 11
    assert len(built.selectors) == 1
    assert built.problem.supply[network.sink] == -(12 + 12 + 1)
    assert sum(built.problem.supply) == 0


@given(st.integers(0, 10**9))
def test_no_flow_of_a_server_task_reaches_a_switch_and_the_reverse(seed: int) -> None:
    draw = Random(seed)
    resources = cluster(leaf_spine(3, 2, 2), seed=seed)
    network = FlowNetwork(resources, draw.choice(list(READINGS.values())))
    built = network.round([pending(random_request(draw, f"j{n}"), n) for n in range(4)], 1_000)
    hosts = resources.topology.hosts
    place = {at: node for node, at in enumerate(network.trees.places.tolist())}
    for node, of in built.groups.items():
        reached = {place[each] for each in reachable(built, node) if each in place}
        if of.group.is_inc:
            reached = {each for each in reached if each >= hosts}
            shadow = range(resources.topology.nodes, network.sink)
            assert reachable(built, node) - {node, network.sink} <= {*shadow, *_postponing(built, node, network)}
        else:
            assert all(each < hosts for each in reached)
        assert all(resources.fits(of.group, each) for each in reached), "every way ends in a valid allocation"


def _postponing(built: Round, node: int, network: FlowNetwork) -> set[int]:
    heads = {head for tail, head in zip(built.problem.tails, built.problem.heads, strict=True) if tail == node}
    return {head for head in heads if head > network.sink + 1}


def test_one_task_per_node_and_round_and_one_flavor_per_job() -> None:
    network = FlowNetwork(cluster(), HIRE)
    jobs = [pending(web_application(f"j{n}"), n) for n in range(3)]
    built = network.round(jobs, 5_000)
    picked = network.picked(built, solve(built.problem))
    assert max(Counter(each.node for each in picked).values()) == 1
    flavors = Counter(each.of.job.number for each in picked if each.of.flavor is not None)
    assert flavors == {0: 1, 1: 1, 2: 1}
    assert all(network.resources.fits(each.of.group, each.node) for each in picked)


def test_limits_of_a_round() -> None:
    """Of 5 jobs with 11 groups the network takes 3 whole ones; nobody overtakes; at most 2 flavors are decided."""
    network = FlowNetwork(cluster(), HIRE, Limits(groups=35, flavors=2, shortcuts=3))
    jobs = [pending(web_application(f"j{n}"), n) for n in range(4)]
    small = pending(CompReq("small", (Composite("c", "server", Servers(1, 1, 1)),)), 4)
    built = network.round([*jobs, small], 5_000)
    assert {of.job.number for of in built.groups.values()} == {0, 1, 2}
    assert [each.number for each in built.left_out] == [3, 4]
    picked = network.picked(built, solve(built.problem))
    assert sum(each.of.flavor is not None for each in picked) == 2
    for of in built.groups.values():
        kinds = Counter(each.is_subtree for each in of.shortcuts)
        assert max(kinds.values(), default=0) <= 3


def test_a_flavor_without_places_for_all_its_tasks_is_offered_only_where_the_reading_does_not_ask() -> None:
    """6 switches of a fat-tree of degree 2; netchain of 2 001 tasks needs 9."""
    job = CompReq("j", (Composite("c", "coordinator", Servers(2_001, 0, 0)),))
    offered = {}
    for reading in (HIRE, HIRE_PAPER, HIRE_CODE):
        built = FlowNetwork(cluster(fat_tree(2)), reading).round([pending(job)], 0)
        offered[reading.name] = {of.group.implementation for of in built.groups.values()}
    assert offered == {
        "hire": {"server"}, "hire-paper": {"netchain", "server"}, "hire-code": {"netchain", "server"}
    }  # fmt: skip


def test_places_near_the_jobs_other_tasks_are_cheaper_only_as_corrected() -> None:
    cheaper = {}
    for reading in (HIRE, HIRE_PAPER):
        resources = cluster()
        network = FlowNetwork(resources, reading)
        job = pending(web_application())
        group = job.request.by_id["web", "c5.netchain"]
        resources.start(group, 16)
        network.changed(16, group, 1)
        network.round([job], 0)
        by_node = {each.node: dict(each.cost.terms)["locality"] for each in network.shortcuts(job, group)}
        cheaper[reading.name] = by_node[24] < by_node[26]  # beside switch 16, and in another pod
        assert 16 not in by_node
    assert cheaper == {"hire": True, "hire-paper": False}


def test_servers_that_the_jobs_switches_reach_are_cheaper() -> None:
    """The job's netchain runs on ToR 16, above servers 0 and 1; the pod has servers 0 to 3. A level costs 25 beside the
    average of the terms, so 125 in a term that is averaged over five."""
    terms = {}
    for reach in (0, 25):
        resources = cluster()
        network = FlowNetwork(resources, replace(HIRE, reach=reach))
        job = pending(web_application())
        resources.start(job.request.by_id["web", "c5.netchain"], 16)
        network.changed(16, job.request.by_id["web", "c5.netchain"], 1)
        network.round([job], 0)
        edges = network.shortcuts(job, job.request.by_id["web", "c1.server"])
        assert [each.cost.total for each in edges] == edges.totals.tolist()
        terms[reach] = {each.node: dict(each.cost.terms)["locality"] for each in edges if not each.is_subtree}
    assert {node: terms[25][node] - terms[0][node] for node in (0, 1, 2, 3, 4, 15)} == {
        0: 0, 1: 0, 2: 125, 3: 125, 4: 250, 15: 250,
    }  # fmt: skip


def test_a_switch_with_another_service_of_equal_demands_is_looked_at_again() -> None:
    """What is free is as before, and yet a task of the first service does not find there what it could share."""
    resources = cluster(leaf_spine(2, 2, 1))
    leaf = resources.topology.hosts
    first = replace(inc_group("a", "netcache", (0, 1, 4_000), (0, 2, 10_000)), features=frozenset())
    second = replace(first, id=("j", "b"), service="netchain")
    resources.start(first, leaf)
    bounds = Bounds(resources)
    before, shared = bounds.state(), bounds.is_active_on_all(first).tolist()
    resources.stop(first, leaf)
    resources.start(second, leaf)
    changed = bounds.update([leaf])
    assert bounds.state() == before
    assert bounds.is_active_on_all(first).tolist() != shared
    assert set(changed.switches.tolist()) == {leaf, *(parent for parent, _ in resources.topology.up[leaf])}


# -- kept = rebuilt ------------------------------------------------------------------------------------------------
def drive(seed: int, steps: int = 9) -> tuple[FlowNetwork, list[PendingJob]]:
    """Jobs come and go, tasks start and stop, nodes are lost and return; after each step both networks are equal."""
    draw = Random(seed)
    resources = cluster(leaf_spine(3, 2, 2), seed=seed)
    reading, limits = draw.choice(list(READINGS.values())), Limits(draw.choice((6, 40)), 3, draw.choice((2, 50)))
    network = FlowNetwork(resources, reading, limits)
    jobs: list[PendingJob] = []
    for step in range(steps):
        act(draw, resources, network, jobs, step)
        now = 300 * step
        kept = network.round(jobs, now)
        fresh = FlowNetwork.rebuilt(resources, reading, limits, jobs)
        rebuilt = fresh.round(jobs, now)
        assert kept.problem == rebuilt.problem
        assert {node: (of.group.id, of.shortcuts) for node, of in kept.groups.items()} == {
            node: (of.group.id, of.shortcuts) for node, of in rebuilt.groups.items()
        }
        assert network.locality.state() == fresh.locality.state()
        for of in kept.groups.values():
            assert [each.cost.total for each in of.shortcuts] == of.shortcuts.totals.tolist()
            assert all(resources.fits(of.group, each.node) for each in of.shortcuts if not each.is_subtree)
            assert network.scarcity(of.group) == scarcity(resources, of.group)
        kept.problem.check()
    return network, jobs


def act(draw: Random, resources: Resources, network: FlowNetwork, jobs: list[PendingJob], step: int) -> None:
    """One random change."""
    kind = draw.random()
    groups = [each for job in jobs for each in job.request.groups]
    running = [(each, node) for each in groups for node in resources.nodes_of(each.id)]
    if kind < 0.3 or not jobs:
        jobs.append(pending(random_request(draw, f"j{step}"), step, 300 * step))
    elif kind < 0.4 and running:
        group, node = draw.choice(running)
        resources.stop(group, node)
        network.changed(node, group, -1)
    elif kind < 0.5:
        node = draw.randrange(resources.topology.nodes)
        (resources.restore if resources.is_lost(node) else resources.lose)(node)
        network.changed(node)
    elif kind < 0.6:
        job = jobs.pop(draw.randrange(len(jobs)))
        for group, node in [each for each in running if each[0].id[0] == job.request.job]:
            for _ in range(resources.nodes_of(group.id)[node]):
                resources.stop(group, node)
                network.changed(node, group, -1)
        network.forget(job)
    else:
        group = draw.choice(groups)
        for node in draw.sample(range(resources.topology.nodes), 4):
            if resources.fits(group, node):
                resources.start(group, node)
                network.changed(node, group, 1)


@given(st.integers(0, 10**9))
def test_what_is_kept_between_rounds_equals_a_rebuilt_network(seed: int) -> None:
    drive(seed)


def test_without_changes_no_edge_is_computed_again() -> None:
    network = FlowNetwork(cluster(), HIRE)
    jobs = [pending(web_application(f"j{n}"), n) for n in range(3)]
    network.round(jobs, 0)
    before = network.computed
    assert before == 33
    network.round(jobs, 100)
    assert network.computed == before
    group = server_group()
    network.resources.start(group, 0)
    network.changed(0, group, 1)
    network.round(jobs, 200)
    inc = sum(each.is_inc for job in jobs for each in job.request.groups)
    assert network.computed == before + 33 - inc, "a server's change concerns groups on servers only"


def only_starts(propagate: Any) -> Any:
    return lambda self, group, start, sign=1: propagate(self, group, start) if sign > 0 else None


def first_child(merge: Any) -> Any:
    return lambda self, values, level, combine, first=0: values[level.below[level.starts] - first]


BUGS: dict[str, tuple[Any, str, Callable[[Any], Any]]] = {
    "a stop leaves its gain": (Locality, "propagate", only_starts),
    "a changed bound is not seen": (
        bounds_module, "_differing", lambda _: lambda pairs, hosts: np.zeros(0, np.int64)
    ),
    "classes are not updated": (Shortcuts, "update", lambda _: lambda self, places, changed, sink_changed: None),
    "running tasks do not move a group": (Shortcuts, "moved", lambda _: lambda self, group: None),
}  # fmt: skip


def drive_all(seeds: int) -> None:
    for seed in range(seeds):
        drive(seed)


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    of, name, change = BUGS[bug]
    monkeypatch.setattr(of, name, change(getattr(of, name)))
    with pytest.raises(AssertionError):
        drive_all(60)


def test_a_bound_that_forgets_a_child_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Bounds, "_merge", first_child(Bounds._merge))
    with pytest.raises((AssertionError, ExceptionGroup)):
        test_bounds_promise_only_what_every_node_keeps_and_hide_nothing()
