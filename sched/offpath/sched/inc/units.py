"""Resource dimensions, and what nodes may have of them. All amounts are whole numbers, so that a release restores a
node's state exactly."""

from __future__ import annotations

from collections.abc import Sequence
from operator import add
from typing import Final

from offpath.sched.inc.errors import DemandInvalid

Vector = tuple[int, ...]
"""Amounts by dimension: shape [3] on switches, [2] on servers."""

SWITCH_DIMENSIONS: Final = ("recirculation", "stages", "sram_kib")
"""Recirculation capacity in percent, match-action stages, SRAM in KiB (HIRE §6.2)."""
SERVER_DIMENSIONS: Final = ("cpu_milli", "memory_mib")
"""Thousandths of a core, MiB."""
SWITCH_CAPACITY: Final[Vector] = (100, 48, 22 * 1024)
"""The paper's switch (§6.2): 48 stages, 22 MB of SRAM."""
MOST_SERVICES: Final = 3
"""Active INC services per switch in the paper's experiments."""
MOST_DEMAND: Final = 1 << 40
"""Of one dimension. Above any node."""


def vector(amounts: Sequence[object], dimensions: Sequence[str], what: str) -> Vector:
    """The amounts, checked. Raises: DemandInvalid: a wrong count, or an amount that is negative, huge or not whole."""
    if len(amounts) != len(dimensions):
        raise DemandInvalid(f"{what}: {len(amounts)} amounts, needed are {', '.join(dimensions)}")
    return tuple(amount(each, f"{what}: {name}") for each, name in zip(amounts, dimensions, strict=True))


def amount(value: object, what: str, most: int = MOST_DEMAND) -> int:
    """A whole number of 0 … ``most``. Raises: DemandInvalid."""
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
        raise DemandInvalid(f"{what} is {value!r:.30}: give a whole number of 0 … {most}")
    return value


def plus(one: Vector, other: Vector) -> Vector:
    """Element-wise sum of two of one shape."""
    return tuple(map(add, one, other))


def fits_in(demand: Vector, room: Vector) -> bool:
    """True if no dimension exceeds its room."""
    return all(a <= b for a, b in zip(demand, room, strict=True))
