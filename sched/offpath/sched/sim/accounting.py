"""Measures GPU time in both of its meanings (Conspirator figure 8a's "GPU-hours" are one of them).

*Active GPU-hours*: ∫ Σ_j Y_j dt, whole GPUs with any lease (equation 1). *Slice-hours*: ∫ Σ α y dt, the fractions held,
in GPUs. *Used*: ∫ Σ R dt, the jobs' demands. A lease counts as *held* from its planning until its slices are free,
which includes creation, warm-up, keep-warm time and scrubbing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

HOUR_NS: Final = 3_600 * 10**9


@dataclass(frozen=True, slots=True)
class GpuHours:
    """Totals over the window, in GPU-hours."""

    active: float
    slices: float
    used: float


class Meter:
    """Integrates over the window [``begin_ns``, ``end_ns``]; calls must be in time order."""

    def __init__(self, begin_ns: int, end_ns: int) -> None:
        self._begin, self._end = begin_ns, end_ns
        self._last = begin_ns
        self._on_gpu: dict[str, int] = {}
        self.active = 0
        """GPUs with a lease now."""
        self.slices = 0
        """Percent of a GPU in leases now."""
        self.used = 0
        """Percent of a GPU demanded by placed jobs now."""
        self._sums = [0, 0, 0]

    def _advance(self, now_ns: int) -> None:
        now = min(max(now_ns, self._begin), self._end)
        took = now - self._last
        if took:
            self._sums[0] += took * self.active
            self._sums[1] += took * self.slices
            self._sums[2] += took * self.used
            self._last = now

    def held(self, now_ns: int, gpu: str, alpha: int) -> None:
        """A lease of α percent is planned."""
        self._advance(now_ns)
        count = self._on_gpu.get(gpu, 0)
        self._on_gpu[gpu] = count + 1
        self.active += not count
        self.slices += alpha

    def freed(self, now_ns: int, gpu: str, alpha: int) -> None:
        """The lease's slices are free."""
        self._advance(now_ns)
        self._on_gpu[gpu] -= 1
        if not self._on_gpu[gpu]:
            del self._on_gpu[gpu]
            self.active -= 1
        self.slices -= alpha

    def placed(self, now_ns: int, share: int) -> None:
        """A job of R percent has a lane; negative: it released the lane."""
        self._advance(now_ns)
        self.used += share

    def total(self, now_ns: int) -> GpuHours:
        """Totals up to now."""
        self._advance(now_ns)
        active, slices, used = self._sums
        return GpuHours(active / HOUR_NS, slices / 100 / HOUR_NS, used / 100 / HOUR_NS)
