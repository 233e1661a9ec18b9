"""Network demand of one training step of a job (MINA §II-C), and its duration with and without INA.

A step is a list of all-reduces, each with its earliest start (when its gradients are ready) and its bytes, and a
duration (when the step would end on an infinitely fast network). Operations of a job run one after the other, in order;
the step ends with the last of them, or after its duration if that is later.

Times are integers, so that a model run at once, operation by operation or by two engines gives equal numbers. They
count ticks, `Pattern.ticks_per_s` per second. A tick is 1 ns, as the names indicate, unless a caller requests finer
ones.
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
"""Ticks in which the shipped patterns are exact (starts and durations are multiples of 2^-22 s), so that compute-bound
steps that end at the same instant in double precision seconds also do so in ticks. A ns is not such a multiple."""
_LONGEST_S: Final = 86_400.0
_MOST_BYTES: Final = 1 << 50


class PatternError(SchedError):
    """Invalid communication pattern; the text gives the position."""


@dataclass(frozen=True, slots=True)
class AllReduce:
    """One operation: of ``nbytes``, not before ``start_ns`` after the start of the step."""

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
    """Duration of an operation: ``latency_ns`` + bytes / (``bandwidth`` · ``ratio`` if aggregated in the network).
    ``bandwidth`` is algorithm bandwidth, in bytes/s. As in the paper's model, neither the number of hosts (above one)
    nor other traffic matters."""

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
    """A pattern on a network: per operation its earliest start and both durations, in ns."""

    name: str
    starts: tuple[int, ...]
    plain: tuple[int, ...]
    ina: tuple[int, ...]
    duration_ns: int

    @property
    def none_ns(self) -> int:
        """Duration of a step without INA."""
        return step_ns(self, [False] * len(self.starts))

    @property
    def all_ns(self) -> int:
        """Duration of a step in which every operation uses INA."""
        return step_ns(self, [True] * len(self.starts))


def timed(pattern: Pattern, network: Network, *, hosts: int = 2, gpu_speedup: float = 1.0) -> Timed:
    """``pattern`` on ``network``. A single host sends nothing: its operations take only the latency. ``gpu_speedup``
    divides computation: starts and duration."""
    ticks = pattern.ticks_per_s
    return Timed(
        pattern.name,
        tuple(round(each.start_ns / gpu_speedup) for each in pattern.operations),
        tuple(network.plain_ns(each.nbytes if hosts > 1 else 0, ticks) for each in pattern.operations),
        tuple(network.ina_ns(each.nbytes if hosts > 1 else 0, ticks) for each in pattern.operations),
        round(pattern.duration_ns / gpu_speedup),
    )


def ends_ns(job: Timed, uses_ina: Sequence[bool]) -> list[int]:
    """End of each operation of a step, if those of ``uses_ina`` are aggregated in the network."""
    now, ends = 0, []
    for start, plain, ina, uses in zip(job.starts, job.plain, job.ina, uses_ina, strict=True):
        now = max(now, start) + (ina if uses else plain)
        ends.append(now)
    return ends


def step_ns(job: Timed, uses_ina: Sequence[bool]) -> int:
    """Duration of a step, if the operations of ``uses_ina`` are aggregated in the network."""
    return max([job.duration_ns, *ends_ns(job, uses_ina)])


@dataclass(frozen=True, slots=True)
class Rest:
    """The end of a step as a function of the earliest start of operation i: max(start + ``add[i]``, ``least[i]``), both
    of length n + 1. Max-plus linear, so that the gain of an operation costs O(1)."""

    add: tuple[int, ...]
    least: tuple[int, ...]

    def end_ns(self, operation: int, free_ns: int) -> int:
        """End of the step if ``operation`` and those after it remain, and none may start before ``free_ns``."""
        return max(free_ns + self.add[operation], self.least[operation])


def rest(job: Timed, durations: Sequence[int]) -> Rest:
    """The `Rest` of a step with operations of ``durations``."""
    add, least = [0], [job.duration_ns]
    for start, duration in zip(reversed(job.starts), reversed(durations), strict=True):
        least.append(max(start + duration + add[-1], least[-1]))
        add.append(add[-1] + duration)
    return Rest(tuple(reversed(add)), tuple(reversed(least)))


def parse(name: str, data: Any, *, ticks_per_s: int = NS_PER_S) -> Pattern:
    """Read a pattern from parsed JSON: ``{duration: s, allreduces: [{start: s, size: bytes}, …]}``.

    Raises: PatternError: a key is missing, or a value is not a number, negative, too large or not finite.
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
            raise PatternError(f"{name}: allreduces[{n}] is not an object")
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
