"""Reproduces the random numbers of LLVM's C++ standard library that MINA's first simulator uses.

The paper's Table I is one draw of one seed. A comparison digit by digit needs the same jobs and candidate trees, and
therefore the same generator and distributions. The C++ standard defines the generator (`minstd_rand`); how a
distribution consumes it is up to the library, so `integer`, `real` and `sample` implement LLVM's libc++.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Final

MULTIPLIER: Final = 48_271
MODULUS: Final = 2**31 - 1
"""Of `minstd_rand` (ISO C++ [rand.predef]), LLVM's `default_random_engine`; GNU's has the multiplier 16807."""
_RANGE: Final = MODULUS - 1
"""Values of the generator: 1 to this."""
_BITS: Final = _RANGE.bit_length() - 1
"""Whole random bits per value: a distribution of more takes several values."""


class Minstd:
    """A `minstd_rand` with libc++'s distributions."""

    def __init__(self, seed: int) -> None:
        self._state = seed % MODULUS or 1

    def value(self) -> int:
        """The next value of the generator, 1 to 2^31 - 2."""
        self._state = self._state * MULTIPLIER % MODULUS
        return self._state

    def integer(self, least: int, most: int) -> int:
        """`uniform_int_distribution`: the lowest bits of a value, redrawn while outside the range.

        A range of one number consumes nothing. Raises: ValueError: the range is empty, or needs more bits than one
        value has.
        """
        count = most - least + 1
        bits = (count - 1).bit_length()
        if count < 1 or bits > _BITS:
            raise ValueError(f"no integer from {least} to {most}")
        if count == 1:
            return least
        usable = _RANGE >> bits << bits  # makes all low bits equally likely
        while True:
            drawn = self.value() - 1
            if drawn < usable and (number := drawn & (1 << bits) - 1) < count:
                return least + number

    def real(self) -> float:
        """`generate_canonical<double, 53>`: two values, the first of them the less significant; 0 to 1."""
        low = self.value() - 1
        high = self.value() - 1
        return (float(low) + float(high) * float(_RANGE)) / (float(_RANGE) * float(_RANGE))

    def by_weight(self, weights: Sequence[float]) -> Callable[[], int]:
        """`discrete_distribution`: draws an index of ``weights``. A single weight consumes nothing."""
        total = sum(weights, start=0.0)
        bounds = list(accumulate(each / total for each in weights[:-1]))
        return lambda: bisect_right(bounds, self.real()) if bounds else 0

    def sample(self, population: Sequence[int], k: int) -> list[int]:
        """`std::sample` of a sequence: ``k`` without replacement, in order; all if there are at most ``k``."""
        found: list[int] = []
        left, wanted = len(population), min(k, len(population))
        for each in population:
            if not wanted:
                break
            left -= 1
            if self.integer(0, left) < wanted:
                found.append(each)
                wanted -= 1
        return found
