"""Random clusters, Algorithm 1 line by line in fractions, and lexicographic max-min rates by linear programs."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from random import Random

from offpath.sched.ina.statistical.model import Spread, flows, leaves
from offpath.sched.ina.statistical.network import Network

INFINITE = float("inf")


def network(random: Random, *, pats: tuple[float, ...] = (0.0, 20.0, 50.0, 1_000.0, INFINITE)) -> Network:
    """One to four racks of one to five servers, some slow or oversubscribed."""
    sizes = tuple(random.randint(1, 5) for _ in range(random.randint(1, 4)))
    return Network(
        sizes,
        tuple(random.choice([100.0, 50.0, 25.0]) for _ in range(sum(sizes))),
        tuple(random.choice([INFINITE, 200.0, 100.0, float(random.randint(10, 90))]) for _ in sizes),
        tuple(random.choice(pats) for _ in sizes),
    )


def spread(random: Random, of: Network, *, has_ina: bool | None = None) -> Spread:
    """A job on one to five servers."""
    workers = random.sample(range(of.servers), random.randint(1, min(5, of.servers)))
    ina = random.random() < 0.8 if has_ina is None else has_ina
    return Spread(tuple(sorted(workers)), random.randrange(of.servers), ina)


def water_filling(of: Network, jobs: Mapping[int, Spread]) -> dict[int, Fraction]:
    """Algorithm 1, with its divisions by links without flows and its comparison of floats with 0 mended."""
    most = Fraction(10**9)
    left = {("server", s): Fraction(gbps) for s, gbps in enumerate(of.link_gbps)}
    left |= {
        ("uplink", r): min(most, Fraction(gbps) if gbps != INFINITE else most) for r, gbps in enumerate(of.uplink_gbps)
    }
    pat = {r: min(most, Fraction(gbps) if gbps != INFINITE else most) for r, gbps in enumerate(of.pat_gbps)}
    level = Fraction(0)
    frozen: dict[int, Fraction] = {}
    racks = {job: {of.rack_of[each.ps], *leaves(of, each)} for job, each in jobs.items()}
    while len(frozen) < len(jobs):
        active = [job for job in jobs if job not in frozen]
        mine = {job: flows(of, jobs[job], {rack: pat[rack] > 0 for rack in pat}) for job in active}
        total: dict[tuple[str, int], int] = {}
        for each in mine.values():
            for link, count in each.items():
                total[link] = total.get(link, 0) + count
        users = {
            rack: [job for job in active if jobs[job].has_ina and rack in racks[job]] for rack in pat if pat[rack] > 0
        }
        step = min(
            [left[link] / count for link, count in total.items()]
            + [pat[rack] / len(each) for rack, each in users.items() if each]
        )
        level += step
        for link, count in total.items():
            left[link] -= step * count
        for rack, each in users.items():
            pat[rack] -= step * len(each)
        for job in active:
            if any(left[link] == 0 for link in mine[job]):
                frozen[job] = level
    return frozen


def by_programs(of: Network, jobs: Mapping[int, Spread]) -> dict[int, float]:
    """Lexicographic max-min rates where flows are fixed (every PAT 0 or infinite): a linear program per level."""
    from ortools.linear_solver import pywraplp

    is_open = {rack: pat > 0 for rack, pat in enumerate(of.pat_gbps)}
    uses = {job: flows(of, each, is_open) for job, each in jobs.items()}
    capacity = {("server", s): gbps for s, gbps in enumerate(of.link_gbps)}
    capacity |= {("uplink", r): min(gbps, 1e6) for r, gbps in enumerate(of.uplink_gbps)}

    def solve(fixed: Mapping[int, float], floor: float | None, goal: int | None) -> float:
        """The largest common level of the others; or, each at ``floor`` or more, the largest rate of ``goal``."""
        solver = pywraplp.Solver.CreateSolver("GLOP")
        rate = {job: solver.NumVar(0, solver.infinity(), f"v{job}") for job in jobs}
        common = solver.NumVar(0, solver.infinity(), "t")
        for job in jobs:
            if job in fixed:
                solver.Add(rate[job] == fixed[job])
            else:
                solver.Add(rate[job] >= (common if floor is None else floor))
        for link, gbps in capacity.items():
            solver.Add(sum((each.get(link, 0) * rate[job] for job, each in uses.items()), 0 * common) <= gbps)
        solver.Maximize(common if goal is None else rate[goal])
        assert solver.Solve() == pywraplp.Solver.OPTIMAL
        return float(solver.Objective().Value())

    fixed: dict[int, float] = {}
    while len(fixed) < len(jobs):
        level = solve(fixed, None, None)
        tight = [job for job in jobs if job not in fixed and solve(fixed, level * (1 - 1e-9), job) < level * (1 + 1e-6)]
        assert tight
        fixed |= dict.fromkeys(tight, level)
    return fixed
