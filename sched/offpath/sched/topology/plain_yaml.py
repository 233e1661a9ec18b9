"""Parses the subset of YAML in Slurm's topology.yaml: block lists and mappings, plain and quoted scalars, flow lists of
scalars, comments. Anchors, tags and multi-line scalars are refused. Every value has its line number.

A YAML library would accept hostile inputs (exploding aliases, deep recursion) and add a dependency to the live path.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from offpath.sched.topology.graph import TopologyError

_DEEPEST: Final = 16
_KEY: Final = re.compile(r"([A-Za-z_][A-Za-z0-9_.-]*)\s*:(?:\s+(.*))?")
_COMMENT: Final = re.compile(r"(?:^|\s)#.*")
_QUOTED: Final = re.compile(r"\"[^\"\\]*\"|'[^']*'")


@dataclass(frozen=True, slots=True)
class Yaml:
    """A scalar is its text; a missing value is an empty text."""

    line: int
    value: str | list[Yaml] | dict[str, Yaml]

    def mapping(self, what: str) -> dict[str, Yaml]:
        """Raises: TopologyError: the value is not a mapping."""
        if not isinstance(self.value, dict):
            raise TopologyError(f"{what} is not a mapping", self.line)
        return self.value

    def items(self, what: str) -> list[Yaml]:
        """Raises: TopologyError: the value is not a list."""
        if not isinstance(self.value, list):
            raise TopologyError(f"{what} is not a list", self.line)
        return self.value

    def text(self, what: str) -> str:
        """Raises: TopologyError: the value is not a text, or empty."""
        if not isinstance(self.value, str) or not self.value:
            raise TopologyError(f"{what} is not a text", self.line)
        return self.value


@dataclass(frozen=True, slots=True)
class _Piece:
    """A line, or the part of a line after a dash; ``text`` None: the dash itself."""

    line: int
    indent: int
    text: str | None


def parse(text: str) -> Yaml:
    """Parse one document. Raises: TopologyError."""
    pieces: list[_Piece] = []
    for line, raw in enumerate(text.splitlines(), 1):
        if raw.startswith(("---", "%YAML")) and not pieces:
            continue
        if "\t" in raw[: len(raw) - len(raw.lstrip())]:
            raise TopologyError("a tab in the indentation", line)
        rest = _uncommented(raw).rstrip()
        if rest.lstrip().startswith("- " * _DEEPEST):
            raise TopologyError(f"nested deeper than {_DEEPEST}", line)
        while (bare := rest.lstrip()) and (bare == "-" or bare.startswith("- ")):
            indent = len(rest) - len(bare)
            pieces.append(_Piece(line, indent, None))
            rest = " " * (indent + 1) + bare[1:]
        if bare:
            pieces.append(_Piece(line, len(rest) - len(bare), bare))
    if not pieces:
        raise TopologyError("an empty document", 1)
    value, end = _block(pieces, 0, 0)
    if end != len(pieces):
        raise TopologyError("its indentation matches no line above it", pieces[end].line)
    return value


def _uncommented(raw: str) -> str:
    if "#" not in raw:
        return raw
    hidden = _QUOTED.sub(lambda quoted: "x" * len(quoted[0]), raw)
    found = _COMMENT.search(hidden)
    return raw[: found.start()] if found else raw


def _block(pieces: list[_Piece], at: int, depth: int) -> tuple[Yaml, int]:
    """The value that starts at a piece, and the index of the piece after it."""
    first = pieces[at]
    if depth > _DEEPEST:
        raise TopologyError(f"nested deeper than {_DEEPEST}", first.line)
    if first.text is None:
        return _list(pieces, at, depth)
    if _KEY.fullmatch(first.text):
        return _mapping(pieces, at, depth)
    return Yaml(first.line, _scalar(first.text, first.line)), at + 1


def _list(pieces: list[_Piece], at: int, depth: int) -> tuple[Yaml, int]:
    line, indent = pieces[at].line, pieces[at].indent
    found: list[Yaml] = []
    while at < len(pieces) and pieces[at].indent == indent and pieces[at].text is None:
        dash = pieces[at].line
        at += 1
        if at < len(pieces) and pieces[at].indent > indent:
            value, at = _block(pieces, at, depth + 1)
            found.append(value)
        else:
            found.append(Yaml(dash, ""))
    return Yaml(line, found), at


def _mapping(pieces: list[_Piece], at: int, depth: int) -> tuple[Yaml, int]:
    line, indent = pieces[at].line, pieces[at].indent
    found: dict[str, Yaml] = {}
    while at < len(pieces) and pieces[at].indent == indent and pieces[at].text is not None:
        piece = pieces[at]
        match = _KEY.fullmatch(piece.text or "")
        if match is None:
            raise TopologyError("neither a key nor an item", piece.line)
        if match[1] in found:
            raise TopologyError(f"{match[1]} is duplicated", piece.line)
        at += 1
        if match[2]:
            value = Yaml(piece.line, _scalar(match[2], piece.line))
        elif at < len(pieces) and (
            pieces[at].indent > indent or (pieces[at].indent == indent and pieces[at].text is None)
        ):
            value, at = _block(pieces, at, depth + 1)
        else:
            value = Yaml(piece.line, "")
        found[match[1]] = value
    return Yaml(line, found), at


def _scalar(text: str, line: int) -> str | list[Yaml]:
    text = text.strip()
    if _QUOTED.fullmatch(text):
        return text[1:-1]
    if text.startswith("["):
        if not text.endswith("]") or "[" in text[1:] or "{" in text:
            raise TopologyError("a flow list may only contain scalars", line)
        inside = text[1:-1].strip()
        return [Yaml(line, _scalar(each, line)) for each in inside.split(",")] if inside else []
    if text and text[0] in "&*!|>{\"'%@`":
        raise TopologyError(f"unsupported YAML: {text[:40]!r}", line)
    return text
