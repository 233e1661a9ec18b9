"""SHArP as a tree over the racks of its ranks: what is booked is a tree or nothing, under any sequence of events."""

from __future__ import annotations

import contextlib
from random import Random

import pytest

from offpath.sched.ina.trees import candidates
from offpath.sched.inc import errors
from offpath.sched.inc.live import tree_events, tree_hire
from offpath.sched.inc.live.live_hire import LiveHire
from offpath.sched.inc.live.records import Request, RequestState, TaskState
from offpath.sched.inc.live.tree_hire import TreeHire
from offpath.sched.inc.request import Connection
from offpath.sched.topology.fattree import fat_tree, leaf_spine

from ...sizes import SIZE
from .test_live import composite, judge, spec
from .tree_world import TOPOLOGIES, TreeWorld, judge_trees, where


def test_ranks_of_three_racks_get_their_leaves_and_one_spine_and_start_with_them() -> None:
    here = TreeWorld(leaf_spine(3, 1, 2))
    request = here.submit()
    here.round()
    assert request.state is RequestState.RUNNING
    assert request.chosen["sum"] == "sharp"
    assert len(where(request, "sum.sharp")) == 4
    assert "the smallest tree with room over" in request.reasons["sum"]
    order = [here.book.get("r").tasks[identity].group for identity in here.ever]
    assert sorted(order) == ["ranks.server"] * 3 + ["sum.sharp"] * 4
    judge_trees(here)
    here.carry(here.book.cancel("r"))
    assert (here.running, request.tasks) == ({}, {})
    with pytest.raises(errors.RequestExists, match="still being stopped"):
        here.submit()
    here.carry(tree_events.released(here.book, "r", "sum"))
    here.submit()


def test_ranks_of_one_rack_need_its_leaf_only() -> None:
    here = TreeWorld(leaf_spine(1, 3, 1))
    request = here.submit()
    here.round()
    assert where(request, "sum.sharp") == [here.topology.names[3]]


def test_ranks_wait_for_the_choice_and_without_room_for_a_tree_the_sum_runs_on_servers() -> None:
    here = TreeWorld(leaf_spine(2, 2, 1))
    first = here.submit("first", 3)
    here.round()
    assert first.chosen["sum"] == "sharp"
    here.carry(here.book.cancel("first"))
    here.carry(here.book.node_lost(here.topology.names[-1], here.now_ms))
    second = here.submit("second", 3, among=("sharp", "server"))
    here.round()
    assert {each.state for each in second.tasks.values()} == {TaskState.PLACED}, "they would not learn of the tree"
    here.round(6)
    assert second.chosen["sum"] == "server"
    assert "no sharp: no tree of switches with room joins" in second.reasons["sum"]
    assert second.state is RequestState.RUNNING
    here.book.node_back(here.topology.names[-1])
    here.round(8)
    assert second.chosen["sum"] == "server", "its ranks have begun without a tree"


def test_what_waits_for_a_tree_says_why() -> None:
    here = TreeWorld()
    here.set_controller(tree_hire.NO_ANSWER_YET)
    patient = here.submit("patient", 2)
    here.round(3)
    assert patient.waits == {"sum.sharp": f"4 wait: {tree_hire.NO_ANSWER_YET}"}, "it does not fall back meanwhile"
    here.carry(here.book.cancel("patient"))
    here.set_controller("the INA controller is away")
    request = here.submit(among=("sharp",))
    here.round(3)
    assert "the INA controller is away" in request.waits["sum.sharp"]
    assert not here.running
    here.usable = frozenset()
    here.set_controller()
    here.round()
    assert "the INA controller does not reach" in request.waits["sum.sharp"]
    here.usable = frozenset(range(here.topology.hosts, here.topology.nodes))
    here.set_controller()
    here.round()
    assert request.state is RequestState.RUNNING


def test_a_sum_without_ranks_is_refused_if_nothing_else_can_run() -> None:
    here = TreeWorld()
    alone = spec("r", composite("sum", "aggregate", 1, among=("sharp",)))
    with pytest.raises(errors.RanksMissing, match="it has 0"):
        here.book.submit(alone, 0)
    with pytest.raises(errors.RanksMissing, match="it has 1"):
        here.submit(ranks=1, among=("sharp",))
    here.carry(here.book.submit(spec("r", composite("sum", "aggregate", 1)), 0))
    here.round(3)
    assert here.book.get("r").state is RequestState.RUNNING


