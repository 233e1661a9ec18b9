"""The paper's rule for sharing (§III-D), as its simulator has it. Needs global state: for the simulator only.

An operation that is about to begin gets INA if none of its sharing group is using it, and no other job of the group
has a next operation that begins before this one would be over and gains more per time. The gain is what the step gets
shorter by if nothing else of it uses INA; the time counts from now to the end of that operation with INA. One without
any gain gets INA too where nobody gains more. A refused one runs plain at once.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True, slots=True)
class Next:
    """A job's next operation: when it begins, how long it takes with INA, by how much that shortens its step, in ns."""

    begins_ns: int
    ina_ns: int
    gain_ns: int


def admits(mine: Next, others: Iterable[Next], *, in_use: int, capacity: int = 1) -> bool:
    """Whether the operation that begins now (``mine.begins_ns``) uses INA."""
    now, end = mine.begins_ns, mine.begins_ns + mine.ina_ns
    rate = Fraction(mine.gain_ns, mine.ina_ns)
    stronger = sum(
        other.begins_ns < end and Fraction(other.gain_ns, other.begins_ns + other.ina_ns - now) > rate
        for other in others
    )
    return in_use + stronger < capacity
