"""Runs a file of tests in a process of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from .sources import ROOT

BOUND_S = 300.0


def run_tests(file: Path) -> int:
    """How many of the file's tests passed; none may fail."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
    command = [sys.executable, "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", str(file)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=BOUND_S, cwd=ROOT, env=environment, check=False
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    passed = re.search(r"([0-9]+) passed", done.stdout)
    assert passed is not None, done.stdout
    return int(passed[1])
