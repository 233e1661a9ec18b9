"""Orders to the ranks of a running job: from which step on they compute for how long, and when to end.

Rank 0 reads the operator's order and publishes the step from which it holds, a few steps ahead. No rank can be
further than one step from another, so all read it in time and change at the same step.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from typing import Final

_AHEAD: Final = 3


@dataclass(frozen=True, slots=True)
class Order:
    """``number``: increases by one; ``padding_s``: added to a step's computation beyond its arithmetic; ``ends``: the
    training ends before this step.
    """

    number: int
    padding_s: float
    ends: bool = False
    from_step: int = 0


def write(path: str, order: Order) -> None:
    """Write it atomically."""
    with open(f"{path}.new", "w", encoding="ascii") as file:
        json.dump(asdict(order), file)
    os.replace(f"{path}.new", path)


def read(path: str) -> Order | None:
    """None: no order yet."""
    try:
        with open(path, encoding="ascii") as file:
            return Order(**json.load(file))
    except FileNotFoundError:
        return None


class Orders:
    """A rank's view. ``wanted``: the operator's file; ``agreed``: rank 0's, one file for each order."""

    def __init__(self, wanted: str, agreed: str, rank: int, first: Order) -> None:
        self._wanted, self._agreed, self._rank = wanted, agreed, rank
        self._now, self._seen = first, first.number

    def at(self, step: int) -> Order:
        """The order for ``step``, which this rank is about to begin."""
        if self._rank == 0 and (order := read(self._wanted)) is not None and order.number > self._seen:
            self._seen = order.number
            latest = Order(order.number, order.padding_s, order.ends, step + _AHEAD)
            write(f"{self._agreed}.{order.number}", latest)
        following = read(f"{self._agreed}.{self._now.number + 1}")
        if following is not None and following.from_step <= step:
            self._now = following
        return self._now
