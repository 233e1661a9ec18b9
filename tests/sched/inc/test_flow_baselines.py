"""CoCo++ and HIRE with one flavor decision for each job, and the names of the policies."""

from __future__ import annotations

import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offpath.sched.errors import SchedError
from offpath.sched.inc.coco import CoCo
from offpath.sched.inc.decisions import FlavorChosen, Placed, Postponed, Preempted, Why
from offpath.sched.inc.flavors import Status
from offpath.sched.inc.network import Limits
from offpath.sched.inc.one_flavor import JOINT, ON_SERVERS, ON_SWITCHES, HireOneFlavor, one_flavor
from offpath.sched.inc.policies import GROUP, NINE, POLICIES, make, policy
from offpath.sched.inc.request import Composite, CompReq, Servers
from offpath.sched.inc.resources import ServerSpec, SwitchSpec
from offpath.sched.inc.transform import transform
from offpath.sched.inc.variants import Mode
from offpath.sched.topology.fattree import fat_tree, leaf_spine

from .book import ROUND_MS, World, drive, end, of_kind, rounds
from .requests import STORE, web_application
from .worlds import ALL, cluster

ROOT = Path(__file__).parents[3]
CHAIN = CompReq("j", (Composite("c", "coordinator", Servers(2, 1_000, 1_024)),))


def coco(world_seed: int | None = None, *, limits: Limits | None = None, fallback_ms: int = 1_200) -> World:
    world = World(0)
    resources = cluster(leaf_spine(3, 2, 2), seed=world_seed, is_shared=False)
    world.use(CoCo(resources, limits, fallback_ms=fallback_ms))
    return world


def one_decision(seed: int) -> World:
    world = World(0)
    world.use(HireOneFlavor(cluster(leaf_spine(3, 2, 2), seed=seed)))
    return world


@given(st.integers(0, 10**9))
def test_coco_keeps_capacity_one_flavor_and_the_book_and_leaks_nothing(seed: int) -> None:
    world = drive(coco(seed, limits=Limits(groups=12, shortcuts=3)), Random(seed))
    placed = of_kind(world.round(), Placed)
    assert len({each.node for each in placed}) == len(placed), "one task per node and round"
    end(world)


@given(st.integers(0, 10**9))
def test_one_flavor_keeps_capacity_one_flavor_and_the_book_and_leaks_nothing(seed: int) -> None:
    end(drive(one_decision(seed), Random(seed)))


@pytest.mark.parametrize("build", [coco, one_decision])
def test_decisions_are_deterministic(build: object) -> None:
    assert callable(build)
    logs = [drive(build(5), Random(5)).log for _ in range(2)]
    assert logs[0] == logs[1] != []


def test_coco_serves_switches_first_and_falls_back_after_the_timeout() -> None:
    world = coco(fallback_ms=3 * ROUND_MS)
    world.submit(CHAIN)
    rounds(world, 4)
    assert world.chosen == {("j", "c"): "netchain"}
    assert len({node for _, node in world.running}) == 3

    world = coco(fallback_ms=3 * ROUND_MS)
    for switch in (6, 7, 8):
        world.take(world.hire.lose(switch, 0))
    world.submit(CHAIN)
    rounds(world, 3)
    assert world.chosen == {("j", "c"): "netchain"}, "two switches are left for three tasks"
    assert len(world.running) == 2
    seen = rounds(world, 4)
    assert [(each.implementation, each.reason.why) for each in of_kind(seen, Preempted)] == [
        ("netchain", Why.TIMED_OUT)
    ]
    assert world.chosen == {("j", "c"): "server"}
    assert all(node < 6 for _, node in world.running)


def test_a_rack_of_coco_gives_each_of_two_groups_a_switch_that_fits_both() -> None:
    """Harmonia twice, equal demands: one virtual rack, two switches with room for one task each."""
    topology = leaf_spine(2, 1, 1)
    full = SwitchSpec(ALL, capacity=(0, 6, 2_048))
    world = World(0)
    world.use(make(policy("coco++"), topology, [ServerSpec((1_000, 1_024))] * 2,
                   [full, full, SwitchSpec(most_services=0)]))  # fmt: skip
    for name in ("one", "two", "three"):
        world.submit(CompReq(name, (Composite("c", "replicate", Servers(1, 1_000, 1), among=("harmonia",)),)))
    placed = of_kind(world.round(), Placed)
    assert sorted(each.node for each in placed) == [2, 3]
    assert len({each.group for each in placed}) == 2
    assert of_kind(rounds(world, 3), Placed) == [], "the third waits"


