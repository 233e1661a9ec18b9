"""What a tenant may ask for in all its open requests together.

A request counts with the most that any of its flavors could take, in each dimension by itself: so a fallback never
exceeds what was admitted. On switches, what is shared counts for each task.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from offpath.sched.inc.errors import QuotaExceeded
from offpath.sched.inc.poly import PolyReq, TaskGroup
from offpath.sched.inc.units import MOST_DEMAND, SERVER_DIMENSIONS, SWITCH_DIMENSIONS, Vector, plus

DIMENSIONS: Final = (*SERVER_DIMENSIONS, *SWITCH_DIMENSIONS)
_NOTHING: Final[Vector] = (0,) * len(DIMENSIONS)


@dataclass(frozen=True, slots=True)
class Quota:
    """``amounts``: shape [5], by `DIMENSIONS`. ``requests``: open ones at a time."""

    amounts: Vector = (MOST_DEMAND,) * len(DIMENSIONS)
    requests: int = 1_000


def taken(request: PolyReq) -> Vector:
    """The most of each dimension that the request can take. Shape [5]."""
    by_choice: dict[str, dict[str, Vector]] = {}
    for group in request.groups:
        of = by_choice.setdefault(group.composite, {})
        of[group.implementation] = plus(of.get(group.implementation, _NOTHING), _of(group))
    total = _NOTHING
    for choices in by_choice.values():
        total = plus(total, tuple(max(each) for each in zip(*choices.values(), strict=True)))
    return total


def _of(group: TaskGroup) -> Vector:
    each = (0, 0, *plus(group.demand, group.shared)) if group.is_inc else (*group.demand, 0, 0, 0)
    return tuple(amount * group.tasks for amount in each)


def check(tenant: str, quota: Quota, held: Iterable[Vector], wanted: Vector) -> None:
    """Raises: QuotaExceeded: names the dimension."""
    total, count = wanted, 0
    for each in held:
        total, count = plus(total, each), count + 1
    if count >= quota.requests:
        raise QuotaExceeded(f"tenant {tenant} has {count} open requests; its quota is {quota.requests}")
    for name, amount, most in zip(DIMENSIONS, total, quota.amounts, strict=True):
        if amount > most:
            raise QuotaExceeded(f"tenant {tenant}: {amount} {name} with this request; its quota is {most}")
