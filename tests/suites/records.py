"""Verdicts: for each suite and size the last run that passed, with the hash of the sources it was of.

One file each, ``docs/evidence/suites/SUITE.SIZE.json``, written by `run` only. Its seal is a hash over the rest, so
that a verdict that was edited is noticed; ``tests/suites/test_records.py`` checks all of them on every change.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from .sources import digest
from .table import ROOT, Suite

FOLDER: Final = ROOT / "docs" / "evidence" / "suites"
SIZES: Final = ("slow", "full")
_MADE_BY: Final = "offpath tests.suites.records 1"


@dataclass(frozen=True, slots=True)
class Unit:
    """A part of a suite with sources of its own (a planted bug): their hash, and what was found."""

    sources: str
    said: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """A run of a suite in which nothing failed.

    ``sources``: `digest` of the suite's sources. ``seconds``: of all its parts. ``commit``: HEAD of that run;
    ``is_clean``: the work tree was that commit. ``tests``: ids of those that passed. ``skipped``: how many, by reason.
    """

    suite: str
    size: str
    sources: str
    seconds: float
    date: str
    commit: str
    is_clean: bool
    python: str
    tests: list[str]
    skipped: dict[str, int] = field(default_factory=dict)
    units: dict[str, Unit] = field(default_factory=dict)
    result: str = "passed"

    def seal(self) -> str:
        """The hash over all fields."""
        content = json.dumps({"made_by": _MADE_BY, **asdict(self)}, sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()


class Broken(ValueError):
    """A file of verdicts that no run can have written."""


def path_of(suite: str, size: str, folder: Path | None = None) -> Path:
    """Where the verdict is kept."""
    return (folder or FOLDER) / f"{suite}.{size}.json"


def read(suite: str, size: str, folder: Path | None = None) -> Verdict | None:
    """The kept verdict; None: there is none. Raises: Broken: it was written by hand, or is of a failed run."""
    path = path_of(suite, size, folder)
    if not path.exists():
        return None
    try:
        kept: dict[str, Any] = json.loads(path.read_text("utf-8"))
        seal = kept.pop("seal")
        kept["units"] = {name: Unit(**unit) for name, unit in kept["units"].items()}
        verdict = Verdict(**kept)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Broken(f"{path.name}: {error}") from None
    if seal != verdict.seal():
        raise Broken(f"{path.name}: the seal does not match; only ./scripts/test --slow, --stale or --full writes it")
    if verdict.result != "passed" or not verdict.tests or (verdict.suite, verdict.size) != (suite, size):
        raise Broken(f"{path.name}: not the verdict of a run that passed")
    return verdict


def write(verdict: Verdict, folder: Path | None = None) -> None:
    """Keep the verdict in place of the former one."""
    content = json.dumps({**asdict(verdict), "seal": verdict.seal()}, indent=1, sort_keys=True)
    path = path_of(verdict.suite, verdict.size, folder)
    path.parent.mkdir(parents=True, exist_ok=True)
    (new := path.with_suffix(f".{os.getpid()}")).write_text(content + "\n", "utf-8")
    new.replace(path)


def keep_part(suite: str, size: str, lines: list[dict[str, Any]], folder: Path | None = None) -> None:
    """Keep what a run has come to that is not at its end, so that it goes on elsewhere, on another day. ``lines``: as
    `recorder` writes them. Empty: the run is at its end."""
    path = _part_path(suite, size, folder)
    if not lines:
        path.unlink(missing_ok=True)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"lines": lines, "seal": _seal_of_part(lines)}, indent=0) + "\n", "utf-8")


def part(suite: str, size: str, folder: Path | None = None) -> list[dict[str, Any]]:
    """What was kept. Raises: Broken: it was written by hand."""
    path = _part_path(suite, size, folder)
    if not path.exists():
        return []
    try:
        kept = json.loads(path.read_text("utf-8"))
        lines: list[dict[str, Any]] = kept["lines"]
        is_sealed = kept["seal"] == _seal_of_part(lines)
    except (ValueError, KeyError, TypeError) as error:
        raise Broken(f"{path.name}: {error}") from None
    if not is_sealed:
        raise Broken(f"{path.name}: the seal does not match; only ./scripts/test --full writes it")
    return lines


def _part_path(suite: str, size: str, folder: Path | None) -> Path:
    return (folder or FOLDER) / "parts" / f"{suite}.{size}.json"


def _seal_of_part(lines: list[dict[str, Any]]) -> str:
    return hashlib.sha256(json.dumps([_MADE_BY, lines], sort_keys=True).encode()).hexdigest()


def withdraw(suite: str, size: str, sources: str, folder: Path | None = None) -> bool:
    """After a failed run: remove a verdict of the same sources, which is in doubt now. Returns whether there was."""
    kept = read(suite, size, folder)
    if kept is None or kept.sources != sources:
        return False
    path_of(suite, size, folder).unlink()
    return True


def size_of(suite: Suite, size: str) -> str:
    """The size whose record says it: without larger counts the slow one is whole."""
    return size if suite.whole else "slow"


def is_fresh(suite: Suite, size: str) -> bool:
    """Whether the suite has passed with its present sources, in this size or in the full one."""
    now, size = digest(suite.sources), size_of(suite, size)
    kept = (read(suite.name, each) for each in SIZES[SIZES.index(size) :])
    return any(verdict is not None and verdict.sources == now for verdict in kept)


def known_unit(suite: str, name: str, sources: str, size: str = "slow") -> Unit | None:
    """What a unit of a suite was found to be with these very sources; None: that is not known."""
    for each in SIZES[SIZES.index(size) :]:
        verdict = read(suite, each)
        unit = verdict.units.get(name) if verdict else None
        if unit is not None and unit.sources == sources:
            return unit
    return None
