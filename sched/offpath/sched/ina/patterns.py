"""What one training step of a job asks of the network (MINA §II-C), and how long it takes with and without INA.

A step is a list of all-reduces, each with its earliest start (when its gradients are there) and its bytes, and a
duration (when the step would end if the network were infinitely fast). Operations of a job run one after the other, in
their order; the step ends with the last of them, or after its duration if that is later.

Times are integers: a model that is run all at once, operation by operation or by two engines gives equal numbers. They
count ticks of which `Pattern.ticks_per_s` make a second. A tick is 1 ns, as names say, unless a caller asks for more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from offpath.sched.errors import SchedError

MOST_OPERATIONS: Final = 65_536
NS_PER_S: Final = 10**9
FINE_TICKS_PER_S: Final = 2**36
"""Ticks in which the shipped patterns are exact (starts and durations are multiples of 2^-22 s), so that steps that
computation bounds end at exactly one instant wherever they do in double precision seconds. A ns is not a multiple."""
_LONGEST_S: Final = 86_400.0
_MOST_BYTES: Final = 1 << 50


class PatternError(SchedError):
    """What was given as a communication pattern is none; the text says where."""


@dataclass(frozen=True, slots=True)
class AllReduce:
    """One operation: not before ``start_ns`` after the step's begin, of ``nbytes``."""

    start_ns: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Pattern:
    """A step of a job; ``duration_ns`` is its computation. All its times are in ticks of 1 / ``ticks_per_s``."""

    name: str
    operations: tuple[AllReduce, ...]
    duration_ns: int
    ticks_per_s: int = NS_PER_S


@dataclass(frozen=True, slots=True)
class Network:
    """How long an operation takes: ``latency_ns`` + bytes / (``bandwidth`` · ``ratio`` if it is aggregated in the
    network). ``bandwidth`` is algorithm bandwidth, in bytes/s. Neither the number of hosts (if it is above one) nor
    other traffic matters: that is the model of the paper."""

    bandwidth: float = 12.5e9
    ratio: float = 2.0
    latency_ns: int = 50_000

    def plain_ns(self, nbytes: int, ticks_per_s: int = NS_PER_S) -> int:
        """Without INA, in ticks."""
        return self._took(nbytes, self.bandwidth, ticks_per_s)

    def ina_ns(self, nbytes: int, ticks_per_s: int = NS_PER_S) -> int:
        """With INA, in ticks."""
        return self._took(nbytes, self.bandwidth * self.ratio, ticks_per_s)

    def _took(self, nbytes: int, bandwidth: float, ticks_per_s: int) -> int:
        return max(1, round(self.latency_ns * ticks_per_s / NS_PER_S + nbytes * ticks_per_s / bandwidth))


@dataclass(frozen=True, slots=True)
class Timed:
    """A pattern on a network: per operation its earliest start and both its durations, in ns."""

    name: str
    starts: tuple[int, ...]
    plain: tuple[int, ...]
    ina: tuple[int, ...]
    duration_ns: int

    @property
    def none_ns(self) -> int:
        """A step without INA."""
        return step_ns(self, [False] * len(self.starts))

    @property
    def all_ns(self) -> int:
        """A step whose every operation uses INA."""
        return step_ns(self, [True] * len(self.starts))


def timed(pattern: Pattern, network: Network, *, hosts: int = 2, gpu_speedup: float = 1.0) -> Timed:
    """``pattern`` on ``network``. One host has nothing to send: its operations take the latency alone. ``gpu_speedup``
    divides what is computation: starts and duration."""
    ticks = pattern.ticks_per_s
    return Timed(
        pattern.name,
        tuple(round(each.start_ns / gpu_speedup) for each in pattern.operations),
        tuple(network.plain_ns(each.nbytes if hosts > 1 else 0, ticks) for each in pattern.operations),
        tuple(network.ina_ns(each.nbytes if hosts > 1 else 0, ticks) for each in pattern.operations),
        round(pattern.duration_ns / gpu_speedup),
    )


def ends_ns(job: Timed, uses_ina: Sequence[bool]) -> list[int]:
    """When each operation of a step ends, if those of ``uses_ina`` are aggregated in the network."""
    now, ends = 0, []
    for start, plain, ina, uses in zip(job.starts, job.plain, job.ina, uses_ina, strict=True):
        now = max(now, start) + (ina if uses else plain)
        ends.append(now)
    return ends


def step_ns(job: Timed, uses_ina: Sequence[bool]) -> int:
    """How long a step takes, if the operations of ``uses_ina`` are aggregated in the network."""
    return max([job.duration_ns, *ends_ns(job, uses_ina)])


@dataclass(frozen=True, slots=True)
class Rest:
    """The end of a step as a function of when operation i may start at the earliest: max(that + ``add[i]``,
    ``least[i]``), both of length n + 1. Max-plus linear, so that what an operation gains costs O(1)."""

    add: tuple[int, ...]
    least: tuple[int, ...]

    def end_ns(self, operation: int, free_ns: int) -> int:
        """When the step ends if ``operation`` and those after it are left, and none may start before ``free_ns``."""
        return max(free_ns + self.add[operation], self.least[operation])


def rest(job: Timed, durations: Sequence[int]) -> Rest:
    """The `Rest` of a step whose operations take ``durations``."""
    add, least = [0], [job.duration_ns]
    for start, duration in zip(reversed(job.starts), reversed(durations), strict=True):
        least.append(max(start + duration + add[-1], least[-1]))
        add.append(add[-1] + duration)
    return Rest(tuple(reversed(add)), tuple(reversed(least)))


def parse(name: str, data: Any, *, ticks_per_s: int = NS_PER_S) -> Pattern:
    """A pattern from what JSON gives: ``{duration: s, allreduces: [{start: s, size: bytes}, …]}``.

    Raises: PatternError: a key is missing, a number is none, negative, too large or not finite.
    """
    if not isinstance(data, dict) or not isinstance(data.get("allreduces"), list):
        raise PatternError(f"{name}: not an object with a duration and a list of allreduces")
    listed = data["allreduces"]
    if not 0 < len(listed) <= MOST_OPERATIONS:
        raise PatternError(f"{name}: {len(listed)} all-reduces, not 1 to {MOST_OPERATIONS}")
    duration = _number(f"{name}: duration", data.get("duration"), _LONGEST_S)
    if duration <= 0:
        raise PatternError(f"{name}: duration is {duration:g}")
    found = []
    for n, each in enumerate(listed):
        if not isinstance(each, dict):
            raise PatternError(f"{name}: allreduces[{n}] is no object")
        start = _number(f"{name}: allreduces[{n}].start", each.get("start"), _LONGEST_S)
        size = _number(f"{name}: allreduces[{n}].size", each.get("size"), _MOST_BYTES)
        if size != int(size) or size < 1:
            raise PatternError(f"{name}: allreduces[{n}].size is {size:g}, not a positive number of bytes")
        found.append(AllReduce(round(start * ticks_per_s), int(size)))
    return Pattern(name, tuple(found), max(1, round(duration * ticks_per_s)), ticks_per_s)


def _number(what: str, value: Any, most: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise PatternError(f"{what} is {value!r}, not a number")
    if not math.isfinite(value) or not 0 <= value <= most:
        raise PatternError(f"{what} is {value:g}, not in 0 to {most:g}")
    return float(value)
