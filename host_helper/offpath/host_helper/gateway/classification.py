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
_MOST_AT_ONCE: Final = 1024
"""Of these, on the loop."""
_MOST_BYTES: Final = 64 * 1024
"""Of an output that is classified on the loop."""
_BLOCK: Final = 1 << 16
"""Values that are looked at at once, if a row has no more: in between, memory of a few bytes for each."""
_Values = np.ndarray[Any, Any]
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


def number_of(name: str, shape: tuple[int, ...], count: int, *, has_batch: bool) -> tuple[int, int]:
    """Rows of an output, and classes of each. Raises: Refused: more of them all together than are served."""
    rows = shape[0] if has_batch else 1
    count = min(count, math.prod(shape[1:] if has_batch else shape))
    if rows * count > MOST:
        raise invalid(f"output '{name}' has {rows * count} classes, and at most {MOST} are served")
    return rows, count


def is_long(nbytes: int, classes: int) -> bool:
    """Whether `classified` takes more than a millisecond or two for so many bytes, or classes of all rows."""
    return nbytes > _MOST_BYTES or classes > _MOST_AT_ONCE


def classified(
    name: str, datatype: str, shape: tuple[int, ...], content: memoryview, count: int, *, has_batch: bool
) -> tuple[bytes, tuple[int, ...]]:
    """The serialised strings and their dims: for each row of a batch, the greatest value first, of equal ones that with
    the lower index. Raises: Refused: more strings than are made."""
    rows, count = number_of(name, shape, count, has_batch=has_batch)
    strings: list[bytes] = []
    if rows * count:  # else there are no values, and perhaps 2**32 rows without any
        values = np.frombuffer(content, numpy_dtype(DTYPE_CODES[WIRE[datatype]])).reshape(rows, -1)
        step = max(_BLOCK // values.shape[1], 1)
        for at in range(0, rows, step):
            strings += _greatest(values[at : at + step], count)
    return bytes(serialised(strings, len(strings)).pieces[0]), (rows, count) if has_batch else (count,)


def _greatest(values: _Values, count: int) -> list[bytes]:
    """The classes of some rows at once: a row alone costs as much as some hundred values."""
    is_float = values.dtype.kind == "f"
    keys = np.where(np.isnan(values), -np.inf, values) if is_float else values  # not-a-number is the last
    indices = _indices(keys, count)
    found = np.take_along_axis(keys, indices, 1)
    order = np.argsort(-found if is_float else ~found, axis=1, kind="stable")  # ~ reverses unsigned numbers as well
    indices = np.take_along_axis(indices, order, 1)
    shown = zip(np.take_along_axis(values, indices, 1).ravel().tolist(), indices.ravel().tolist(), strict=True)
    if is_float:
        return [f"{value:f}:{index}".encode() for value, index in shown]  # six digits behind the point, as C++ has it
    return [f"{value}:{index}".encode() for value, index in shown]


def _indices(keys: _Values, count: int) -> _Values:
    """Those of the greatest of each row; equal ones ascend, and are the first."""
    rows, each = keys.shape
    least = np.partition(keys, each - count, axis=1)[:, each - count, None]
    if rows == 1:  # of one row, which may be long, the indices are found in a fifth of the time
        above = np.flatnonzero(keys > least)
        return np.concatenate((above, np.flatnonzero(keys == least)[: count - above.size]))[None]
    is_above, is_least = keys > least, keys == least
    room = count - np.count_nonzero(is_above, axis=1, keepdims=True)
    is_least &= np.cumsum(is_least, axis=1, dtype=np.min_scalar_type(each)) <= room
    return np.nonzero(is_above | is_least)[1].reshape(-1, count)