def test_coco_lets_nobody_overtake_behind_its_limit_of_groups() -> None:
    world = coco(limits=Limits(groups=2))
    for name in ("a", "b", "c"):
        world.submit(CompReq(name, (Composite("c", "server", Servers(1, 1_000, 1)),)))
    seen = world.round()
    assert [each.group[0] for each in of_kind(seen, Placed)] == ["a", "b"]
    assert [(each.group[0], each.reason.why) for each in of_kind(seen, Postponed)] == [("c", Why.BACKLOG)]
    assert [each.group[0] for each in of_kind(world.round(), Placed)] == ["c"]


def test_one_flavor_has_two_variants_of_the_whole_request() -> None:
    """Figure 4b: c2, c3 and c5 have a choice; of c3's three caches the first stays."""
    request = transform(web_application(), STORE)
    joint = one_flavor(request)
    assert joint.active == "xx"
    assert joint.choices("xx") == [("c1", "server"), (JOINT, ON_SWITCHES), (JOINT, ON_SERVERS), ("c4", "server")]
    on = {each.id[1] for each in joint.implementation(JOINT, ON_SWITCHES)}
    assert on == {"c2.r2p2", "c3.incbricks", "c5.netchain"}
    assert {each.id[1] for each in joint.implementation(JOINT, ON_SERVERS)} == {"c2.server", "c3.server", "c5.server"}
    for active, wanted in (("10", on | {"c1.server", "c4.server"}), ("01", None)):
        selected = {name for (_, name), status in joint.statuses(active).items() if status is Status.SELECTED}
        assert wanted is None or selected == wanted
        assert len(selected) == 5, "one implementation of each composite"


def test_one_decision_serves_all_composites_alike() -> None:
    world = World(0)
    world.use(HireOneFlavor(cluster(fat_tree(4))))
    world.submit(web_application())
    seen = rounds(world, 12)
    chosen = of_kind(seen, FlavorChosen)
    assert [(each.composite, each.implementation) for each in chosen] == [(JOINT, ON_SWITCHES)]
    assert {group for (_, group), _ in world.running} >= {"c2.r2p2", "c3.incbricks", "c5.netchain"}


def test_one_flavor_leaves_a_request_without_choice_undivided() -> None:
    plain = transform(CompReq("j", (Composite("c", "server", Servers(2, 1, 1)),)), STORE)
    joint = one_flavor(plain)
    assert [(each.id, each.composite, each.flavor) for each in joint.groups] == [(("j", "c.server"), "c", "xx")]
    only = transform(CompReq("j", (Composite("c", "coordinator", Servers(2, 1, 1), among=("netchain",)),)), STORE)
    assert [each.composite for each in one_flavor(only).groups] == ["c"]


def test_the_artifacts_nine_and_the_readings_are_there_by_name() -> None:
    assert len(NINE) == 9
    assert set(NINE) <= set(POLICIES)
    assert {name for name, each in POLICIES.items() if each.mode is Mode.TIMEOUT} == {
        "coco++", "k8++/timeout", "yarn++/timeout", "sparrow++/timeout",
    }  # fmt: skip
    for name, each in POLICIES.items():
        made = make(each, fat_tree(4), [ServerSpec((1, 1))] * 16, [SwitchSpec()] * 20, fallback_ms=lambda job: 7)
        assert made.resources.is_shared == name.startswith("hire")
    with pytest.raises(SchedError, match="unknown policy 'nope'"):
        policy("nope")


def test_entry_points_make_a_policy_of_a_cluster() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"][GROUP]
    found = {name: EntryPoint(name, value, GROUP).load() for name, value in declared.items()}
    assert set(found) == {"hire", "hire-one-flavor", "coco++"}
    assert isinstance(found["coco++"](cluster(is_shared=False)), CoCo)
