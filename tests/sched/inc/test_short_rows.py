"""Arrays whose rows are dimensions: read and compared a column at a time, with NumPy's results."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from offpath.sched.inc.columns import all_of, taken, unless


@given(rows=st.integers(0, 20), size=st.integers(1, 4), seed=st.integers(0, 99))
def test_rows_are_compared_and_taken_as_numpy_does(rows: int, size: int, seed: int) -> None:
    draw = np.random.default_rng(seed)
    values = draw.integers(0, 3, (rows, size))
    some = draw.integers(0, rows, 5) if rows else np.zeros(0, np.int64)
    assert all_of(values > 0).tolist() == (values > 0).all(1).tolist()
    assert taken(values, some).tolist() == values[some].tolist()
    assert taken(values, slice(1, 3)).tolist() == values[1:3].tolist()


def test_what_is_compared_is_not_changed() -> None:
    flags = np.array([[True, False], [True, True]])
    assert all_of(flags).tolist() == [False, True]
    assert flags.tolist() == [[True, False], [True, True]]


@given(flags=st.lists(st.booleans(), max_size=9), amounts=st.tuples(*[st.integers(0, 1 << 40)] * 3))
def test_amounts_are_left_out_where_the_flag_is_set(flags: list[bool], amounts: tuple[int, int, int]) -> None:
    found = unless(np.array(flags, np.bool_), amounts)
    assert found.tolist() == [[0, 0, 0] if each else list(amounts) for each in flags]
