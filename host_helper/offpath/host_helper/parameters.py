"""Parameters of a request: what a client passes to a kernel beside its tensors, as in Triton's extension "parameters".

They travel as the last tensor of the payload: one string of the dtype ``bytes``, a JSON object. So the daemon copies
them with the payload and never reads them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from offpath.bindings.errors import ControlError, HeaderError, OptionRefused
from offpath.bindings.wire import document
from offpath.bindings.wire.fields import MAX_PARAMETERS_BYTES
from offpath.host_helper.strings import Strings, elements, serialised

Value = bool | int | float | str
Parameters = Mapping[str, Value]
MOST: Final = 64
"""Parameters of one request."""
MOST_NAME: Final = 128
"""Characters of a name."""
MOST_BYTES: Final = MAX_PARAMETERS_BYTES
_LEAST_INT, _MOST_INT = -(1 << 63), (1 << 64) - 1


def fault_of(parameters: Mapping[str, Any]) -> str:
    """Why these are no parameters of a request; empty: they are."""
    if len(parameters) > MOST:
        return f"{len(parameters)} parameters; a request has at most {MOST}"
    for name, value in parameters.items():
        if not isinstance(name, str) or not 1 <= len(name) <= MOST_NAME:
            return f"the name of a parameter has 1 to {MOST_NAME} characters"
        if not isinstance(value, (bool, int, float, str)):
            return f"parameter '{name}' is {type(value).__name__}, and neither a number nor a boolean nor a string"
        if isinstance(value, int) and not _LEAST_INT <= value <= _MOST_INT:
            return f"parameter '{name}' is a whole number of more than 64 bits"
        if isinstance(value, float) and not math.isfinite(value):
            return f"parameter '{name}' is no finite number"
        if isinstance(value, str) and len(value) > MOST_BYTES:
            return f"parameter '{name}' has more than {MOST_BYTES} characters"
    return ""


def checked(parameters: Mapping[str, Any]) -> Parameters:
    """The parameters, numpy's numbers as Python's. Raises: OptionRefused: too many, too long, or of other types."""
    if not parameters:
        return {}
    made = {name: value.item() if isinstance(value, np.generic) else value for name, value in parameters.items()}
    if why := fault_of(made):
        raise OptionRefused(why)
    packed(made)
    return made


def packed(parameters: Parameters) -> Strings:
    """As a request carries them. Raises: OptionRefused: too long, or text that UTF-8 cannot express."""
    text = json.dumps(parameters, ensure_ascii=False, separators=(",", ":"))
    try:
        strings = serialised(np.array([text], object))
    except ValueError as fault:
        raise OptionRefused(f"parameters: {fault}") from None
    if strings.nbytes > MOST_BYTES:
        raise OptionRefused(f"parameters of {strings.nbytes} bytes; a request has at most {MOST_BYTES}")
    return strings


def unpacked(content: bytes, members: int) -> list[dict[str, Value]]:
    """The parameters of so many requests, one behind the other. Raises: HeaderError: ``parameters``, ``strings``: they
    are none."""
    return [_read(each) for each in elements(content, (members,))]


def _read(text: bytes) -> dict[str, Value]:
    if len(text) > MOST_BYTES:
        raise HeaderError("parameters", f"{len(text)} bytes; a request has at most {MOST_BYTES}")
    try:
        found = document.read(text)
    except ControlError as fault:
        raise HeaderError("parameters", fault.detail[:100]) from None
    if not isinstance(found, dict):
        raise HeaderError("parameters", "no object")
    if why := fault_of(found):
        raise HeaderError("parameters", why)
    return found
