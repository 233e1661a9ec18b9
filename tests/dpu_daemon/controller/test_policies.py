"""The controller's policies: the built-ins, and plug-ins in processes of their own, good ones and hostile ones."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from offpath.dpu_daemon.controller.plugin_child import INA_SHARING, PLACEMENT, TREE_BUILDER
from offpath.dpu_daemon.controller.plugin_slots import Building, Placing, PluginSlot, SharingOut
from offpath.dpu_daemon.controller.tuning import Tuner
from offpath.dpu_daemon.policy.plugins import PluginError
from offpath.sched.ina.conflicts import HDR, Limit, Per
from offpath.sched.ina.protocol.events import JobView
from offpath.sched.ina.protocol.records import Wants
from offpath.sched.ina.sharing.layout import TreeUnusable, lay, roles
from offpath.sched.ina.sharing.planner import Planner, Settings
from offpath.sched.ina.sharing.policies import Mina, Mode, Share, grouped, one_root, over_capacity
from offpath.sched.ina.trees import Tree, build, roots
from offpath.sched.placement.baselines import FirstN
from offpath.sched.placement.cluster import Cluster
from offpath.sched.placement.port import Request
from offpath.sched.topology import imported

from ...support.sample_policies import install

WORDS = "leaf-spine:4x2x2"
TOPOLOGY = imported.regular(WORDS)
SWITCHES = frozenset(range(TOPOLOGY.hosts, TOPOLOGY.nodes))
ADDRESSES = {TOPOLOGY.names[switch]: f"unix:///{TOPOLOGY.names[switch]}" for switch in SWITCHES}
LEAVES = {up for host in range(TOPOLOGY.hosts) for up, _ in TOPOLOGY.up[host]}


def tree(hosts: tuple[int, ...], n: int = 0) -> Tree:
    return build(TOPOLOGY, hosts, roots(TOPOLOGY, hosts)[n])


def planner(mode: str = "shared", capacity: int = 1, *, tuner: Tuner | None = None, **more: Any) -> Planner:
    settings = Settings(mode, capacity, **more)
    return Planner(TOPOLOGY, ADDRESSES, Mina(5, Random(0)), Mode(mode), settings, tuner or Tuner())


def view(job: str, *hosts: int, incarnation: int = 1) -> JobView:
    return JobView(job, incarnation, tuple(TOPOLOGY.names[host] for host in hosts), 0)


UP = dict.fromkeys(ADDRESSES, 1)


# -- trees on the ground ----------------------------------------------------------------------------------------------
def test_each_rank_joins_its_hosts_leaf_and_each_switch_knows_its_part() -> None:
    laid = lay(TOPOLOGY, tree((0, 2)), (0, 0, 2, 2), ADDRESSES)
    root, *leaves = laid.parts
    assert (root.parent, root.local) == ("", ())
    assert sorted(part for _, part in root.below) == [(0, 1), (2, 3)]
    assert [(leaf.parent, leaf.below) for leaf in leaves] == [(ADDRESSES[root.switch], ())] * 2
    assert sorted(leaf.local for leaf in leaves) == [(0, 1), (2, 3)]
    assert laid.attach == tuple(ADDRESSES[name] for name, _ in root.below for _ in range(2))


@pytest.mark.parametrize(
    "broken",
    [
        Tree(99, (8, 9), ()),
        Tree(8, (8, 9), ()),
        Tree(8, (8,), (999,)),
        Tree(8, (8,), ()),
    ],
)
def test_what_is_no_tree_of_the_hosts_is_refused(broken: Tree) -> None:
    with pytest.raises(TreeUnusable):
        roles(TOPOLOGY, broken, (0, 7))


def test_a_switch_that_does_not_aggregate_makes_a_tree_unusable() -> None:
    with pytest.raises(TreeUnusable, match="no aggregating switch"):
        lay(TOPOLOGY, tree((0, 2)), (0, 2), {})


# -- planning ---------------------------------------------------------------------------------------------------------
def test_trees_that_meet_away_from_a_root_are_not_both_given() -> None:
    trees = {"one": tree((0, 2)), "two": tree((1, 3), n=1)}
    assert trees["one"].root != trees["two"].root
    kept, without = one_root(trees, HDR)
    assert (list(kept), list(without)) == (["one"], ["two"])
    assert "two" in over_capacity(trees, HDR)
    assert over_capacity(trees, Limit(Per.SWITCH, 2)) == ""


def test_jobs_are_grouped_by_the_root_that_they_share() -> None:
    trees = {"one": tree((0, 2)), "two": tree((1, 3))}
    assert grouped(trees, HDR, list(trees)) == {trees["one"].root: ("one", "two")}


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("none", {}),
        ("all", {"a": (Wants.ALWAYS, "a"), "b": (Wants.ALWAYS, "b")}),
        ("exclusive", {"a": (Wants.ALWAYS, "at")}),
        ("alternate", {"b": (Wants.ALWAYS, "at")}),
        ("trylock", {"a": (Wants.ALWAYS, "at"), "b": (Wants.ALWAYS, "at")}),
        ("shared", {"a": (Wants.PLAN, "at"), "b": (Wants.PLAN, "at")}),
    ],
)
def test_a_mode_says_who_uses_the_root_and_in_whose_group(mode: str, expected: dict[str, Any]) -> None:
    plan = planner(mode, 2 if mode == "all" else 1)((view("a", 0, 2), view("b", 1, 3)), UP, 1_500_000_000)
    assert {job: (given.wants, given.group.split()[0]) for job, given in plan.items()} == expected


def test_a_job_of_one_host_or_of_strange_hosts_or_with_a_switch_away_gets_none_and_is_told_why() -> None:
    plans = planner()
    views = (view("alone", 0, 0), JobView("far", 1, ("nowhere", TOPOLOGY.names[0]), 0), view("cut", 1, 3))
    down = {name: 1 for name in UP if name not in {TOPOLOGY.names[switch] for switch in LEAVES}}
    assert plans(views, down, 0) == {}
    why = plans.plan.without
    assert "one host" in why["alone"]
    assert "not a host of the topology" in why["far"]
    assert "unreachable" in why["cut"]


def test_a_job_keeps_its_tree_while_others_come_and_go() -> None:
    plans = planner()
    first = plans((view("a", 0, 2),), UP, 0)["a"].tree
    assert plans((view("a", 0, 2), view("b", 1, 3), view("c", 4, 6)), UP, 1)["a"].tree == first
    assert plans((view("a", 0, 2), view("c", 4, 6)), UP, 2)["a"].tree == first


def test_a_step_is_planned_with_once_it_is_measured_and_not_for_every_tremor() -> None:
    plans = planner(link_bytes_per_s=1e9, latency_us=0.0)
    both = (view("a", 0, 0, 2, 2),)
    assert plans(both, UP, 0)["a"].step is None
    pattern = {"duration": 0.1, "allreduces": [{"start": 0.01, "size": 1_000_000}]}
    assert plans.measured("a", 1, pattern)
    step = plans(both, UP, 1)["a"].step
    assert step is not None
    assert (step.plain_ns, step.ina_ns) == ((1_500_000,), (1_000_000,)), "4 ranks: 2·3/4 of the bytes, or all once"
    assert not plans.measured("a", 1, {**pattern, "duration": 0.11})
    assert plans.measured("a", 1, {**pattern, "duration": 0.2})
    for hostile in (None, 3, {}, {"duration": -1, "allreduces": []}, {**pattern, "duration": float("nan")}):
        assert not plans.measured("a", 1, hostile)


# -- plug-ins ---------------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sample package, installed as any other."""
    folder = tmp_path_factory.mktemp("site")
    install(folder)
    return folder


