"""Exact selection of trees: the integer program of MINA §III-C in CP-SAT, for any C, with the fewest changes among
optima."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from offpath.sched.gpu.exact import FEASIBLE, OPTIMAL, UNKNOWN, SolverMissing
from offpath.sched.ina.conflicts import Candidates, Instance, Limit, bits


@dataclass(frozen=True, slots=True)
class Solution:
    """``trees``: indices into the candidates, by job; empty if ``status`` is unknown. No solution serves more jobs than
    ``bound``."""

    status: str
    bound: int
    trees: Mapping[int, int] = field(default_factory=dict)

    @property
    def is_proven(self) -> bool:
        """True if no solution serves more jobs, or as many with fewer changes."""
        return self.status == OPTIMAL


def solve(
    candidates: Candidates,
    limit: Limit,
    former: Mapping[int, int] | None = None,
    *,
    limit_s: float = 60.0,
    workers: int = 1,
    seed: int = 1,
    hint: Mapping[int, int] | None = None,
) -> Solution:
    """Maximize the jobs that have trees at once; among optima, keep the most of ``former``.

    ``hint``: an initial solution. The status shows whether the search was cut off at ``limit_s``. Raises:
    SolverMissing.
    """
    try:
        from ortools.sat.python import cp_model
    except ImportError as fault:
        raise SolverMissing('OR-Tools is needed: pip install "offpath[sim]"') from fault
    instance = Instance(candidates, limit)
    if not instance.vertices:
        return Solution(OPTIMAL, 0)
    was = former or {}
    model = cp_model.CpModel()
    x = [model.new_bool_var(f"x{vertex.job}.{vertex.tree}") for vertex in instance.vertices]
    for vertices in instance.by_job.values():  # (1)
        if len(vertices) > 1:
            model.add_at_most_one(x[vertex] for vertex in vertices)
    for mask in set(instance.on.values()):  # (2); switches with the same trees give the same constraint
        members = [x[vertex] for vertex in bits(mask)]
        if len(members) > limit.capacity:
            if limit.capacity == 1:
                model.add_at_most_one(members)
            else:
                model.add(sum(members) <= limit.capacity)
    worth = len(instance.by_job) + 1 if was else 1  # serving one more outweighs every change
    kept = [x[instance.by_job[job][tree]] for job, tree in was.items() if job in instance.by_job]
    model.maximize(worth * sum(x) + sum(kept))
    for job, tree in (hint or {}).items():
        model.add_hint(x[instance.by_job[job][tree]], 1)
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = limit_s
    solver.parameters.num_workers = workers
    solver.parameters.random_seed = seed
    status = solver.solve(model)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return Solution(UNKNOWN, len(instance.by_job))  # the solver's bound before the end of presolve is meaningless
    bound = min(len(instance.by_job), int(solver.best_objective_bound + 1e-6) // worth)
    trees = {
        vertex.job: vertex.tree for vertex, chosen in zip(instance.vertices, x, strict=True) if solver.value(chosen)
    }
    return Solution(OPTIMAL if status == cp_model.OPTIMAL else FEASIBLE, bound, trees)
