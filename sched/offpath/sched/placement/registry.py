"""Placement policies by name."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Final

from offpath.sched.errors import SchedError
from offpath.sched.placement.baselines import BestFitPod, FirstN, RandomHosts
from offpath.sched.placement.fragments import Fragments
from offpath.sched.placement.port import Placement

PLACEMENTS: Final[dict[str, Callable[[Random], Placement]]] = {
    Fragments.name: lambda random: Fragments(),
    FirstN.name: lambda random: FirstN(),
    BestFitPod.name: lambda random: BestFitPod(),
    RandomHosts.name: RandomHosts,
}


def make(name: str, random: Random) -> Placement:
    """Create the policy of that name; ``random`` is for policies that draw. Raises: SchedError: unknown name."""
    if name not in PLACEMENTS:
        raise SchedError(f"unknown placement {name!r}; known placements: {', '.join(PLACEMENTS)}")
    return PLACEMENTS[name](random)