def test_a_tree_that_loses_a_switch_is_booked_anew_whole_and_keeps_its_name() -> None:
    here = TreeWorld(leaf_spine(3, 1, 2))
    request = here.submit(among=("sharp", "server"))
    here.round()
    before, name = where(request, "sum.sharp"), request.trees["sum"].name
    spine = next(each for each in before if here.topology.level[here.topology.names.index(each)] == 2)
    here.carry(here.book.node_lost(spine, here.now_ms))
    here.round()
    assert request.chosen["sum"] == "sharp"
    assert len(set(before) & set(where(request, "sum.sharp"))) == 3
    assert spine not in where(request, "sum.sharp")
    assert request.trees["sum"].name == name
    judge_trees(here)
    leaf = next(each for each in before if each != spine)
    here.carry(here.book.node_lost(leaf, here.now_ms))
    here.round(2)
    assert (request.chosen["sum"], where(request, "sum.sharp")) == ("server", [])
    assert "a switch of its tree was lost" in " ".join(request.history)
    assert request.trees["sum"].name == name, "ranks that run continue with it"


def test_a_switch_that_the_controller_cannot_use_any_more_is_as_lost() -> None:
    here = TreeWorld(leaf_spine(3, 1, 2))
    request = here.submit()
    here.round()
    spine = max(map(here.topology.names.index, where(request, "sum.sharp")))
    here.usable -= {spine}
    here.set_controller("no answer")
    here.round()
    assert here.topology.names[spine] in where(request, "sum.sharp"), "while there is no answer nothing changes"
    here.set_controller()
    here.round()
    assert here.topology.names[spine] not in where(request, "sum.sharp")
    judge_trees(here)


def test_a_tree_survives_a_restart_as_it_is_and_one_that_is_incomplete_is_booked_anew() -> None:
    here = TreeWorld(leaf_spine(3, 1, 2))
    request = here.submit()
    here.round()
    before = set(request.tasks)
    here.again()
    here.round(3)
    assert set(here.book.get("r").tasks) == before
    node = where(here.book.get("r"), "sum.sharp")[0]
    here.carry(here.book.node_lost(node, here.now_ms))
    here.again()
    here.round(2)
    judge_trees(here)
    assert len(where(here.book.get("r"), "sum.sharp")) == 4


def test_a_request_whose_ranks_have_all_ended_ends_with_its_tree() -> None:
    here = TreeWorld()
    request = here.submit()
    here.round()
    for identity in [each.identity for each in request.tasks.values() if not each.is_inc]:
        here.running.pop(identity)
        here.carry(here.book.ended("r", identity, True, "end", here.now_ms))
    assert request.state is RequestState.SUCCEEDED
    assert (here.running, request.tasks) == ({}, {})


def test_ranks_that_end_while_a_switch_of_their_tree_is_lost_end_the_request_and_start_nothing_new() -> None:
    for among in (("sharp",), ("sharp", "server")):
        here = TreeWorld(leaf_spine(3, 1, 1))
        request = here.submit(among=among)
        here.round()
        first, *others = [each for each in request.tasks.values() if not each.is_inc]
        here.running.pop(first.identity)
        here.carry(here.book.ended("r", first.identity, True, "end", here.now_ms))
        here.carry(here.book.node_lost(here.topology.names[-1], here.now_ms))
        here.round(6)
        assert request.waits["sum.sharp"] == "4 wait: one of its ranks has ended already"
        assert {each.group for each in request.tasks.values()} == {"ranks.server"}
        for each in others:
            here.running.pop(each.identity)
            here.carry(here.book.ended("r", each.identity, True, "end", here.now_ms))
        assert request.state is RequestState.SUCCEEDED
        assert (here.running, request.tasks) == ({}, {})


