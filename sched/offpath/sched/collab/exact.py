"""The least sum of times at which jobs have all their devices: the integer program of Venn §4.1 and §4.2, by CP-SAT.

The paper's program is in an appendix that is not published with it; this is what the text implies. Devices arrive one
after the other. Each gets one job at most, one whose requirement it meets; each job gets D_i devices. The scheduling
delay of a job is the time of its last one. For small cases: a measure for policies.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from offpath.sched.collab.fairness import Standing
from offpath.sched.collab.port import CollabPolicy, Waiting
from offpath.sched.errors import SchedError
from offpath.sched.gpu.exact import SolverMissing

_NOTHING = Standing(1, 0)


@dataclass(frozen=True, slots=True)
class SmallCase:
    """``arrivals``: the atom of each device, in the order of arrival. ``jobs``: requirement's bit and demand, 1 or
    more; all wait from the beginning."""

    arrivals: tuple[int, ...]
    jobs: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Optimum:
    """``total``: Σ over jobs of the number of devices that have arrived when the job has its last one; None: the
    devices are not enough. ``is_proven``: no plan has a smaller one, or there is none."""

    total: int | None
    is_proven: bool


def optimum(case: SmallCase, limit_s: float = 10.0) -> Optimum:
    """Deterministic if it is proven within the limit. Raises: SolverMissing."""
    try:
        from ortools.sat.python import cp_model
    except ImportError as fault:
        raise SolverMissing('OR-Tools is needed: pip install "offpath[sim]"') from fault
    model = cp_model.CpModel()
    gets: dict[tuple[int, int], Any] = {
        (device, job): model.new_bool_var(f"{device} {job}")
        for device, atom in enumerate(case.arrivals) for job, (bit, _) in enumerate(case.jobs) if atom >> bit & 1
    }  # fmt: skip
    for device in range(len(case.arrivals)):
        model.add(sum(gets[device, job] for job in range(len(case.jobs)) if (device, job) in gets) <= 1)
    lasts = []
    for job, (_, demand) in enumerate(case.jobs):
        mine = {device: gets[device, job] for device in range(len(case.arrivals)) if (device, job) in gets}
        if len(mine) < demand:
            return Optimum(None, True)
        last = model.new_int_var(sorted(mine)[demand - 1] + 1, len(case.arrivals), f"last {job}")
        model.add(sum(mine.values()) == demand)
        for device, var in mine.items():
            model.add(last >= (device + 1) * var)
        lasts.append(last)
    for first, second in pairwise(sorted(range(len(case.jobs)), key=lambda job: case.jobs[job])):
        if case.jobs[first][0] == case.jobs[second][0]:  # they could exchange devices: the smaller one ends first
            model.add(lasts[first] <= lasts[second])
    model.minimize(sum(lasts))
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = limit_s
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = 1
    status = solver.solve(model)
    if status in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return Optimum(round(solver.objective_value), status == cp_model.OPTIMAL)
    return Optimum(None, status == cp_model.INFEASIBLE)


def total_of(policy: CollabPolicy, case: SmallCase) -> int | None:
    """The same sum as the policy has it, with the supply of the whole case known. None: some job never has all.

    Raises: SchedError: it names a job that cannot use the device, or needs none.
    """
    supply: dict[int, int] = {}
    for atom in case.arrivals:
        supply[atom] = supply.get(atom, 0) + 1
    policy.supplied(supply)
    left = [demand for _, demand in case.jobs]
    for number, (bit, demand) in enumerate(case.jobs):
        policy.opened(str(number), bit)
        policy.waits(_waiting(case, number, demand))
    total = 0
    for device, atom in enumerate(case.arrivals):
        name = next(iter(policy.candidates(atom)), None)
        if name is None:
            continue
        number = int(name)
        if not atom >> case.jobs[number][0] & 1:
            raise SchedError(f"{policy.name} gives job {name} a device that it cannot use")
        if not left[number]:
            continue
        left[number] -= 1
        if left[number]:
            policy.waits(_waiting(case, number, left[number]))
        else:
            policy.left(name)
            total += device + 1
    return None if any(left) else total


def _waiting(case: SmallCase, number: int, remaining: int) -> Waiting:
    """``rank``: any fixed order that has nothing to do with demands."""
    return Waiting(str(number), case.jobs[number][0], remaining, number, number * 7919 % 31, _NOTHING)
