"""Sums of chunks are numpy's, and bf16's are those of an adder that rounds to nearest, ties to even."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from offpath.dpu_daemon.switch.summing import add, bf16_to_fp32, fp32_to_bf16


def of(dtype: str, *values: Any) -> bytes:
    return np.array(values, dtype).tobytes()


@pytest.mark.parametrize(
    ("dtype", "code", "parts", "total"),
    [
        ("int32", "<i4", [[1, 2**31 - 1], [2, 1]], [3, -(2**31)]),
        ("fp32", "<f4", [[1e8, np.inf], [1.0, 1.0], [-1e8, 1.0]], [0.0, np.inf]),
        ("fp16", "<f2", [[2048, 65504], [1, 65504], [1, 0]], [2048, np.inf]),
    ],
)
def test_left_to_right_with_one_rounding_for_each_addition(dtype: str, code: str, parts: Any, total: Any) -> None:
    assert add(dtype, [of(code, *part) for part in parts]) == of(code, *total)


def test_one_part_is_its_own_sum() -> None:
    assert add("fp32", [b"\0\0\x80\x7f"]) == b"\0\0\x80\x7f"


@pytest.mark.parametrize(
    ("value", "bits"),
    [
        (0x3F80_8000, 0x3F80),  # a tie goes to the even neighbour, down
        (0x3F81_8000, 0x3F82),  # and up
        (0x3F80_8001, 0x3F81),
        (0x7F7F_FFFF, 0x7F80),  # the largest fp32 overflows
        (0x7F80_0000, 0x7F80),
        (0xFFFF_FFFF, 0x7FC0),  # a NaN must not be rounded into something else
        (0x7F80_0001, 0x7FC0),
        (0x8000_0000, 0x8000),
    ],
)
def test_bf16_rounds_to_nearest_even(value: int, bits: int) -> None:
    assert fp32_to_bf16(np.array([value], np.uint32).view(np.float32))[0] == bits


@given(st.lists(st.integers(0, 0xFFFF), min_size=1, max_size=50))
def test_bf16_survives_the_way_through_fp32(bits: list[int]) -> None:
    given_bits = np.array(bits, np.uint16)
    values = bf16_to_fp32(given_bits)
    same = fp32_to_bf16(values) == given_bits
    assert (same | np.isnan(values)).all()


@given(st.integers(0, 0xFFFF), st.integers(0, 0xFFFF))
def test_a_bf16_sum_is_the_nearest_bf16_to_the_exact_one(one: int, other: int) -> None:
    pair = bf16_to_fp32(np.array([one, other], np.uint16)).astype(np.float64)
    total = bf16_to_fp32(np.frombuffer(add("bf16", [of("<u2", one), of("<u2", other)]), np.uint16))
    exact = pair.sum()
    if not np.isfinite(exact) or abs(exact) > 3.3e38:
        return
    below, above = (
        bf16_to_fp32(fp32_to_bf16(np.array([exact], np.float32)) + np.uint16(step))[0] for step in (65535, 1)
    )
    error = abs(float(total[0]) - exact)
    assert all(error <= abs(float(each) - exact) for each in (below, above) if np.isfinite(each))
