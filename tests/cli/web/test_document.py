"""The page's data: what occupies which slices, numbers that JavaScript can read, a network of bounded size."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

import orjson
import pytest

from offpath.cli.files.networks import topology_of
from offpath.cli.web import document
from offpath.cli.web.reader import ControllerSeen, DaemonSeen

from ...support.web_world import HOSTILE, TWISTED, controller, daemon, lease, manager, status, tenant


def seen(*leases: object) -> DaemonSeen:
    return DaemonSeen(status(2, len(leases), 1), [tenant("ada")], list(leases), [], [])  # type: ignore[arg-type]


def test_a_lease_occupies_the_memory_slices_of_its_profile() -> None:
    found = document.held(seen(lease(1, "ada", 0, 4, "3g.20gb"), lease(2, "ada", 1, 0, "1g.5gb")))
    assert [(each.gpu, each.start, each.slices) for each in found] == [("helper/GPU-0", 4, 4), ("helper/GPU-1", 0, 1)]


def test_a_gang_occupies_every_gpu_it_has() -> None:
    found = document.held(seen(lease(1, "ada", 0, 0, "whole", others=["helper/GPU-1"])))
    assert [(each.gpu, each.slices) for each in found] == [("helper/GPU-0", 8), ("helper/GPU-1", 8)]


def test_numbers_of_64_bits_are_strings() -> None:
    jobs = document.daemon(daemon(3), {})["jobs"]
    row = dict(zip(jobs["fields"], jobs["rows"][0], strict=True))
    assert row["request"] == f"{(1 << 63) + 1}/1"
    assert isinstance(row["job"], str)


def test_hostile_names_are_data_and_stay_as_they_are() -> None:
    made = document.daemon(daemon(4, names=[HOSTILE, TWISTED]), {})
    again = json.loads(orjson.dumps(made))
    assert [row[0] for row in again["tenants"]["rows"]] == [HOSTILE, TWISTED]


def test_every_row_has_a_value_for_each_field() -> None:
    parts = [document.daemon(daemon(9), {}), document.controller(controller(), None), document.manager(manager())]
    tables = [each for part in parts for each in part.values() if isinstance(each, dict) and "rows" in each]
    assert len(tables) == 9
    for table in tables:
        assert table["rows"]
        assert {len(row) for row in table["rows"]} == {len(table["fields"])}


def test_rates_are_of_the_time_between_two_polls_and_none_after_a_restart() -> None:
    before, now = daemon(1, names=["ada", "bob"]), daemon(1, names=["ada", "bob", "new"])
    later = now.status.model_copy(update={"uptime_ms": 62_000})
    now = DaemonSeen(later, [tenant("ada", completed=10), tenant("bob"), tenant("new", completed=9)], [], [], [])
    assert document.rates(before, now) == {"ada": 5.0, "bob": 0.0}
    another = DaemonSeen(later.model_copy(update={"pid": 99}), now.tenants, [], [], [])
    assert document.rates(before, another) == {}


def test_without_a_topology_the_links_are_those_that_trees_have() -> None:
    made = document.controller(controller(), None)["network"]
    names = [name for name, _ in made["nodes"]]
    assert {(names[low], names[high]) for low, high in made["links"]} == {("s1", "s0"), ("s2", "s0"), ("s3", "s0")}
    assert (made["is_known"], made["left_out"]) == (False, 0)


def on(hosts: list[str]) -> ControllerSeen:
    """A job on these hosts; its tree is not known."""
    found = controller()
    return replace(found, jobs=[found.jobs[0].model_copy(update={"hosts": hosts})], trees=[])


def test_on_a_topology_the_nodes_of_jobs_come_first_and_the_number_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(document, "MOST_NODES", 30)
    topology = topology_of("fat-tree:4")
    names = topology.names
    hosts = [names[n] for n in range(topology.nodes) if topology.level[n] == 0][-2:]
    made = document.controller(on(hosts), document.plan_of(topology))["network"]
    assert [name for name, _ in made["nodes"][:2]] == hosts
    assert len(made["nodes"]) == 30
    assert (made["is_known"], made["left_out"]) == (True, topology.nodes - 30)
    shown = {name for name, _ in made["nodes"]}
    links = {(names[low], names[high]) for low, high in topology.links}
    drawn = [(made["nodes"][low][0], made["nodes"][high][0]) for low, high in made["links"]]
    assert sorted(drawn) == sorted({(low, high) for low, high in links if low in shown and high in shown})
    assert drawn


def test_the_network_of_a_poll_is_made_without_a_walk_over_the_topology() -> None:
    class Counted(dict[str, int]):
        walked = 0

        def __iter__(self) -> Iterator[str]:
            for name in super().__iter__():
                Counted.walked += 1
                yield name

    level = Counted((f"n{n}", 0) for n in range(50_000))
    made = document.network(on(["n49999"]), document.Plan.of(level, [], is_known=True))
    assert (made["nodes"][0], made["left_out"]) == (["n49999", 0], 50_000 - document.MOST_NODES)
    assert Counted.walked <= document.MOST_NODES


def test_each_list_shows_whether_it_has_more_lines() -> None:
    lists = ("tenants", "leases", "jobs")
    for cut in lists:
        made = document.daemon(replace(daemon(3), cut=frozenset({cut})), {})
        assert {name: made[name]["is_cut"] for name in lists} == {name: name == cut for name in lists}
        assert not made["ended"]["is_cut"], "it is a number of the last ones in any case"
    lists = ("jobs", "groups", "trees", "holds")
    for cut in lists:
        made = document.controller(replace(controller(), cut=frozenset({cut})), None)
        assert {name: made[name]["is_cut"] for name in lists} == {name: name == cut for name in lists}
    assert document.manager(replace(manager(), cut=frozenset({"jobs"})))["jobs"]["is_cut"]
    assert not document.manager(manager())["jobs"]["is_cut"]
