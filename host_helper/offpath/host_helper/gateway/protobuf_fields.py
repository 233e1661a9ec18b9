"""The fields of a protobuf message, without making the message.

Making it costs forty times the bytes of empty parts, and holds Python's lock meanwhile. Here the number of fields is
bounded before anything is made of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from offpath.host_helper.gateway.errors import invalid

_MOST_OF_VARINT: Final = 10
_VARINT, _I64, _LENGTH, _I32 = 0, 1, 2, 5
"""Wire types (protobuf, Encoding). The messages that are read here have no groups (3 and 4)."""


class Field(NamedTuple):
    """A field's place: its tag is at ``at``, its value begins at ``value`` and ends before ``end``."""

    number: int
    at: int
    value: int
    end: int


def fields(message: bytes, at: int = 0, end: int | None = None) -> Iterator[Field]:
    """The fields of the message, or of a part of it. Each costs about a microsecond: the caller counts them.

    Raises: Refused: it is no message.
    """
    end = len(message) if end is None else end
    while at < end:
        begin = at
        tag, at = _varint(message, at, end)
        kind = tag & 7
        value = at
        if kind == _LENGTH:
            length, value = _varint(message, at, end)
            at = value + length
        elif kind == _VARINT:
            _, at = _varint(message, at, end)
        elif kind in (_I32, _I64):
            at += 4 if kind == _I32 else 8
        else:
            raise broken()
        if at > end or not tag >> 3:
            raise broken()
        yield Field(tag >> 3, begin, value, at)


def whole_numbers(message: bytes, field: Field, most: int) -> list[int]:
    """The first ``most`` numbers of a repeated field, which has one of them, or several packed ones; negative ones are
    beyond 2**63. Raises: Refused: it has no such numbers."""
    if message[field.at] & 7 not in (_VARINT, _LENGTH):
        raise broken()
    found: list[int] = []
    at = field.value
    while at < field.end and len(found) < most:
        number, at = _varint(message, at, field.end)
        found.append(number)
    return found


def broken() -> Exception:
    """What the client is told of bytes that are no message."""
    return invalid("the request is no protobuf message of the method")


def _varint(message: bytes, at: int, end: int) -> tuple[int, int]:
    """The number at ``at``, and where it ends. Raises: Refused."""
    number = shift = 0
    for each in message[at : min(at + _MOST_OF_VARINT, end)]:
        number |= (each & 127) << shift
        at += 1
        if each < 128:
            return number, at
        shift += 7
    raise broken()
