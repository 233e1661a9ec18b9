"""Tensors of strings: the dtype ``bytes`` of the wire, BYTES of the Open Inference Protocol.

Each element is its length, 4 bytes little-endian, and then so many bytes; elements follow each other in C order. That
is Triton's serialisation, so the gateway passes it through. In numpy such a tensor is an array of objects, each of them
``bytes``, as in Triton's Python backend.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from offpath.bindings.errors import HeaderError

DTYPE: Final[np.dtype[Any]] = np.dtype(object)
KINDS: Final = frozenset("OSU")
"""numpy's kinds of dtypes whose arrays may hold strings."""
MOST_BYTES: Final = (1 << 32) - 1
"""Of one string: its length has 32 bits."""
_LENGTH: Final = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class Strings:
    """Strings on their way into a slot (`offpath.host_helper.request_arrays.Source`). ``pieces``: the serialised
    strings, one after the other."""

    shape: tuple[int, ...]
    pieces: list[bytes | memoryview]
    nbytes: int

    @property
    def dtype(self) -> np.dtype[Any]:
        """See `Source.dtype`."""
        return DTYPE

    def read_into(self, room: memoryview) -> None:
        """See `Source.read_into`."""
        room[:] = b"".join(self.pieces)


def serialised(array: NDArray[Any]) -> Strings:
    """The strings of an array of objects, or of numpy's strings of fixed width. Text becomes UTF-8. (numpy itself drops
    zero bytes at the end of strings of fixed width.)

    Raises: TypeError: an element is neither ``bytes`` nor ``str``. ValueError: text that UTF-8 cannot express, or a
    string of 4 GiB or more.
    """
    pieces: list[bytes | memoryview] = []
    nbytes = 0
    for number, each in enumerate(array.reshape(-1).tolist()):
        if isinstance(each, str):
            try:
                each = each.encode()
            except UnicodeEncodeError as fault:
                raise ValueError(f"element {number} is no text that UTF-8 can express: {fault.reason}") from None
        elif not isinstance(each, bytes):
            raise TypeError(f"element {number} of an array of objects is {type(each).__name__}; use bytes or str")
        if len(each) > MOST_BYTES:
            raise ValueError(f"element {number} has {len(each)} bytes, and a string at most {MOST_BYTES}")
        pieces += (_LENGTH.pack(len(each)), each)
        nbytes += _LENGTH.size + len(each)
    return Strings(array.shape, pieces, nbytes)


def elements(content: bytes | memoryview, shape: tuple[int, ...]) -> list[bytes]:
    """The strings that ``content`` has for these dims, in C order.

    Raises: HeaderError: ``strings``: not as many, or one is longer than what is left. It is raised before anything is
    made of them.
    """
    count = math.prod(shape)
    if count * _LENGTH.size > len(content):
        raise HeaderError("strings", f"{len(content)} bytes for {count} strings")
    data = content if isinstance(content, bytes) else content.tobytes()
    found = []
    at, end = 0, len(data)
    length_of = _LENGTH.unpack_from
    for number in range(count):
        start = at + _LENGTH.size
        if start > end or (at := start + length_of(data, start - _LENGTH.size)[0]) > end:
            raise HeaderError("strings", f"string {number} of {count} ends beyond the {end} bytes of them")
        found.append(data[start:at])
    if at != end:
        raise HeaderError("strings", f"{end - at} bytes after the last of {count} strings")
    return found


def array_of(content: bytes | memoryview, shape: tuple[int, ...]) -> NDArray[Any]:
    """As an array of objects. Raises: as `elements`; HeaderError: ``dims``: numpy has no such array."""
    found = elements(content, shape)
    array = np.empty(len(found), DTYPE)
    array[:] = found
    try:
        return array.reshape(shape)
    except ValueError as fault:  # a dim of 0 beside some whose product has more than 63 bits
        raise HeaderError("dims", f"{shape}: {fault}") from None
