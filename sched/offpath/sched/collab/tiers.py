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
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

MOST_SAMPLES: Final = 1_000
"""A job's profile keeps the responses of so many devices, the last ones."""
LEAST_SAMPLES: Final = 8
"""In each tier, before times are estimated from them."""
_TAIL: Final = 1.6448536269514722
"""The 95th percentile of the standard normal distribution."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One device's work for a job. ``speed``: its capability, in any unit."""

    speed: int
    response_s: float


def tail_s(responses: Sequence[float]) -> float:
    """The 95th percentile of the log-normal distribution that fits them (maximum likelihood). All above 0."""
    logs = [math.log(each) for each in responses]
    mean = sum(logs) / len(logs)
    variance = sum((each - mean) ** 2 for each in logs) / len(logs)
    return math.exp(mean + _TAIL * math.sqrt(variance))


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

    @property
    def samples(self) -> Iterable[Sample]:
        """The last ones, the oldest first."""
        return self._samples

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

    def _learnt(self) -> Tiers | None:
        samples = sorted(self._samples, key=lambda each: each.speed)
        if len(samples) < LEAST_SAMPLES * self._count:
            return None
        size = len(samples) / self._count
        bounds = tuple(samples[round(size * tier)].speed for tier in range(1, self._count))
        found: list[list[float]] = [[] for _ in range(self._count)]
        made = Tiers(bounds, ())
        for sample in samples:
            found[made.of(sample.speed)].append(sample.response_s)
        if any(len(each) < LEAST_SAMPLES for each in found):
            return None  # most devices are of one speed
        whole = tail_s([sample.response_s for sample in samples])
        return Tiers(bounds, tuple(tail_s(each) / whole for each in found))


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
