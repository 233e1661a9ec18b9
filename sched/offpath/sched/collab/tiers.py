"""Tier-based matching (Venn §4.3, algorithm 2): a request may be served by devices of one speed class only.

The slowest of its devices ends a round. Devices of one tier are alike, so their round is shorter by the factor g; but
only every V-th device is of that tier, so finding them takes V times as long. A job learns its thresholds and times
from the devices of its earlier requests without a tier; its first request has none.

`randint(0, V)` of line 6 would have V + 1 outcomes, and a tier 0 that does not exist: it is one of V tiers.
"""

from __future__ import annotations

import math
from bisect import bisect_right
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
TAIL: Final = 1.6448536269514722
"""The 95th percentile of the standard normal distribution."""


class Sample(NamedTuple):
    """One device's work for a job. ``speed``: its capability, in any unit."""

    speed: int
    response_s: float


def tail_s(responses: Sequence[float]) -> float:
    """The 95th percentile of the log-normal distribution that fits them (maximum likelihood). All above 0."""
    return math.exp(log_tail(np.log(responses)))


def log_tail(logs: NDArray[np.float64]) -> float:
    """The logarithm of `tail_s`, of responses' logarithms."""
    mean = float(logs.sum()) / len(logs)
    deviations = logs - mean
    return mean + TAIL * math.sqrt(float(deviations @ deviations) / len(logs))


@dataclass(frozen=True, slots=True)
class Tiers:
    """``bounds``: V - 1 speeds, ascending. ``speedups``: g of each tier, t_v / t_0; shape [V]."""

    bounds: tuple[int, ...]
    speedups: tuple[float, ...]

    def of(self, speed: int) -> int:
        """The tier of a device; V - 1 is the fastest."""
        return bisect_right(self.bounds, speed)


class Profile:
    """What a job has learnt from the devices of its requests that had no tier: the last `MOST_SAMPLES` of them."""

    def __init__(self, count: int) -> None:
        """``count``: V, at least 2."""
        self._count = count
        self._new: list[Sample] = []
        """Not in the columns yet."""
        self._speeds = np.zeros(0, np.int64)
        self._responses_s = np.zeros(0)
        self._tiers: Tiers | None = None
        self._is_stale = False

    @property
    def samples(self) -> list[Sample]:
        """The last ones, the oldest first."""
        self._join()
        return list(map(Sample, self._speeds.tolist(), self._responses_s.tolist()))

    def learn(self, sample: Sample) -> None:
        """A device has answered. A time that is not above 0 teaches nothing."""
        if sample.response_s > 0 and math.isfinite(sample.response_s):
            self._new.append(sample)
            self._is_stale = True
            if len(self._new) == MOST_SAMPLES:
                self._join()

    def learn_all(self, speeds: NDArray[np.int64], responses_s: NDArray[np.float64]) -> None:
        """As `learn` for each, in this order; all times are above 0."""
        self._join()
        if len(speeds):
            self._add(speeds, responses_s)
            self._is_stale = True

    def tiers(self) -> Tiers | None:
        """V tiers with equally many devices of those that took part. None: too few have."""
        if self._is_stale:
            self._join()
            self._tiers, self._is_stale = self._learnt(), False
        return self._tiers

    def _join(self) -> None:
        if self._new:
            speeds, responses_s = zip(*self._new, strict=True)
            self._add(np.array(speeds, np.int64), np.array(responses_s))
            self._new.clear()

    def _add(self, speeds: NDArray[np.int64], responses_s: NDArray[np.float64]) -> None:
        self._speeds = np.concatenate((self._speeds, speeds))[-MOST_SAMPLES:]
        self._responses_s = np.concatenate((self._responses_s, responses_s))[-MOST_SAMPLES:]

    def _learnt(self) -> Tiers | None:
        count = len(self._speeds)
        if count < LEAST_SAMPLES * self._count:
            return None
        order = np.argsort(self._speeds, kind="stable")
        speeds, logs = self._speeds[order], np.log(self._responses_s[order])
        bounds = speeds[[round(count / self._count * tier) for tier in range(1, self._count)]]
        cuts = [0, *np.searchsorted(speeds, bounds).tolist(), count]
        if min(end - begin for begin, end in pairwise(cuts)) < LEAST_SAMPLES:
            return None  # most devices are of one speed
        whole = log_tail(logs)
        parts = [math.exp(log_tail(logs[begin:end]) - whole) for begin, end in pairwise(cuts)]
        return Tiers(tuple(bounds.tolist()), tuple(parts))


def chosen(tiers: Tiers | None, response_s: float, schedule_s: float, draw: Callable[[int], int]) -> int | None:
    """Algorithm 2: the tier that a request is restricted to, or None: all devices serve it.

    ``response_s``, ``schedule_s``: the job's means so far. ``draw``: of a uniform number below its argument.
    """
    if tiers is None:
        return None
    count = len(tiers.speedups)
    tier = draw(count)
    return tier if is_worth(count, tiers.speedups[tier], response_s, schedule_s) else None


def is_worth(count: int, speedup: float, response_s: float, schedule_s: float) -> bool:
    """Line 7: a round by one of ``count`` tiers, whose g is ``speedup``, is shorter."""
    if schedule_s <= 0:
        return speedup < 1  # devices abound: the limit for c → ∞
    ratio = response_s / schedule_s
    return count + speedup * ratio < ratio + 1
