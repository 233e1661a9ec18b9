"""``tests/suites.toml``: the slow suites."""

from __future__ import annotations

import re
import tomllib
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
TABLE: Final = ROOT / "tests" / "suites.toml"
REST: Final = "rest"
"""The suite of all tests that no other suite names: the fast tier, with slow and whole counts."""


@dataclass(frozen=True, slots=True)
class Suite:
    """Tests with a record of their own.

    ``tests`` and ``fast``: node ids, or beginnings of node ids; ``*`` stands for any text. ``fast``: those of ``tests``
    that the fast tier runs too; ``rotate``: those of which it runs one in turn. ``sources``: globs of the files that
    can change the verdict, from the root; the files of the tests, and those that planted bugs change, count too.
    ``guards``: tests of the fast tier that guard the same promises on every change. ``minutes``: how long the slow size
    takes on two quiet cores, until a record says it. ``needs``: what a machine must have beyond what README asks for.
    ``hunts``: the folders of planted bugs that it hunts. ``whole``: --full has larger counts, or tests of its own; else
    the slow size is all there is.
    """

    name: str
    what: str
    tests: tuple[str, ...]
    sources: tuple[str, ...]
    guards: tuple[str, ...]
    minutes: float
    fast: tuple[str, ...] = ()
    rotate: tuple[str, ...] = ()
    needs: str = ""
    hunts: tuple[str, ...] = ()
    whole: bool = False

    def has(self, nodeid: str) -> bool:
        """Whether it is one of this suite's tests."""
        return any(_pattern(each).match(nodeid) for each in self.tests)

    def is_fast(self, nodeid: str) -> bool:
        """Whether the fast tier runs this test of the suite too."""
        return any(_pattern(each).match(nodeid) for each in (*self.fast, *self.turn()))

    def turn(self) -> tuple[str, ...]:
        """The one of ``rotate`` whose turn it is: the content of the suite's sources decides."""
        return _turn(self.rotate, self.sources) if self.rotate else ()


@cache
def suites() -> dict[str, Suite]:
    """All suites by name, in the order of the file. Raises: ValueError: an entry has an unknown key, or lacks one."""
    read = tomllib.loads(TABLE.read_text("utf-8"))
    found: dict[str, Suite] = {}
    for entry in read["suite"]:
        values = {key: tuple(value) if isinstance(value, list) else value for key, value in entry.items()}
        hunted = sorted({file for folder in entry.get("hunts", ()) for file in hunted_files(ROOT / folder)})
        try:
            values["sources"] = (*paths(entry["tests"]), *_expanded(entry["sources"], read["sets"]), *hunted)
            suite = Suite(**values)
        except (KeyError, TypeError) as error:
            raise ValueError(f"{TABLE.name}: suite {entry.get('name')}: {error}") from None
        found[suite.name] = suite
    return found


def _expanded(sources: list[str], sets: dict[str, list[str]]) -> list[str]:
    """With the content of ``@name`` in its place."""
    return [
        each
        for source in sources
        for each in (_expanded(sets[source[1:]], sets) if source.startswith("@") else [source])
    ]


def hunted_files(folder: Path) -> set[str]:
    """The files that the planted bugs below a folder change."""
    return {file for patch in folder.rglob("*.patch") for file in changed_by(patch)}


def changed_by(patch: Path) -> set[str]:
    """The files that a patch changes, relative to the root."""
    lines = patch.read_text("utf-8").splitlines()
    return {line.removeprefix("+++ ").removeprefix("b/") for line in lines if line.startswith("+++ ")}


def paths(tests: Iterable[str]) -> list[str]:
    """What pytest must collect to find tests of these patterns: files or folders."""
    found = set()
    for pattern in tests:
        path = pattern.partition("*")[0].partition("::")[0].rstrip("/")
        whole = [path] if (ROOT / path).exists() else [str(each.relative_to(ROOT)) for each in ROOT.glob(f"{path}*.py")]
        if not whole:
            raise ValueError(f"{TABLE.name}: no file of tests begins with {path}")
        found.update(whole)
    return sorted(found)


@cache
def suite_of(nodeid: str) -> Suite:
    """The first suite in the file that names this test; else `REST`."""
    known = suites()
    return next((suite for suite in known.values() if suite.has(nodeid)), known[REST])


def in_fast_tier(nodeid: str) -> bool:
    """Whether `./scripts/test` runs this test on every change."""
    suite = suite_of(nodeid)
    return suite.name == REST or suite.is_fast(nodeid)


@cache
def _turn(tests: tuple[str, ...], globs: tuple[str, ...]) -> tuple[str, ...]:
    from .sources import files

    crc = 0
    for path in sorted(files(globs)):
        crc = zlib.crc32((ROOT / path).read_bytes(), crc)
    return (tests[crc % len(tests)],)


@cache
def _pattern(text: str) -> re.Pattern[str]:
    return re.compile(".*".join(re.escape(part) for part in text.split("*")), re.DOTALL)
