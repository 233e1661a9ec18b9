"""Requests become task groups by the templates' rules; what contradicts them is refused with its kind."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offpath.sched.inc import errors, flavors
from offpath.sched.inc.flavors import Status
from offpath.sched.inc.poly import PolyReq, TaskGroup
from offpath.sched.inc.request import MOST_COMPOSITES, CompReq, Connection, Servers, Tie
from offpath.sched.inc.store import BUILT_IN, CompStore
from offpath.sched.inc.templates import Connectivity, template_of
from offpath.sched.inc.transform import Earlier, Rules, transform

from .requests import SMALL, STORE, composite, web_application


def group_of(poly: PolyReq, name: str) -> TaskGroup:
    return poly.by_id[poly.job, name]


def one(template: str, instances: int = 12, **more: Any) -> PolyReq:
    return transform(CompReq("j", (composite("c", template, Servers(instances, 1_000, 1_024), **more),)), STORE)


# -- Table 3 -------------------------------------------------------------------------------------------------------
TABLE_3: dict[tuple[str, str], tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], str]] = {
    ("aggregate", "sharp"): ((0, 0, 0), (0, 0, 1024), (0, 0, 8192), "tree"),
    ("cache", "incbricks"): ((0, 0, 0), (0, 4, 3072), (40, 8, 12288), "single"),
    ("cache", "netcache"): ((0, 8, 0), (0, 0, 6144), (10, 8, 12288), "tor"),
    ("cache", "distcache"): ((0, 8, 0), (0, 0, 6144), (10, 8, 12288), "spine"),
    ("coordinator", "netchain"): ((0, 8, 0), (0, 0, 6144), (10, 8, 12288), "chain"),
    ("replicate", "harmonia"): ((0, 3, 0), (0, 0, 768), (0, 3, 2048), "single"),
    ("replicate", "hovercraft"): ((0, 18, 0), (0, 0, 0), (10, 18, 128), "single"),
    ("balance", "r2p2"): ((0, 0, 0), (0, 0, 1), (30, 48, 64), "single"),
}
"""Per switch, per instance (least, most); recirculation %, stages, SRAM in KiB."""


@pytest.mark.parametrize(("template", "name"), TABLE_3)
def test_the_store_has_table_3(template: str, name: str) -> None:
    implementation = STORE.template(template).implementation(name)
    assert implementation is not None
    group = implementation.groups[0]
    assert (group.shared, group.least, group.most, group.connectivity.value) == TABLE_3[template, name]


@pytest.mark.parametrize(
    ("template", "name", "tasks", "switches"),
    [  # ⌈ln n⌉, max(3, ⌈ln n⌉), max(3, 3⌈n/1000⌉), ⌈n/9000⌉
        ("aggregate", "sharp", 1, 1), ("aggregate", "sharp", 20, 3), ("aggregate", "sharp", 21, 4),
        ("cache", "netcache", 2, 3), ("cache", "netcache", 1_000, 7),
        ("coordinator", "netchain", 999, 3), ("coordinator", "netchain", 1_001, 6),
        ("replicate", "harmonia", 9_000, 1), ("balance", "r2p2", 9_001, 2),
    ],
)  # fmt: skip
def test_the_number_of_switches_grows_as_table_3_says(template: str, name: str, tasks: int, switches: int) -> None:
    assert group_of(one(template, tasks), f"c.{name}").tasks == switches


def test_a_service_of_two_templates_is_one_service() -> None:
    with pytest.raises(errors.TemplateInvalid, match="different netchain"):
        CompStore({**BUILT_IN, "other": {"netchain": {"groups": [_GROUP]}, "server": {}}})


# -- transformation ------------------------------------------------------------------------------------------------
def test_the_papers_application_has_the_task_groups_of_figure_4c() -> None:
    poly = transform(web_application(), STORE)
    assert {each.id[1]: (each.tasks, each.flavor) for each in poly.groups} == {
        "c1.server": (12, "xxxxxxxx"),
        "c2.r2p2": (1, "10xxxxxx"), "c2.server": (40, "01xxxxxx"),
        "c3.incbricks": (4, "xx1000xx"), "c3.netcache": (4, "xx0100xx"),
        "c3.distcache.spine": (2, "xx0010xx"), "c3.distcache.leaf": (4, "xx0010xx"), "c3.server": (30, "xx0001xx"),
        "c4.server": (12, "xxxxxxxx"),
        "c5.netchain": (3, "xxxxxx10"), "c5.server": (6, "xxxxxx01"),
    }  # fmt: skip
    netchain = group_of(poly, "c5.netchain")
    assert (netchain.demand, netchain.shared) == ((0, 2, 6_144), (0, 8, 0))
    assert netchain.connectivity is Connectivity.CHAIN
    assert netchain.connected == (("web", "c4.server"),)
    assert poly.active == "x" * 8


def test_a_choice_selects_its_groups_and_removes_the_others() -> None:
    poly = transform(web_application(), STORE)
    active = flavors.chosen(group_of(poly, "c3.distcache.leaf").flavor, poly.active)
    by_name = {name: status for (_, name), status in poly.statuses(active).items()}
    assert {name for name, status in by_name.items() if status is Status.SELECTED} == {
        "c1.server", "c4.server", "c3.distcache.spine", "c3.distcache.leaf"
    }  # fmt: skip
    assert {name for name, status in by_name.items() if status is Status.REMOVED} == {
        "c3.incbricks", "c3.netcache", "c3.server"
    }  # fmt: skip


def test_servers_beside_switches_are_rounded_up_and_chosen_together() -> None:
    poly = one("aggregate", 15, among=("sharp", "server"), servers_percent={"sharp": 90})
    beside = group_of(poly, "c.sharp.servers")
    assert (beside.tasks, beside.flavor) == (14, group_of(poly, "c.sharp").flavor)
    assert ("j", "c.sharp") in beside.connected


def test_r2p2s_stages_end_at_a_switchs_unless_read_as_printed() -> None:
    request = CompReq("j", (composite("c", "balance", Servers(200, 1, 1)),))
    bounded, printed = (transform(request, STORE, rules=Rules(stages_are_bounded=each)) for each in (True, False))
    assert group_of(bounded, "c.r2p2").demand[1] == 48
    assert group_of(printed, "c.r2p2").demand[1] == 200


@pytest.mark.parametrize("chosen", ["netchain", "server"])
def test_a_later_request_is_tied_to_an_earlier_one(chosen: str) -> None:
    poly = transform(web_application("first"), STORE)
    earlier = {"first": Earlier(poly, flavors.chosen(group_of(poly, f"c5.{chosen}").flavor, poly.active))}
    request = CompReq("later", (composite("d", "coordinator"),), ties=(Tie("d", "first", "c5", True),))
    later = transform(request, STORE, earlier)
    assert ("first", f"c5.{chosen}") in group_of(later, f"d.{chosen}").connected
    assert {each.implementation for each in later.groups
            if later.statuses(later.active)[each.id] is Status.SELECTED} == {chosen}  # fmt: skip
    other = {"netchain": "server", "server": "netchain"}[chosen]
    against = replace(request, composites=(composite("d", "coordinator", among=(other,)),))
    with pytest.raises(errors.FlavorsContradict, match=f"must run as {chosen}"):
        transform(against, STORE, earlier)


# -- the rule of §5.3 against its definition, exhaustively ---------------------------------------------------------
def test_the_rule_is_the_definition_for_all_vectors_of_three() -> None:
    for flavor, active in product(product("01x", repeat=3), product("01x", repeat=3)):
        pairs = list(zip(flavor, active, strict=True))
        if ("0", "1") in pairs or ("1", "0") in pairs:
            expected = Status.REMOVED
        elif all(mine in ("x", other) for mine, other in pairs):
            expected = Status.SELECTED
        else:
            expected = Status.UNDECIDED
        assert flavors.status("".join(flavor), "".join(active)) is expected


def test_the_printed_selector_never_selects_a_group_that_is_all_x() -> None:
    assert not any(flavors.printed_selector("xx", "".join(active)) for active in product("01", repeat=2))
    assert flavors.status("xx", "01") is Status.SELECTED


@given(st.integers(2, 5), st.data())
def test_of_exclusive_alternatives_exactly_one_is_selected(count: int, data: st.DataObject) -> None:
    mine = [flavors.one_hot(at, count, 2, 1) for at in range(count)]
    pick = data.draw(st.sampled_from(mine))
    active = flavors.chosen(pick, "x" * (count + 3))
    assert [each for each in mine if flavors.status(each, active) is Status.SELECTED] == [pick]
    assert flavors.released(pick, active) == "x" * (count + 3)
    with pytest.raises(errors.FlavorsContradict):
        flavors.chosen(next(each for each in mine if each != pick), active)


# -- hostile requests ----------------------------------------------------------------------------------------------
def request_of(*parts: Any, **more: Any) -> CompReq:
    return CompReq("j", parts, **more)


HOSTILE: dict[str, tuple[CompReq, type[errors.IncRefused]]] = {
    "unknown template": (request_of(composite("c", "quantum")), errors.UnknownTemplate),
    "unknown implementation": (request_of(composite("c", "cache", among=("netchain",))), errors.UnknownTemplate),
    "unknown dimension": (
        request_of(composite("c", "cache", demand={"netcache": {"alus": 1}})), errors.UnknownTemplate),
    "demand of an implementation not chosen": (
        request_of(composite("c", "cache", among=("server",), demand={"netcache": {}})), errors.UnknownTemplate),
    "connection to nothing": (request_of(composite("c"), connections=(Connection("c", "d"),)), errors.UnknownTemplate),
    "tie to nothing": (request_of(composite("c"), ties=(Tie("c", "gone", "c"),)), errors.UnknownTemplate),
    "two of a name": (request_of(composite("c"), composite("c")), errors.UnknownTemplate),
    "endless name": (request_of(composite("c" * 10_000)), errors.UnknownTemplate),
    "circle": (
        request_of(composite("a"), composite("b"), connections=(Connection("a", "b"), Connection("b", "a"))),
        errors.RequestCyclic),
    "circle of one": (request_of(composite("a"), connections=(Connection("a", "a"),)), errors.RequestCyclic),
    "wanted and excluded": (
        request_of(composite("c", "cache", among=("server",), without=("server",))), errors.FlavorsContradict),
    "all excluded": (request_of(composite("c", without=("server",))), errors.FlavorsContradict),
    "negative demand": (request_of(composite("c", servers=Servers(1, -1, 1))), errors.DemandInvalid),
    "huge demand": (request_of(composite("c", servers=Servers(1, 1, 1 << 60))), errors.DemandInvalid),
    "fractional demand": (request_of(composite("c", servers=Servers(1, 0.5, 1))), errors.DemandInvalid),  # type: ignore[arg-type]
    "beyond the template": (
        request_of(composite("c", "cache", demand={"netcache": {"stages": 9}})), errors.DemandInvalid),
    "no instance": (request_of(composite("c", servers=Servers(0, 1, 1))), errors.DemandInvalid),
    "a million instances": (request_of(composite("c", servers=Servers(10**6, 1, 1))), errors.RequestTooLarge),
    "10^100 instances": (request_of(composite("c", servers=Servers(10**100, 1, 1))), errors.RequestTooLarge),
    "no composite": (request_of(), errors.RequestTooLarge),
    "too many composites": (
        request_of(*(composite(f"c{n}") for n in range(MOST_COMPOSITES + 1))), errors.RequestTooLarge),
    "priority below the lowest": (request_of(composite("c"), priority=101), errors.DemandInvalid),
    "percentage above 100": (
        request_of(composite("c", "cache", servers_percent={"netcache": 101})), errors.DemandInvalid),
}  # fmt: skip


@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_request_is_refused_with_its_kind_and_a_short_text(what: str) -> None:
    request, kind = HOSTILE[what]
    with pytest.raises(errors.IncRefused) as refused:
        transform(request, STORE)
    assert type(refused.value) is kind
    assert 0 < len(str(refused.value)) < 400


def test_connections_in_both_directions_are_no_circle() -> None:
    both = (Connection("a", "b", True), Connection("b", "a", True))
    assert len(transform(request_of(composite("a"), composite("b"), connections=both), STORE).groups) == 2


@pytest.mark.parametrize(
    ("flavors_", "why"),
    [(("10", "10"), "can both be chosen"), (("1x", "x1"), "can both be chosen"), (("10", "01x"), "2 letters"),
     (("1y", "01"), "letters of 0, 1, x")],
)  # fmt: skip
def test_alternatives_that_do_not_exclude_each_other_contradict(flavors_: tuple[str, str], why: str) -> None:
    groups = tuple(TaskGroup(("j", name), "c", name, 1, (1, 1), f) for name, f in zip("ab", flavors_, strict=True))
    with pytest.raises(errors.FlavorsContradict, match=why):
        PolyReq("j", groups, "xx")


# -- hostile templates ---------------------------------------------------------------------------------------------
_GROUP = {"connectivity": "single", "count": {"growth": "log"}, "most": [0, 1, 1]}


@pytest.mark.parametrize(
    ("plain", "why"),
    [
        ([], "a table"), ({}, "from 1 to"), ({"a b": {}}, "no name"), ({"a": {"feature": []}}, "unknown key 'feature'"),
        ({"a": {"features": ["p4"]}}, "no groups on switches"), ({"a": {"groups": [{}]}}, "count: a table"),
        ({"a": {"groups": [{**_GROUP, "connectivity": "ring"}]}}, "one of single, tor"),
        ({"a": {"groups": [{**_GROUP, "count": {"growth": "exp"}}]}}, "one of log, per"),
        ({"a": {"groups": [{**_GROUP, "count": {"growth": "per", "per": 0}}]}}, "count.per is 0"),
        ({"a": {"groups": [{**_GROUP, "shared": [0, -1, 0]}]}}, "stages is -1"),
        ({"a": {"groups": [{**_GROUP, "shared": [0, 1 << 99, 0]}]}}, "whole number"),
        ({"a": {"groups": [{**_GROUP, "shared": [0]}]}}, "1 amounts"),
        ({"a": {"groups": [{**_GROUP, "least": [0, 2, 0]}]}}, "least exceeds most"),
        ({"a": {"groups": [_GROUP, _GROUP]}}, "same suffix"), ({"a": {"groups": [_GROUP] * 9}}, "at most 8"),
        ({"a": {"servers_percent": 101}}, "servers_percent is 101"),
        ({"a": {"groups": [{**_GROUP, "stages_by_tasks": 1}]}}, "true or false"),
        ({f"a{n}": {} for n in range(17)}, "from 1 to 16"),
    ],
)  # fmt: skip
def test_a_hostile_template_is_refused_with_its_place(plain: object, why: str) -> None:
    with pytest.raises(errors.TemplateInvalid, match=why) as refused:
        template_of("t", plain)
    assert str(refused.value).startswith("t")


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=9), lambda inner: st.lists(
    inner, max_size=3) | st.dictionaries(st.sampled_from(["features", "groups", "count", "shared", "growth", "a"]),
                                         inner, max_size=4), max_leaves=12))  # fmt: skip
def test_any_plain_data_is_a_template_or_refused(plain: object) -> None:
    try:
        template = template_of("t", {"a": plain})
    except errors.TemplateInvalid:
        return
    assert template.implementations[0].name == "a"


@given(st.integers(1, 100_000), st.sampled_from(sorted(BUILT_IN)))
def test_every_built_in_template_transforms_at_any_size(instances: int, template: str) -> None:
    poly = transform(CompReq("j", (composite("c", template, replace(SMALL, instances=instances)),)), STORE)
    assert {each.implementation for each in poly.groups} == set(BUILT_IN[template])
