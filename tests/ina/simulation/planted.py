"""Planted bugs: patches against the machines or the rules of who drives them, each lived with until it breaks."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from ...simulation.planted import HUNG_S, ROOT, Hunt, PatchFailed, apply

BUGS = Path(__file__).with_name("bugs")


def patches() -> list[Path]:
    """By name."""
    return sorted(BUGS.glob("*.patch"))


def hunt(patch: Path, folder: Path, most: int) -> Hunt:
    """Live with the bug for at most ``most`` schedules. Raises: PatchFailed: it does not fit, or nothing ran."""
    root = folder / patch.stem
    ours = Path(__file__).parent.relative_to(ROOT)
    ignore = shutil.ignore_patterns("__pycache__", "bugs")
    shutil.copytree(ROOT / "sched", root / "sched", ignore=ignore)
    shutil.copytree(ROOT / ours, root / ours, ignore=ignore)
    apply(patch.read_text(), root)
    done = subprocess.run(
        [sys.executable, "-m", "tests.ina.simulation.run", "--schedules", str(most), "--until-broken",
         "--packages", str(root)],
        cwd=root, env={**os.environ, "PYTHONPATH": str(root / "sched"), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True, text=True, timeout=HUNG_S, check=False,
    )  # fmt: skip
    shutil.rmtree(root)
    if done.returncode not in (0, 1) or not done.stdout:
        raise PatchFailed(f"{patch.stem}: {done.stderr[-2000:]}")
    lines = done.stdout.splitlines()
    return Hunt(patch.stem, json.loads(lines[-1])["schedules"], lines[0] if done.returncode else None)


__all__ = ["PatchFailed", "hunt", "patches"]
