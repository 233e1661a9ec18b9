"""The Plan: which operations of a step want INA, and how much each would gain (MINA §III-D without live state).

Pure and clock-free: all that goes in is the same on every rank of a job, so all ranks decide alike without a word. What
the root of the tree then makes of it is `arbitration`'s.

Why an operation wants INA: because its use shortens the step. Earlier ones often do not, they only widen the gaps in
front of what computation holds up (figure 4); one that asks all the same keeps others from the tree for nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache

from offpath.sched.ina.patterns import Rest, Timed, ends_ns, rest, step_ns


@dataclass(frozen=True, slots=True)
class Epoch:
    """What all ranks hold of a job from one agreement to the next. ``pattern``: its step on its network; ``trust``:
    which part of what INA saves the rest of the step is assumed to get; ``is_shared``: others are on its tree."""

    number: int
    pattern: Timed
    is_shared: bool = True
    trust: Fraction = field(default_factory=Fraction)


@dataclass(frozen=True, slots=True)
class Decision:
    """``score``: ns of the step's time that INA saves per ns that the tree is held; what a root may weigh jobs by."""

    wants_ina: bool
    score: Fraction


@lru_cache(maxsize=256)
def _rest(epoch: Epoch) -> Rest:
    pairs = zip(epoch.pattern.plain, epoch.pattern.ina, strict=True)
    return rest(epoch.pattern, [round(plain - epoch.trust * (plain - ina)) for plain, ina in pairs])


def decision(epoch: Epoch, operation: int, verdicts: Sequence[bool] = ()) -> Decision:
    """Whether ``operation`` (from 0) of the step wants INA.

    ``verdicts``: of the operations before it in this step, which reached all ranks with their results; those that are
    not given count as refused. A job that is alone on its tree always wants it: nobody is kept waiting.

    Raises: ValueError: no such operation, or more verdicts than operations before it.
    """
    pattern = epoch.pattern
    if not 0 <= operation < len(pattern.starts) or len(verdicts) > operation:
        raise ValueError(f"operation {operation} of {len(pattern.starts)}, after {len(verdicts)} verdicts")
    before = [*verdicts, *[False] * (len(pattern.starts) - len(verdicts))]
    free_ns = ends_ns(pattern, before)[operation - 1] if operation else 0
    return gain(epoch, operation, max(free_ns, pattern.starts[operation]))


def gain(epoch: Epoch, operation: int, begins_ns: int) -> Decision:
    """`decision` where it is known when the operation begins, ns after its step did."""
    pattern, left = epoch.pattern, _rest(epoch)
    plain, ina = pattern.plain[operation], pattern.ina[operation]
    saved = left.end_ns(operation + 1, begins_ns + plain) - left.end_ns(operation + 1, begins_ns + ina)
    return Decision(saved > 0 or not epoch.is_shared, Fraction(saved, ina))


def needed(pattern: Timed) -> tuple[bool, ...]:
    """Few operations that make a step as short as INA for all of them would (figure 4, last row).

    From the last to the first: where the rest of a step would end too late, the smallest of the operations from there
    on that makes up for it is added, or the one that saves most.
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
