"""Finds the smallest sufficient share of a GPU for a job: the knee of its throughput (Conspirator §2.3, figure 2).

The paper writes of its figure that it "did not observe much performance improvement when assigning more than 50% of GPU
resources". This concerns everything beyond a share together, not the next slice, and so does the rule here: the knee is
the smallest instance from which no larger one gives more than ``gain`` as much again. The paper does not define "not
much". A rule on each further slice would stop on a long gentle slope that adds up to a lot.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

GAIN: Final = 0.10
"""Threshold for "not much"; offpath's choice, not the paper's."""


@dataclass(frozen=True, slots=True)
class Rate:
    """Throughput on an instance, > 0, in any unit that is constant within a profile."""

    profile: str
    compute_slices: int
    throughput: float


@dataclass(frozen=True, slots=True)
class ThroughputProfile:
    """A job's throughput on each kind of instance measured, by rising compute slices; the last is the whole GPU.
    Instances too small for the job are missing."""

    model: str
    batch_size: int
    rates: tuple[Rate, ...]

    def share(self, rate: Rate) -> int:
        """α in percent, as `GpuSpec.alpha`: the share that a job sized for this instance requests."""
        return 100 * rate.compute_slices // self.rates[-1].compute_slices

    def normalised(self) -> tuple[float, ...]:
        """Throughput of each rate divided by the whole GPU's."""
        return tuple(rate.throughput / self.rates[-1].throughput for rate in self.rates)

    def knee(self, gain: float = GAIN) -> Rate:
        """The smallest instance from which no larger one gives more than 1 + ``gain`` times its throughput."""
        best = 0.0
        knee = self.rates[-1]
        for rate in reversed(self.rates):
            best = max(best, rate.throughput)
            if best <= (1 + gain) * rate.throughput:
                knee = rate
        return knee
