"""JSON whose numbers may be not-a-number or infinite, as Triton, tritonclient and Python's json write them.

RFC 8259 has no such numbers: orjson refuses them where it reads, and writes null in their place. Here they are the
tokens NaN, Infinity and -Infinity in both directions. What has none of them is read and written by orjson alone.
"""

from __future__ import annotations

import json
import math
from typing import Any, Final

import numpy as np
import orjson
from numpy.typing import NDArray

from offpath.bindings.errors import ControlError
from offpath.bindings.wire import document

MARK: Final = b"\xef\xbb\xbf"
"""UTF-8's byte-order mark, which some editors and .NET write before a document: Triton reads over it."""
_TOKENS: Final = (b"NaN", b"Infinity", b"-Infinity")
_LOST: Final = b"null"
"""What orjson writes for them."""


def read(text: bytes) -> Any:
    """The document's value, which may follow a `MARK`; its rules beside the tokens are those of `document.read`.

    Raises: ControlError: ``json``: not such JSON, nested too deeply, or an object with a repeated key.
    """
    text = text.removeprefix(MARK)
    try:
        return document.read(text)
    except ControlError:
        if not any(token in text for token in _TOKENS):
            raise
    try:
        value = json.loads(
            text.decode(), parse_float=_finite, parse_int=_whole, object_pairs_hook=_object
        )  # fmt: skip
        orjson.dumps(value)  # refuses half of a surrogate pair, which orjson would not have read
    except (ValueError, TypeError, RecursionError) as fault:
        raise ControlError("json", str(fault)[:200]) from None
    return value


def _finite(text: str) -> float:
    """Only a token is infinite: 1e400 is another number."""
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"number is infinity when parsed as double: {text[:32]}")
    return number


def _whole(text: str) -> int | float:
    """As orjson reads it: beyond 64 bits it is a float."""
    number = int(text)
    return number if -(1 << 63) <= number < 1 << 64 else _finite(text)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        raise ValueError("an object has a repeated key")
    return made


def written(value: Any) -> bytes:
    """The document of objects, lists and arrays. Raises: TypeError: something that JSON lacks."""
    text = orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY, default=_plain)
    if _LOST not in text:  # a look of a microsecond, where a look at all numbers costs a part of their writing
        return text
    return orjson.dumps(_with_tokens(value), option=orjson.OPT_SERIALIZE_NUMPY, default=_plain)


def _plain(value: Any) -> Any:
    """For what orjson does not write itself: arrays without a native layout."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    raise TypeError


def _with_tokens(value: Any) -> Any:
    """The value, with arrays that have such numbers as text."""
    if isinstance(value, dict):
        return {key: _with_tokens(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_with_tokens(each) for each in value]
    if isinstance(value, np.ndarray) and value.dtype.kind == "f":
        return _fragment(value)
    return value


def _fragment(array: NDArray[Any]) -> Any:
    lost = array[~np.isfinite(array)]
    if not lost.size:
        return array
    parts = orjson.dumps(array, option=orjson.OPT_SERIALIZE_NUMPY, default=_plain).split(_LOST)
    woven: list[bytes] = [b""] * (2 * len(parts) - 1)
    woven[::2] = parts
    woven[1::2] = map(_TOKENS.__getitem__, np.where(np.isnan(lost), 0, np.where(lost > 0, 1, 2)).tolist())
    return orjson.Fragment(b"".join(woven))
