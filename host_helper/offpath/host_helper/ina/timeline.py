"""When each operation ran, and how: a ring that keeps the newest, for pictures and for whoever asks why."""

from __future__ import annotations

import json
from collections import deque
from enum import StrEnum
from typing import Final, NamedTuple

MOST: Final = 65_536


class How(StrEnum):
    """Of one all-reduce."""

    PLAIN = "plain"
    """It did not ask for INA."""
    INA = "ina"
    REFUSED = "refused"
    """The root was full; it ran plain."""
    REDONE = "redone"
    """The tree was lost under it; it ran plain, or another rank gave its result."""


class Entry(NamedTuple):
    """``number``: the operation's index. Times: `time.monotonic_ns`, comparable on one host; ``asked_ns``: when it was
    issued, ``begin_ns``: when those before it had ended."""

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
        """One that ended."""
        self._entries.append(entry)

    def entries(self) -> tuple[Entry, ...]:
        """The oldest first."""
        return tuple(self._entries)

    def write(self, path: str) -> None:
        """One JSON object a line."""
        with open(path, "w", encoding="utf-8") as file:
            file.writelines(json.dumps(each._asdict()) + "\n" for each in self.entries())
