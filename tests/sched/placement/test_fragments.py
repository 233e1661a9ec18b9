"""MINA's placement is exact: no subset of the free hosts has a lower A + α·B, and of equals it is Algorithm 1's."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offpath.sched.placement import fragments as module
from offpath.sched.placement.checker import fragments, score, violations
from offpath.sched.placement.cluster import Cluster, HostsHeld
from offpath.sched.placement.fragments import Fragments
from offpath.sched.placement.port import Request
from offpath.sched.topology.fattree import fat_tree, plain_tree, regular
from offpath.sched.topology.graph import Topology

from ...sizes import sized
from .oracle import algorithm_1, least, small_topology

CLUSTERS = sized(quick=200, fast=200, slow=600, full=5_200)
ALPHAS = [Fraction(1, 2), Fraction(1, 2), Fraction(0), Fraction(1), Fraction(1, 3), Fraction(3)]


def exact(name: str, policy: Fragments | None = None) -> tuple[int, int]:
    """One small cluster, jobs placed and released in it, each held against all subsets; how many, and of which size."""
    random = Random(name)
    topology = small_topology(random)
    alpha = random.choice(ALPHAS)
    policy = policy or Fragments(alpha)
    alpha = policy.alpha
    cluster = Cluster(
        topology, [host for host in range(topology.hosts) if random.random() < random.choice((0, 0.2, 0.5))]
    )
    held: list[tuple[int, ...]] = []
    placed = most = 0
    for _ in range(4):
        if held and random.random() < 0.4:
            cluster.release(held.pop(random.randrange(len(held))))
        if not cluster.free:
            continue
        free = list(cluster.free_hosts())
        request = Request(random.randint(1, len(free)))
        decision = policy.place(cluster, request)
        assert violations(cluster, request, decision) == []
        expected = least(topology, free, request.hosts, alpha)
        got = fragments(topology, decision.hosts) + alpha * fragments(topology, set(free) - set(decision.hosts))
        assert got == expected, (free, request, decision)
        assert decision.score == float(expected)
        assert decision.reasons[0] == f"{fragments(topology, decision.hosts)} fragments of the job's hosts"
        if alpha:
            assert decision.reasons[1].startswith(f"{fragments(topology, set(free) - set(decision.hosts))} of those")
        hosts, printed = algorithm_1(topology.pods, free, request.hosts, alpha)
        assert (tuple(sorted(hosts)), printed) == (decision.hosts, expected)
        cluster.take(decision.hosts)
        held.append(decision.hosts)
        placed, most = placed + 1, max(most, len(free))
    return placed, most


def test_it_equals_brute_force_over_all_subsets_and_algorithm_1() -> None:
    found = [exact(f"fragments {seed}") for seed in range(CLUSTERS)]
    assert sum(placed > 0 for placed, _ in found) >= sized(quick=190, fast=190, slow=590, full=5_000)
    assert sum(placed for placed, _ in found) >= sized(quick=500, fast=500, slow=1_500, full=14_000)
    assert max(most for _, most in found) == 12


def test_one_object_may_serve_many_clusters() -> None:
    """Tables are shared by what pods look like; that must not mix clusters up."""
    policy = Fragments()
    for seed in range(60):
        exact(f"shared {seed}", policy)


def test_tables_that_are_thrown_away_are_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_KEPT", 40)
    policy = Fragments()
    for seed in range(40):
        exact(f"thrown away {seed}", policy)


def test_the_papers_figure_6_counts_a_and_b_alike() -> None:
    """Two hosts of one rack are two fragments wherever in it they are; a whole rack is one, a whole row too."""
    topology = plain_tree(4, 2, 2)
    assert fragments(topology, {0, 3}) == fragments(topology, {1, 2}) == 2
    assert fragments(topology, range(4)) == fragments(topology, range(8)) == fragments(topology, range(16)) == 1
    assert fragments(topology, set(range(8)) | {9}) == 2
    assert fragments(topology, set(range(12))) == 2
    assert fragments(topology, ()) == 0
    assert score(topology, range(16), range(8), 0.5) == 1.5


def test_a_rack_that_is_broken_already_is_taken_from_before_a_whole_one() -> None:
    topology = plain_tree(4, 4)
    decision = Fragments().place(Cluster(topology, busy=[8]), Request(3))
    assert decision.hosts == (9, 10, 11)


def test_of_equal_scores_the_earlier_pod_is_filled() -> None:
    topology = plain_tree(4, 4)
    assert Fragments().place(Cluster(topology, busy=[3, 7, 11, 12]), Request(4)).hosts == (0, 1, 2, 4)
    assert Fragments().place(Cluster(topology), Request(4)).hosts == (0, 1, 2, 3)


def test_too_large_a_job_is_refused_with_the_reason_and_nothing_is_taken() -> None:
    cluster = Cluster(plain_tree(2, 2), busy=[0])
    decision = Fragments().place(cluster, Request(4))
    assert not decision.is_placed
    assert decision.reasons == ("4 hosts wanted, 3 are free",)
    assert cluster.free == 3
    with pytest.raises(ValueError, match="at least one host"):
        Fragments().place(cluster, Request(0))
    with pytest.raises(ValueError, match="0 or more"):
        Fragments(-0.5)


def test_a_host_is_not_given_twice_nor_released_twice() -> None:
    cluster = Cluster(plain_tree(2, 2))
    cluster.take([0, 1])
    for wrong in ([1, 2], [2, 2], [4], [-1]):
        with pytest.raises(HostsHeld):
            cluster.take(wrong)
        assert list(cluster.free_hosts()) == [2, 3]
    with pytest.raises(HostsHeld):
        cluster.release([0, 2])
    assert list(cluster.free_hosts()) == [2, 3]
    assert cluster.free_in == [2, 0, 2]


@given(st.data())
def test_tables_kept_over_arrivals_and_departures_give_what_fresh_ones_give(data: st.DataObject) -> None:
    topology = data.draw(
        st.sampled_from([fat_tree(4), regular((3, 3, 3), (1, 1, 1)), regular((4, 2, 2, 2), (1, 2, 1, 1))])
    )
    cluster, kept, held = Cluster(topology), Fragments(), []
    for _ in range(data.draw(st.integers(1, 8))):
        if held and data.draw(st.booleans()):
            cluster.release(held.pop(data.draw(st.integers(0, len(held) - 1))))
        if not cluster.free:
            continue
        request = Request(data.draw(st.integers(1, cluster.free)))
        decision = kept.place(cluster, request)
        assert decision == Fragments().place(Cluster(topology, busy_in(cluster)), request)
        cluster.take(decision.hosts)
        held.append(decision.hosts)


def busy_in(cluster: Cluster) -> list[int]:
    return [host for host in range(cluster.topology.hosts) if not cluster.is_free(host)]


@given(st.sets(st.integers(0, 26)), st.data())
def test_the_score_knows_nothing_of_names(busy: set[int], data: st.DataObject) -> None:
    """Pods of a kind may change places: the best score stays. One more free host can only help the cluster by α."""
    topology = regular((3, 3, 3), (1, 1, 1))
    if len(busy) == 27:
        return
    request = Request(data.draw(st.integers(1, 27 - len(busy))))
    turned = {26 - host for host in busy}
    one, other = (Fragments().place(Cluster(topology, held), request).score for held in (busy, turned))
    assert one == other


def check_cluster(topology: Topology, cluster: Cluster) -> None:
    for pod, children in enumerate(cluster.children):
        first, count = cluster.first[pod], cluster.count[pod]
        assert cluster.free_in[pod] == len(list(cluster.free_hosts(first, count)))
        starts = [cluster.first[child] for child in children]
        assert all(low < high for low, high in pairwise(starts))


def test_free_hosts_are_counted_in_every_pod() -> None:
    random = Random(3)
    topology = fat_tree(8)
    cluster = Cluster(topology)
    for _ in range(40):
        host = random.sample(range(topology.hosts), 9)
        free = [each for each in host if cluster.is_free(each)]
        cluster.take(free)
        check_cluster(topology, cluster)
        cluster.release(random.sample(free, len(free) // 2))
    check_cluster(topology, cluster)
