"""Steps 1 to 3 against brute force: the knapsack, every V[f, g] of the dynamic program, and the PS of every plan."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from offpath.sched.ina.engine import can_compile
from offpath.sched.placement.netpack import plans as module
from offpath.sched.placement.netpack.kernels import NONE, kernels
from offpath.sched.placement.netpack.knapsack import aged, chosen
from offpath.sched.placement.netpack.plans import plans, released, view

from ...sizes import sized
from .netpack_worlds import all_plans, equation_1, in_use, subsets, value

CLUSTERS = sized(quick=150, fast=150, slow=600, full=5_200)


def compared(seed: int, *, compiled: bool | None = None) -> tuple[int, str | None]:
    """Plans compared on one cluster, and the first difference."""
    random = Random(seed)
    cluster = in_use(random, compiled=compiled)
    seen = view(cluster)
    servers = np.arange(len(cluster.free))
    free = int(cluster.free.sum())
    if free < 2:
        return 0, None
    wanted = random.randint(2, free)
    charge = random.choice([0.0, 0.0, 200.0])
    own = random.choice([0, 0, 2])
    expected = all_plans(seen, servers.tolist(), wanted, charge)
    _, items, table, best_ps, _ = module.kernels(seen.compiled)
    most = wanted + seen.most_gpus
    found, values = items(
        servers, seen.free, seen.left_gbps, seen.flows, seen.fastest_gbps, charge, most, seen.most_gpus
    )
    shapes, worth, picked = table(found, values, seen.free, seen.flows, wanted, most)
    got = {(int(f), int(g)): float(v) for (f, g), v in zip(shapes, worth, strict=True)}
    if got.keys() != expected.keys():
        return 0, f"seed {seed}: plans {sorted(got)} for {sorted(expected)}"
    scores, ps = best_ps(
        shapes, worth, picked, servers, seen.rack_of, seen.left_gbps, seen.flows, seen.fastest_gbps,
        seen.uplinks_gbps, seen.uplink_flows, seen.is_open, own,
    )  # fmt: skip
    for n, ((flows, gpus), worth_found) in enumerate(got.items()):
        some = tuple(int(s) for s in picked[n] if s >= 0)
        if abs(worth_found - expected[flows, gpus]) > 1e-6:
            return n, f"seed {seed}: V{flows, gpus} is {worth_found}, not {expected[flows, gpus]}"
        if abs(sum(value(seen, s, charge) for s in some) - worth_found) > 1e-6 or len(set(some)) != len(some):
            return n, f"seed {seed}: servers {some} are not worth V{flows, gpus}"
        best = max(equation_1(seen, worth_found, flows, some, each, own) for each in servers.tolist())
        its = equation_1(seen, worth_found, flows, some, int(ps[n]), own)
        if abs(best - scores[n]) > 1e-6 or abs(its - best) > 1e-6:
            return n, f"seed {seed}: plan {some}: PS {ps[n]} scores {scores[n]}, not {best}"
    return len(got), None


def test_every_plan_of_the_dynamic_program_and_its_ps_are_those_of_brute_force() -> None:
    found = [compared(seed) for seed in range(CLUSTERS)]
    assert [fault for _, fault in found if fault] == []
    assert sum(count > 0 for count, _ in found) >= CLUSTERS * 0.8
    assert sum(count for count, _ in found) >= CLUSTERS * 2


@pytest.mark.skipif(not can_compile(), reason="numba is not installed")
def test_the_plain_form_finds_the_same() -> None:
    assert all(compared(seed, compiled=False) == compared(seed, compiled=True) for seed in range(40))


def test_the_best_plan_is_the_best_score_over_all_plans() -> None:
    for seed in range(CLUSTERS // 6):
        random = Random(seed)
        cluster = in_use(random, servers=6)
        seen, servers = view(cluster), list(range(len(cluster.free)))
        free = int(cluster.free.sum())
        if free < 2:
            continue
        wanted = random.randint(2, free)
        best = max(
            equation_1(
                seen, sum(value(seen, s, 0.0) for s in some), max(round(float(seen.flows[s])) for s in some), some, ps
            )
            for some in subsets([s for s in servers if seen.free[s]])
            if wanted <= sum(int(seen.free[s]) for s in some) <= wanted + seen.most_gpus
            for ps in servers
        )
        found = plans(seen, np.array(servers), wanted, np.array(servers))
        assert found[0].score == pytest.approx(best), seed
        assert all(sum(count for _, count in plan.workers) == wanted for plan in found)


def test_extra_gpus_are_released_on_the_least_loaded_server() -> None:
    for seed in range(200):
        random = Random(seed)
        cluster = in_use(random)
        seen = view(cluster)
        servers = [s for s in range(len(cluster.free)) if cluster.free[s]]
        total = sum(int(cluster.free[s]) for s in servers)
        if total < 3:
            continue
        wanted = random.randint(max(1, total - 4), total)
        found = dict(released(seen, servers, wanted))
        assert sum(found.values()) == wanted
        gave = [s for s in servers if found.get(s, 0) != cluster.free[s]]
        others = [s for s in servers if s not in gave]
        for server in gave:
            assert all(seen.left_gbps[server] >= seen.left_gbps[other] - 1e-5 for other in others)
        assert sum(server in found for server in gave) <= 1, "all but the last gave back everything"


@pytest.mark.parametrize(
    "compiled", [False, pytest.param(True, marks=pytest.mark.skipif(not can_compile(), reason="no numba"))]
)
def test_the_knapsack_is_that_of_brute_force(compiled: bool) -> None:
    for seed in range(120):
        random = Random(seed)
        count = random.randint(1, 9)
        gpus = [random.randint(1, 12) for _ in range(count)]
        values = [random.choice([1.0, 2.0, random.uniform(0.5, 9)]) for _ in range(count)]
        free = random.randint(0, 40)
        taken = chosen(values, gpus, free, compiled=compiled)
        best = max(
            (
                sum(values[n] for n in some)
                for some in subsets(list(range(count)))
                if sum(gpus[n] for n in some) <= free
            ),
            default=0.0,
        )
        assert sum(gpus[n] for n in range(count) if taken[n]) <= free
        assert sum(values[n] for n in range(count) if taken[n]) == pytest.approx(best)


def test_of_equal_jobs_the_earlier_are_chosen() -> None:
    assert chosen([1.0] * 4, [2] * 4, 4, compiled=False) == [True, True, False, False]


def test_ageing_raises_the_value() -> None:
    assert aged(2.0, 0) == 2.0
    assert aged(2.0, 3) == 8.0
    assert chosen([aged(1.0, 2), 2.0], [4, 4], 4, compiled=False) == [True, False]


def test_no_plan_has_no_value() -> None:
    assert (
        kernels(False)[2](np.zeros(0, np.int64), np.zeros(0), np.zeros(1, np.int64), np.zeros(1), 1, 2)[1].tolist()
        == []
    )
    assert NONE < -1e200
