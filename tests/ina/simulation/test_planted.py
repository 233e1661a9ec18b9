"""The simulation is worth something only if it finds bugs: each patch in ``bugs/`` must show itself."""

from __future__ import annotations

import random
import statistics
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ...simulation.planted import ROOT, places
from ...support.evidence import keep
from ...support.unchanged import digest, is_unchanged, passed
from ...workers import hunters
from .planted import hunt, patches

MOST = 2_500
"""Schedules: the bug that is hardest to find (25) shows itself at seed 1502."""
LEAST = 15


SAMPLE = 5
"""Patches that are hunted where nothing has changed since all of them were found (`unchanged`)."""
HUNTED_IN = ("sched", "tests/ina/simulation", "tests/simulation/planted.py")


@pytest.mark.slow
def test_the_simulation_finds_every_planted_bug(tmp_path: Path) -> None:
    """Or a sample of them, drawn by the hash, where the code, the patches and the simulation are those of the last
    time."""
    chosen = patches()
    assert len(chosen) >= LEAST
    is_sample = is_unchanged("ina-simulation", *HUNTED_IN)
    if is_sample:
        chosen = random.Random(digest(*HUNTED_IN)).sample(chosen, SAMPLE)
    with ThreadPoolExecutor(hunters()) as pool:
        hunts = list(pool.map(lambda patch: hunt(patch, tmp_path, MOST), chosen))
    lines = [f"{found.name:52} {found.tried:5}  {found.said or 'NOT FOUND'}"[:160] for found in hunts]
    median = statistics.median(found.tried for found in hunts)
    lines.append(said := f"{len(hunts)} planted bugs; median {median:g} schedules")
    assert [found.name for found in hunts if found.said is None] == [], "\n".join(lines)
    if not is_sample:
        keep("ina-planted.txt", "\n".join(lines))
        passed("ina-simulation", said, *HUNTED_IN)


def test_every_planted_bug_fits_the_code() -> None:
    for patch in patches():
        assert places(patch.read_text(), ROOT), patch.name


def test_planted_bugs_are_all_different_and_say_what_they_are() -> None:
    texts = [patch.read_text() for patch in patches()]
    assert len({text[text.index("---") :] for text in texts}) == len(texts)
    assert all(text.splitlines()[0].endswith(".") for text in texts)
