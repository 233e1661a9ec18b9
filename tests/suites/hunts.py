"""Planted bugs that are due: a hunt is repeated when its patch, or a file that the patch changes, has changed."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from ..sizes import SIZE
from . import records
from .recorder import UNIT
from .sources import digest
from .table import ROOT, Suite, changed_by, suites

SAMPLE = 4
"""Planted bugs that are hunted though it is known that they are found."""


def sources_of(patch: Path) -> str:
    """The hash of the patch and of the files that it changes."""
    return digest([str(patch.relative_to(ROOT)), *sorted(changed_by(patch))])


def due(suite: str, patches: list[Path], sample: int = SAMPLE) -> list[Path]:
    """The patches of which it is not known that they are found at the present sources, and a sample of the others,
    drawn by the sources. All of them in ./scripts/test --full."""
    if SIZE == "full":
        return patches
    found = {patch: sources_of(patch) for patch in patches}
    unknown = [patch for patch, of in found.items() if records.known_unit(suite, patch.stem, of) is None]
    known = [patch for patch in patches if patch not in unknown]
    drawn = random.Random("".join(found.values())).sample(known, min(sample, len(known)))
    return sorted([*unknown, *drawn])


def part_due(suite: Suite) -> float:
    """Which part of a suite's planted bugs is due, 0 to 1; 1: it hunts none, and runs whole."""
    patches = [patch for folder in suite.hunts for patch in sorted((ROOT / folder).rglob("*.patch"))]
    if not patches:
        return 1.0
    return len(due(suite.name, patches, SAMPLE)) / len(patches)


def unit(patch: Path, said: str) -> tuple[str, Any]:
    """The property with which a test records that the hunt has found its bug."""
    return UNIT, [patch.stem, sources_of(patch), said]


def counted(part: str, suite: str, figures: str) -> tuple[str, Any]:
    """The property with which a test records what a part of a long count came to."""
    return UNIT, [part, digest(suites()[suite].sources), figures]
