"""The classification extension: the greatest values of an output and their indices, as strings ``VALUE:INDEX``."""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np

from offpath.bindings.wire.header import DTYPE_CODES
from offpath.host_helper.dtypes import numpy_dtype
from offpath.host_helper.gateway.datatypes import WIRE
from offpath.host_helper.gateway.errors import invalid, unparsable
from offpath.host_helper.gateway.texts import serialised

MOST: Final = 4096
"""Classes of one output, of all rows together: a few milliseconds."""
_KINDS: Final = frozenset(("UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP32", "FP64"))


def count_of(parameters: Any, name: str) -> int:
    """How many classes an output's parameters ask for; 0: none. Raises: Refused: that is no number, or too large."""
    count = parameters.get("classification", 0)
    if not isinstance(count, int) or isinstance(count, bool) or count < 0:
        raise unparsable(f"Unable to set 'classification' of output '{name}': not a whole number from 0")
    if count > MOST:
        raise invalid(f"at most {MOST} classes are served, and output '{name}' is asked for {count}")
    return count


def check_kind(name: str, datatype: str) -> None:
    """Whether an output of this datatype has classes. Raises: Refused: the text is Triton's."""
    if datatype not in _KINDS:
        raise invalid(f"class result not available for output due to unsupported type '{datatype}'")


def classified(
    name: str, datatype: str, shape: tuple[int, ...], content: memoryview, count: int, *, has_batch: bool
) -> tuple[bytes, tuple[int, ...]]:
    """The serialised strings and their dims: for each row of a batch, the greatest value first, of equal ones that with
    the lower index. Raises: Refused: more strings than are made."""
    rows = shape[0] if has_batch else 1
    each = math.prod(shape[1:] if has_batch else shape)
    count = min(count, each)
    if rows * count > MOST:
        raise invalid(f"output '{name}' has {rows * count} classes, and at most {MOST} are served")
    strings: list[bytes] = []
    if rows * count:  # else there are no values, and perhaps 2**32 rows without any
        values = np.frombuffer(content, numpy_dtype(DTYPE_CODES[WIRE[datatype]])).reshape(rows, each)
        strings = [text.encode() for row in values for text in _greatest(row, count)]
    return bytes(serialised(strings, len(strings)).pieces[0]), (rows, count) if has_batch else (count,)


def _greatest(row: np.ndarray[Any, Any], count: int) -> list[str]:
    keys = np.where(np.isnan(row), -np.inf, row) if row.dtype.kind == "f" else row  # not-a-number is the last
    least = np.partition(keys, row.size - count)[row.size - count]
    above = np.flatnonzero(keys > least)
    chosen = [*above.tolist(), *np.flatnonzero(keys == least)[: count - above.size].tolist()]
    chosen.sort(key=lambda index: (-keys[index].item(), index))
    return [f"{_shown(row[index])}:{index}" for index in chosen]


def _shown(value: Any) -> str:
    """As C++ has it: six digits behind the point of a float."""
    return f"{value:f}" if value.dtype.kind == "f" else str(value)
