"""The most jobs that can be served at once: HIRE's integer program (§5.1, equations 3 to 5), corrected, by CP-SAT.

Corrected: a group's tasks all run exactly if its flavor is selected and its job is served (Σ a = |G| s_G y_J; as
printed any unselected group makes a job unschedulable), and what tasks share counts once on a switch while one of them
runs there (as printed the sum is divided by their number, which may be 0). For small clusters: a measure for policies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from offpath.sched.gpu.exact import SolverMissing
from offpath.sched.inc import flavors
from offpath.sched.inc.poly import GroupId, PolyReq, TaskGroup
from offpath.sched.inc.resources import Resources
from offpath.sched.inc.units import SERVER_DIMENSIONS, SWITCH_DIMENSIONS


@dataclass(frozen=True, slots=True)
class Served:
    """``places``: by group, its tasks by node; of served jobs only. ``bound``: no plan serves more jobs."""

    jobs: tuple[str, ...]
    places: Mapping[GroupId, Mapping[int, int]]
    bound: int

    @property
    def is_proven(self) -> bool:
        """True if no plan serves more."""
        return len(self.jobs) == self.bound


def most_served(resources: Resources, requests: Sequence[PolyReq], limit_s: float = 10.0) -> Served:
    """On the idle nodes of ``resources``. Deterministic if it is proven within the limit. Raises: SolverMissing."""
    try:
        from ortools.sat.python import cp_model
    except ImportError as fault:
        raise SolverMissing('OR-Tools is needed: pip install "offpath[sim]"') from fault
    model = _Model(cp_model.CpModel(), resources)
    for request in requests:
        model.add_job(request)
    model.add_capacities()
    model.model.maximize(sum(model.served.values()))
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = limit_s
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = 1
    status = solver.solve(model.model)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):  # nothing found in time; serving nobody is always possible
        return Served((), {}, len(requests))
    places: dict[GroupId, dict[int, int]] = {}
    for (group, node), tasks in model.tasks.items():
        if count := solver.value(tasks):
            places.setdefault(group, {})[node] = count
    jobs = tuple(job for job, served in model.served.items() if solver.value(served))
    return Served(jobs, places, int(solver.best_objective_bound))


@dataclass(slots=True)
class _Model:
    """``tasks``: a of equation 1, summed over a group's equal tasks: by group and node."""

    model: Any
    resources: Resources
    served: dict[str, Any] = field(default_factory=dict)
    tasks: dict[tuple[GroupId, int], Any] = field(default_factory=dict)
    _on: dict[int, list[tuple[TaskGroup, Any]]] = field(default_factory=dict)

    def add_job(self, request: PolyReq) -> None:
        """Its y, a selector for each implementation of a composite, exactly one of which is taken, and its tasks."""
        served = self.served[request.job] = self.model.new_bool_var(f"y {request.job}")
        by_composite: dict[str, list[Any]] = {}
        for composite, implementation in request.choices(request.active):
            selected = self.model.new_bool_var(f"s {request.job} {composite} {implementation}")
            by_composite.setdefault(composite, []).append(selected)
            for group in request.implementation(composite, implementation):
                if flavors.status(group.flavor, request.active) is not flavors.Status.REMOVED:
                    self._add_group(group, selected)
        for selectors in by_composite.values():
            self.model.add(sum(selectors) == served)

    def _add_group(self, group: TaskGroup, selected: Any) -> None:
        placed = []
        for node in range(self.resources.topology.nodes):
            if not self.resources.is_lost(node) and self.resources.could_host(group, node):
                most = 1 if group.is_inc else group.tasks
                tasks = self.tasks[group.id, node] = self.model.new_int_var(0, most, f"a {group.id} {node}")
                self._on.setdefault(node, []).append((group, tasks))
                placed.append(tasks)
        self.model.add(sum(placed) == group.tasks * selected)

    def add_capacities(self) -> None:
        """Equation 4, corrected, and the number of services."""
        for node, here in self._on.items():
            capacity = self.resources.capacity(node)
            if node < self.resources.topology.hosts:
                for n in range(len(SERVER_DIMENSIONS)):
                    self.model.add(sum(tasks * group.demand[n] for group, tasks in here) <= capacity[n])
                continue
            active = {service: self.model.new_bool_var(f"z {node} {service}") for service in
                      sorted({group.service for group, _ in here})}  # fmt: skip
            for group, tasks in here:
                self.model.add(tasks <= active[group.service])
            spec = self.resources.switches[node - self.resources.topology.hosts]
            self.model.add(sum(active.values()) <= spec.most_services)
            for n in range(len(SWITCH_DIMENSIONS)):
                shared = [self._shared(node, n, service, here, capacity[n]) for service in active]
                own = sum(tasks * group.demand[n] for group, tasks in here)
                self.model.add(own + sum(shared) <= capacity[n])

    def _shared(self, node: int, n: int, service: str, here: Sequence[tuple[TaskGroup, Any]], most: int) -> Any:
        """The most that a task of the service on the switch shares."""
        shared = self.model.new_int_var(0, most, f"e {node} {service} {n}")
        for group, tasks in here:
            if group.service == service:
                self.model.add(shared >= group.shared[n] * tasks)
        return shared
