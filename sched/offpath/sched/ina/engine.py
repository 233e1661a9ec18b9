"""Simulation engine for jobs that train step by step, alone or in sharing groups: state and operations.

A job that is alone on its tree, or has none, is evaluated only when its situation changes: its steps repeat. Other jobs
run operation by operation (`kernel`). Both are exact: ``fast_forward=False``, where every job runs operation by
operation, gives the same numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from importlib.util import find_spec
from typing import Any, Final

from offpath.sched.errors import SchedError
from offpath.sched.ina import engine_kernel as kernel
from offpath.sched.ina.patterns import Timed, rest


class EngineError(SchedError):
    """The engine does not support the requested simulation."""


@dataclass(frozen=True, slots=True)
class Rule:
    """Decides which operations may use INA; `RULES` has the named ones."""

    name: str
    capacity: int = 1
    """Operations that may use INA at once; 0: none."""
    by_tree: bool = False
    """Only operations with conflicting trees exclude each other; otherwise all of a sharing group do."""
    filters: bool = False
    """An operation does not request INA if that would not shorten its step (the Plan of `sched.ina.decision`)."""
    looks_ahead: bool = False
    """An operation is refused if another job's next operation starts before it would end and gains more per time (the
    paper's rule). Reads the current state of the job and the group: "needs global state"."""
    trust: float = 0.0
    """Part of INA's savings that the rest of the step is assumed to get when the gain of an operation is computed."""
    by_hosts: bool = False
    """Gains are multiplied by the job's number of hosts."""
    tuned: bool = False
    """The engine's caller selects ``trust`` for each job of a group from all their patterns (`tuning`)."""


RULES: Final = {
    each.name: each
    for each in (
        Rule("none", capacity=0),
        Rule("greedy"),
        Rule("greedy-by-tree", by_tree=True),
        Rule("mina-paper", looks_ahead=True),
        Rule("plan", filters=True, by_tree=True),
        Rule("plan-tuned", filters=True, by_tree=True, tuned=True),
        Rule("mina-weighed", looks_ahead=True, filters=True, by_tree=True),
    )
}


@cache
def kernels(compiled: bool) -> tuple[Any, Any]:
    """``(forward, run)`` of `kernel`. Raises: EngineError: ``compiled`` without numba (in the extra `sim`)."""
    if not compiled:
        return kernel.build(lambda function: function)
    if not can_compile():
        raise EngineError("numba is not installed; offpath's extra `sim` has it")
    import numba

    try:
        return kernel.build(numba.njit(cache=True))  # cached beside the source or in the user's cache
    except RuntimeError:  # neither is writable
        return kernel.build(numba.njit)


