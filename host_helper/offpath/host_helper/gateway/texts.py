"""Tensors of strings in requests and answers: BYTES of the Open Inference Protocol.

In binary forms they are serialised as in a slot, and pass through. Here their lengths are tested, so that a wrong
request is told what is wrong in Triton's words; the worker tests them again.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from offpath.bindings.errors import HeaderError
from offpath.host_helper.gateway.errors import Refused, invalid, unparsable
from offpath.host_helper.gateway.regions import Region
from offpath.host_helper.strings import DTYPE, Strings, elements

MOST_LOOKED: Final = 4096
"""Strings of a tensor whose lengths are tested here: half a millisecond. Of further ones the worker tests them."""
_LENGTH: Final = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class StringsInRegion:
    """Strings in shared memory, read into the slot and tested there (`offpath.host_helper.request_arrays.Source`)."""

    region: Region
    at: int
    shape: tuple[int, ...]
    nbytes: int
    name: str
    model: str

    @property
    def dtype(self) -> np.dtype[Any]:
        """See `Source.dtype`."""
        return DTYPE

    def read_into(self, room: memoryview) -> None:
        """See `Source.read_into`. Raises: Refused: they do not fill their bytes."""
        self.region.read_into(room, self.at)
        check(room, math.prod(self.shape), self.name, self.model)


def check(content: memoryview | bytes, count: int, name: str, model: str) -> None:
    """Whether the serialised strings of input ``name`` are ``count``, and fill their bytes. Nothing is made of them.
    Raises: Refused: they are not; the texts are Triton's."""
    where = f"inference input '{name}' for model '{model}'"
    at, end = 0, len(content)
    for number in range(min(count, MOST_LOOKED)):
        if at == end:
            raise invalid(f"expected {count} string elements for {where}, got {number}")
        start = at + _LENGTH.size
        if start > end:
            raise _incomplete(where, end - at)
        (length,) = _LENGTH.unpack_from(content, at)
        at = start + length
        if at > end and number + 1 < count:
            raise invalid(f"expected {count} string elements for {where}, got {number + 1}")
        if at > end:
            raise invalid(
                f"incomplete string data for inference input '{name}', expecting string of length {length} but only "
                f"{end - start} bytes available"
            )
    if count > MOST_LOOKED:
        most = MOST_LOOKED + (end - at) // _LENGTH.size
        if count > most:
            raise invalid(f"expected {count} string elements for {where}, got {most} at most")
    elif end - at >= _LENGTH.size:
        raise invalid(f"unexpected number of string elements {count + 1} for {where}, expecting {count}")
    elif at != end:
        raise _incomplete(where, end - at)


def _incomplete(where: str, left: int) -> Refused:
    return invalid(
        f"incomplete string length indicator for {where}, expecting {_LENGTH.size} bytes but only {left} bytes "
        "available. Please make sure the string length indicator is in one buffer."
    )


def serialised(texts: Iterable[bytes], count: int) -> Strings:
    """Strings one by one, in one row."""
    content = b"".join(part for each in texts for part in (_LENGTH.pack(len(each)), each))
    return Strings((count,), [content], len(content))


def of_json(name: str, flat: Sequence[Any]) -> Strings:
    """The strings of a JSON array, in one row. Raises: Refused: something else is among them."""
    if not set(map(type, flat)) <= {str}:
        raise unparsable(f"Unable to parse 'data': attempt to access JSON non-string as string for input '{name}'")
    return serialised((each.encode() for each in flat), len(flat))


def shaped(strings: Strings, shape: tuple[int, ...], where: str) -> Strings:
    """Strings in one row as a tensor of these dims. Raises: Refused: they are more or fewer."""
    (got,), count = strings.shape, math.prod(shape)
    if got < count:
        raise invalid(f"expected {count} string elements for {where}, got {got}")
    if got > count:
        raise invalid(f"unexpected number of string elements {count + 1} for {where}, expecting {count}")
    return replace(strings, shape=shape)


def to_json(name: str, content: bytes, shape: tuple[int, ...]) -> list[str]:
    """An output's strings as JSON has them. Raises: Refused: they are no text, or no strings."""
    try:
        return [each.decode() for each in elements(content, shape)]
    except UnicodeDecodeError:
        raise invalid(
            f"sending BYTES data that is not UTF-8 via JSON is not supported. Please use the binary data format for "
            f"output '{name}'"
        ) from None
    except HeaderError as broken:
        raise Refused(500, "INTERNAL", f"output '{name}': {broken}") from None
