"""The pure and the fast build decide the same, byte for byte, and each says which it is."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path
from random import Random

import pytest

from ..sizes import sized
from ..support.fast import BUILD_S, builds, environment, fast_python, needs_the_scripts
from ..support.sources import ROOT
from .modules import modules

pytestmark = [
    pytest.mark.not_fast("it starts the fast build itself"),
    needs_the_scripts(),
]
SEEDS = sized(quick=5, fast=25, slow=100, full=1_000)
LIVES = sized(quick=2, fast=5, slow=20, full=200)


@pytest.fixture(scope="module")
def fast() -> str:
    return fast_python()


def test_a_journals_meaning_and_every_hint_are_the_same(fast: str, tmp_path: Path) -> None:
    """mypyc erases the hints of a class; the build restores them, or a restart would misread what was written."""
    pure, compiled = builds("schema", tmp_path), builds("schema", tmp_path, python=fast)
    assert (pure.pop("compiled"), compiled.pop("compiled")) == ([], ["dpu_daemon", "sched"])
    assert len(pure["hints"]) > 40
    assert pure == compiled


def test_each_build_replays_the_other_ones_journals(fast: str, tmp_path: Path) -> None:
    """Both write the same bytes; each handles what the other wrote, compares each decision, and ends with the same
    book."""
    ours, theirs = tmp_path / "interpreted", tmp_path / "compiled"
    ours.mkdir()
    theirs.mkdir()
    written = builds("write", ours, *range(SEEDS)), builds("write", theirs, *range(SEEDS), python=fast)
    read = builds("replay", theirs, *range(SEEDS)), builds("replay", ours, *range(SEEDS), python=fast)
    for by_us, by_them in (written, read):
        assert (by_us.pop("compiled"), by_them.pop("compiled")) == ([], ["dpu_daemon", "sched"])
        assert by_us == by_them
    assert len(written[0]["write"]) == len(read[0]["replay"]) == SEEDS
    in_python = builds("write", theirs, *range(SEEDS), python=fast, switches={"OFFPATH_PURE": "1"})
    assert in_python["write"] == written[0]["write"], "the C module reads compiled records as Python does"


def test_whole_daemons_live_the_same_lives(fast: str) -> None:
    """Schedules of the simulation: daemon, helper, workers and requesters with crashes; every step is traced."""
    seeds = [str(seed) for seed in Random(1).sample(range(10_000), LIVES)]
    pure, compiled = (
        subprocess.run(
            [python, "-P", "-m", "tests.simulation.run", *seeds], cwd=ROOT, capture_output=True, text=True,
            timeout=BUILD_S, check=True, env=environment() | {"PYTHONPATH": str(ROOT)},
        ).stdout
        for python in (sys.executable, fast)
    )  # fmt: skip
    assert len(pure.splitlines()) > 100 * LIVES
    assert pure == compiled


def wheel(folder: Path, **switches: str) -> tuple[Path, list[str]]:
    """A wheel built with these variables, and the paths of the extension modules in it."""
    command = [sys.executable, "-I", "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run(
        [*command, "--wheel-dir", str(folder), str(ROOT)], check=True, timeout=BUILD_S, env=environment() | switches
    )
    (made,) = folder.glob("offpath-*.whl")
    with zipfile.ZipFile(made) as archive:
        names = archive.namelist()
    binaries = [name for name in names if name.endswith(".so") and ".cpython-" in name]
    for name in binaries:
        if "/" in name:
            assert name.partition(".")[0] + ".py" in names, f"{name} without its source"
    return made, binaries


def test_the_fast_wheel_has_each_compiled_module_beside_its_source(fast: str, tmp_path: Path) -> None:
    made, binaries = wheel(tmp_path, OFFPATH_FAST="1")
    version = f"cp{sys.version_info.major}{sys.version_info.minor}"
    assert f"-{version}-{version}-linux_" in made.name
    compiled = modules("modules").COMPILED
    found = {name.partition(".")[0].replace("/", ".") for name in binaries}
    assert found == {*compiled, f"{modules('compiling').GROUP}__mypyc"}


@pytest.mark.parametrize("switches", [{}, {"OFFPATH_PURE": "1"}, {"OFFPATH_PURE": "1", "OFFPATH_FAST": "1"}])
def test_any_other_wheel_has_none(switches: dict[str, str], tmp_path: Path) -> None:
    _, binaries = wheel(tmp_path, **switches)
    assert binaries == []
