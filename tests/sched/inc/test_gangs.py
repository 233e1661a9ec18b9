"""Groups on switches start whole or not at all; several passes in a round; one high switch for a job."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offpath.sched.inc import cost, gangs
from offpath.sched.inc.decisions import FlavorChosen, Placed, Postponed, Stopped, Why
from offpath.sched.inc.errors import PlacementInvalid, Unhostable
from offpath.sched.inc.flow import solve
from offpath.sched.inc.hire import Hire
from offpath.sched.inc.live.live_hire import LiveHire
from offpath.sched.inc.network import FlowNetwork, Limits, Picked, Prepared, Round
from offpath.sched.inc.pending import PendingJob
from offpath.sched.inc.poly import PolyReq, TaskGroup
from offpath.sched.inc.readings import HIRE, HIRE_CODE, HIRE_PAPER, HIRE_PROSE, Reading
from offpath.sched.inc.request import Composite, CompReq, Servers
from offpath.sched.inc.resources import Resources, ServerSpec, SwitchSpec
from offpath.sched.inc.transform import transform
from offpath.sched.topology.fattree import fat_tree, leaf_spine

from .book import World, end, of_kind, rounds
from .requests import STORE, web_application
from .worlds import ALL, cluster, inc_group, random_request, server_group

CHAIN = Composite("c", "coordinator", Servers(2, 100, 100), among=("netchain",))
"""Three switches, and no alternative."""
TASKWISE = replace(HIRE, passes=1, is_whole=False, is_switch_first=False)


def crowded(reading: Reading = HIRE, gang_ms: int | None = 2_000) -> World:
    """Three jobs want all three switches."""
    world = World(0, reading, cluster(leaf_spine(2, 2, 1)))
    world.hire.gang_ms = gang_ms
    for n in range(3):
        world.submit(CompReq(f"j{n}", (CHAIN,)))
    return world


def test_jobs_that_want_the_same_switches_get_them_in_turn_whole() -> None:
    world = crowded()
    served = []
    for _ in range(3):
        world.round()
        ((name, tasks),) = Counter(group[0] for group, _ in world.running).items()
        assert tasks == 3
        served.append(name)
        for group, node in sorted(world.running):
            world.hire.ended(group, node)
        world.running.clear()
    assert sorted(served) == ["j0", "j1", "j2"], "they cost the same, so the order is free"
    assert of_kind(world.log, Stopped) == []
    assert {each.reason.why for each in of_kind(world.log, Postponed)} == {Why.CROWDED}


def half_placed(gang_ms: int | None) -> World:
    """Three jobs want all three switches. None has them: the second holds two, the third one."""
    world = World(0, resources=cluster(leaf_spine(2, 2, 1)))
    hire = LiveHire(world.hire.resources, TASKWISE, gang_ms=gang_ms)
    world.use(hire)
    for n in range(3):
        world.submit(CompReq(f"j{n}", (CHAIN,)))
    for job, node in (("j1", 4), ("j1", 5), ("j2", 6)):
        hire.adopt((job, "c.netchain"), node, 0)
        world.running[(job, "c.netchain"), node] += 1
    return world


def test_of_half_placed_jobs_the_youngest_gives_up_and_all_are_served_in_turn() -> None:
    world = half_placed(2_000)
    served: list[str] = []
    for _ in range(100):
        seen = world.round()
        assert len({each.group[0] for each in of_kind(seen, Stopped)}) <= 1
        assert {each.reason.why for each in of_kind(seen, Stopped)} <= {Why.GANG}
        if len(world.running) == 3 and len({group for group, _ in world.running}) == 1:
            served += {group[0] for group, _ in world.running}
            for group, node in sorted(world.running):
                world.hire.ended(group, node)
            world.running.clear()
    assert sorted(served) == ["j0", "j1", "j2"]
    assert of_kind(world.log, Stopped)[0].group[0] == "j2"
    assert Why.GANG in {each.reason.why for each in of_kind(world.log, Postponed)}


def test_without_the_rule_they_wait_for_each_other_forever() -> None:
    world = half_placed(None)
    before = Counter(world.running)
    assert of_kind(rounds(world, 40), Stopped) == []
    assert world.running == before


def test_a_group_that_lost_a_switch_takes_a_place_although_it_needs_two() -> None:
    """It runs already: one of two places is better than none."""
    world = World(0, resources=cluster(leaf_spine(2, 2, 2)))
    world.submit(CompReq("j", (CHAIN,)))
    world.round()
    first, second, _ = sorted(node for _, node in world.running)
    for node in (first, second):
        world.take(world.hire.lose(node, world.now))
    assert len(world.running) == 1
    world.round()
    assert len(world.running) == 2, "four switches, two of them lost"


# -- passes --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("reading", "placed"), [(HIRE, 5), (HIRE_PROSE, 5), (HIRE_PAPER, 1), (HIRE_CODE, 1)])
def test_tasks_for_one_node_in_one_round(reading: Reading, placed: int) -> None:
    topology = leaf_spine(1, 1, 1)
    world = World(0, reading, Resources(topology, [ServerSpec((8_000, 8_000))], [SwitchSpec(ALL)] * 2))
    world.submit(CompReq("j", (Composite("c", "server", Servers(5, 1_000, 1_000)),)))
    assert [each.node for each in of_kind(world.round(), Placed)] == [0] * placed


def test_all_flavors_of_a_job_in_one_round() -> None:
    world = World(0, resources=cluster())
    world.submit(web_application())
    seen = world.round()
    assert {each.composite for each in of_kind(seen, FlavorChosen)} == {"c2", "c3", "c5"}
    assert of_kind(seen, Postponed) == []
    assert world.hire.repeated


def test_passes_end_with_their_number_and_with_the_limit_of_groups() -> None:
    """Nine tasks for one node: a pass places one. A further pass has one group, and the limit counts all passes."""
    topology = leaf_spine(1, 1, 1)
    for reading, limits, placed in ((HIRE, Limits(), 8), (replace(HIRE, passes=3), Limits(), 3), (HIRE, Limits(4), 4)):
        hire = Hire(Resources(topology, [ServerSpec((9_000, 9_000))], [SwitchSpec(ALL)] * 2), reading, limits)
        world = World(0)
        world.use(hire)
        world.submit(CompReq("j", (Composite("c", "server", Servers(9, 1_000, 1_000)),)))
        assert len(of_kind(world.round(), Placed)) == placed
        assert hire.repeated == [1] * (placed - 1)


def test_waiting_costs_the_same_in_every_pass_of_a_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """Φ_delay compares with the job of the round that has waited longest, also where that job is in the first network
    only. Here it is too large for the server that is left."""
    topology = leaf_spine(1, 1, 1)
    hire = Hire(Resources(topology, [ServerSpec((10_000, 10_000))], [SwitchSpec(ALL)] * 2))
    world = World(0)
    world.use(hire)
    world.submit(CompReq("small", (Composite("c", "server", Servers(1, 2_000, 2_000)),)))
    world.round()
    world.submit(CompReq("old", (Composite("c", "server", Servers(2, 4_500, 4_500)),)))
    old_ms = world.now
    world.round()
    assert len(world.running) == 2, "the other task of the old job waits"
    world.now = 9_000
    world.submit(CompReq("new", (Composite("c", "server", Servers(3, 1_000, 1_000)),)))
    delays = []
    build = hire.network.built

    def built(prepared: Prepared, jobs: Sequence[PendingJob], now_ms: int) -> Round:
        made = build(prepared, jobs, now_ms)
        (node,) = [node for node, of in made.groups.items() if of.group.id[0] == "new"]
        delays.append(made.problem.costs[made.problem.tails.index(node)])
        return made

    monkeypatch.setattr(hire.network, "built", built)
    assert len(of_kind(world.round(), Placed)) == 3
    wait, longest = world.now - 9_000, world.now - old_ms
    assert delays == [cost.postpone(wait, longest, started, 3, HIRE).total for started in range(3)]


def test_servers_of_a_job_with_a_choice_come_after_its_switches() -> None:
    four = Servers(4, 1_000, 1_024)
    parts = (Composite("a", "server", four), Composite("b", "coordinator", four))
    kinds = {}
    for is_first in (True, False):
        world = World(0, replace(HIRE, is_switch_first=is_first), cluster())
        world.submit(CompReq("j", parts))
        placed = of_kind(world.round(), Placed)
        kinds[is_first] = "".join("n" if each.group[1] == "b.netchain" else "s" for each in placed)
    assert kinds[True].startswith("nnns")
    assert kinds[False].startswith("ssss")


def test_the_first_place_names_why_the_flavor_and_the_others_why_the_place() -> None:
    world = World(0, resources=cluster())
    world.submit(CompReq("j", (Composite("c", "coordinator", Servers(4, 1_000, 1_024)),)))
    seen = world.round()
    (flavor,) = of_kind(seen, FlavorChosen)
    assert "penalty" in dict(flavor.reason.terms), "that of the flavor on servers"
    chain = [each.reason for each in of_kind(seen, Placed) if each.group[1] == "c.netchain"]
    assert sum("penalty" in dict(each.terms) for each in chain) == 1
    assert len(chain) == 3


# -- one high switch for a job -------------------------------------------------------------------------------------
@pytest.mark.parametrize(("is_one", "cores"), [(False, 3), (True, 1)])
def test_a_job_takes_one_core_switch_and_leaves_the_others(is_one: bool, cores: int) -> None:
    """20 switches, of which 32 to 35 are cores."""
    world = World(0, replace(HIRE, is_one_top=is_one), cluster(fat_tree(4)))
    world.submit(CompReq("j", (CHAIN,)))
    placed = [each for each in of_kind(world.round(), Placed) if each.group[1] == "c.netchain"]
    assert len(placed) == 3
    assert sum(each.node >= 32 for each in placed) == cores
    lower = [each.reason for each in placed if each.node < 32]
    assert {each.why for each in lower} == ({Why.RULE} if is_one else set())
    assert all("above all its servers" in each.text for each in lower)


# -- whatever happens ----------------------------------------------------------------------------------------------
def drive_whole(seed: int) -> World:
    """As `drive`, but no node is lost and no task ends alone: then after each round a group on switches has all its
    tasks or none, and what a trial started is stopped."""
    draw = Random(seed)
    world = World(seed, HIRE)
    for step in range(8):
        try:
            world.submit(random_request(draw, f"j{step}"))
        except Unhostable:
            continue
        if step % 3 == 2 and world.hire.jobs:
            world.take(world.hire.cancel(draw.choice(sorted(world.hire.jobs))))
        for _ in range(2):
            world.round()
            for job in world.hire.jobs.values():
                for group in job.request.groups:
                    if group.is_inc:
                        assert len(world.hire.resources.nodes_of(group.id)) in (0, group.tasks)
    return world


@given(st.integers(0, 10**9))
def test_a_group_on_switches_has_all_its_tasks_or_none(seed: int) -> None:
    end(drive_whole(seed))


def flow_of(seed: int, jobs: int) -> tuple[FlowNetwork, Round, list[Picked]]:
    """A network of random jobs, and what its flow picked."""
    draw = Random(seed)
    network = FlowNetwork(cluster(leaf_spine(3, 2, 2), seed=seed), HIRE)
    pending = [PendingJob(transform(random_request(draw, f"j{n}"), STORE), n, 0) for n in range(jobs)]
    built = network.round(pending, 5_000)
    return network, built, network.picked(built, solve(built.problem))


@given(st.integers(0, 10**9))
def test_a_trial_leaves_the_resources_as_they_were_and_its_places_can_all_start(seed: int) -> None:
    network, built, picked = flow_of(seed, 6)
    resources = network.resources
    before = resources.state()
    found = gangs.whole(network, built, picked)
    assert resources.state() == before
    assert [each for each in found if not each.of.group.is_inc and each.of.flavor is None] == [
        each for each in picked if not each.of.group.is_inc and each.of.flavor is None
    ]
    for each in found:
        resources.start(each.of.group, each.node)
    for of in built.groups.values():
        if of.group.is_inc:
            assert resources.tasks_of(of.group.id) in (0, of.group.tasks)


class _Forgetful(gangs._Trial):
    """It notes no switch as full."""

    def _fitting(self, group: TaskGroup, nodes: Sequence[int], full: set[int]) -> Iterator[int]:
        return (node for node in nodes if self._resources.fits(group, node))


def compare_trials(seed: int) -> None:
    """More jobs than there is room for, so that gangs fail and give switches back."""
    network, built, picked = flow_of(seed, 16)
    found = gangs.whole(network, built, picked)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gangs, "_Trial", _Forgetful)
        plain = gangs.whole(network, built, picked)
    assert [(each.of.group.id, each[1:]) for each in found] == [(each.of.group.id, each[1:]) for each in plain]


@given(st.integers(0, 10**9))
def test_switches_that_are_noted_as_full_change_no_place(seed: int) -> None:
    compare_trials(seed)


def one_gang_fails_and_another_is_whole() -> None:
    """Three switches. The first job wants two for each of two groups that fill a switch, and gets none; its groups find
    each other's switches full. The second wants two, for a group like the second of these."""
    big = (0, 0, 12_000)
    world = World(0, resources=cluster(leaf_spine(2, 2, 1)))
    first, other = (
        replace(inc_group("", service, big, (0, 0, 0), 2), id=("first", f"c.{service}"), flavor="10",
                implementation="switches")
        for service in ("netcache", "netchain")
    )  # fmt: skip
    servers = replace(server_group("c.server", 1, job="first"), flavor="01")
    world.hire.submit(PolyReq("first", (first, other, servers), "xx"), 0)
    alone = replace(other, id=("second", "c.netchain"), flavor="")
    world.hire.submit(PolyReq("second", (alone,), ""), 0)
    assert alone.kind == other.kind
    placed = Counter(each.group[0] for each in of_kind(world.round(), Placed) if each.node >= 4)
    assert placed == {"second": 2}


