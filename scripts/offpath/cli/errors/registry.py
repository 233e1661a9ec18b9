"""The registry: all modules of this package that have ``ENTRIES``."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache

import offpath.cli.errors


@dataclass(frozen=True, slots=True)
class Entry:
    """One code. ``family`` is its context; a code may have different meanings in two families."""

    family: str
    code: str
    cause: str
    fix: str


def entries(family: str, *rows: tuple[str, str, str]) -> tuple[Entry, ...]:
    """Entries of one family from (code, cause, fix)."""
    return tuple(Entry(family, *row) for row in rows)


@cache
def families() -> dict[str, str]:
    """Families in the order of their modules, with their descriptions."""
    return {name: text for module in _modules() for name, text in module.FAMILIES.items()}


@cache
def registered() -> dict[tuple[str, str], Entry]:
    """All entries. Raises: ValueError: a code is registered twice in a family."""
    found: dict[tuple[str, str], Entry] = {}
    for module in _modules():
        for entry in module.ENTRIES:
            if (entry.family, entry.code) in found:
                raise ValueError(f"{entry.family} {entry.code} is registered twice")
            found[entry.family, entry.code] = entry
    return found


def look_up(code: str) -> list[Entry]:
    """Entries of that code in any family, case-insensitive; ``FAMILY.CODE`` selects one."""
    wanted = code.lower()
    return [
        entry
        for entry in registered().values()
        if wanted in (entry.code.lower(), f"{entry.family}.{entry.code}".lower())
    ]


def _modules() -> Iterator[Entries]:
    for found in sorted(pkgutil.iter_modules(offpath.cli.errors.__path__), key=lambda each: each.name):
        module = importlib.import_module(f"offpath.cli.errors.{found.name}")
        if hasattr(module, "ENTRIES"):
            yield Entries(dict(getattr(module, "FAMILIES", {})), tuple(module.ENTRIES))


@dataclass(frozen=True, slots=True)
class Entries:
    """The families and entries of one module."""

    FAMILIES: dict[str, str]
    ENTRIES: Iterable[Entry]
