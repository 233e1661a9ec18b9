"""The whole node in simulation: no schedule may break a promise; a seed is a schedule; nothing else decides."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

from ..sizes import SIZE, sized
from ..support.evidence import keep
from .lives import TokenFiles, live
from .planted import ROOT

SCHEDULES = sized(quick=100, fast=300, slow=2_000, full=100_000)
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


def test_no_schedule_of_the_simulation_breaks_a_promise(capsys: pytest.CaptureFixture[str]) -> None:
    starts = range(0, SCHEDULES, CHUNK)
    total: dict[str, int] = {}
    broken: list[str] = []
    with ProcessPoolExecutor(2) as pool:
        for figures, found in pool.map(lived, starts, [min(CHUNK, SCHEDULES - at) for at in starts]):
            broken += found
            for name, count in figures.items():
                total[name] = total.get(name, 0) + count
            said = list(found)
            if total["schedules"] % 5_000 == 0:
                said.append(f"{total['schedules']} of {SCHEDULES} schedules, {len(broken)} broken")
            if SIZE == "full" and said:
                with capsys.disabled():
                    print("\n".join(said), flush=True)
    keep("simulation.txt", "\n".join([json.dumps(total), f"{total['schedules']} schedules, {len(broken)} broken"]))
    assert not broken, "\n".join([*broken[:10], f"again: {replay(broken[0])}"])
    assert total["schedules"] == SCHEDULES
    needed = set(NEEDED) - set(sized(quick=RARE, fast=RARE, slow=(), full=()))
    assert [name for name in sorted(needed) if not total.get(name)] == []


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
