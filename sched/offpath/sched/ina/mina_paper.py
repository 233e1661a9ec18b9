"""The paper's sharing rule (§III-D), as in its simulator. Needs global state: for the simulator only.

An operation that starts gets INA if none of its sharing group is using it, and no other job of the group has a next
operation that starts before this one would end and gains more per time. The gain is the reduction of the step if
nothing else in it uses INA; the time is from now to the end of that operation with INA. An operation without gain also
gets INA if no other gains more. A refused one runs plain at once.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True, slots=True)
class Next:
    """A job's next operation: its start, its duration with INA, and the reduction of its step, in ns."""

    begins_ns: int
    ina_ns: int
    gain_ns: int


def admits(mine: Next, others: Iterable[Next], *, in_use: int, capacity: int = 1) -> bool:
    """True if the operation that starts now (``mine.begins_ns``) uses INA."""
    now, end = mine.begins_ns, mine.begins_ns + mine.ina_ns
    rate = Fraction(mine.gain_ns, mine.ina_ns)
    stronger = sum(
        other.begins_ns < end and Fraction(other.gain_ns, other.begins_ns + other.ina_ns - now) > rate
        for other in others
    )
    return in_use + stronger < capacity
