"""The model: regular networks are what the paper says, any graph gets levels and pods, nonsense is refused."""

from __future__ import annotations

import time
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offpath.sched.topology.fattree import clos, fat_tree, leaf_spine, plain_tree, regular
from offpath.sched.topology.graph import MOST_LEVELS, Pod, Topology, TopologyError, from_links, walk
from offpath.sched.topology.imported import regular as named


def test_the_papers_fat_tree_has_1024_hosts_and_320_switches() -> None:
    topology = fat_tree(16)
    assert (topology.hosts, topology.switches, len(topology.links)) == (1024, 320, 3 * 1024)
    assert [topology.level.count(level) for level in range(4)] == [1024, 128, 128, 64]
    assert len(topology.pods.children) == 16
    assert topology.pods.children[1] == Pod(64, 64, tuple(Pod(64 + 8 * n, 8) for n in range(8)))


def test_a_leaf_is_on_every_aggregation_switch_of_its_pod_and_those_share_no_core() -> None:
    topology = fat_tree(4)
    hosts = topology.hosts
    leaves = range(hosts, hosts + 8)
    assert [parent for parent, _ in topology.up[leaves[2]]] == [hosts + 8 + 2, hosts + 8 + 3]
    assert [parent for parent, _ in topology.up[leaves[3]]] == [hosts + 8 + 2, hosts + 8 + 3]
    cores = [{parent for parent, _ in topology.up[hosts + 8 + n]} for n in range(8)]
    assert cores[0] == cores[2] == cores[4] == {hosts + 16, hosts + 17}
    assert cores[1] == cores[3] == {hosts + 18, hosts + 19}


@pytest.mark.parametrize(("up", "switches"), [(8, 320), (4, 128 + 64 + 16), (1, 128 + 16 + 1)])
def test_oversubscription_takes_links_and_switches_away_but_no_host(up: int, switches: int) -> None:
    topology = fat_tree(16, up)
    assert (topology.hosts, topology.switches) == (1024, switches)
    assert {len(topology.up[leaf]) for leaf in range(1024, 1024 + 128)} == {up}


def test_the_other_regular_networks() -> None:
    assert leaf_spine(4, 8, 2) == regular((8, 4), (1, 2)) == named("leaf-spine:4x8x2")
    assert clos(4, 3, 2, 5, 6) == regular((4, 3, 2), (1, 5, 6))
    assert plain_tree(8, 8, 16).switches == 128 + 16 + 1
    assert named("fat-tree:8/2") == fat_tree(8, 2)
    assert regular((1, 4), (1, 1)).pods == Pod(0, 4)


@pytest.mark.parametrize(
    "words",
    [
        "fat-tree:3", "fat-tree:8/5", "fat-tree:0", "leaf-spine:4x8", "tree:0x2", "ring:4", "fat-tree:99999",
        "tree:" + "9x" * 8,
    ],
)  # fmt: skip
def test_what_is_no_regular_network_is_refused(words: str) -> None:
    with pytest.raises(TopologyError):
        named(words)


@pytest.mark.parametrize("topology", [fat_tree(4), fat_tree(8, 2), leaf_spine(3, 5, 2), plain_tree(2, 3, 4)])
def test_levels_and_pods_are_found_from_links_alone(topology: Topology) -> None:
    """Whatever order links are given in, and whichever way round."""
    names = topology.names
    links = [pair[::-1] if n % 3 else pair for n, pair in enumerate(topology.links)]
    Random(1).shuffle(links)
    found = from_links(names[: topology.hosts], names[topology.hosts :], links)
    assert found.pods == topology.pods
    assert found.level == topology.level
    assert found.names == names
    assert set(found.links) == set(topology.links)


def test_hosts_are_renumbered_so_that_pods_are_contiguous() -> None:
    found = from_links("abcd", ("x", "y", "top"), [(0, 4), (1, 5), (2, 4), (3, 5), (4, 6), (5, 6)])
    assert found.names[:4] == ("a", "c", "b", "d")
    assert found.pods == Pod(0, 4, (Pod(0, 2), Pod(2, 2)))
    assert found.host_numbers["b"] == 2


