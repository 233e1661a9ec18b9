"""What a job gains from a larger share of a GPU, and the share that is enough: the knee (Conspirator §2.3, figure 2).

The paper says of its figure that it "did not observe much performance improvement when assigning more than 50% of GPU
resources". That speaks of all that lies beyond a share together, not of the next slice, and so does the rule here: the
knee is the smallest instance from which no larger one gives more than ``gain`` as much again. How much is "not much"
the paper does not say. A rule on each further slice would stop on a long gentle slope that adds up to a lot.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

GAIN: Final = 0.10
"""What counts as "not much": ours."""


@dataclass(frozen=True, slots=True)
class Rate:
    """Throughput on an instance, in any unit that is the same throughout a profile, > 0."""

    profile: str
    compute_slices: int
    throughput: float


@dataclass(frozen=True, slots=True)
class ThroughputProfile:
    """A job's throughput on each kind of instance that it was measured on, by rising compute slices; the last is the
    whole GPU. What is too small for the job is missing."""

    model: str
    batch_size: int
    rates: tuple[Rate, ...]

    def share(self, rate: Rate) -> int:
        """α in percent, as `GpuSpec.alpha` has it: what a job that is given this instance asks for."""
        return 100 * rate.compute_slices // self.rates[-1].compute_slices

    def normalised(self) -> tuple[float, ...]:
        """Of each rate: its throughput over the whole GPU's."""
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
