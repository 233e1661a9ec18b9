"""The simulation is worth something only if it finds bugs: each patch in ``bugs/`` must show itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from ...simulation.planted import ROOT, Campaign, places
from .planted import hunt, patches

MOST = 2_500
"""Schedules: the bug that is hardest to find (25) shows itself at seed 1502."""
LEAST = 15


SAMPLE = 5
"""Patches that are hunted where nothing has changed since all of them were found (`unchanged`)."""
HUNTED_IN = ("sched", "tests/ina/simulation", "tests/simulation/planted.py")


@pytest.mark.slow
def test_the_simulation_finds_every_planted_bug(tmp_path: Path) -> None:
    """Or a sample of them where nothing has changed since all of them were found."""
    chosen = patches()
    assert len(chosen) >= LEAST
    Campaign("ina-simulation", "ina-planted.txt", MOST, SAMPLE, HUNTED_IN, hunt).run(chosen, tmp_path)


def test_every_planted_bug_fits_the_code() -> None:
    for patch in patches():
        assert places(patch.read_text(), ROOT), patch.name


def test_planted_bugs_are_all_different_and_say_what_they_are() -> None:
    texts = [patch.read_text() for patch in patches()]
    assert len({text[text.index("---") :] for text in texts}) == len(texts)
    assert all(text.splitlines()[0].endswith(".") for text in texts)
