"""Gradients as int32, so that a sum does not depend on its order.

A value is rounded to a multiple of 2^-bits, ties to even. Values are bounded so that the sum over all workers cannot
overflow.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from offpath.bindings.errors import OffpathError

BITS: Final = 20
"""Of the fraction. A gradient of five workers may be up to 409."""
_MOST: Final = (1 << 31) - 1


class GradientOutOfRange(OffpathError):
    """A gradient is NaN, infinite, or too large for the fixed point of that many workers."""


def encode(values: NDArray[np.float32], workers: int, bits: int = BITS) -> NDArray[np.int32]:
    """Shape [n] to int32, shape [n]. Raises: GradientOutOfRange.

    >>> encode(np.array([0.5, -1.25], np.float32), 2, bits=2).tolist()
    [2, -5]
    """
    scaled = np.rint(values.astype(np.float64) * (1 << bits))
    most = _MOST // workers
    if not np.all(np.abs(scaled) <= most):
        raise GradientOutOfRange(f"a gradient is not within ±{most / (1 << bits):g}")
    return scaled.astype("<i4")


def decode(total: NDArray[np.int32], bits: int = BITS) -> NDArray[np.float32]:
    """The sum as float32, shape [n]; exact up to float32's own rounding."""
    return (total.astype(np.float64) / (1 << bits)).astype(np.float32)
