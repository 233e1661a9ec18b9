"""The simulation is worth something only if it finds bugs: each patch in ``bugs/`` must show itself."""

from __future__ import annotations

import statistics
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ...support.evidence import keep
from .planted import hunt, patches

MOST = 2_500
"""Schedules: the bug that is hardest to find (25) shows itself at seed 1502."""
LEAST = 15


@pytest.mark.slow
def test_the_simulation_finds_every_planted_bug(tmp_path: Path) -> None:
    with ThreadPoolExecutor(2) as pool:
        hunts = list(pool.map(lambda patch: hunt(patch, tmp_path, MOST), patches()))
    lines = [f"{found.name:52} {found.tried:5}  {found.said or 'NOT FOUND'}"[:160] for found in hunts]
    median = statistics.median(found.tried for found in hunts)
    keep("ina-planted.txt", "\n".join([*lines, f"{len(hunts)} planted bugs; median {median:g} schedules"]))
    assert len(hunts) >= LEAST
    assert [found.name for found in hunts if found.said is None] == []


def test_planted_bugs_are_all_different_and_say_what_they_are() -> None:
    texts = [patch.read_text() for patch in patches()]
    assert len({text[text.index("---") :] for text in texts}) == len(texts)
    assert all(text.splitlines()[0].endswith(".") for text in texts)
