"""The whole node in simulation: no schedule may break a promise; a seed is a schedule; nothing else decides."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

from ..sizes import SIZE, sized
from ..suites.hunts import counted
from .lives import TokenFiles, live
from .planted import ROOT

PARTS = sized(quick=1, fast=1, slow=1, full=40)
"""Of a count that takes hours: a run that is stopped goes on with the next one."""
SCHEDULES = sized(quick=100, fast=300, slow=2_000, full=2_500)
"""Of a part."""
CHUNK = min(250, SCHEDULES // 2)
NEEDED = (
    "kernels", "tenant_changes", "answer_COMPLETED", "answer_FAILED", "answer_CANCELLED", "answer_EXPIRED",
    "answer_REJECTED", "answer_OUTCOME_UNKNOWN", "copy_fails", "late_copies", "late_results", "worker_dies",
    "worker_lies", "worker_repeats", "channel_full", "helper_dies", "helper_leaves", "helper_silent", "create_fails",
    "requester_dies", "clock_jumps", "intruders", "helper_hangs", "kernel_hangs", "reloads", "two_helpers", "gpu_dies",
    "batches", "daemon_killed_reloading", "daemon_killed_batching", "reloads_unseen", "sequence_steps",
)  # fmt: skip
"""A sample in which one of these never happens has lost what it is for."""
RARE = ("daemon_killed_batching", "daemon_killed_reloading", "reloads_unseen")
"""Of these a few hundred schedules may have none."""


def lived(start: int, count: int) -> tuple[dict[str, int], list[str]]:
    """The figures and the broken seeds of a range, lived through in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.simulation.run", "--schedules", str(count), "--start", str(start)],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=600,
    )  # fmt: skip
    assert done.stdout, done.stderr
    *broken, figures = done.stdout.splitlines()
    return json.loads(figures), broken


@pytest.mark.parametrize("part", range(PARTS))
def test_no_schedule_of_the_simulation_breaks_a_promise(
    part: int, record_property: Callable[[str, object], None]
) -> None:
    first = part * SCHEDULES
    starts = range(first, first + SCHEDULES, CHUNK)
    total: Counter[str] = Counter()
    broken: list[str] = []
    with ProcessPoolExecutor(2) as pool:
        for figures, found in pool.map(lived, starts, [min(CHUNK, first + SCHEDULES - at) for at in starts]):
            broken += found
            total.update(figures)
    print(json.dumps(total))
    assert not broken, "\n".join([*broken[:10], f"again: {replay(broken[0])}"])
    assert total["schedules"] == SCHEDULES
    needed = set(NEEDED) - set(sized(quick=RARE, fast=RARE, slow=(), full=()))
    assert [name for name in sorted(needed) if not total.get(name)] == []
    if SIZE == "full":
        record_property(*counted(f"seeds {first} to {first + SCHEDULES - 1}", "simulation-node", json.dumps(total)))


def replay(broken: str) -> str:
    """The command that lives through the broken schedule again, with its trace."""
    seed = broken.removeprefix("seed ").split(":")[0]
    return f"./scripts/run python -m tests.simulation.run {seed}"


def digest(folder: Path, seed: int) -> str:
    outcome = live(seed, TokenFiles(str(folder)), trace=True)
    return hashlib.sha256("\n".join([str(outcome.fault), *outcome.lines]).encode()).hexdigest()


def test_a_simulated_schedule_is_the_same_each_time(tmp_path: Path) -> None:
    seeds = range(2 if SIZE == "quick" else 5)
    assert [digest(tmp_path, seed) for seed in seeds] == [digest(tmp_path, seed) for seed in seeds]


def test_a_simulated_schedule_does_not_depend_on_hashes() -> None:
    def said(hash_seed: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "tests.simulation.run", "1", "2", "3"], cwd=ROOT, capture_output=True, text=True,
            env={**os.environ, "PYTHONHASHSEED": hash_seed}, check=True, timeout=60,
        )  # fmt: skip
        return done.stdout

    first, second = said("1"), said("2")
    assert len(first) > 10_000
    assert first == second


@pytest.mark.skipif("OFFPATH_SIM_SEED" not in os.environ, reason="OFFPATH_SIM_SEED names no schedule")
def test_the_simulated_schedule_of_offpath_sim_seed(tmp_path: Path) -> None:
    outcome = live(int(os.environ["OFFPATH_SIM_SEED"]), TokenFiles(str(tmp_path)), trace=True)
    print("\n".join(outcome.lines))
    assert outcome.fault is None
