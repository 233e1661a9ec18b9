"""The package of sample policies, installed as any other."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1] / "plugins" / "sample-policies"


def install(folder: Path | str) -> None:
    """Install it into ``folder``, which is then to be in PYTHONPATH."""
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--no-build-isolation"]
    subprocess.run([*command, "--target", str(folder), str(PACKAGE)], check=True, timeout=120)
