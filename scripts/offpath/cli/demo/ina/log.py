"""A rank's log of its steps: one line of JSON each, which the demo reads while it grows."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import IO, Final

INA: Final = "ina"
REFUSED: Final = "refused"
PLAIN: Final = "plain"
REDONE: Final = "redone"
WAYS: Final = (INA, REFUSED, PLAIN, REDONE)


@dataclass(frozen=True, slots=True)
class Did:
    """An all-reduce: how it ran, and when, in ns of the monotonic clock."""

    how: str
    began_ns: int
    ended_ns: int


@dataclass(frozen=True, slots=True)
class Step:
    """``order``: the number of the `orders.Order`; ``stamp``: of the epoch that was in force."""

    step: int
    order: int
    stamp: int
    began_ns: int
    ended_ns: int

    @property
    def seconds(self) -> float:
        """Its duration."""
        return (self.ended_ns - self.began_ns) / 1e9


def write(file: IO[str], step: Step) -> None:
    """Flushed at once for the reader."""
    file.write(json.dumps([step.step, step.order, step.stamp, step.began_ns, step.ended_ns]) + "\n")
    file.flush()


def operations(path: str) -> list[Did]:
    """The operations of the runtime's timeline file, the oldest first."""
    with open(path, encoding="utf-8") as file:
        rows = map(json.loads, file)
        return [Did(row["how"], row["begin_ns"], row["end_ns"]) for row in rows]


class Reader:
    """The steps of a growing file."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.steps: list[Step] = []
        self._at = 0

    def more(self) -> list[Step]:
        """The new steps since the last call; an incomplete line is left for the next call."""
        try:
            with open(self.path, "rb") as file:
                file.seek(self._at)
                data = file.read()
        except FileNotFoundError:
            return []
        whole = data[: data.rfind(b"\n") + 1]
        self._at += len(whole)
        new = [Step(*json.loads(line)) for line in whole.splitlines()]
        self.steps += new
        return new