@pytest.fixture
def installed(site: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("PYTHONPATH", str(site))
    return


HOSTILE = ["raises", "nonsense", "sleeps", "dies"]
DEADLINE_S = 1.0
PATIENT_S = 60.0
"""Of plug-ins that answer, well or badly: on a busy machine they are late."""


def new_peak_kib() -> int:
    """The peak of our resident memory counts from here on (proc(5), clear_refs); returns: what it is now."""
    Path("/proc/self/clear_refs").write_text("5")
    return peak_kib()


def peak_kib() -> int:
    found = re.search(r"^VmHWM:\s+(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1])


@pytest.mark.usefixtures("installed")
def test_an_installed_placement_decides_and_a_hostile_one_is_quarantined() -> None:
    cluster = Cluster(TOPOLOGY, (0, 1))
    good = Placing(PluginSlot.of(PLACEMENT, "plugin:last", FirstN(), PATIENT_S), WORDS)
    assert good.place(cluster, Request(2)).hosts == (6, 7)
    assert good.slot.is_advised
    good.slot.close()
    for name in ("taken", *HOSTILE):
        slot = PluginSlot.of(PLACEMENT, f"plugin:{name}", FirstN(), DEADLINE_S)
        assert Placing(slot, WORDS).place(cluster, Request(2)).hosts == (2, 3), name
        assert (slot.faults, slot.is_advised) == (1, False), name


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("huge", "a reply of 100000000 bytes"),
        ("many", "a reply of 15000015 bytes"),
        ("drips", "no answer in"),
        ("deep", "not JSON"),
        ("nan", "not JSON"),
        ("no-json", "not JSON"),
        ("forked", "no answer in"),
        ("closes", "its process ended"),
        ("stops", "no answer in"),
        ("kills-its-group", "its process ended"),
        ("allocates", "MemoryError"),
        ("before", "not in the topology"),
        ("beyond", "not in the topology"),
    ],
)
def test_a_plug_in_that_turns_on_the_controller_costs_it_an_answer(
    name: str, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither its memory nor its processes: the built-in answers, and nothing of the plug-in's is left to reap."""
    slot = PluginSlot.of(PLACEMENT, f"plugin:{name}", FirstN(), DEADLINE_S if why == "no answer in" else PATIENT_S)
    process = slot.process
    assert process is not None
    before_kib = new_peak_kib()
    with caplog.at_level(logging.WARNING):
        assert Placing(slot, WORDS).place(Cluster(TOPOLOGY, (0, 1)), Request(2)).hosts == (2, 3)
    assert why in caplog.text
    assert (slot.faults, slot.is_advised) == (1, False)
    assert process._process.returncode is not None, "it was reaped"
    assert peak_kib() - before_kib < 32 << 10


@pytest.mark.usefixtures("installed")
def test_an_answer_to_another_question_is_held_against_this_one_and_prints_are_no_answers() -> None:
    twice = Placing(PluginSlot.of(PLACEMENT, "plugin:twice", FirstN(), PATIENT_S), WORDS)
    assert twice.place(Cluster(TOPOLOGY, (0, 1)), Request(2)).hosts == (6, 7)
    assert twice.place(Cluster(TOPOLOGY, (0, 1, 6, 7)), Request(2)).hosts == (2, 3)
    assert twice.slot.faults == 1
    prints = Placing(PluginSlot.of(PLACEMENT, "plugin:prints", FirstN(), PATIENT_S), WORDS)
    assert [prints.place(Cluster(TOPOLOGY, (0, 1)), Request(2)).hosts for _ in range(5)] == [(6, 7)] * 5
    prints.slot.close()


@pytest.mark.usefixtures("installed")
def test_the_reasons_of_a_plug_in_are_few_short_and_printable() -> None:
    """They go to operators' terminals and into the state file, as they are."""
    placing = Placing(PluginSlot.of(PLACEMENT, "plugin:verbose", FirstN(), DEADLINE_S), WORDS)
    decision = placing.place(Cluster(TOPOLOGY, (0, 1)), Request(2))
    placing.slot.close()
    assert (decision.hosts, placing.slot.faults) == ((6, 7), 0), "the choice itself is legal"
    assert decision.reasons[:2] == ("?[2J?mine", "w" * 160)
    assert len(decision.reasons) == 16


@pytest.mark.usefixtures("installed")
def test_an_installed_tree_builder_decides_and_a_hostile_one_is_quarantined() -> None:
    jobs = {"one": (0, 2), "two": (1, 3)}
    built_in = Mina(5, Random(0))
    good = Building(PluginSlot.of(TREE_BUILDER, "plugin:lowest-root", built_in, PATIENT_S), WORDS, SWITCHES)
    trees = good.build(TOPOLOGY, jobs, {}, HDR)
    assert {job: found.root for job, found in trees.items()} == dict.fromkeys(jobs, tree((0, 2)).root)
    assert good.build(TOPOLOGY, jobs, trees, HDR) == trees
    assert good.slot.is_advised
    good.slot.close()
    expected = built_in.build(TOPOLOGY, jobs, {}, HDR)
    for name in ("crowded", "torn", *HOSTILE):
        slot = PluginSlot.of(TREE_BUILDER, f"plugin:{name}", built_in, DEADLINE_S)
        assert Building(slot, WORDS, SWITCHES).build(TOPOLOGY, jobs, {}, HDR) == expected, name
        assert (slot.faults, slot.is_advised) == (1, False), name


@pytest.mark.usefixtures("installed")
def test_an_installed_sharing_decides_and_a_hostile_one_is_quarantined() -> None:
    good = SharingOut(PluginSlot.of(INA_SHARING, "plugin:last-come", Mode("shared"), PATIENT_S))
    assert good.share(("one", "two"), 0) == {"two": Share(Wants.ALWAYS, is_shared=False)}
    assert good.slot.is_advised
    good.slot.close()
    expected = Mode("shared").share(("one", "two"), 0)
    for name in ("selfish", *HOSTILE):
        slot = PluginSlot.of(INA_SHARING, f"plugin:{name}", Mode("shared"), DEADLINE_S)
        assert SharingOut(slot).share(("one", "two"), 0) == expected, name
        assert (slot.faults, slot.is_advised) == (1, False), name


@pytest.mark.usefixtures("installed")
def test_a_plug_in_that_is_not_installed_is_refused_at_the_start() -> None:
    with pytest.raises(PluginError, match="no installed package"):
        PluginSlot.of(PLACEMENT, "plugin:nowhere", FirstN(), DEADLINE_S)