def test_a_rank_on_another_host_gets_a_tree_of_its_rack_and_nothing_of_the_old_one_stays_booked() -> None:
    here = TreeWorld(leaf_spine(4, 1, 2))
    request = here.submit()
    here.round()
    names, up = here.topology.names, here.topology.up
    name, hosts, before = request.trees["sum"], set(where(request, "ranks.server")), set(where(request, "sum.sharp"))
    gone = min(hosts)
    (spare,) = set(names[: here.topology.hosts]) - hosts
    old, new = (names[up[names.index(host)][0][0]] for host in (gone, spare))
    slot = next(each.slot for each in request.tasks.values() if each.node == gone)
    identities = {each.identity for each in request.tasks.values() if each.is_inc}
    here.carry(here.book.node_lost(gone, here.now_ms))
    assert set(where(request, "sum.sharp")) == before, "while a rank has no place its tree stays"
    here.round()
    assert set(where(request, "ranks.server")) == hosts - {gone} | {spare}
    assert next(each.slot for each in request.tasks.values() if each.node == spare) == slot
    after = set(where(request, "sum.sharp"))
    assert (old in before, new in after, old in after) == (True, True, False)
    assert not identities & set(request.tasks), "the old tree is given back whole"
    assert not identities & set(here.running)
    assert not any(here.hire.resources.used(names.index(old)))
    assert sum(any(here.hire.resources.used(node)) for node in range(here.topology.hosts, here.topology.nodes)) == 4
    assert request.trees["sum"] == name
    assert "it does not fit the places of its ranks any more" in " ".join(request.history)
    judge(here)
    judge_trees(here)
    here.again()
    here.round()
    assert set(where(here.book.get("r"), "sum.sharp")) == after


def test_ranks_that_began_without_a_tree_get_none_after_a_restart() -> None:
    here = TreeWorld(leaf_spine(3, 1, 1))
    request = here.submit(among=("sharp", "server"))
    here.carry(here.book.node_lost(here.topology.names[-1], here.now_ms))
    here.round(6)
    assert request.chosen["sum"] == "server"
    (server,) = where(request, "sum.server")
    here.carry(here.book.lost("r", next(i for i, each in request.tasks.items() if each.group == "sum.server"), "", 0))
    assert server
    here.book.node_back(here.topology.names[-1])
    here.again()
    here.round(6)
    assert here.book.get("r").chosen["sum"] == "server"
    assert "its ranks have begun without a tree" in here.book.get("r").reasons["sum"]


def two_sums(here: TreeWorld, first: tuple[str, ...], second: tuple[str, ...]) -> Request:
    """Two composites that sum for the same ranks."""
    sums = [composite(name, "aggregate", 1, 0, among=among) for name, among in (("s1", first), ("s2", second))]
    links = tuple(Connection("ranks", each.name, True) for each in sums)
    here.carry(here.book.submit(spec("two", composite("ranks", tasks=2), *sums, connections=links), here.now_ms))
    return here.book.get("two")


def test_ranks_use_one_tree_and_the_other_sum_of_theirs_runs_on_servers() -> None:
    both = ("sharp", "server")
    for first, second, expected in ((both, both, "s1"), (both, ("sharp",), "s2"), (("sharp",), both, "s1")):
        here = TreeWorld()
        request = two_sums(here, first, second)
        here.round(6)
        (other,) = {"s1", "s2"} - {expected}
        assert request.chosen == {"ranks": "server", expected: "sharp", other: "server"}
        assert list(request.trees) == [expected]
        assert f"no sharp: its ranks use the tree of {expected}" in request.reasons[other]
    here = TreeWorld()
    with pytest.raises(errors.FlavorsContradict, match=r"s1\.sharp and s2\.sharp need a tree each"):
        two_sums(here, ("sharp",), ("sharp",))


def test_servers_beside_the_switches_of_another_composite_are_no_ranks() -> None:
    here = TreeWorld()
    cache = composite("cache", "cache", 2, among=("netcache",), servers_percent={"netcache": 100})
    sums = composite("sum", "aggregate", 1, among=("sharp",))
    wanted = spec("r", cache, sums, connections=(Connection("cache", "sum", True),))
    with pytest.raises(errors.RanksMissing, match="it has 0"):
        here.book.submit(wanted, 0)


def test_a_round_takes_no_more_identities_than_are_reserved() -> None:
    here = TreeWorld(leaf_spine(4, 25, 2))
    demand = {"sharp": {"sram_kib": 1_024}}
    for number in range(50):
        ranks = composite("ranks", tasks=8, cpu=100)
        sums = composite("sum", "aggregate", 1, 0, among=("sharp",), demand=demand)
        here.carry(here.book.submit(spec(f"r{number}", ranks, sums, connections=(Connection("ranks", "sum"),)), 0))
    here.round()
    assert here.used > here.topology.nodes + 64, "a node gets several tasks in a round"
    here = TreeWorld()
    here.submit("other", 2, ("sharp", "server"))
    here.round()
    here.usable = frozenset()
    here.set_controller()
    here.round(6)
    assert here.book.get("other").chosen["sum"] == "server"


