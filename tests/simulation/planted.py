"""Planted bugs: patches against the code under test. Each is applied to a copy, which is lived with until it breaks."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUGS = Path(__file__).with_name("bugs")
ROLES = ("bindings", "dpu_daemon", "sched")
HUNG_S = 4 * 3600
"""No search takes so long on the slowest machine: steps bound each schedule, the caller bounds their number. What is
still there then hangs within one step."""


class PatchFailed(Exception):
    """A patch does not fit the code it was made for."""


@dataclass(frozen=True, slots=True)
class Hunt:
    """What came of a bug: the first seed that shows it and what it says, or None after ``tried`` schedules."""

    name: str
    tried: int
    said: str | None


def patches() -> list[Path]:
    """By name."""
    return sorted(BUGS.glob("*.patch"))


def apply(patch: str, root: Path) -> None:
    """Apply a unified diff. Line numbers do not count, the lines do: they must occur exactly once.

    Raises: PatchFailed: they do not.
    """
    for path, (_, text) in places(patch, root).items():
        path.write_text(text)


def places(patch: str, root: Path) -> dict[Path, tuple[str, str]]:
    """The files that a unified diff changes: their text before and after it. Raises: PatchFailed: it does not fit."""
    target: Path | None = None
    hunks: list[tuple[Path, list[str]]] = []
    for line in patch.splitlines():
        if line.startswith("+++ "):
            target = root / line[4:].removeprefix("b/")
        elif line.startswith("@@") and target is not None:
            hunks.append((target, []))
        elif hunks and line[:1] in ("+", "-", " ") and not line.startswith("--- "):
            hunks[-1][1].append(line)
    if not hunks:
        raise PatchFailed("no hunk")
    texts: dict[Path, tuple[str, str]] = {}
    for path, lines in hunks:
        before = "".join(f"{line[1:]}\n" for line in lines if line[0] in " -")
        after = "".join(f"{line[1:]}\n" for line in lines if line[0] in " +")
        original, text = texts.get(path) or (path.read_text(),) * 2
        if text.count(before) != 1:
            raise PatchFailed(f"{path.relative_to(root)}: {text.count(before)} places for\n{before}")
        texts[path] = original, text.replace(before, after)
    return texts


def rare_patches(found_by: str = "") -> list[Path]:
    """Those that drawn schedules meet in many thousands only; ``found_by``: those found by a Blow, or by a Case."""
    return [patch for patch in sorted((BUGS / "rare").glob("*.patch")) if f"\n{found_by}" in patch.read_text()]


def hunt(patch: Path, folder: Path, most: int) -> Hunt:
    """Live with the bug for at most ``most`` schedules. Raises: PatchFailed."""
    done = _lived_with(patch, folder, "--schedules", str(most), "--until-broken")
    lines = done.stdout.splitlines()
    tried: int = json.loads(lines[-1])["schedules"]
    return Hunt(patch.stem, tried, lines[0] if done.returncode else None)


def hunt_moments(patch: Path, folder: Path) -> str | None:
    """Strike a short life with the bug at each of its moments, by the blow that the patch names: what broke first.

    Raises: PatchFailed.
    """
    blow = next(line for line in patch.read_text().splitlines() if line.startswith("Blow: "))
    done = _lived_with(patch, folder, "--moments", blow.removeprefix("Blow: "))
    return done.stdout.splitlines()[0] if done.returncode else None


def hunt_case(patch: Path, folder: Path) -> str | None:
    """Run the written case that the patch names with the bug: what failed there. Raises: PatchFailed."""
    case = next(line for line in patch.read_text().splitlines() if line.startswith("Case: "))
    name = case.removeprefix("Case: ")
    done = _run_with(patch, folder, "pytest", "-q", "-p", "no:cacheprovider", "--no-header", f"tests/simulation/{name}")
    if done.returncode and "1 failed" not in done.stdout:
        raise PatchFailed(f"{patch.stem}: {done.stdout[-2000:]}")
    return done.stdout.splitlines()[-2] if done.returncode else None


def _lived_with(patch: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    done = _run_with(patch, folder, "tests.simulation.run", *arguments, "--packages", str(folder / patch.stem))
    if not done.stdout:
        raise PatchFailed(f"{patch.stem}: {done.stderr[-2000:]}")
    return done


def _run_with(patch: Path, folder: Path, *module: str) -> subprocess.CompletedProcess[str]:
    """Run a module with a copy of the sources that has the bug."""
    root = folder / patch.stem
    for role in ROLES:
        shutil.copytree(ROOT / role, root / role, ignore=shutil.ignore_patterns("__pycache__"))
    apply(patch.read_text(), root)
    path = os.pathsep.join(str(root / role) for role in ROLES)
    done = subprocess.run(
        [sys.executable, "-m", *module],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1", "OFFPATH_PURE": "1"},
        capture_output=True, text=True, timeout=HUNG_S, check=False,
    )  # fmt: skip
    shutil.rmtree(root)
    if done.returncode not in (0, 1):
        raise PatchFailed(f"{patch.stem}: {done.stderr[-2000:]}")
    return done