def test_rails_are_one_pod_and_a_ring_of_switches_is_one_layer() -> None:
    rails = from_links("abcd", ("r0", "r1", "s0", "s1", "t"), [
        (0, 4), (0, 5), (1, 4), (1, 5), (2, 6), (2, 7), (3, 6), (3, 7), *((n, 8) for n in range(4, 8)),
    ])  # fmt: skip
    assert rails.pods == Pod(0, 4, (Pod(0, 2), Pod(2, 2)))
    ring = from_links("abc", ("x", "y", "z"), [(0, 3), (1, 4), (2, 5), (3, 4), (4, 5), (5, 3)])
    assert ring.level == (0, 0, 0, 1, 1, 1)
    assert ring.up[3] == ()
    assert ring.pods == Pod(0, 3)


def test_what_hangs_together_nowhere_is_one_pod_at_the_top() -> None:
    found = from_links("abcd", ("x", "y"), [(0, 4), (1, 4), (2, 5), (3, 5)])
    assert found.pods == Pod(0, 4, (Pod(0, 2), Pod(2, 2)))


@pytest.mark.parametrize(
    ("links", "said"),
    [
        ([(0, 1)], "does not join a node to a switch"),
        ([(0, 2), (2, 2)], "does not join a node to a switch"),
        ([(0, 9)], "does not join a node to a switch"),
        ([(-1, 2)], "does not join a node to a switch"),
        ([(0, 2), (1, 2)], "no host can reach"),
    ],
)
def test_a_graph_that_is_none_is_refused(links: list[tuple[int, int]], said: str) -> None:
    with pytest.raises(TopologyError, match=said):
        from_links("ab", ("x", "y"), links)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"hosts": 0, "switches": 9}, "from 1 to"),
        ({"level": (0,) * 4 + (1, 1, 0)}, "hosts are of level 0"),
        ({"level": (0,) * 4 + (3, 2, 1)}, "leads down"),
        ({"names": ("a",) * 7}, "the same name"),
        ({"pods": Pod(0, 3)}, "outermost"),
        ({"pods": Pod(0, 4, (Pod(0, 2), Pod(3, 1)))}, "contiguous"),
        ({"pods": Pod(0, 4, (Pod(0, 2),))}, "do not cover it"),
        ({"links": ((0, 4), (4, 0))}, "does not join a node"),
        ({"links": ((0, 4), (0, 4))}, "is duplicated"),
    ],
)
def test_a_topology_that_contradicts_itself_is_refused(change: dict[str, object], said: str) -> None:
    good = plain_tree(2, 2)
    fields = {name: getattr(good, name) for name in ("hosts", "switches", "links", "level", "pods", "names")}
    with pytest.raises(TopologyError, match=said):
        Topology(**{**fields, **change})  # type: ignore[arg-type]


def test_pods_deeper_than_any_fabric_are_refused_without_recursion() -> None:
    pod = Pod(0, 2)
    for n in range(50_000):
        pod = Pod(0, n + 3, (pod, Pod(n + 2, 1)))
    with pytest.raises(TopologyError, match="deeper"):
        Topology(50_002, 0, (), (0,) * 50_002, pod, tuple(map(str, range(50_002))))


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.lists(st.integers(1, 3), min_size=4, max_size=4))
def test_every_regular_network_is_sound(down: list[int], up: list[int]) -> None:
    """Each node below the top has its parents one level higher, each switch its children; pods partition the hosts."""
    topology = regular(down, up[: len(down)])
    height = len(down)
    for node in range(topology.nodes):
        level = topology.level[node]
        assert len(topology.up[node]) == (up[level] if level < height else 0)
        assert all(topology.level[parent] == level + 1 for parent, _ in topology.up[node])
    children = [0] * topology.nodes
    for _, high in topology.links:
        children[high] += 1
    assert all(children[node] == down[topology.level[node] - 1] for node in range(topology.hosts, topology.nodes))
    assert all(depth <= MOST_LEVELS for _, depth in walk(topology.pods))


def test_a_hundred_thousand_hosts_from_links_take_seconds() -> None:
    topology = regular((32, 32, 98), (1, 4, 4))
    begun = time.process_time()
    found = from_links(topology.names[: topology.hosts], topology.names[topology.hosts :], topology.links)
    assert time.process_time() - begun < 20
    assert (found.hosts, found.pods) == (100_352, topology.pods)
