"""The simulation of `sched.inc` policies: runs and metrics against examples worked by hand."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from offpath.sched.errors import SchedError
from offpath.sched.inc.decisions import Decision
from offpath.sched.inc.policies import make, policy
from offpath.sched.inc.poly import GroupId
from offpath.sched.inc.request import Composite, CompReq, Servers
from offpath.sched.inc.resources import ServerSpec, SwitchSpec
from offpath.sched.inc.scheduler import Scheduler
from offpath.sched.inc.store import CompStore
from offpath.sched.inc.transform import transform
from offpath.sched.sim.inc import IncJob, Thinking, additional_levels, alternatives, simulated
from offpath.sched.topology.fattree import fat_tree, leaf_spine, plain_tree
from offpath.sched.topology.graph import Pod, Topology

STORE = CompStore()
ALL = frozenset({"p4-14", "sharp", "openflow", "accelerator"})
TOPOLOGY = leaf_spine(2, 2, 1)
"""Servers 0 … 3, leaves 4 and 5, spine 6."""


def on(name: str = "k8++/concurrent", switches: int = 3, **more: int) -> Scheduler:
    """On `TOPOLOGY`; only the last ``switches`` run services."""
    specs = [SwitchSpec(ALL, most_services=3 if n >= 3 - switches else 0) for n in range(3)]
    return make(policy(name), TOPOLOGY, [ServerSpec((4_000, 8_192))] * 4, specs, **more)


def job(name: str, at_ms: int, composite: Composite, lasts_ms: int) -> IncJob:
    request = transform(CompReq(name, (composite,)), STORE)
    lasts: Mapping[GroupId, int] = {each.id: lasts_ms for each in request.groups if not each.is_inc}
    return IncJob(request, at_ms, lasts)


CHAIN = Composite("c", "coordinator", Servers(2, 1_000, 1_024), servers_percent={"netchain": 100})
"""On switches: three for the chain, and two servers beside them."""
PLAIN = Composite("c", "server", Servers(4, 4_000, 1_024))
"""All of `TOPOLOGY`."""
ONE = Composite("c", "server", Servers(1, 4_000, 1_024))


def test_a_run_by_hand() -> None:
    """The round at 0 places 5 tasks and takes 2 ms each. Servers end at 1 010 ms, and the switches with them. Looks at
    0, 1 000 and 2 000 ms: one of three sees the job. NetChain takes 8 shared and 8 own of 48 stages of each switch."""
    run = simulated(on(), [job("j", 0, CHAIN, 1_000)], 2_500, Thinking(placement_ms=2.0))
    (found,) = run.jobs
    assert found.is_satisfied
    assert (found.alternatives, found.on_switches, found.latencies_ms, found.late) == (1, 1, (10, 10), 0)
    assert found.detours == 0, "the spine has all servers below it"
    assert (run.rounds, run.preempted, run.refused) == (1, 0, 0)
    assert run.switch_load == pytest.approx((0.1 / 3, (16 / 48) / 3, (12 / 22) / 3))
    assert run.server_load == pytest.approx((2_000 / 16_000 / 3, 2_048 / 32_768 / 3))


def test_what_never_starts_is_late_by_the_time_until_the_end() -> None:
    """The first job takes all servers until 4 501 ms; K8++ waits 1, 2 and 4 s before it looks again."""
    jobs = [job("all", 500, PLAIN, 4_000), job("j", 600, ONE, 1_000)]
    early = simulated(on(), jobs, 3_000)
    assert [(each.latencies_ms, each.late, each.is_placed) for each in early.jobs] == [
        ((1,), 0, True), ((2_400,), 1, False),
    ]  # fmt: skip
    found = simulated(on(), jobs, 12_000).jobs[1]
    assert found.is_placed
    assert 3_901 <= found.latencies_ms[0] <= 8_000


def test_switches_are_held_until_the_jobs_last_server_task_ends() -> None:
    """The second job's chain waits for the first one's end: a switch has SRAM for one."""
    jobs = [job("a", 0, CHAIN, 3_000), job("b", 100, CHAIN, 3_000)]
    run = simulated(on("k8++/timeout", fallback_ms=60_000), jobs, 20_000)
    first, second = run.jobs
    assert max(first.latencies_ms) < 10
    assert second.is_satisfied
    assert 2_900 <= max(second.latencies_ms) <= 13_000, "a backoff of K8++ lasts up to 10 s"


def test_a_preempted_flavor_is_not_satisfied_and_its_servers_begin_anew() -> None:
    """Two switches for a chain of three: HIRE does not choose it, a baseline does and falls back."""
    for name, preempted in (("hire", 0), ("k8++/timeout", 4)):
        run = simulated(on(name, 2, fallback_ms=1_000), [job("j", 0, CHAIN, 60_000)], 20_000)
        (found,) = run.jobs
        assert (found.is_placed, found.on_switches, found.is_satisfied) == (True, 0, False), name
        assert found.detours is None
        assert run.preempted == preempted, name


def test_a_job_that_no_cluster_could_run_is_refused_and_delays_nobody() -> None:
    huge = Composite("c", "server", Servers(1, 5_000, 1))
    run = simulated(on(), [job("huge", 0, huge, 1_000), job("j", 0, CHAIN, 1_000)], 3_000)
    assert run.refused == 1
    assert [each.job for each in run.jobs] == ["j"]
    with pytest.raises(SchedError, match="1 ms or more"):
        simulated(on(), [job("j", 0, CHAIN, 0)], 3_000)


@pytest.mark.parametrize("name", ["hire", "hire-one-flavor", "coco++", "sparrow++/concurrent"])
def test_a_run_is_deterministic(name: str) -> None:
    jobs = [job(f"j{n}", 300 * n, CHAIN if n % 3 else PLAIN, 2_000 + 100 * n) for n in range(8)]
    runs = [simulated(on(name), jobs, 8_000) for _ in range(2)]
    assert runs[0] == runs[1]
    assert any(each.is_placed for each in runs[0].jobs)


class _Twice(Scheduler):
    """Starts a task where it has no right to."""

    def round(self, now_ms: int) -> list[Decision]:
        for each in self.jobs.values():
            group = each.request.groups[0]
            self._start(each, group, 0)
            self._start(each, group, 0)
        return []


def test_a_policy_that_overfills_a_node_is_found() -> None:
    policy_ = _Twice(on().resources)
    with pytest.raises(SchedError, match="does not fit"):
        simulated(policy_, [job("j", 0, PLAIN, 1_000)], 2_000)


def test_detours_by_hand() -> None:
    """A fat tree of degree 4: hosts 0 … 15, two on each leaf (16 … 23), two leaves in a pod; aggregation 24 … 31; cores
    32 … 35."""
    tree = fat_tree(4)
    leaf = tree.up[0][0][0]
    aggregation = tree.up[leaf][0][0]
    core = tree.up[aggregation][0][0]
    assert [tree.level[node] for node in (leaf, aggregation, core)] == [1, 2, 3]
    for switches, servers, levels in [
        ([leaf], [0, 1], 0), ([leaf], [0, 2], 1), ([leaf], [0, 15], 2), ([aggregation], [0, 3], 0),
        ([aggregation], [0, 15], 1), ([core], [0, 15], 0), ([leaf, tree.up[15][0][0]], [0, 15], 0),
        ([leaf, tree.up[15][0][0]], [0, 2], 1),
    ]:  # fmt: skip
        assert additional_levels(tree, switches, servers) == levels, (switches, servers)
    assert additional_levels(plain_tree(2), [2], [0, 1]) == 0


def test_a_tree_that_does_not_reach_a_server_costs_two_levels_more() -> None:
    apart = Topology(2, 2, ((0, 2), (1, 3)), (0, 0, 1, 1), Pod(0, 2), ("a", "b", "s", "t"))
    assert additional_levels(apart, [2], [0]) == 0
    assert additional_levels(apart, [2], [0, 1]) == 2


def test_alternatives_are_composites_with_both_kinds() -> None:
    request = transform(CompReq("j", (CHAIN, Composite("d", "server", Servers(1, 1, 1)), Composite(
        "e", "coordinator", Servers(1, 1, 1), among=("netchain",)))), STORE)  # fmt: skip
    assert alternatives(request) == ["c"]
