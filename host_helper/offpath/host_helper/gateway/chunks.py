"""Bodies in chunks (RFC 9112 §7.1), whose length is known at their end: a decoder of the framing, without I/O.

Only one spelling is read: sizes are hexadecimal digits, and each line ends with CR LF. Extensions and trailers are
skipped. The bounds are those of Triton's server where it has one.
"""

from __future__ import annotations

import re
from typing import Final

from offpath.host_helper.gateway.errors import invalid

MOST_CHUNKS: Final = 65_536
"""Of one body: each costs a microsecond, whatever its length."""
MOST_LINE_BYTES: Final = 256
"""Of a size with its extensions, and of a trailer."""
MOST_TRAILERS: Final = 64
_FIRST: Final = re.compile(rb"([0-9A-Fa-f]{1,16})(?:[ \t]*;[^\r\n\0]*)?\r\n")
_NEXT: Final = re.compile(rb"\r\n([0-9A-Fa-f]{1,16})(?:[ \t]*;[^\r\n\0]*)?\r\n")
_TRAILER: Final = re.compile(rb"([^\r\n\0]*)\r\n")


class Chunks:
    """The framing of one body. The caller moves its data: the next ``left`` bytes are data, and `took` counts them.
    With none left, `read` reads what stands before the next data, until ``is_over``."""

    def __init__(self) -> None:
        self.left = 0
        self.is_over = False
        self._count = 0
        self._trailers: int | None = None
        """How many were skipped; None: the last chunk was not seen yet."""

    def took(self, nbytes: int) -> None:
        """So many bytes of data were taken."""
        self.left -= nbytes

    def read(self, received: bytearray, at: int, end: int) -> int:
        """Read one piece of framing from ``received[at:end]``. Returns its length; 0: a part of it is missing.

        Raises: Refused: it is none, or there are more chunks, longer lines or more trailers than are served.
        """
        if self._trailers is not None:
            return self._trailer(received, at, end, self._trailers)
        pattern, begin = (_NEXT, at + 2) if self._count else (_FIRST, at)
        size = pattern.match(received, at, end)
        if size is None:
            self._missing(received, at, begin, end)
            return 0
        if size.end() - at > MOST_LINE_BYTES:
            raise _too_long()
        self.left = int(size[1], 16)
        self._count += 1
        if not self.left:
            self._trailers = 0
        elif self._count > MOST_CHUNKS:
            raise invalid(f"a body has at most {MOST_CHUNKS} chunks: send fewer or larger ones")
        return size.end() - at

    def _trailer(self, received: bytearray, at: int, end: int, skipped: int) -> int:
        trailer = _TRAILER.match(received, at, end)
        if trailer is None:
            self._missing(received, at, at, end)
            return 0
        if trailer.end() - at > MOST_LINE_BYTES:
            raise _too_long()
        self.is_over = not trailer[1]
        self._trailers = skipped + 1
        if not self.is_over and skipped >= MOST_TRAILERS:
            raise invalid(f"a body has at most {MOST_TRAILERS} trailers")
        return trailer.end() - at

    def _missing(self, received: bytearray, at: int, begin: int, end: int) -> None:
        """Whether it can still become a line, which begins at ``begin``. Raises: Refused."""
        if received[at : min(begin, end)] != b"\r\n"[: max(min(begin, end) - at, 0)]:
            raise invalid("a chunk does not end with CR LF")
        if received.find(b"\n", begin, end) >= 0:
            raise invalid("the body is not in chunks as RFC 9112 has them")
        if end - at > MOST_LINE_BYTES:
            raise _too_long()


def _too_long() -> Exception:
    return invalid(f"a line between chunks has at most {MOST_LINE_BYTES} bytes")
