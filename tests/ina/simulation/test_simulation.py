"""Ranks, agents, controllers and switches in simulation: no schedule may break a promise; a seed is a schedule."""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor

from ...simulation.planted import ROOT
from ...sizes import sized
from ...support.evidence import keep

SCHEDULES = sized(quick=100, fast=500, slow=5_000, full=100_000)
CHUNK = 250
NEEDED = {
    "admitted": 5.0, "refused": 0.3, "waited": 0.05, "waited_in_vain": 0.01, "given": 0.3, "redone": 0.3,
    "plain": 100.0, "changes": 4.0, "fenced": 3.0,
}  # fmt: skip
"""How often each happens at least, per schedule: a sample with less has lost what it is for."""
STEPS = 800
"""Per schedule, at least."""


def lived(start: int) -> tuple[dict[str, int], list[str]]:
    """The figures and the broken seeds of a range, lived through in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.ina.simulation.run", "--schedules", str(CHUNK), "--start", str(start)],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=600,
    )  # fmt: skip
    assert done.stdout, done.stderr
    *broken, figures = done.stdout.splitlines()
    return json.loads(figures), broken


def test_no_schedule_breaks_a_promise() -> None:
    total: dict[str, int] = {}
    broken: list[str] = []
    with ProcessPoolExecutor(2) as pool:
        for figures, found in pool.map(lived, range(1, SCHEDULES + 1, CHUNK)):
            broken += found
            for name, count in figures.items():
                total[name] = total.get(name, 0) + count
    keep("ina-simulation.txt", f"{json.dumps(total)}\n{total['schedules']} schedules, {total['steps']} steps")
    assert broken == []
    assert total["schedules"] >= SCHEDULES
    assert total["steps"] >= STEPS * SCHEDULES
    assert {name: total[name] for name, least in NEEDED.items() if total[name] < least * SCHEDULES} == {}
