"""Expands Slurm's hostlist expressions: ``n[001-064,080],m7`` (topology.conf(5), "Slurm's hostlist expression
parser")."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Final

from offpath.sched.topology.graph import MOST_HOSTS, TopologyError

_LONGEST_NAME: Final = 256
_PART: Final = re.compile(r"\[([^\[\]]*)\]|([^\[\],]+)")
_RANGE: Final = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18}))?")
_NAME: Final = re.compile(r"[!-~]+")


@dataclass(slots=True)
class Room:
    """How many names the lists of one text may still have together."""

    left: int = MOST_HOSTS

    def take(self, count: int, word: str, line: int | None) -> None:
        """Raises: TopologyError: too many."""
        if count > self.left:
            raise TopologyError(f"{_shown(word)} makes more than {MOST_HOSTS} names, with those before it", line)
        self.left -= count


def expand(text: str, line: int | None = None, room: Room | None = None) -> list[str]:
    """The names in order. A range's numbers are as wide as its first one: ``[08-11]`` is 08, 09, 10, 11.

    ``room``: of all lists of a text; without it the list may have `MOST_HOSTS`. Nothing is made of a list before its
    number of names and their length are known. Raises: TopologyError: unmatched brackets, an invalid or descending
    range, an invalid name, too many names.
    """
    names: list[str] = []
    room = room if room is not None else Room()
    for word in _words(text, line):
        choices: list[list[str]] = []
        count, at, longest = 1, 0, 0
        for part in _PART.finditer(word):
            if part.start() != at:
                raise TopologyError(f"{_shown(word)} is not a hostlist", line)
            at = part.end()
            choices.append([part[2]] if part[2] is not None else _numbers(part[1], room.left, line))
            count *= len(choices[-1])
            longest += max(map(len, choices[-1]))
            if count > room.left:
                room.take(count, word, line)
            if longest > _LONGEST_NAME:
                raise TopologyError(f"{_shown(word)} makes names of more than {_LONGEST_NAME} characters", line)
        if at != len(word) or not choices:
            raise TopologyError(f"{_shown(word)} is not a hostlist", line)
        room.take(count, word, line)
        first = "".join(choice[0] for choice in choices)
        if not _NAME.fullmatch(first):
            raise TopologyError(f"{_shown(first)} is not a valid name", line)
        names.extend(map("".join, product(*choices)))
    return names


def _words(text: str, line: int | None) -> Iterator[str]:
    """Split at commas outside of brackets."""
    start, inside = 0, False
    for at, character in enumerate(text):
        if character == "[":
            if inside:
                break
            inside = True
        elif character == "]":
            if not inside:
                break
            inside = False
        elif character == "," and not inside:
            yield text[start:at]
            start = at + 1
    else:
        if not inside:
            yield text[start:]
            return
    raise TopologyError(f"{_shown(text)}: brackets do not match", line)


def _numbers(text: str, most: int, line: int | None) -> list[str]:
    found: list[str] = []
    for word in text.split(","):
        match = _RANGE.fullmatch(word)
        if match is None:
            raise TopologyError(f"{_shown(word)} is neither a number nor a range", line)
        low, width = int(match[1]), len(match[1])
        high = int(match[2]) if match[2] is not None else low
        if not low <= high:
            raise TopologyError(f"{_shown(word)} is a descending range", line)
        if len(found) + high - low >= most:
            raise TopologyError(f"{_shown(word)} makes more than {MOST_HOSTS} names, with those before it", line)
        found.extend(f"{number:0{width}}" for number in range(low, high + 1))
    return found


def _shown(text: str) -> str:
    """Shorten a part of an untrusted file for an error text."""
    return repr(text if len(text) <= 60 else text[:60] + "…")
