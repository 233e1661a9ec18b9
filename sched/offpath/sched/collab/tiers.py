"""Tier-based matching (Venn §4.3, algorithm 2): a request may be served by devices of one speed class only.

The slowest of its devices ends a round. Devices of one tier are alike, so their round is shorter by the factor g; but
only every V-th device is of that tier, so finding them takes V times as long. A job learns its thresholds and times
from the devices of its earlier requests without a tier; its first request has none.

`randint(0, V)` of line 6 would have V + 1 outcomes, and a tier 0 that does not exist: it is one of V tiers.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

MOST_SAMPLES: Final = 1_000
"""A job's profile keeps the responses of so many devices, the last ones."""
LEAST_SAMPLES: Final = 8
"""In each tier, before times are estimated from them."""
_TAIL: Final = 1.6448536269514722
"""The 95th percentile of the standard normal distribution."""


class Sample(NamedTuple):
    """One device's work for a job. ``speed``: its capability, in any unit."""

    speed: int
    response_s: float


def tail_s(responses: Sequence[float] | NDArray[np.float64]) -> float:
    """The 95th percentile of the log-normal distribution that fits them (maximum likelihood). All above 0."""
    logs = np.log(responses)
    return math.exp(float(logs.mean()) + _TAIL * float(logs.std()))


@dataclass(frozen=True, slots=True)
class Tiers:
    """``bounds``: V - 1 speeds, ascending. ``speedups``: g of each tier, t_v / t_0; shape [V]."""

    bounds: tuple[int, ...]
    speedups: tuple[float, ...]

    def of(self, speed: int) -> int:
        """The tier of a device; V - 1 is the fastest."""
        return bisect_right(self.bounds, speed)


class Profile:
    """What a job has learnt from the devices of its requests that had no tier."""

    def __init__(self, count: int) -> None:
        """``count``: V, at least 2."""
        self._count = count
        self._samples: deque[Sample] = deque(maxlen=MOST_SAMPLES)
        self._tiers: Tiers | None = None
        self._is_stale = False

    def learn(self, sample: Sample) -> None:
        """A device has answered. A time that is not above 0 teaches nothing."""
        if sample.response_s > 0 and math.isfinite(sample.response_s):
            self._samples.append(sample)
            self._is_stale = True

    def tiers(self) -> Tiers | None:
        """V tiers with equally many devices of those that took part. None: too few have."""
        if self._is_stale:
            self._tiers, self._is_stale = self._learnt(), False
        return self._tiers

    def learn_all(self, speeds: NDArray[np.int64], responses_s: NDArray[np.float64]) -> None:
        """As `learn` for each, in this order; all times are above 0."""
        if len(speeds):
            self._samples.extend(map(Sample, speeds.tolist(), responses_s.tolist()))
            self._is_stale = True

    def _learnt(self) -> Tiers | None:
        count, each_tier = len(self._samples), range(1, self._count)
        if count < LEAST_SAMPLES * self._count:
            return None
        speeds = np.fromiter((each.speed for each in self._samples), np.int64, count)
        responses = np.fromiter((each.response_s for each in self._samples), np.float64, count)
        order = np.argsort(speeds, kind="stable")
        speeds, responses = speeds[order], responses[order]
        bounds = speeds[[round(count / self._count * tier) for tier in each_tier]]
        cuts = [0, *np.searchsorted(speeds, bounds).tolist(), count]
        if min(np.diff(cuts)) < LEAST_SAMPLES:
            return None  # most devices are of one speed
        whole = tail_s(responses)
        parts = [tail_s(responses[begin:end]) / whole for begin, end in pairwise(cuts)]
        return Tiers(tuple(bounds.tolist()), tuple(parts))


def chosen(tiers: Tiers | None, response_s: float, schedule_s: float, draw: Callable[[int], int]) -> int | None:
    """Algorithm 2: the tier that a request is restricted to, or None: all devices serve it.

    ``response_s``, ``schedule_s``: the job's means so far. ``draw``: of a uniform number below its argument.
    """
    if tiers is None:
        return None
    count = len(tiers.speedups)
    tier = draw(count)
    if schedule_s <= 0:
        return tier if tiers.speedups[tier] < 1 else None  # devices abound: the limit of line 7 for c → ∞
    ratio = response_s / schedule_s
    return tier if count + tiers.speedups[tier] * ratio < ratio + 1 else None