def can_compile() -> bool:
    """True if numba is installed."""
    return find_spec("numba") is not None


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of one job. ``steps_left``: steps that have not ended; ``step_began_ns``: start of the current one;
    ``ina_ns``: time of its operations in network aggregation, with started ones counted in full."""

    steps_left: int
    step_began_ns: int
    at_ns: int
    mode: int
    ina_ns: int
    with_ina: int
    refused: int


class Engine:
    """Up to ``jobs`` jobs, numbered 0, 1, … by the caller, over the timed patterns ``kinds``."""

    def __init__(
        self, kinds: Sequence[Timed], jobs: int, rule: Rule, *, compiled: bool | None = None,
        fast_forward: bool = True, trusts: Sequence[Fraction] | None = None,
    ) -> None:  # fmt: skip
        """``compiled``: use numba; None: if installed. ``trusts``: by kind, instead of the rule's.

        Raises: EngineError: numba is not installed.
        """
        self.rule = rule
        self.now_ns = 0
        self.operations = 0
        """Total all-reduces of all jobs so far."""
        self._compiled = can_compile() if compiled is None else compiled
        self._forward, self._run = kernels(self._compiled)
        self._fast_forward = fast_forward
        self._kinds_of = tuple(kinds)
        self._kinds, self._ops, self._rests = self._tables(
            kinds, trusts if trusts is not None else [Fraction(rule.trust)] * len(kinds)
        )
        self._jobs = self._array([0] * (jobs * kernel.WIDTH))
        self._steps = tuple(
            ((each.none_ns, 0), (each.all_ns, sum(each.ina))) if each.starts else ((each.duration_ns, 0),) * 2
            for each in kinds
        )
        self._alone: dict[int, bool] = {}
        self._ends: dict[int, int] = {}
        """End times of the jobs that are alone."""
        self._over: set[int] = set()
        self.shared = 0
        """Number of jobs in the groups of the last `share`."""
        self._grouped = self._groups((), {})
        self._rule = (rule.capacity, rule.by_tree, rule.filters, rule.looks_ahead)

    def _array(self, values: Sequence[int]) -> Any:
        if not self._compiled:
            return list(values)
        import numpy as np

        return np.array(values, dtype=np.int64)

    def _tables(self, kinds: Sequence[Timed], trusts: Sequence[Fraction]) -> tuple[Any, Any, Any]:
        heads: list[int] = []
        ops: list[int] = []
        rests: list[int] = []
        for each, trust in zip(kinds, trusts, strict=True):
            heads += (len(ops) // 3, len(each.starts), each.duration_ns)
            for three in zip(each.starts, each.plain, each.ina, strict=True):
                ops += three
            fast = rest(each, [min(both) for both in zip(each.plain, each.ina, strict=True)])
            guess = rest(each, [round(p - trust * (p - i)) for p, i in zip(each.plain, each.ina, strict=True)])
            for four in zip(fast.add, fast.least, guess.add, guess.least, strict=True):
                rests += four
        return self._array(heads), self._array(ops), self._array(rests)

    # -- jobs -----------------------------------------------------------------------------------------------------
    def add(self, job: int, kind: int, steps: int, *, hosts: int = 1) -> None:
        """Start a job now; `share` must assign its tree before time advances.

        Raises: EngineError: it has no operation or no step, or its time overflows.
        """
        if steps < 1 or not self._kinds_of[kind].starts:
            raise EngineError(f"job {job}: {steps} steps of {len(self._kinds_of[kind].starts)} operations")
        longest = max(self._steps[kind])[0]
        if self.now_ns + steps * longest > kernel.FOREVER // 4:  # the loop doubles times
            raise EngineError(f"job {job}: {steps} steps of {longest} ns")
        first = self.now_ns + self._kinds_of[kind].starts[0]
        weight = hosts if self.rule.by_hosts else 1
        values = (kind, self.now_ns, 0, kernel.WAITS, first, steps, 0, weight, *[0] * (kernel.WIDTH - 8))
        for field, value in enumerate(values):
            self._jobs[kernel.WIDTH * job + field] = value
        self._over.discard(job)
        self.operations += steps * len(self._kinds_of[kind].starts)

    def change(self, job: int, kind: int) -> None:
        """Change the job's kind, with the same number of operations, from its next operation on; `share` must follow.

        Raises: EngineError: the number of operations differs.
        """
        before = self._kinds_of[int(self._jobs[kernel.WIDTH * job])]
        if len(self._kinds_of[kind].starts) != len(before.starts):
            raise EngineError(f"job {job}: {len(self._kinds_of[kind].starts)} operations, not {len(before.starts)}")
        if job in self._alone:
            self._settle(job, self._alone.pop(job))
            del self._ends[job]
        self._jobs[kernel.WIDTH * job] = kind

    def progress(self, job: int) -> Progress:
        """The job's progress at the current time."""
        if job in self._alone:
            self._settle(job, self._alone[job])
        _, origin, _, mode, at, left, _, _, ina_ns, with_ina, refused = self._fields(job, 11)
        return Progress(left, origin, at, mode, ina_ns, with_ina, refused)

    def _fields(self, job: int, count: int) -> tuple[int, ...]:
        first = kernel.WIDTH * job
        return tuple(int(each) for each in self._jobs[first : first + count])

    def uses_until_ns(self, job: int) -> int | None:
        """End of the operation in flight that holds the job's tree; None if it holds none."""
        progress = self.progress(job)
        return progress.at_ns if progress.mode == kernel.INA else None

    def block(self, job: int, until_ns: int) -> None:
        """The job must not use INA before ``until_ns``: its tree is being moved, or another operation is still on it.
        Replaces the value of an earlier call."""
        self._jobs[kernel.WIDTH * job + kernel.BLOCKED] = until_ns

    # -- groups ---------------------------------------------------------------------------------------------------
    def share(
        self, alone: Iterable[int], none: Iterable[int], groups: Sequence[Sequence[int]],
        conflicts: Mapping[int, Sequence[int]],
    ) -> None:  # fmt: skip
        """From now on each of ``alone`` has its own tree, each of ``none`` has none, and each of ``groups`` shares one.

        Every running job must appear once. ``conflicts``: by job, the jobs of its group with conflicting trees.
        """
        uses = dict.fromkeys(alone, self.rule.capacity > 0)
        uses |= dict.fromkeys(none, False)
        together = [list(group) for group in groups]
        before, self._alone = self._alone, {}
        ends, self._ends = self._ends, {}
        for group in together:
            for job in group:
                self._jobs[kernel.WIDTH * job + kernel.HAS_TREE] = 1
                if job in before:
                    self._settle(job, before[job])
        for job, may in uses.items():
            record = kernel.WIDTH * job
            self._jobs[record + kernel.HAS_TREE] = int(may)
            repeats = self._fast_forward and not (may and self._jobs[record + kernel.BLOCKED] > self.now_ns)
            if repeats and before.get(job) == may:
                self._alone[job], self._ends[job] = may, ends[job]
                continue
            if job in before:
                self._settle(job, before[job])
            if repeats:
                self._leave_alone(job, may)
            else:
                together.append([job])
        self._grouped = self._groups(together, conflicts)

    def _groups(self, groups: Sequence[Sequence[int]], conflicts: Mapping[int, Sequence[int]]) -> tuple[Any, ...]:
        starts = [0]
        members: list[int] = []
        for group in groups:
            members.extend(group)
            starts.append(len(members))
        near: list[int] = []
        if self.rule.by_tree:
            for job in members:
                self._jobs[kernel.WIDTH * job + kernel.NEAR] = len(near)
                near.extend(conflicts.get(job, ()))
                self._jobs[kernel.WIDTH * job + kernel.NEAR_END] = len(near)
        self.shared = len(members)
        return tuple(map(self._array, (starts, members, near, [0] * len(groups))))

    def _leave_alone(self, job: int, uses: bool) -> None:
        """Let the job repeat its steps as now until its end."""
        self._alone[job] = uses
        kind, origin, op, mode, at, left = self._fields(job, 6)
        if mode == kernel.LEAVING:
            self._ends[job] = at
            return
        each = self._kinds_of[kind]
        step = self._steps[kind][uses][0]
        free, durations = at - origin, each.ina if uses else each.plain
        if mode != kernel.WAITS:
            op += 1
        end = rest(each, durations).end_ns(op, free)
        self._ends[job] = origin + end + (left - 1) * step

    def _settle(self, job: int, uses: bool) -> None:
        step, ina = self._steps[int(self._jobs[kernel.WIDTH * job])][uses]
        self._forward(job, self.now_ns, uses, step, ina, self._jobs, self._kinds, self._ops)

    # -- time -----------------------------------------------------------------------------------------------------
    def run(self, limit_ns: int) -> list[int]:
        """Run to ``limit_ns``, or to the first earlier time at which jobs end; returns those jobs by number."""
        limit = min([limit_ns, *self._ends.values()])
        starts, members, near, bounds = self._grouped
        if len(members):
            tables = self._jobs, self._kinds, self._ops, self._rests, self._rule
            limit = int(self._run(limit, starts, members, near, bounds, *tables))
        self.now_ns = limit
        ended = [job for job, end in self._ends.items() if end <= limit]
        for job in ended:
            self._settle(job, self._alone.pop(job))
            del self._ends[job]
        modes = self._jobs[kernel.MODE :: kernel.WIDTH]
        ended += [int(job) for job in members if modes[job] == kernel.ENDED and int(job) not in self._over]
        self._over.update(ended)
        return sorted(ended)
