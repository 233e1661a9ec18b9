"""A request's arrays: what a caller may pass, and where the bytes of each come from."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from offpath.host_helper.strings import KINDS, serialised


class Source(Protocol):
    """An array of a request that lies elsewhere: its bytes are read into the slot, without a copy between."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """As numpy's arrays have it; of strings, that of objects."""

    @property
    def shape(self) -> tuple[int, ...]:
        """As numpy's arrays have it."""

    @property
    def nbytes(self) -> int:
        """Length in bytes, in C order."""

    def read_into(self, room: memoryview) -> None:
        """Fill ``room``, which has ``nbytes``. What it raises ends the request, which was not sent."""


class Absent:
    """In the place of an optional input that is not there; a caller passes None."""

    dtype: Final = np.dtype("V1")
    shape: Final = ()
    nbytes: Final = 0

    def read_into(self, room: memoryview) -> None:
        """Nothing."""


Array = NDArray[Any] | Source
ABSENT: Final[Source] = Absent()


def as_arrays(arrays: Iterable[Any]) -> tuple[Array, ...]:
    """A request's arrays, from any iterable of them, which is walked once. None stands for an optional input that is
    not there; arrays of ``bytes``, ``str`` or objects that are one of them become strings.

    Raises: TypeError: it is one array, or an element is none, or its objects are no strings; the text shows the call
    that was meant. ValueError: a string cannot be sent.
    """
    if isinstance(arrays, (str, bytes, bytearray, memoryview)) or hasattr(arrays, "dtype"):
        raise TypeError(f"a list of arrays is wanted, not one {_kind(arrays)}: pass [array]")
    try:
        found = tuple(arrays)
    except TypeError:
        raise TypeError(f"a list of arrays is wanted, not {_kind(arrays)}: pass [array]") from None
    for each in found:
        if type(each) is not np.ndarray or each.dtype.kind in KINDS:
            return tuple(_taken(*numbered) for numbered in enumerate(found))
    return found


def _taken(number: int, each: Any) -> Array:
    """An element as a request has it."""
    if each is None:
        return ABSENT
    if isinstance(each, np.ma.MaskedArray):
        raise TypeError(f"array {number} is masked, and a mask does not travel: pass array.filled(value)")
    if isinstance(each, (np.ndarray, np.generic)):
        if each.dtype.kind not in KINDS:
            number_or_array: Any = each  # numpy's scalars lie in the slot as arrays do
            return cast(Array, number_or_array)
        try:
            return serialised(np.asarray(each))
        except (TypeError, ValueError) as fault:
            raise type(fault)(f"array {number}: {fault}") from None
    if not all(hasattr(each, name) for name in ("dtype", "shape", "nbytes", "read_into")):
        raise TypeError(f"array {number} is {_kind(each)}, not an array of numpy: pass numpy.asarray(value)")
    source: Source = each
    return source


def _kind(value: Any) -> str:
    shape = getattr(value, "shape", None)
    return type(value).__name__ + (f" of shape {tuple(shape)}" if isinstance(shape, tuple) else "")
