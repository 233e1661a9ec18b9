"""Slow suites that a change has made stale, run after the fast tier (./scripts/test --stale-within SECONDS)."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from .conftest import STALE
from .suites.__main__ import seconds_of
from .suites.table import ROOT, suites

AT_MOST = 4.0
"""So many times as long as its record says a suite may take; beyond that the machine is busy, and it stays stale."""
LEAST_S = 120.0


@pytest.mark.parametrize("name", STALE)
def test_a_stale_suite_passes(name: str) -> None:
    bound_s = max(LEAST_S, AT_MOST * seconds_of(suites()[name]))
    command = [
        sys.executable,
        "-P",
        "-m",
        "tests.suites",
        "run",
        "--no-record",
        "--most-minutes",
        f"{bound_s / 60:.2f}",
    ]
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTEST_", "OFFPATH_TEST_"))}
    environment["PYTHONPATH"] = str(ROOT)
    done = subprocess.run([*command, name], cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout[-12_000:]}\n{done.stderr[-2_000:]}"
    for why in ("not finished", "nothing could run here"):
        if why in done.stderr:
            pytest.skip(f"{name}: {why}; it stays stale")