def test_a_job_manager_without_a_controller_names_the_jobs_that_it_cannot_release() -> None:
    here = TreeWorld()
    here.submit()
    here.round()
    name = here.book.get("r").trees["sum"].name
    here.carry(here.book.cancel("r"))
    here.restart(here.made(LiveHire(here.resources())))
    request = here.book.get("r")
    assert request.is_gone
    assert name in request.history[-1]
    here.carry(here.book.submit(request.spec, here.now_ms))


def test_a_tree_that_the_controller_refuses_gives_its_place_to_the_servers() -> None:
    here = TreeWorld()
    request = here.submit(among=("sharp", "server"))
    here.round()
    here.carry(tree_events.refused(here.book, "r", "sum", "no_room: h1", here.now_ms))
    assert where(request, "sum.sharp") == []
    here.round(6)
    assert request.chosen["sum"] == "server"
    assert "no sharp: no_room: h1" in request.reasons["sum"]


def test_a_quota_counts_the_largest_tree() -> None:
    here = TreeWorld(fat_tree(4))
    request = here.submit(ranks=3)
    (tree,) = [each for each in here.hire.jobs["r"].request.groups if each.service == "sharp"]
    assert tree.tasks == 9, "on each of three levels a switch for each rank"
    here.round()
    assert len(where(request, "sum.sharp")) <= tree.tasks


# -- any sequence of events -------------------------------------------------------------------------------------------


def drive(draw: Random, steps: int = 30) -> TreeWorld:
    here = TreeWorld(draw.choice(TOPOLOGIES))
    switches = range(here.topology.hosts, here.topology.nodes)
    for _ in range(steps):
        match draw.randrange(8):
            case 0 | 1:
                with contextlib.suppress(errors.RequestExists):
                    among = draw.choice([(), ("sharp",), ("sharp", "server")])
                    here.submit(f"r{draw.randrange(4)}", draw.randint(2, 5), among, draw.choice((2_048, 8_192)))
            case 2:
                if here.book.requests:
                    name = draw.choice(sorted(here.book.requests))
                    here.carry(here.book.cancel(name))
                    here.carry(tree_events.released(here.book, name, "sum"))
            case 3:
                node = draw.choice(here.topology.names)
                here.carry(here.book.node_lost(node, here.now_ms))
                if draw.random() < 0.8:
                    here.book.node_back(node)
            case 4:
                here.usable = frozenset(each for each in switches if draw.random() < 0.9)
                here.set_controller(draw.choice(("", "", "away")))
            case 5:
                here.again()
            case 6:
                if here.running:
                    identity = draw.choice(sorted(here.running))
                    name = here.running.pop(identity)
                    here.carry(here.book.lost(name, identity, "killed", here.now_ms))
            case 7:
                if here.book.requests:
                    name = draw.choice(sorted(here.book.requests))
                    here.carry(tree_events.refused(here.book, name, "sum", "no_room", here.now_ms))
        here.round(draw.randrange(1, 3))
        judge(here)
        judge_trees(here)
    return here


def drive_many(count: int) -> None:
    for seed in range(count):
        drive(Random(seed))


@pytest.mark.parametrize("seed", range({"full": 200}.get(SIZE, 12)))
def test_under_any_events_a_tree_is_whole_or_not_booked(seed: int) -> None:
    here = drive(Random(seed))
    for name in list(here.book.requests):
        here.carry(here.book.cancel(name))
    assert here.running == {}
    assert all(not any(here.hire.resources.used(node)) for node in range(here.topology.nodes))


@pytest.mark.parametrize("bug", ["any_switch", "never_broken", "size", "aside"])
def test_a_planted_bug_is_found(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if bug == "any_switch":
        monkeypatch.setattr(
            tree_hire, "within", lambda topology, hosts, allowed: candidates(topology, hosts, None, Random(0))
        )
    elif bug == "never_broken":
        monkeypatch.setattr(TreeHire, "_fault_of", lambda *_: "")
    elif bug == "size":
        monkeypatch.setattr(TreeHire, "expect", lambda *_: None)
        monkeypatch.setattr(TreeHire, "_broken", lambda *_: iter(()))
    else:
        monkeypatch.setattr(TreeHire, "_set_aside", lambda *_: None)
    with pytest.raises((AssertionError, KeyError, errors.IncError)):
        drive_many(40)
