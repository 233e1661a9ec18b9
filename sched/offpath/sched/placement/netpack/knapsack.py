"""Step 1 of Algorithm 2: the jobs of a batch to place, by value, within the free GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from offpath.sched.placement.netpack.kernels import kernels

AGEING: Final = 1.0
"""Part of its own value that a job gains per batch in which it was not placed."""


def aged(value: float, passed_over: int) -> float:
    """A job's value in the knapsack: it grows with each batch that passes the job over."""
    return value * (1.0 + AGEING * passed_over)


def chosen(values: Sequence[float], gpus: Sequence[int], free: int, *, compiled: bool) -> list[bool]:
    """The set of jobs with the greatest sum of ``values`` whose ``gpus`` fit into ``free``; exact.

    Of equal sums the one with earlier jobs wins, where the last job in which they differ decides. O(jobs · free) time,
    a bit of memory for each; nothing if all fit.
    """
    if sum(gpus) <= free:
        return [True] * len(values)
    if free <= 0:
        return [False] * len(values)
    knapsack = kernels(compiled)[0]
    taken = knapsack(np.array(values, np.float64), np.array(gpus, np.int64), free)
    return [bool(each) for each in taken]
