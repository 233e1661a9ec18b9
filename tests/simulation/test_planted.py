"""The simulation is worth something only if it finds bugs: each patch in ``bugs/`` must show itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from ..conftest import SIZE
from .planted import ROLES, ROOT, Campaign, PatchFailed, apply, hunt, hunt_case, patches, places, rare_patches

MOST = {"quick": 1_200, "ci": 2_000, "full": 5_000}[SIZE]
"""Schedules: the bug that is hardest to find shows itself about seed 1 000. Which seed finds a bug is luck, and moves
with every draw that a world makes."""
LEAST = 50


SAMPLE = 8
"""Patches that are hunted where nothing has changed since all of them were found (`unchanged`)."""
HUNTED_IN = ("bindings", "dpu_daemon", "host_helper", "sched", "tests/simulation", "tests/support/advisors.py")


@pytest.mark.not_fast("it runs patched copies of the sources")
@pytest.mark.slow
def test_the_simulation_finds_every_planted_bug(tmp_path: Path) -> None:
    """Or a sample of them where nothing has changed since all of them were found."""
    chosen = patches()
    assert len(chosen) >= LEAST
    Campaign("simulation", "planted.txt", MOST, SAMPLE, HUNTED_IN, hunt).run(chosen, tmp_path)


@pytest.mark.not_fast("it runs patched copies of the sources")
@pytest.mark.slow
@pytest.mark.parametrize("patch", rare_patches("Case: "), ids=lambda patch: patch.stem)
def test_a_bug_too_rare_for_drawn_schedules_shows_in_a_written_case(patch: Path, tmp_path: Path) -> None:
    assert hunt_case(patch, tmp_path)


def test_every_planted_bug_fits_the_code() -> None:
    for patch in [*patches(), *rare_patches()]:
        assert places(patch.read_text(), ROOT), patch.name


def test_every_rare_bug_names_a_blow_or_a_case() -> None:
    assert sorted([*rare_patches("Blow: "), *rare_patches("Case: ")]) == rare_patches()


def test_a_planted_bug_that_no_longer_fits_fails(tmp_path: Path) -> None:
    (tmp_path / "code.py").write_text("a = 1\nb = 2\n")
    patch = "--- code.py\n+++ code.py\n@@ -1,2 +1,2 @@\n a = 1\n-b = 3\n+b = 4\n"
    with pytest.raises(PatchFailed, match="0 places"):
        apply(patch, tmp_path)
    apply(patch.replace("-b = 3", "-b = 2"), tmp_path)
    assert (tmp_path / "code.py").read_text() == "a = 1\nb = 4\n"


def test_planted_bugs_are_all_different_and_say_what_they_are() -> None:
    texts = [patch.read_text() for patch in patches()]
    assert len({text[text.index("---") :] for text in texts}) == len(texts)
    for text in texts:
        what = text.splitlines()[0]
        assert what.endswith(".")
        assert not what.startswith("---")
    touched = {line[4:].split("/")[0] for text in texts for line in text.splitlines() if line.startswith("+++ ")}
    assert touched == set(ROLES)
    assert all((ROOT / role).is_dir() for role in ROLES)
