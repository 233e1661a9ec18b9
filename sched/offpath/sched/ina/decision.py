"""The Plan: which operations of a step request INA, and how much each would gain (MINA §III-D without live state).

Pure and without clock: all inputs are equal on every rank of a job, so all ranks decide the same without communication.
`arbitration` models how the root of the tree treats the requests.

An operation requests INA if that shortens the step. For early operations it often does not: it only widens the gaps
before operations that computation delays (figure 4). A request without gain would keep other jobs from the tree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache

from offpath.sched.ina.patterns import Rest, Timed, ends_ns, rest, step_ns


@dataclass(frozen=True, slots=True)
class Epoch:
    """A job's data that all ranks hold from one agreement to the next. ``pattern``: its step on its network; ``trust``:
    the part of INA's savings that the rest of the step is assumed to get; ``is_shared``: other jobs are on its tree."""

    number: int
    pattern: Timed
    is_shared: bool = True
    trust: Fraction = field(default_factory=Fraction)


@dataclass(frozen=True, slots=True)
class Decision:
    """``score``: ns of step time that INA saves per ns that the tree is held; a root may compare jobs by it."""

    wants_ina: bool
    score: Fraction


@lru_cache(maxsize=256)
def _rest(epoch: Epoch) -> Rest:
    pairs = zip(epoch.pattern.plain, epoch.pattern.ina, strict=True)
    return rest(epoch.pattern, [round(plain - epoch.trust * (plain - ina)) for plain, ina in pairs])


def decision(epoch: Epoch, operation: int, verdicts: Sequence[bool] = ()) -> Decision:
    """Decide whether ``operation`` (from 0) of the step requests INA.

    ``verdicts``: of the operations before it in this step, which reached all ranks with their results; missing ones
    count as refused. A job that is alone on its tree always requests INA: it delays no other job.

    Raises: ValueError: no such operation, or more verdicts than operations before it.
    """
    pattern = epoch.pattern
    if not 0 <= operation < len(pattern.starts) or len(verdicts) > operation:
        raise ValueError(f"operation {operation} of {len(pattern.starts)}, after {len(verdicts)} verdicts")
    before = [*verdicts, *[False] * (len(pattern.starts) - len(verdicts))]
    free_ns = ends_ns(pattern, before)[operation - 1] if operation else 0
    return gain(epoch, operation, max(free_ns, pattern.starts[operation]))


def gain(epoch: Epoch, operation: int, begins_ns: int) -> Decision:
    """`decision` with a known start of the operation, in ns from the start of its step."""
    pattern, left = epoch.pattern, _rest(epoch)
    plain, ina = pattern.plain[operation], pattern.ina[operation]
    saved = left.end_ns(operation + 1, begins_ns + plain) - left.end_ns(operation + 1, begins_ns + ina)
    return Decision(saved > 0 or not epoch.is_shared, Fraction(saved, ina))


def needed(pattern: Timed) -> tuple[bool, ...]:
    """A small set of operations that makes a step as short as INA for all operations would (figure 4, last row).

    Goes from the last operation to the first. If the rest of the step would end too late, it adds the smallest
    operation from there on that makes up for it, or else the one that saves most.
    """
    uses = [False] * len(pattern.starts)
    target = step_ns(pattern, [True] * len(uses))
    for first in reversed(range(len(uses))):
        while True:
            left = pattern.starts[first] + sum(
                pattern.ina[n] if uses[n] else pattern.plain[n] for n in range(first, len(uses))
            )
            open_ = [n for n in range(first, len(uses)) if not uses[n]]
            if left <= target or not open_:
                break
            saved = {n: pattern.plain[n] - pattern.ina[n] for n in open_}
            enough = [n for n in open_ if saved[n] >= left - target]
            uses[min(enough, key=lambda n: (saved[n], -n)) if enough else max(open_, key=lambda n: (saved[n], n))] = (
                True
            )
    return tuple(uses)
