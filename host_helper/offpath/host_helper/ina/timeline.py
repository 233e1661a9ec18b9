"""When each operation ran, and how: a ring of the newest, for plots and diagnosis."""

from __future__ import annotations

import json
from collections import deque
from enum import StrEnum
from typing import Final, NamedTuple

MOST: Final = 65_536


class How(StrEnum):
    """How one all-reduce ran."""

    PLAIN = "plain"
    """It did not request INA."""
    INA = "ina"
    REFUSED = "refused"
    """The root was full; it ran plain."""
    REDONE = "redone"
    """Its tree was lost; it ran plain, or another rank sent its result."""


class Entry(NamedTuple):
    """``number``: the operation's index. Times: `time.monotonic_ns`, comparable on one host; ``requested_ns``: when it
    was issued, ``begin_ns``: when its predecessors had ended.
    """

    number: int
    step: int
    nbytes: int
    how: How
    requested_ns: int
    begin_ns: int
    end_ns: int


class Timeline:
    """The newest `MOST` operations."""

    def __init__(self) -> None:
        self._entries: deque[Entry] = deque(maxlen=MOST)

    def add(self, entry: Entry) -> None:
        """Add an operation that has ended."""
        self._entries.append(entry)

    def entries(self) -> tuple[Entry, ...]:
        """The oldest first."""
        return tuple(self._entries)

    def write(self, path: str) -> None:
        """One JSON object a line."""
        with open(path, "w", encoding="utf-8") as file:
            file.writelines(json.dumps(each._asdict()) + "\n" for each in self.entries())
