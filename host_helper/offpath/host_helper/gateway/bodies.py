"""Compressed bodies, each within a bound: a small one may not become a large one.

What becomes long is unpacked by the reading process (`readers`): zlib needs 10 ms for 4 MiB.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable
from typing import Final

from offpath.host_helper.gateway.buffers import AT_ONCE_BYTES, Buffer, Place, placed, seen, shared
from offpath.host_helper.gateway.errors import Refused, invalid, too_large
from offpath.host_helper.gateway.readers import Reader

_WINDOW: Final = {"gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}
_ALIASES: Final = {"x-gzip": "gzip"}
"""RFC 9110 §8.4.1.3."""
_MOST_MEMBERS: Final = 4096
"""Of a gzip stream (RFC 1952 §2.2): an empty one costs more time than its 20 bytes."""
_QUALITY: Final = re.compile(r"[01](?:\.[0-9]{0,6})?")
_LEVEL: Final = 1
_STEP_BYTES: Final = 256 * 1024
"""zlib copies what it has not used of its input at each step."""


def inflate(body: memoryview, coding: str, most: int) -> memoryview:
    """The body without its Content-Encoding, at most ``most`` bytes.

    Raises: Refused: an unknown coding, broken data, or more than ``most``.
    """
    coding = _served(coding)
    if not coding:
        return body
    target = memoryview(bytearray(most))
    return target[: _whole(_unpack(body, coding, target), most)]


async def inflated(
    reader: Reader, body: memoryview, coding: str, most: int, room: Callable[[int], Buffer]
) -> memoryview:
    """As `inflate`; by the reading process if body or result is long. ``room`` gives the result's memory for the time
    of the request. Raises: Refused: as `inflate`, or there is no room."""
    coding = _served(coding)
    if not coding:
        return body
    if body.nbytes <= AT_ONCE_BYTES:
        least = min(most, AT_ONCE_BYTES)
        target = memoryview(room(least))[:least]
        length = _unpack(body, coding, target)
        if length is not None or most <= AT_ONCE_BYTES:
            return target[: _whole(length, most)]
    buffer = room(most)
    target = memoryview(buffer)[:most]
    place = placed(target)
    assert isinstance(place, Place)
    return target[: await reader.run(_inflate_there, placed(body), coding, place, of=(body, target))]


def _inflate_there(source: Place | bytes, coding: str, place: Place) -> int:
    """In the reading process. The length. Raises: Refused: broken data, or more than the place has."""
    with seen(source) as body, place.opened() as target:
        return _whole(_unpack(body, coding, target), place.nbytes)


def _served(coding: str) -> str:
    """Empty: the body is not packed. Raises: Refused: an unknown coding, or several."""
    names = [each.strip().lower() for each in coding.split(",")]
    packed = [_ALIASES.get(name, name) for name in names if name not in ("", "identity")]
    if not packed:
        return ""
    if len(packed) > 1 or packed[0] not in _WINDOW:
        raise Refused(415, "INVALID_ARGUMENT", "Content-Encoding: gzip or deflate is served")
    return packed[0]


def _whole(length: int | None, most: int) -> int:
    """Raises: Refused: it was longer."""
    if length is None:
        raise too_large(f"the body has more than {most} bytes without its Content-Encoding")
    return length


def _unpack(body: memoryview, coding: str, target: memoryview) -> int | None:
    """The length in ``target``; None: it is too short. Raises: Refused: broken data."""
    engine = zlib.decompressobj(_WINDOW[coding])
    filled, members = 0, 1
    try:
        for at in range(0, body.nbytes, _STEP_BYTES):
            packed = bytes(body[at : at + _STEP_BYTES])  # no view: a fault's traceback would keep the body's memory
            while packed or not engine.eof:
                if engine.eof:
                    members += 1
                    _check_members(coding, members)
                    engine = zlib.decompressobj(_WINDOW[coding])
                piece = engine.decompress(packed, min(_STEP_BYTES, target.nbytes - filled + 1))
                if filled + len(piece) > target.nbytes:
                    return None
                target[filled : filled + len(piece)] = piece
                filled += len(piece)
                packed = engine.unused_data if engine.eof else engine.unconsumed_tail
                if not packed and len(piece) < _STEP_BYTES:
                    break
    except zlib.error:
        raise invalid(f"the body is not {coding}") from None
    if not engine.eof:
        raise _not_whole(coding)
    return filled


def _check_members(coding: str, members: int) -> None:
    """Whether another stream may follow the former. Raises: Refused."""
    if coding != "gzip":
        raise _not_whole(coding)
    if members > _MOST_MEMBERS:
        raise invalid(f"the body has more than {_MOST_MEMBERS} gzip members")


def _not_whole(coding: str) -> Refused:
    return invalid(f"the body is not one whole {coding} stream")


def chosen(accepted: str) -> str:
    """The coding of an answer for this Accept-Encoding: the one that it prefers; empty: none."""
    weights: dict[str, float] = {}
    for each in accepted.split(","):
        name, *parameters = (part.strip().lower() for part in each.split(";"))
        weights.setdefault(_ALIASES.get(name, name), _weight(parameters))
    best = max(_WINDOW, key=lambda coding: weights.get(coding, 0.0))
    return best if weights.get(best, 0.0) > 0 and weights[best] >= weights.get("identity", 0.0) else ""


def _weight(parameters: list[str]) -> float:
    """That of an element of Accept-Encoding (RFC 9110 §12.4.2). 0: it is none."""
    for each in parameters:
        key, _, value = each.partition("=")
        if key.strip() == "q":
            number = value.strip()
            return float(number) if _QUALITY.fullmatch(number) else 0.0
    return 1.0


async def deflated(reader: Reader, body: bytes, coding: str) -> tuple[bytes, str]:
    """The body in the coding; a long one by the reading process. If that has ended, the body as it is, in none: the
    answer is there, and may not be lost."""
    if len(body) <= AT_ONCE_BYTES:
        return deflate(body, coding), coding
    try:
        view = shared(body)
        return await reader.run(_deflate_there, placed(view), coding, of=(view,)), coding
    except Refused:
        return body, ""


def _deflate_there(source: Place | bytes, coding: str) -> bytes:
    """In the reading process."""
    with seen(source) as body:
        return deflate(body, coding)


def deflate(body: bytes | memoryview, coding: str) -> bytes:
    """The body in the coding."""
    engine = zlib.compressobj(_LEVEL, zlib.DEFLATED, _WINDOW[coding])
    return engine.compress(body) + engine.flush()
