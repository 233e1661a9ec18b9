"""Splits texts that exceed a carrier's message size into parts, and joins them. Sans-IO.

INA messages are rare and mostly short, but an epoch may carry a job's whole step, and a host may have many ranks.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from offpath.bindings.errors import ControlError

MOST_BYTES: Final = 1 << 20
"""Limit of a joined text: a step of 10 000 operations."""
_MORE: Final = b"+"
_LAST: Final = b"."


def cut(body: bytes, most: int) -> Iterator[tuple[bytes, bool]]:
    """Parts of at most ``most`` bytes, each with whether it is the last. Raises: ControlError: above `MOST_BYTES`."""
    if len(body) > MOST_BYTES:
        raise ControlError("too_long", str(len(body)))
    for at in range(0, max(1, len(body)), most):
        yield body[at : at + most], at + most >= len(body)


def messages(body: bytes, most: int) -> Iterator[bytes]:
    """As `cut`, for a carrier of arbitrary bytes: each part is prefixed with a mark."""
    for part, is_last in cut(body, most - 1):
        yield (_LAST if is_last else _MORE) + part


class Joiner:
    """Collects the parts of one text. Holds at most `MOST_BYTES`."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._nbytes = 0

    def add(self, part: bytes, is_last: bool) -> bytes | None:
        """The text, if it is complete. Raises: ControlError: longer than `MOST_BYTES`; the parts are discarded."""
        self._parts.append(part)
        self._nbytes += len(part)
        if self._nbytes > MOST_BYTES:
            self.forget()
            raise ControlError("too_long", "the joined parts exceed the limit")
        if not is_last:
            return None
        whole = b"".join(self._parts)
        self.forget()
        return whole

    def message(self, message: bytes) -> bytes | None:
        """`add` a message made by `messages`. Raises: ControlError."""
        mark = message[:1]
        if mark not in (_MORE, _LAST):
            raise ControlError("part", f"begins with {mark!r}")
        return self.add(message[1:], mark == _LAST)

    def forget(self) -> None:
        """Discard the parts: a new text begins."""
        self._parts.clear()
        self._nbytes = 0
