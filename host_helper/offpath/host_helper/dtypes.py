"""The wire's dtypes as numpy's. numpy lacks four: ml_dtypes has three, `INT4X2` stands for one."""

from __future__ import annotations

import importlib
from functools import cache, lru_cache
from typing import Any, Final

import numpy as np

from offpath.bindings.wire.header import DTYPE_CODES, DTYPES, STRINGS

INT4X2: Final[np.dtype[Any]] = np.dtype([("int4x2", np.uint8)])
"""Two signed 4-bit integers per element, the first in the low bits. ``packed.view(INT4X2)`` marks an array of uint8 as
such, ``array.view(np.uint8)`` gives the bytes."""
OF_ML_DTYPES: Final = frozenset({"bfloat16", "float8_e4m3fn", "float8_e5m2"})
NO_NUMPY_TYPE: Final = OF_ML_DTYPES | {"int4x2"}
"""Names of the wire that numpy does not know: an interface that passes numpy's type strings cannot carry them."""


@cache
def numpy_dtype(code: int) -> np.dtype[Any]:
    """The numpy dtype of a wire code; of strings, that of objects. Raises: KeyError: an unknown code."""
    name = DTYPES[code][0]
    if name == "int4x2":
        return INT4X2
    if code == STRINGS:
        return np.dtype(object)
    given: Any = getattr(importlib.import_module("ml_dtypes"), name) if name in OF_ML_DTYPES else name
    dtype: np.dtype[Any] = np.dtype(given)
    return dtype


@lru_cache(maxsize=256)  # numpy takes 3 µs to compute a dtype's name
def wire_code(dtype: np.dtype[Any]) -> int | None:
    """The wire code of a numpy dtype of numbers. None: the wire has none for it, or it is not in native byte order."""
    if dtype == INT4X2:
        return DTYPE_CODES["int4x2"]
    return DTYPE_CODES.get(dtype.name) if dtype.isnative else None
