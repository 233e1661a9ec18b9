"""Solves MinGPUCost (Conspirator §3.3.1, equation 1) to optimality with CP-SAT, with constraints 1a-1i as corrected.

Corrections: 1b means "only where R > 0". 1g-1h mean one tenant per *fraction* (as printed: per GPU) and multiply two
decision variables. Here they are linear: job i may be in fraction (j, w) only if that fraction is tenant t(i)'s, and a
fraction has at most one tenant. 1d is replaced by MIG's rules from the `GpuSpec`; for `paper.paper_gpu` those are
exactly Σ α y ≤ C.

Two reductions keep the model small: equal jobs of one tenant in the same place are counted instead of being
distinguished, and idle GPUs of one kind are used in order. If moving costs nothing, `packing` models no places at all.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from offpath.sched.errors import SchedError
from offpath.sched.gpu.geometry import GpuSpec, Profile
from offpath.sched.gpu.packing import PackingModel

OPTIMAL: Final = "optimal"
FEASIBLE: Final = "feasible"
INFEASIBLE: Final = "infeasible"
UNKNOWN: Final = "unknown"


class SolverMissing(SchedError):
    """OR-Tools is not installed; the extra "sim" provides it."""


Place = tuple[str, str, int]
"""GPU, profile, start."""


@dataclass(frozen=True, slots=True)
class LiveJob:
    """Job i: R in percent, required GPU model if any, bytes of instance memory, current place (k) and cost of moving it
    (m)."""

    job: int
    tenant: str
    share: int
    model: str = ""
    memory_bytes: int = 0
    place: Place | None = None
    migration_cost: int = 1


@dataclass(frozen=True, slots=True)
class Costs:
    """Weights. ``gpu`` is ε1, per GPU in use; ``migration`` is ε2, times m per job moved; ``slice`` per percent of α in
    use (not in equation 1: for slice-hours)."""

    gpu: int = 1
    migration: int = 0
    slice: int = 0


@dataclass(frozen=True, slots=True)
class Solution:
    """``places`` is empty unless ``status`` is optimal or feasible; ``bound`` is a lower bound of the objective."""

    status: str
    objective: int
    bound: int
    places: Mapping[int, Place] = field(default_factory=dict)

    @property
    def is_proven(self) -> bool:
        """True if no solution is better."""
        return self.status == OPTIMAL

    @property
    def gap(self) -> float:
        """(objective - bound) / objective; 0 if the solution is proven optimal."""
        return (self.objective - self.bound) / self.objective if self.objective else 0.0


@dataclass(slots=True)
class _Fraction:
    """Fraction w of GPU j: y, and its tenant."""

    profile: Profile
    start: int
    alpha: int
    used: Any
    tenants: dict[str, Any] = field(default_factory=dict)
    load: list[Any] = field(default_factory=list)


_Class = tuple[str, int, str, int, Place | None, int]
"""Tenant, share, model, memory, current place, migration cost: jobs that the solver does not distinguish."""


def solve(
    gpus: Sequence[GpuSpec],
    jobs: Sequence[LiveJob],
    costs: Costs = Costs(),
    *,
    limit_s: float = 600.0,
    workers: int = 1,
    seed: int = 1,
    hint: Mapping[int, Place] | None = None,
) -> Solution:
    """Find the cheapest assignment of ``jobs`` to ``gpus``.

    ``limit_s``: the paper's cut-off is 600 s. ``hint``: an initial assignment, if moving costs something (default: the
    current places). Raises: SolverMissing. TooManyFillings: if moving is free.
    """
    if not jobs:
        return Solution(OPTIMAL, 0, 0)
    try:
        from ortools.sat.python import cp_model
    except ImportError as fault:
        raise SolverMissing('OR-Tools is needed: pip install "offpath[sim]"') from fault
    classes: dict[_Class, list[int]] = defaultdict(list)
    for job in jobs:
        place = job.place if costs.migration else None  # without a cost of moving the current place is irrelevant
        classes[job.tenant, job.share, job.model, job.memory_bytes, place, job.migration_cost].append(job.job)
    built: _Model | PackingModel
    if costs.migration:
        built = _Model(cp_model, gpus, classes, costs)
        built.hint({job.job: job.place for job in jobs if job.place is not None} if hint is None else hint)
    else:
        built = PackingModel(cp_model, gpus, classes, costs.gpu, costs.slice)
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = limit_s
    solver.parameters.num_workers = workers
    solver.parameters.random_seed = seed
    solver.parameters.linearization_level = 2  # the bound comes from the relaxation
    status = solver.solve(built.model)
    if status == cp_model.INFEASIBLE:
        return Solution(INFEASIBLE, 0, 0)
    bound = round(solver.best_objective_bound)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return Solution(UNKNOWN, 0, bound)
    name = OPTIMAL if status == cp_model.OPTIMAL else FEASIBLE
    return Solution(name, round(solver.objective_value), bound, built.places(solver))


class _Model:
    """Variables and constraints. x of a class counts its jobs in a fraction."""

    def __init__(self, cp_model: Any, gpus: Sequence[GpuSpec], classes: dict[_Class, list[int]], costs: Costs) -> None:
        self.model = cp_model.CpModel()
        self._gpus = gpus
        self._classes = classes
        self._x: dict[tuple[int, int, int], Any] = {}
        self._y: list[Any] = []
        self._fractions: list[list[_Fraction]] = []
        for j, spec in enumerate(gpus):
            self._gpu(j, spec)
        for c, members in enumerate(self._classes.values()):  # 1a
            self.model.add(sum(x for (of, _, _), x in self._x.items() if of == c) == len(members))
        self._in_order([place[0] for *_, place, _ in self._classes if place is not None])
        self._objective(costs)

    def _gpu(self, j: int, spec: GpuSpec) -> None:
        model = self.model
        used = model.new_bool_var(f"Y{j}")
        fractions = [
            _Fraction(profile, start, spec.alpha(profile), model.new_bool_var(f"y{j}.{profile.name}.{start}"))
            for profile in spec.profiles
            if "+" not in profile.name
            for start in profile.starts
        ]
        self._y.append(used)
        self._fractions.append(fractions)
        self._rules(spec, fractions, used)
        for w, fraction in enumerate(fractions):
            for c, (key, members) in enumerate(self._classes.items()):
                tenant, share, wanted, memory, *_ = key
                fits = share <= fraction.alpha and memory <= fraction.profile.memory_bytes
                if fits and wanted in ("", spec.model):
                    self._assignable(j, w, c, tenant, share, min(len(members), fraction.alpha // share))
            model.add(sum(fraction.load) <= fraction.alpha * fraction.used)  # 1c
            if fraction.tenants:
                model.add(sum(fraction.tenants.values()) <= fraction.used)  # 1g, 1h: one tenant per fraction

    def _rules(self, spec: GpuSpec, fractions: list[_Fraction], used: Any) -> None:
        """1d and 1e: the instances that may coexist, and that their GPU is then in use."""
        model = self.model
        model.add(sum(f.profile.compute_slices * f.used for f in fractions) <= spec.compute_slices * used)
        for slice_ in range(spec.memory_slices):
            over = [f.used for f in fractions if f.start <= slice_ < f.start + f.profile.memory_slices]
            if len(over) > 1:
                model.add_at_most_one(over)
        by_profile: dict[str, list[_Fraction]] = defaultdict(list)
        for fraction in fractions:
            by_profile[fraction.profile.name].append(fraction)
        for same in by_profile.values():
            model.add(sum(f.used for f in same) <= same[0].profile.max_instances)
            model.add_implication(same[0].used, used)

    def _assignable(self, j: int, w: int, c: int, tenant: str, share: int, most: int) -> None:
        fraction = self._fractions[j][w]
        owner = fraction.tenants.get(tenant)
        if owner is None:
            owner = fraction.tenants[tenant] = self.model.new_bool_var(f"t{j}.{w}.{tenant}")
        x = self._x[c, j, w] = self.model.new_int_var(0, most, f"x{c}.{j}.{w}")
        self.model.add(x <= most * owner)
        fraction.load.append(share * x)

    def _in_order(self, occupied: list[str]) -> None:
        """Idle GPUs of one kind are interchangeable: use the earlier ones first. In the paper's model the same holds
        for equal fractions of such a GPU."""
        last: dict[tuple[str, int], int] = {}
        for j, spec in enumerate(self._gpus):
            if spec.gpu in occupied:
                continue
            kind = (spec.model, len(spec.profiles))
            if kind in last:
                self.model.add_implication(self._y[j], self._y[last[kind]])
            last[kind] = j
            if all(profile.memory_slices == 1 for profile in spec.profiles):
                for before, after in zip(self._fractions[j], self._fractions[j][1:], strict=False):
                    if before.profile is after.profile:
                        self.model.add_implication(after.used, before.used)

    def _objective(self, costs: Costs) -> None:
        terms = [costs.gpu * used for used in self._y]
        if costs.slice:
            terms += [costs.slice * f.alpha * f.used for fractions in self._fractions for f in fractions]
        if costs.migration:
            for c, (key, members) in enumerate(self._classes.items()):
                *_, place, cost = key
                if place is not None:  # 1f: δ = 1 - Σ x k
                    stays = sum(x for (of, j, w), x in self._x.items() if of == c and self._place(j, w) == place)
                    terms.append(costs.migration * cost * (len(members) - stays))
        self.model.minimize(sum(terms))

    def _place(self, j: int, w: int) -> Place:
        fraction = self._fractions[j][w]
        return self._gpus[j].gpu, fraction.profile.name, fraction.start

    def hint(self, places: Mapping[int, Place]) -> None:
        """Set an initial solution."""
        if not places:
            return
        taken = set(places.values())
        for (c, j, w), x in self._x.items():
            members = list(self._classes.values())[c]
            self.model.add_hint(x, sum(places.get(job) == self._place(j, w) for job in members))
        for j, fractions in enumerate(self._fractions):
            for w, fraction in enumerate(fractions):
                self.model.add_hint(fraction.used, self._place(j, w) in taken)
            self.model.add_hint(self._y[j], any(place[0] == self._gpus[j].gpu for place in taken))

    def places(self, solver: Any) -> dict[int, Place]:
        """The place of each job in the solution."""
        places: dict[int, Place] = {}
        waiting = [list(members) for members in self._classes.values()]
        for (c, j, w), x in self._x.items():
            for _ in range(solver.value(x)):
                places[waiting[c].pop()] = self._place(j, w)
        return places
