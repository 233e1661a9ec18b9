"""Reads JSON from peers: one parser for all carriers, so that no two components read one document differently.

RFC 8259 §4 leaves the meaning of a repeated key open; orjson takes the last one. Here it is an error: otherwise a check
of a message's first ``kind`` could pass while another ``kind`` is executed.
"""

from __future__ import annotations

import re
from typing import Any, Final

import orjson

from offpath.bindings.errors import ControlError

_STRING: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_NESTS: Final = (dict, list)


def read(body: bytes) -> Any:
    """The document's value. Costs a second look at it beside the parse; no message of the request path is JSON.

    Raises: ControlError: ``json``: not JSON, nested too deeply, or an object with a repeated key.
    """
    try:
        value = orjson.loads(body)
    except (orjson.JSONDecodeError, RecursionError) as fault:
        raise ControlError("json", str(fault)[:200]) from None
    # Outside of strings a colon follows each key and occurs nowhere else. The parser keeps one of several equal keys.
    colons = body.count(b":")
    if b"\\" not in body and colons == _written_colons(value):
        return value  # without escapes each string is written as it was: a key that was dropped would lack its colon
    keys = _keys(value)
    if colons != keys and _STRING.sub(b"", body).count(b":") != keys:
        raise ControlError("json", "an object has a repeated key")
    return value


def _written_colons(value: Any) -> int:
    """Colons in the value, written again: a tenth of the time of `_keys`. -1: it nests too deeply to be written."""
    try:
        return orjson.dumps(value).count(b":")
    except orjson.JSONEncodeError:
        return -1


def _keys(value: Any) -> int:
    """Number of keys in all objects inside."""
    count = 0
    waiting = [value] if type(value) in _NESTS else []
    while waiting:
        one = waiting.pop()
        if type(one) is dict:
            count += len(one)
            one = one.values()
        for each in one:
            if each and type(each) in _NESTS:
                waiting.append(each)
    return count
