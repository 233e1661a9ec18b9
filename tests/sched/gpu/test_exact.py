"""The exact solver: what it calls optimal, no plain search can better, and the checker finds nothing wrong with it."""

from __future__ import annotations

import itertools
from random import Random

import pytest

from offpath.sched.gpu.checker import tally, violations
from offpath.sched.gpu.conspirator import ConspiratorPaper
from offpath.sched.gpu.exact import FEASIBLE, INFEASIBLE, OPTIMAL, Costs, LiveJob, Place, solve
from offpath.sched.gpu.geometry import GpuSpec
from offpath.sched.gpu.packing import maximal_cuts
from offpath.sched.gpu.paper import paper_gpu
from offpath.sched.gpu.policy import Demand

from ...sizes import sized
from ..gpus import a30, a100
from .floor import Floor

INSTANCES = sized(quick=4, fast=4, slow=16, full=300)


def cheapest(gpus: list[GpuSpec], jobs: list[LiveJob], costs: Costs) -> int | None:
    """By trying every assignment."""
    places = [
        (spec.gpu, profile.name, start)
        for spec in gpus
        for profile in spec.profiles
        if "+" not in profile.name
        for start in profile.starts
    ]
    best: int | None = None
    for chosen in itertools.product(places, repeat=len(jobs)):
        assigned = dict(zip((job.job for job in jobs), chosen, strict=True))
        if violations(gpus, jobs, assigned):
            continue
        cost = price(gpus, jobs, assigned, costs)
        best = cost if best is None else min(best, cost)
    return best


def price(gpus: list[GpuSpec], jobs: list[LiveJob], places: dict[int, Place], costs: Costs) -> int:
    told = tally(gpus, jobs, places)
    return costs.gpu * told.gpus + costs.slice * told.slices + costs.migration * told.migration_cost


@pytest.mark.parametrize("seed", range(INSTANCES))
def test_what_is_called_optimal_cannot_be_bettered_by_trying_everything(seed: int) -> None:
    random = Random(f"exact {seed}")
    gpus = random.choice([[a30("g0"), a30("g1")], [a30("g0")], [paper_gpu("g0", "A30-24GB"), a30("g1")]])
    jobs = [
        LiveJob(
            job, random.choice("ab"), random.choice((20, 25, 30, 50, 60, 100)),
            place=random.choice([None, ("g0", gpus[0].profiles[0].name, job)]), migration_cost=random.randint(1, 3),
        )
        for job in range(3)
    ]  # fmt: skip
    costs = random.choice([Costs(1), Costs(10, 1), Costs(1, 5), Costs(0, 0, 1), Costs(100, 3, 1)])
    found = solve(gpus, jobs, costs, limit_s=30)
    expected = cheapest(gpus, jobs, costs)
    if expected is None:
        assert found.status == INFEASIBLE
    else:
        assert found.status == OPTIMAL
        assert violations(gpus, jobs, dict(found.places)) == []
        assert price(gpus, jobs, dict(found.places), costs) == found.objective == found.bound == expected


@pytest.mark.parametrize("seed", range(INSTANCES))
def test_algorithm_1_is_legal_and_never_better_than_the_optimum(seed: int) -> None:
    random = Random(f"greedy {seed}")
    gpus = [paper_gpu(f"g{j}") for j in range(8)] if seed % 2 else [a100(f"g{j}") for j in range(8)]
    floor = Floor(ConspiratorPaper(), gpus)
    jobs, places = [], {}
    for job in range(random.randint(5, 20)):
        live = LiveJob(job, random.choice("abc"), random.choice((10, 25, 50, 81, 100)))
        at = floor.assign(Demand(job, live.tenant, live.share, 0))
        if at is not None:
            jobs.append(live)
            places[job] = (at[0], floor.leases[floor.jobs[job][1].lease].view.profile, at[1])
    assert violations(gpus, jobs, places) == []
    greedy = tally(gpus, jobs, places)
    for costs, ours in ((Costs(1), greedy.gpus), (Costs(0, 0, 1), greedy.slices)):
        best = solve(gpus, jobs, costs, limit_s=30, hint=places)
        assert violations(gpus, jobs, dict(best.places)) == []
        assert best.bound <= best.objective <= ours


