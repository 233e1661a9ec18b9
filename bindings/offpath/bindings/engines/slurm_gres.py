"""Reads the GPUs of Slurm's texts of generic resources (gres.conf(5), slurm.conf(5) *Gres*, `squeue` *tres-per-node*).

A text is a list of ``NAME[:TYPE][:no_consume][:COUNT]``, where COUNT may end in K, M, G, T or P (powers of 1024), each
with what Slurm appends in parentheses: sockets ``(S:0-1)``, the indices in use ``(IDX:0,2-3)``, counts per device.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from offpath.bindings.errors import EngineAnswerInvalid

MOST_GPUS: Final = 1024
"""Of one node or request; above it a text is not believed."""
_MOST_DIGITS: Final = 18
_WORD: Final = re.compile(r"([^:=()/]+)((?:[:=][^:=()]*)*)((?:\([^()]*\))*)")
_PREFIX: Final = re.compile(r"gres[:/]")
_COUNT: Final = re.compile(r"([0-9]+)([KMGTP]?)", re.IGNORECASE)
_SCALE: Final = {"": 1, **{letter: 1 << (10 * power) for power, letter in enumerate("KMGTP", 1)}}
_TYPE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,254}")
_INDICES: Final = re.compile(r"\(IDX:([^()]*)\)")
_NO_INDICES: Final = {"", "N/A"}


@dataclass(frozen=True, slots=True)
class Gpus:
    """GPUs of one type. ``indices``: those in use, where Slurm names them."""

    model: str
    count: int
    indices: tuple[int, ...] = ()


def gpus(text: str) -> list[Gpus]:
    """The GPUs among the resources, in order. Raises: EngineAnswerInvalid: one of them cannot be read."""
    return [_gpus(match, word) for word in _words(text) if (match := _named_gpu(word)) is not None]


def count(text: str) -> int:
    """How many GPUs in all. Raises: see `gpus`."""
    return sum(each.count for each in gpus(text))


def _words(text: str) -> Iterator[str]:
    """Split at commas outside of parentheses: ``gpu:2(IDX:0,3),nic:1``."""
    depth, start = 0, 0
    for at, character in enumerate(text):
        if character in "()":
            depth += 1 if character == "(" else -1
        elif character == "," and depth <= 0:
            yield text[start:at]
            start = at + 1
    yield text[start:]


def _named_gpu(word: str) -> re.Match[str] | None:
    """The parts of a word whose resource is ``gpu``; None: another resource. Raises: EngineAnswerInvalid."""
    plain = _PREFIX.sub("", word.strip(), count=1)
    if re.match(r"gpu(?![A-Za-z0-9_.+-])", plain, re.IGNORECASE) is None:
        return None
    match = _WORD.fullmatch(plain)
    if match is None:
        raise _unreadable(word)
    return match


def _gpus(match: re.Match[str], word: str) -> Gpus:
    fields = [field for field in re.split("[:=]", match[2])[1:] if field != "no_consume"]
    model, number = "", 1
    if fields and (counted := _COUNT.fullmatch(fields[-1])) is not None:
        if len(counted[1]) > _MOST_DIGITS:
            raise _unreadable(word)
        number = int(counted[1]) * _SCALE[counted[2].upper()]
        fields.pop()
    if fields:
        model = fields.pop(0)
        if _TYPE.fullmatch(model) is None:
            raise _unreadable(word)
    found = _INDICES.search(match[3])
    indices = _numbers(found[1], word) if found is not None and found[1] not in _NO_INDICES else ()
    if fields or number > MOST_GPUS or len(indices) > number:
        raise _unreadable(word)
    return Gpus(model, number, indices)


def _numbers(text: str, word: str) -> tuple[int, ...]:
    found: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"([0-9]{1,6})(?:-([0-9]{1,6}))?", part)
        if match is None:
            raise _unreadable(word)
        low, high = int(match[1]), int(match[2] or match[1])
        if not low <= high < low + MOST_GPUS:
            raise _unreadable(word)
        found.extend(range(low, high + 1))
    return tuple(found)


def _unreadable(word: str) -> EngineAnswerInvalid:
    shown = word if len(word) <= 60 else word[:60] + "…"
    return EngineAnswerInvalid(f"Slurm's {shown!a} cannot be read as gpu[:TYPE][:COUNT], at most {MOST_GPUS}")
