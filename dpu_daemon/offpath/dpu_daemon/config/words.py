"""Formats validation errors. A value is shown only if it is a number or similar to an allowed keyword."""

from __future__ import annotations

import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from pydantic import BaseModel

from offpath.bindings.invalid import said
from offpath.dpu_daemon.config.places import nearest
from offpath.dpu_daemon.config.tables import DaemonConfig

_KINDS: Final = {bool: "true or false", int: "a whole number", float: "a number with a point", str: "text",
                 list: "a list", dict: "a table", type(None): "empty"}  # fmt: skip
_WANTED: Final = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "string_type": "text",
    "bool_type": "true or false",
    "list_type": "a list",
    "model_type": "a table",
    "model_attributes_type": "a table",
    "dict_type": "a table",
}


def text_of(error: Mapping[str, Any]) -> str:
    """One of pydantic's errors (``type``, ``loc``, ``input``, ``ctx``) as a sentence about the key."""
    kind, value, context = str(error["type"]), error.get("input"), error.get("ctx", {})
    if kind in _WANTED:
        return f"must be {_WANTED[kind]}, is {_KINDS.get(type(value), 'something else')}"
    say: Callable[[], str] | None = {
        "missing": lambda: "is missing",
        "extra_forbidden": lambda: f"is not a key{_meant(error['loc'])}",
        "greater_than_equal": lambda: f"must be {context['ge']} or more{_is(value)}",
        "less_than_equal": lambda: f"must be {context['le']} or less{_is(value)}",
        "string_too_short": lambda: f"must have {context['min_length']} characters or more",
        "string_too_long": lambda: f"must have {context['max_length']} characters or fewer",
        "too_short": lambda: f"must have at least {_entries(context['min_length'])}",
        "too_long": lambda: f"must have at most {_entries(context['max_length'])}",
        "string_pattern_mismatch": lambda: said(error),
        "literal_error": lambda: f"must be one of {context['expected']}{_like(value, context['expected'])}",
        "value_error": lambda: f"{context['error']}",  # raised by a validator of `tables`
    }.get(kind)
    return say() if say is not None else "cannot be used"


def _entries(count: int) -> str:
    return "1 entry" if count == 1 else f"{count} entries"


def _is(value: object) -> str:
    return f", is {value}" if isinstance(value, int) and abs(value) < 1 << 64 else ""


def _like(value: object, expected: str) -> str:
    words = tuple(word.strip(" '") for word in expected.replace(" or ", ", ").split(","))
    return nearest(value, words) if isinstance(value, str) else ""


def _meant(loc: Sequence[int | str]) -> str:
    """A suggestion for an unknown key: the table with this exact key, else a similar key of the same table."""
    *above, last = loc
    return _elsewhere(str(last)) or nearest(str(last), _fields(above))


def _fields(above: Sequence[int | str]) -> dict[str, Any]:
    """The keys of the table at ``above``."""
    model: type[BaseModel] = DaemonConfig
    for part in above:
        if isinstance(part, int):
            continue
        field = model.model_fields.get(part)
        inner = _model_in(field.annotation) if field is not None else None
        if inner is None:
            return {}
        model = inner
    return dict(model.model_fields)


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for part in typing.get_args(annotation) if (found := _model_in(part)) is not None), None)


def _elsewhere(key: str) -> str:
    """The table that has a key with exactly this name."""
    for table, field in DaemonConfig.model_fields.items():
        inner = _model_in(field.annotation)
        if inner is not None and key in inner.model_fields:
            return f'; did you mean "{table}.{key}"?'
    return ""
