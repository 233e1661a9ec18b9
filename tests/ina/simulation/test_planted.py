"""The simulation is worth something only if it finds bugs: each patch in ``bugs/`` must show itself."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ...simulation.planted import ROOT, places
from ...suites.hunts import due, unit
from .planted import hunt, patches

SUITE = "planted-ina"
MOST = 2_500
"""Schedules: the bug that is hardest to find (25) shows itself at seed 1502."""
LEAST = 15


@pytest.mark.parametrize("patch", due(SUITE, patches()), ids=lambda patch: patch.stem)
def test_the_simulation_finds_every_planted_bug(
    patch: Path, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    found = hunt(patch, tmp_path, MOST)
    assert found.said is not None, f"not found in {found.tried} schedules"
    record_property(*unit(patch, f"{found.tried} schedules: {found.said}"[:160]))


def test_there_are_planted_bugs_enough() -> None:
    assert len(patches()) >= LEAST


def test_every_planted_bug_fits_the_code() -> None:
    for patch in patches():
        assert places(patch.read_text(), ROOT), patch.name


def test_planted_bugs_are_all_different_and_say_what_they_are() -> None:
    texts = [patch.read_text() for patch in patches()]
    assert len({text[text.index("---") :] for text in texts}) == len(texts)
    assert all(text.splitlines()[0].endswith(".") for text in texts)
