"""Sums equal chunks element by element, as a switch's adders would: one rounding for each addition.

fp16 and int32 are numpy's own (int32 wraps around). numpy has no bf16: its bits are the upper half of an fp32, so it is
added as fp32 and rounded to nearest, ties to even.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

_QUIET_NAN: Final = 0x7FC0
_TYPES: Final = {"fp32": "<f4", "fp16": "<f2", "int32": "<i4"}


def bf16_to_fp32(bits: NDArray[np.uint16]) -> NDArray[np.float32]:
    """Exact conversion."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def fp32_to_bf16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Round to nearest, ties to even; every NaN becomes the quiet NaN."""
    bits = values.view(np.uint32)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(values), np.uint16(_QUIET_NAN), rounded)


def _native(parts: Sequence[bytes], dtype: str) -> bytes:
    total = np.frombuffer(parts[0], _TYPES[dtype]).copy()
    with np.errstate(over="ignore", invalid="ignore"):
        for part in parts[1:]:
            total += np.frombuffer(part, _TYPES[dtype])
    return total.tobytes()


def _bf16(parts: Sequence[bytes], dtype: str) -> bytes:
    total = np.frombuffer(parts[0], "<u2")
    with np.errstate(over="ignore", invalid="ignore"):
        for part in parts[1:]:
            total = fp32_to_bf16(bf16_to_fp32(total) + bf16_to_fp32(np.frombuffer(part, "<u2")))
    return total.tobytes()


_SUMS: Final[dict[str, Callable[[Sequence[bytes], str], bytes]]] = {
    "fp32": _native, "fp16": _native, "int32": _native, "bf16": _bf16,
}  # fmt: skip


def add(dtype: str, parts: Sequence[bytes]) -> bytes:
    """((part 0 + part 1) + part 2) + …; all parts have the same length, a whole number of elements."""
    return parts[0] if len(parts) == 1 else _SUMS[dtype](parts, dtype)
