"""See `moments`: nothing is broken at any of them, and bugs too rare for drawn schedules are found there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ..suites.hunts import due, unit
from .moments import BLOWS, SCENES, struck
from .planted import hunt_moments, rare_patches
from .world import World

SUITE = "planted-node"
LEAST = 40
"""Moments of a life; a life that is shorter shows nothing."""


@pytest.mark.parametrize("scene", SCENES)
@pytest.mark.parametrize("blow", BLOWS, ids=lambda blow: blow.__name__)
def test_a_short_life_struck_at_each_of_its_moments_keeps_every_promise(
    blow: Callable[[World], None], scene: str, tmp_path: Path
) -> None:
    assert len(list(struck(tmp_path, blow, scene))) >= LEAST


@pytest.mark.parametrize("patch", due(SUITE, rare_patches("Blow: "), 1), ids=lambda patch: patch.stem)
def test_a_bug_too_rare_for_drawn_schedules_shows_at_some_moment(
    patch: Path, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    said = hunt_moments(patch, tmp_path)
    assert said
    record_property(*unit(patch, said[:160]))
