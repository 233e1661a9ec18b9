"""The colours of a picture that Chromium wrote."""

from __future__ import annotations

import struct
import zlib
from collections import Counter
from pathlib import Path


def pixels(path: Path) -> Counter[tuple[int, int, int]]:
    """How often each colour is in a PNG of 8 bits without interlace, as Chromium writes them."""
    data, at, packed, width, channels = path.read_bytes(), 8, b"", 0, 0
    while at < len(data):
        (size,), kind = struct.unpack(">I", data[at : at + 4]), data[at + 4 : at + 8]
        body = data[at + 8 : at + 8 + size]
        if kind == b"IHDR":
            width, depth, colour, interlace = *struct.unpack(">I", body[:4]), body[8], body[9], body[12]
            assert (depth, interlace) == (8, 0)
            channels = {2: 3, 6: 4}[colour]
        elif kind == b"IDAT":
            packed += body
        at += 12 + size
    raw, stride = zlib.decompress(packed), width * channels
    found: Counter[tuple[int, int, int]] = Counter()
    above = bytearray(stride)
    for first in range(0, len(raw), stride + 1):
        line = _unfiltered(raw[first], bytearray(raw[first + 1 : first + 1 + stride]), above, channels)
        found.update(zip(line[0::channels], line[1::channels], line[2::channels], strict=True))
        above = line
    return found


def _unfiltered(kind: int, line: bytearray, above: bytearray, step: int) -> bytearray:
    """PNG specification, 9.2."""
    for n in range(len(line)):
        a = line[n - step] if n >= step else 0
        b, c = above[n], above[n - step] if n >= step else 0
        if kind == 1:
            line[n] = (line[n] + a) & 255
        elif kind == 2:
            line[n] = (line[n] + b) & 255
        elif kind == 3:
            line[n] = (line[n] + (a + b) // 2) & 255
        elif kind == 4:
            near = min((abs(b - c), 0, a), (abs(a - c), 1, b), (abs(a + b - 2 * c), 2, c))[2]
            line[n] = (line[n] + near) & 255
    return line