def test_migration_is_weighed_against_a_gpu() -> None:
    """Two jobs of one tenant on two GPUs fit one: worth a GPU, unless moving costs more."""
    gpus = [paper_gpu("g0"), paper_gpu("g1")]
    jobs = [LiveJob(1, "a", 40, place=("g0", "42%", 10)), LiveJob(2, "a", 40, place=("g1", "42%", 10))]
    moved = solve(gpus, jobs, Costs(gpu=5, migration=1))
    assert (moved.objective, tally(gpus, jobs, moved.places).migrated) == (6, 1)
    kept = solve(gpus, jobs, Costs(gpu=5, migration=6))
    assert (kept.objective, tally(gpus, jobs, kept.places).migrated) == (10, 0)


def test_a_model_and_memory_that_only_one_gpu_has_are_obeyed() -> None:
    gpus = [a30("g0"), a100("g1")]
    jobs = [LiveJob(1, "a", 10, "A100-40GB"), LiveJob(2, "a", 10, memory_bytes=30 << 30)]
    found = solve(gpus, jobs)
    assert found.places[1][0] == "g1"
    assert found.places[2] == ("g1", "7g.40gb", 0)
    assert violations(gpus, jobs, dict(found.places)) == []


def test_a_search_that_is_cut_off_says_so_and_gives_its_bound() -> None:
    random = Random(5)
    gpus = [paper_gpu(f"g{j}") for j in range(12)]
    floor = Floor(ConspiratorPaper(), gpus)
    jobs = []
    for n in range(16):
        share = random.choice((5, 9, 13, 20, 33, 47))
        at = floor.assign(Demand(n, f"t{n % 3}", share, 0))
        assert at is not None
        profile = floor.leases[floor.jobs[n][1].lease].view.profile
        jobs.append(LiveJob(n, f"t{n % 3}", share, place=(at[0], profile, at[1])))
    found = solve(gpus, jobs, Costs(100, 1, 1), limit_s=4)
    assert found.status in (FEASIBLE, OPTIMAL)
    assert 0 < found.bound <= found.objective
    assert found.is_proven == (found.gap == 0.0)
    assert violations(gpus, jobs, dict(found.places)) == []


def test_sixty_jobs_on_thirty_gpus_are_proven_where_moving_is_free() -> None:
    random = Random(5)
    gpus = [a100(f"g{j}") for j in range(30)]
    jobs = [LiveJob(n, f"t{n % 7}", random.choice((5, 9, 13, 20, 33, 47))) for n in range(60)]
    for costs in (Costs(1), Costs(0, 0, 1)):
        found = solve(gpus, jobs, costs, limit_s=60)
        assert found.is_proven
        assert violations(gpus, jobs, dict(found.places)) == []


def test_the_ways_to_cut_a_gpu_are_those_that_nvidia_lists() -> None:
    assert len(maximal_cuts(paper_gpu("g0", "A30-24GB"))) == 4
    assert len(maximal_cuts(a30())) == 4


@pytest.mark.parametrize(
    ("places", "said"),
    [
        ({1: ("g0", "1g.5gb", 0)}, "1a"),
        ({1: ("g0", "1g.5gb", 0), 2: ("g0", "1g.5gb", 0)}, "1h"),
        ({1: ("g0", "1g.5gb", 7), 2: ("g0", "1g.5gb", 0)}, "not a legal start"),
        ({1: ("g0", "3g.20gb", 0), 2: ("g0", "2g.10gb", 2)}, "overlap"),
        ({1: ("g0", "4g.20gb", 0), 2: ("g0", "7g.40gb", 0)}, "1d"),
        ({1: ("g9", "4g.20gb", 0), 2: ("g0", "7g.40gb", 0)}, "does not exist"),
    ],
)
def test_the_checker_sees(places: dict[int, Place], said: str) -> None:
    jobs = [LiveJob(1, "a", 10), LiveJob(2, "b", 10)]
    assert any(said in each for each in violations([a100("g0")], jobs, places))


def test_the_checker_sees_too_much_in_one_fraction_and_what_it_costs() -> None:
    gpus = [a100("g0"), a100("g1")]
    jobs = [LiveJob(1, "a", 10, place=("g0", "1g.5gb", 0)), LiveJob(2, "a", 10, place=("g1", "2g.10gb", 0))]
    both: dict[int, Place] = {1: ("g0", "1g.5gb", 0), 2: ("g0", "1g.5gb", 0)}
    assert any("1c" in each for each in violations(gpus, jobs, both))
    told = tally(gpus, jobs, {1: ("g0", "1g.5gb", 1), 2: ("g1", "2g.10gb", 0)})
    assert (told.gpus, told.slices, told.migrated, told.migration_cost) == (2, 42, 1, 1)
