"""Converts records to plain data (numbers, strings, lists) and back, by their type hints: for journals and checkpoints.

Data read back is checked against the hints, because a journal is a file and may contain anything.
"""

from __future__ import annotations

import types
import typing
from collections import deque
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Any, TypeVar, Union

from offpath.sched.errors import PlainError

_T = TypeVar("_T")
_SCALARS = (int, str, bool, float)


def to_plain(value: Any) -> Any:
    """Dataclasses and tuples become lists, enums their values, sets sorted lists, dicts lists of pairs."""
    kind: Any = type(value)
    if value is None or kind in _SCALARS:
        return value
    if isinstance(value, Enum):
        return value.value
    if kind in (tuple, list, deque):
        return [to_plain(item) for item in value]
    if kind in (set, frozenset):
        return sorted(to_plain(item) for item in value)
    if kind is dict:
        return [[to_plain(key), to_plain(item)] for key, item in value.items()]
    return [to_plain(getattr(value, name)) for name in field_names(kind)]


@cache
def field_names(kind: Any) -> tuple[str, ...]:
    """The fields of a dataclass, in order."""
    return tuple(field.name for field in fields(kind))


def from_plain(hint: Callable[..., _T], data: Any) -> _T:
    """Inverse of `to_plain` for this type. Raises: PlainError: the data is not of this type."""
    value: _T = _reader(hint)(data)
    return value


@cache
def own_hints(kind: Any) -> dict[str, Any]:
    """The type hints of a dataclass's fields, resolved.

    Raises: TypeError: the class does not hold its hints as its source has them. A compiler that erases hints (``tuple``
        for ``tuple[int, ...]``) must restore them (`build_fast.records`), or a journal would be misread.
    """
    if not all(isinstance(hint, str) for hint in kind.__annotations__.values()):
        raise TypeError(f"the type hints of {kind.__name__} are not those of its source")
    return typing.get_type_hints(kind)


@cache
def _reader(hint: Any) -> Callable[[Any], Any]:
    """Return a function that converts plain data to ``hint``."""
    if hint in _SCALARS:
        return lambda data: _scalar(hint, data)
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (Union, types.UnionType):
        if all(argument in _SCALARS for argument in arguments):
            return lambda data: _scalar(type(data) if type(data) in arguments else arguments[0], data)
        (inner,) = (argument for argument in arguments if argument is not type(None))
        read = _reader(inner)
        return lambda data: None if data is None else read(data)
    if origin is tuple and arguments[-1] is not Ellipsis:
        readers = tuple(_reader(argument) for argument in arguments)
        return lambda data: tuple(read(item) for read, item in zip(readers, _items(data, len(readers)), strict=True))
    if origin in (tuple, list, set, frozenset, deque):
        read = _reader(arguments[0])
        return lambda data: origin(read(item) for item in _items(data))
    if origin is dict:
        key, item = _reader(arguments[0]), _reader(arguments[1])
        return lambda data: {key(pair[0]): item(pair[1]) for pair in (_items(both, 2) for both in _items(data))}
    if isinstance(hint, type) and issubclass(hint, Enum):
        return lambda data: _enum(hint, data)
    if not is_dataclass(hint):
        raise TypeError(f"{hint} has no plain form")
    made: Any = hint
    hints = own_hints(made)
    readers = tuple(_reader(hints[name]) for name in field_names(made))
    return lambda data: made(*(read(item) for read, item in zip(readers, _items(data, len(readers)), strict=True)))


def _shown(data: Any) -> str:
    """Shorten data of a file or a peer for an error text: it may be nested as deep as a parser allows."""
    return str(data)[:60] if type(data) in _SCALARS or data is None else f"a {type(data).__name__}"


def _scalar(kind: type, data: Any) -> Any:
    if type(data) is not kind and not (kind is float and type(data) is int):
        raise PlainError(f"{_shown(data)} is not of type {kind.__name__}")
    return data


def _items(data: Any, count: int | None = None) -> list[Any]:
    if not isinstance(data, list) or (count is not None and len(data) != count):
        raise PlainError(f"{_shown(data)} is not a list of {'any' if count is None else count} items")
    return data


def _enum(kind: type[Enum], data: Any) -> Enum:
    try:
        if type(data) not in _SCALARS:
            raise ValueError
        return kind(data)
    except ValueError:
        raise PlainError(f"{_shown(data)} is not of type {kind.__name__}") from None
