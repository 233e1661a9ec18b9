"""What a verdict depends on, as a hash of its content: comments, docstrings and layout of Python code, and
comments and layout of TOML, do not count."""

from __future__ import annotations

import ast
import hashlib
import json
import os
import tomllib
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any, Final

from .table import ROOT

CACHE: Final = ROOT / ".pytest_cache" / "offpath-digests.json"
"""Digests of single files by size and time of change: parsing all sources takes ten seconds."""
_SKIPPED: Final = {".git", ".venv", ".venv-fast", "__pycache__", "out", "bench-out", "build", "dist"}
_CACHE_FORM: Final = 2
_FORM: Final = 1
"""Of the digests; another way to make them needs another number."""


def digest(globs: Iterable[str]) -> str:
    """SHA-256 over all files that the globs name, relative to the root. A glob that names nothing is a fault.

    Raises: ValueError: a glob matches no file.
    """
    total = hashlib.sha256(f"form {_FORM}\n".encode())
    for path in sorted(files(globs)):
        total.update(f"{path}\0{file_digest(ROOT / path)}\n".encode())
    return total.hexdigest()


def files(globs: Iterable[str]) -> set[str]:
    """The files, relative to the root, that match any of the globs (``**``: any folders; a folder: all below it; with a
    leading ``!``: all but these). Raises: ValueError: a glob matches no file."""
    found: set[str] = set()
    for glob in globs:
        pattern = glob.removeprefix("!")
        matching = {path for path in tree() if _matches(path, pattern)}
        if not matching:
            raise ValueError(f"no file matches {pattern}")
        found = found - matching if glob.startswith("!") else found | matching
    return found


def _matches(path: str, pattern: str) -> bool:
    """``fnmatch``'s star crosses folders, so ``a/**/b`` and ``a/*/b`` are the same here."""
    return path == pattern or path.startswith(f"{pattern}/") or fnmatchcase(path, pattern.replace("**/", "*"))


@cache
def tree() -> tuple[str, ...]:
    """All files of the work tree that could count, relative to the root."""
    return tuple(_walk(ROOT))


def _walk(folder: Path) -> Iterator[str]:
    for entry in os.scandir(folder):
        if entry.name in _SKIPPED or entry.name.endswith((".pyc", ".so", ".egg-info")):
            continue
        if entry.is_dir(follow_symlinks=False):
            if entry.name[0] != "." or entry.name == ".ci":
                yield from _walk(Path(entry.path))
        elif entry.is_file(follow_symlinks=False):
            yield os.path.relpath(entry.path, ROOT)


_known: dict[str, list[Any]] = {}
_is_read, _is_kept = False, True
"""Whether the cache was read; whether it has all that is known."""


def file_digest(path: Path) -> str:
    """SHA-256 of what counts of one file."""
    global _is_read, _is_kept
    if not _is_read:
        _is_read = True
        _known.update(_read_cache())
    name, state = str(path.relative_to(ROOT)), path.stat()
    stamp = [_CACHE_FORM, state.st_size, state.st_mtime_ns]
    if (kept := _known.get(name)) is not None and kept[:3] == stamp:
        return str(kept[3])
    content = _MEANING.get(path.suffix, bytes)(path.read_bytes())
    _is_kept = False
    _known[name] = [*stamp, made := hashlib.sha256(content).hexdigest()]
    return made


def keep_cache() -> None:
    """Write the digests of this process for the next one. Without a folder to write to, it parses again."""
    global _is_kept
    if _is_kept:
        return
    _is_kept = True
    try:
        CACHE.parent.mkdir(exist_ok=True)
        (new := CACHE.with_suffix(f".{os.getpid()}")).write_text(json.dumps(_known), "utf-8")
        new.replace(CACHE)
    except OSError:
        return


def _read_cache() -> dict[str, list[Any]]:
    try:
        kept = json.loads(CACHE.read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return kept if isinstance(kept, dict) else {}


def code(source: bytes) -> bytes:
    """What of Python source runs, equal on each version of Python: its syntax tree without docstrings and positions."""
    out: list[str] = []
    _dump(ast.parse(source), out)
    return "".join(out).encode()


def table(source: bytes) -> bytes:
    """What a TOML file says; a file that is none counts as it is."""
    try:
        return repr(tomllib.loads(source.decode())).encode()
    except ValueError:
        return source


_MEANING: Final = {".py": code, ".toml": table}


def _dump(node: object, out: list[str]) -> None:
    if isinstance(node, ast.AST):
        out.append(f"({type(node).__name__}")
        for name in node._fields:
            value = getattr(node, name, None)
            if name == "body" and isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                value = [each for each in value if not _is_text(each)] if isinstance(value, list) else value
            if isinstance(node, ast.JoinedStr):
                value = _merged(node.values)
            if value is None or value == []:  # later versions have more of these
                continue
            out.append(f" {name}=")
            _dump(value, out)
        out.append(")")
    elif isinstance(node, list):
        out.append("[")
        for each in node:
            _dump(each, out)
            out.append(",")
        out.append("]")
    else:
        out.append(f"{type(node).__name__}:{node!r}")


def _merged(values: list[ast.expr]) -> list[object]:
    """The parts of an f-string; some versions cut its text, or add an empty one."""
    merged: list[object] = []
    for each in values:
        part = each.value if isinstance(each, ast.Constant) else each
        if isinstance(part, str) and merged and isinstance(merged[-1], str):
            merged[-1] += part
        else:
            merged.append(part)
    return [part for part in merged if part != ""]


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