def test_a_gang_that_fails_leaves_its_switches_to_the_next_one() -> None:
    one_gang_fails_and_another_is_whole()


def test_a_switch_that_stays_noted_as_full_after_its_task_stopped_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def end(self: Any, first: int = 0) -> None:
        noted = {kind: set(full) for kind, full in self._full.items()}
        real(self, first)
        for kind, full in noted.items():
            self._full[kind].update(full)

    real = gangs._Trial.end
    monkeypatch.setattr(gangs._Trial, "end", end)
    with pytest.raises(AssertionError):
        one_gang_fails_and_another_is_whole()


# -- planted bugs --------------------------------------------------------------------------------------------------
BUGS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "a trial is not taken back": ("end", lambda _: lambda self, first=0: None),
    "a gang starts without its last place": ("completed", lambda completed: lambda self, gang: (
        (completed(self, gang) or [])[:-1])),
    "the switches of an incomplete gang stay": ("completed", lambda completed: lambda self, gang: (
        completed(self, gang) or gang.picked)),
}  # fmt: skip


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, change = BUGS[bug]
    monkeypatch.setattr(gangs._Trial, name, change(getattr(gangs._Trial, name)))
    with pytest.raises((AssertionError, PlacementInvalid)):
        drive_all(60)


def drive_all(seeds: int) -> None:
    for seed in range(seeds):
        drive_whole(seed)
