"""Finds the line of each key in a TOML text that `tomllib` has accepted; it checks nothing."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

_TOKEN: Final = re.compile(
    r'"""(?:\\.|[^\\])*?"{3,5}'
    r"|'''.*?'{3,5}"
    r'|"(?:\\.|[^"\\\n])*"'
    r"|'[^'\n]*'"
    r"|#[^\n]*"
    r"|[\[\]{}=\n]"
    r"|[^\"'#\[\]{}=\n]+",
    re.DOTALL,
)
_PART: Final = re.compile(r'"((?:\\.|[^"\\])*)"|\'([^\']*)\'|([A-Za-z0-9_-]+)')


class Places:
    """Lines by key path. Paths into arrays of tables contain the element's number, as in ``tenant.0.name``."""

    def __init__(self, text: str) -> None:
        self._lines: dict[str, int] = {}
        counts: dict[str, int] = {}
        table = ""
        for line, head, is_header in _statements(text):
            if not is_header:
                self._lines.setdefault(f"{table}.{_path(head)}" if table else _path(head), line)
                continue
            is_element = head.startswith("[[")
            table = _resolved(_path(head.strip("[] \t")), counts, is_element)
            self._lines.setdefault(table, line)

    def line(self, path: str) -> int:
        """Line of the key, else of the nearest enclosing table or list; 0: none."""
        while path and path not in self._lines:
            path = path.rpartition(".")[0]
        return self._lines.get(path, 0)


def _path(key: str) -> str:
    return ".".join(next(part for part in found.groups("") if part) if any(found.groups()) else "" for found in
                    _PART.finditer(key))  # fmt: skip


def _resolved(path: str, counts: dict[str, int], is_element: bool) -> str:
    """``path`` of a header, with the element's number inserted for each array of tables in it."""
    done, parts = "", path.split(".")
    for at, part in enumerate(parts):
        done = f"{done}.{part}" if done else part
        if at == len(parts) - 1 and is_element:
            counts[done] = counts.get(done, -1) + 1
        if done in counts:
            done = f"{done}.{counts[done]}"
    return done


def _statements(text: str) -> Iterator[tuple[int, str, bool]]:
    """(line, its key or header, whether it is a header) of each statement. Skips values."""
    line, depth = 1, 0
    begins, head, is_header, is_value = 1, "", False, False
    for found in _TOKEN.finditer(text):
        token = found[0]
        if token == "\n" and not depth:
            if head.strip():
                yield begins, head.strip(), is_header
            head, is_header, is_value = "", False, False
        elif is_value or token.startswith("#"):
            depth += (token in "[{") - (token in "]}") if len(token) == 1 else 0
        elif token == "=" and not is_header:
            is_value = True
        else:
            if not head.strip():
                begins, is_header = line, token == "["
                head = ""
            head += token
        line += token.count("\n")
    if head.strip():
        yield begins, head.strip(), is_header


def nearest(wanted: str, known: Mapping[str, object] | tuple[str, ...]) -> str:
    """``; did you mean "…"?`` with the most similar of ``known``; empty if none is similar."""
    import difflib  # imported only for faults

    found = difflib.get_close_matches(wanted[:80], list(known), n=1, cutoff=0.6)
    return f'; did you mean "{found[0]}"?' if found else ""
