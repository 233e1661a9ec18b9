"""JSON that comes from outside: one reader for every carrier, so that no two parties read one document differently.

RFC 8259 §4 leaves open what a repeated key means; orjson takes the last one. Here it is an error: whoever checked the
first ``kind`` of a message would have checked another message than the one that is obeyed.
"""

from __future__ import annotations

import re
from typing import Any, Final

import orjson

from offpath.bindings.errors import ControlError

_STRING: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_NESTS: Final = (dict, list)


def read(body: bytes) -> Any:
    """The document's value. Costs a walk over its objects beside the parse; no message of the request path is JSON.

    Raises: ControlError: ``json``: it is no JSON, is nested too deeply, or has an object with a key twice.
    """
    try:
        value = orjson.loads(body)
    except (orjson.JSONDecodeError, RecursionError) as fault:
        raise ControlError("json", str(fault)[:200]) from None
    # Outside of strings a colon stands behind each key and nowhere else; the parser keeps one of several equal keys.
    keys = _keys(value)
    if body.count(b":") != keys and _STRING.sub(b"", body).count(b":") != keys:
        raise ControlError("json", "an object has a key twice")
    return value


def _keys(value: Any) -> int:
    """Keys of all objects inside."""
    count = 0
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if type(one) is dict:
            count += len(one)
            waiting += [each for each in one.values() if each and type(each) in _NESTS]
        elif type(one) is list:
            waiting += [each for each in one if each and type(each) in _NESTS]
    return count
