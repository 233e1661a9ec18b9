"""Selects how much each job of a sharing group should expect of INA: the Plan's one free parameter, set before an
epoch.

The Plan requests INA where that shortens the step, and must estimate what the rest of the step will get
(`Epoch.trust`). A job that expects nothing requests too often, one that expects everything too late; which is better
depends on the other jobs of the group. The group is therefore simulated with a few values per job, and the best are
kept. Only patterns are inputs, no live state, and the ranks decide as before. Pure; the time grows with the number of
jobs.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from itertools import product
from typing import Final

from offpath.sched.ina.engine import Engine, Rule
from offpath.sched.ina.patterns import Timed

VALUES: Final = tuple(Fraction(n, 4) for n in range(5))
DEFAULT: Final = Fraction(1, 2)
"""For a job alone, and for groups of more than `MOST`."""
MOST: Final = 6
LONGEST_NS: Final = 10 * 10**9
SPAN_STEPS: Final = 100
_STEPS: Final = 10**7
_PLAN: Final = Rule("plan, one group", filters=True)


def span_ns(group: Sequence[Timed]) -> int:
    """Simulated time: `SPAN_STEPS` steps of the slowest job or `LONGEST_NS`; shorter for more jobs."""
    return min(LONGEST_NS, SPAN_STEPS * max(each.none_ns for each in group)) * 2 // len(group)


@lru_cache(maxsize=4096)
def trusts(group: tuple[Timed, ...], compiled: bool | None = None) -> tuple[Fraction, ...]:
    """`tuned`, cached."""
    return tuned(group, compiled)


def tuned(
    group: tuple[Timed, ...], compiled: bool | None = None, most_operations: int | None = None
) -> tuple[Fraction, ...]:
    """One of `VALUES` for each job of a group that shares one place.

    Two jobs: the best of all pairs of values. More: starting from `DEFAULT`, each job in turn takes its best value, in
    two rounds. ``most_operations``: total number of operations to simulate; it shortens the simulated time, and below
    one step nothing is simulated.

    Raises: EngineError: a step is too long for the engine.
    """
    if not 1 < len(group) <= MOST:
        return (DEFAULT,) * len(group)
    until_ns = span_ns(group)
    if most_operations is not None:
        runs = len(VALUES) ** 2 if len(group) == 2 else 2 * len(group) * len(VALUES) + 1
        rate = sum(Fraction(len(each.starts), each.all_ns) for each in group)
        until_ns = min(until_ns, int(most_operations / runs / rate))
        if until_ns < max(each.none_ns for each in group):
            return (DEFAULT,) * len(group)
    if len(group) == 2:
        return max(product(VALUES, repeat=2), key=lambda each: saved(group, each, until_ns, compiled))
    found = [DEFAULT] * len(group)
    best = saved(group, found, until_ns, compiled)
    for _ in range(2):
        for job in range(len(group)):
            for value in VALUES:
                tried = [*found[:job], value, *found[job + 1 :]]
                score = saved(group, tried, until_ns, compiled)
                if score > best:
                    best, found = score, tried
    return tuple(found)


def saved(group: Sequence[Timed], trust: Sequence[Fraction], until_ns: int, compiled: bool | None = None) -> float:
    """The part of INA's possible savings that the group achieves, over the steps that end before ``until_ns``."""
    engine = Engine(group, len(group), _PLAN, compiled=compiled, trusts=trust)
    jobs = list(range(len(group)))
    for job in jobs:
        engine.add(job, job, _STEPS)
    engine.share([], [], [jobs], {})
    engine.run(until_ns)
    gained = could = 0
    for job, pattern in enumerate(group):
        progress = engine.progress(job)
        done = _STEPS - progress.steps_left
        gained += done * pattern.none_ns - progress.step_began_ns
        could += done * (pattern.none_ns - pattern.all_ns)
    return gained / could if could else 1.0
