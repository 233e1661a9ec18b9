"""Compressed bodies, each within a bound: a small one may not become a large one."""

from __future__ import annotations

import zlib
from typing import Final

from offpath.host_helper.gateway.errors import Refused, invalid, too_large

_WINDOW: Final = {"gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}
_LEVEL: Final = 1


def inflate(body: memoryview, coding: str, most: int) -> memoryview:
    """The body without its Content-Encoding, at most ``most`` bytes.

    Raises: Refused: an unknown coding, broken data, or more than ``most``.
    """
    coding = coding.strip().lower()
    if coding in ("", "identity"):
        return body
    if coding not in _WINDOW:
        raise Refused(415, "INVALID_ARGUMENT", "Content-Encoding: gzip and deflate are served")
    engine = zlib.decompressobj(_WINDOW[coding])
    try:
        data = engine.decompress(body, most + 1)
    except zlib.error:
        raise invalid(f"the body is not {coding}") from None
    if len(data) > most:
        raise too_large(f"the body has more than {most} bytes without its Content-Encoding")
    if not engine.eof or engine.unused_data:
        raise invalid(f"the body is not one whole {coding} stream")
    return memoryview(data)


def chosen(accepted: str) -> str:
    """The coding of an answer for this Accept-Encoding; empty: none."""
    for each in accepted.split(","):
        coding, _, weight = each.strip().lower().partition(";")
        if coding.strip() in _WINDOW and weight.replace(" ", "") not in ("q=0", "q=0.0", "q=0.00", "q=0.000"):
            return coding.strip()
    return ""


def deflate(body: bytes, coding: str) -> bytes:
    """The body in the coding."""
    engine = zlib.compressobj(_LEVEL, zlib.DEFLATED, _WINDOW[coding])
    return engine.compress(body) + engine.flush()
