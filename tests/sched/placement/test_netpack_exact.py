"""The optimum of the corrected Table 3: equal to brute force where that can be had, and no policy is below it."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterator
from random import Random

import pytest

from offpath.cli.netpack import exact as cases
from offpath.sched.ina.statistical.model import Spread
from offpath.sched.ina.statistical.network import Network, regular
from offpath.sched.ina.statistical.steady import SteadyState
from offpath.sched.placement.batch_port import JobRequest
from offpath.sched.placement.gpu_cluster import GpuCluster
from offpath.sched.placement.netpack import exact
from offpath.sched.placement.netpack.exact import SearchTooLarge, fits, optimum

from .netpack_worlds import small_cluster

SEEDS = 24


def tiny(random: Random) -> tuple[GpuCluster, list[JobRequest]]:
    """Three servers of two GPUs in one or two racks, and two jobs that fill most of them."""
    racks = random.choice([(3,), (2, 1)])
    network = Network(
        racks,
        tuple(random.choice([100.0, 100.0, 40.0]) for _ in range(sum(racks))),
        tuple(random.choice([50.0, 200.0]) for _ in racks),
        tuple(random.choice([0.0, 30.0, 1_000.0]) for _ in racks),
    )
    cluster = GpuCluster(network, 2, compiled=False)
    return cluster, [JobRequest(f"job-{n}", random.choice([2, 3, 3]), random.choice([1.0, 4.0])) for n in range(2)]


def counts(free: list[int], gpus: int) -> Iterator[tuple[int, ...]]:
    """All ways to take ``gpus`` from servers."""
    for some in itertools.product(*(range(each + 1) for each in free)):
        if sum(some) == gpus:
            yield some


def brute(cluster: GpuCluster, batch: list[JobRequest]) -> float:
    """Every GPU of every job, every PS, aggregation on and off."""
    return _brute(cluster, cluster.free.tolist(), batch, [])


def _brute(cluster: GpuCluster, free: list[int], batch: list[JobRequest], placed: list[tuple[Spread, float]]) -> float:
    if not batch:
        state = SteadyState(cluster.network, compiled=False)
        for n, (spread, gbit) in enumerate(placed):
            state.add(n, spread, gbit)
        return state.total_cost()
    best = math.inf
    seen = set()
    for some in counts(free, batch[0].gpus):
        left = [a - b for a, b in zip(free, some, strict=True)]
        workers = tuple(server for server, count in enumerate(some) if count)
        if len(workers) == 1:
            best = min(best, _brute(cluster, left, batch[1:], placed))
            continue
        if (workers, tuple(left)) in seen:
            continue
        seen.add((workers, tuple(left)))
        for ps, has_ina in itertools.product(range(len(free)), (True, False)):
            spread = Spread(workers, ps, has_ina)
            best = min(best, _brute(cluster, left, batch[1:], [*placed, (spread, batch[0].data_gbit)]))
    return best


def differing(seeds: int) -> list[int]:
    """Seeds on which the search and brute force differ."""
    found = []
    for seed in range(seeds):
        cluster, batch = tiny(Random(seed))
        expected, got = brute(cluster, batch), optimum(cluster, batch)[0]
        if not (got == expected or math.isclose(got, expected, rel_tol=1e-9, abs_tol=1e-12)):
            found.append(seed)
    return found


def test_the_optimum_is_that_of_brute_force() -> None:
    assert differing(SEEDS) == []


@pytest.mark.parametrize(
    ("name", "planted"),
    [
        ("_bound", lambda self: 0.0 if not self.filled else math.inf),
        ("_is_first", lambda self, option: option.spread is None or option.spread.ps > 0),
    ],
)
def test_a_bound_or_a_symmetry_that_cuts_too_much_is_found(
    name: str, planted: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exact._Search, name, planted)
    assert differing(SEEDS)


def test_gpus_fit_if_no_set_of_jobs_wants_more_than_its_servers_have() -> None:
    """Against all counts, on all pairs of worker sets of three servers."""
    sets = [some for size in (1, 2, 3) for some in itertools.combinations(range(3), size)]
    free = [2, 1, 3]
    for one, two in itertools.product(sets, sets):
        for gpus in itertools.product(range(1, 5), range(1, 5)):
            possible = any(
                all((count > 0) == (server in one) for server, count in enumerate(first))
                and any(
                    all((count > 0) == (server in two) for server, count in enumerate(second))
                    for second in counts([a - b for a, b in zip(free, first, strict=True)], gpus[1])
                )
                for first in counts(free, gpus[0])
            )
            assert fits(free, [(gpus[0], one), (gpus[1], two)]) == possible


def test_no_policy_is_below_the_optimum_and_netpack_is_nearer_to_it_than_the_papers() -> None:
    found = cases.gaps(7, 12)["gaps"]
    assert min(min(some) for some in found.values()) >= -1e-9
    assert statistics.fmean(found["netpack"]) < 0.5 * statistics.fmean(found["netpack-paper"])


def test_what_is_too_large_or_in_use_is_refused_and_what_does_not_fit_has_no_optimum() -> None:
    with pytest.raises(SearchTooLarge, match="7 servers"):
        optimum(GpuCluster(regular(1, 7), 1), [])
    with pytest.raises(SearchTooLarge, match="5 jobs"):
        optimum(small_cluster(1, 2), [JobRequest(f"job-{n}", 1, 1.0) for n in range(5)])
    assert optimum(small_cluster(1, 2), [JobRequest("job", 9, 1.0)])[0] == math.inf
