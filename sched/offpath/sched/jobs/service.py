"""How long a tenant's kernels take: the last few runs of each, and what they say while they are recent.

Bounded: `KERNELS` kernels of a tenant, `RUNS` runs of each. Integers only, so that a replay decides the same.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

RUNS: Final = 8
"""Runs kept of a kernel: one slow run in between changes nothing, a change of pace is believed within five."""
KERNELS: Final = 64
"""Kernels kept of a tenant; a further one replaces the one that has not run for longest."""
FORGET_NS: Final = 60 * 10**9
FORGET_RUNS: Final = 16
"""A kernel that has not ended for `FORGET_NS`, or for so many of its own runs if that is longer, has no history."""


@dataclass(slots=True, eq=False)
class ServiceTimes:
    """One kernel's. ``runs_ns`` oldest first; ``typical_ns`` their lower median, 0 while there is none."""

    runs_ns: list[int] = field(default_factory=list)
    typical_ns: int = 0
    last_ns: int = 0

    def ended(self, run_ns: int, now_ns: int) -> None:
        """A run of ``run_ns`` ended. With `run_ended` about 1 µs."""
        runs = self.runs_ns
        if self.is_forgotten(now_ns):
            runs.clear()
        runs.append(run_ns)
        if len(runs) > RUNS:
            del runs[0]
        self.typical_ns = sorted(runs)[(len(runs) - 1) // 2]
        self.last_ns = now_ns

    def is_forgotten(self, now_ns: int) -> bool:
        """Its runs are too old to say anything."""
        return now_ns - self.last_ns > max(FORGET_NS, FORGET_RUNS * self.typical_ns)


def run_ended(history: dict[int, ServiceTimes], kernel: int, run_ns: int, now_ns: int) -> None:
    """Add a run to a tenant's ``history``, which stays in the order of the kernels' last runs."""
    times = history.pop(kernel, None)
    if times is None:
        times = ServiceTimes()
        if len(history) >= KERNELS:
            del history[next(iter(history))]
    times.ended(run_ns, now_ns)
    history[kernel] = times


def typical_ns(history: dict[int, ServiceTimes], kernel: int, now_ns: int) -> int:
    """The time that a run of ``kernel`` typically takes; 0: not known, or not any more."""
    times = history.get(kernel)
    return times.typical_ns if times is not None and not times.is_forgotten(now_ns) else 0
