"""Counts durations by powers of two."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

_LOWEST: Final = 13
_HIGHEST: Final = 36
BOUNDS_NS: Final = tuple(1 << n for n in range(_LOWEST, _HIGHEST + 1))
"""Upper bounds of the buckets: powers of two from 8 µs to 69 s; a number's bit length selects its bucket."""
_BITS: Final = 64


@dataclass(slots=True)
class Histogram:
    """``bits[n]`` numbers have n bits; the sum is in ns."""

    bits: list[int] = field(default_factory=lambda: [0] * _BITS)
    sum_ns: int = 0

    def add(self, ns: int, count: int = 1) -> None:
        """``count`` durations of ``ns`` each, 0 or more."""
        self.bits[ns.bit_length()] += count
        self.sum_ns += ns * count

    def counts(self) -> tuple[int, ...]:
        """Counts per bucket of `BOUNDS_NS`, then the count beyond the last bound."""
        bits = self.bits
        return (sum(bits[: _LOWEST + 1]), *bits[_LOWEST + 1 : _HIGHEST + 1], sum(bits[_HIGHEST + 1 :]))

    def quantile_ns(self, q: float) -> float:
        """The quantile by linear interpolation inside the bucket; 0 if empty, at most the largest bound."""
        counts = self.counts()
        wanted, below = q * sum(counts), 0
        for n, count in enumerate(counts):
            if count and below + count >= wanted:
                low = BOUNDS_NS[n - 1] if n else 0
                high = BOUNDS_NS[min(n, len(BOUNDS_NS) - 1)]
                return float(low + (high - low) * (wanted - below) / count)
            below += count
        return 0.0
