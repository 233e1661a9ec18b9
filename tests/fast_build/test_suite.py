"""The suite on the fast build: a seeded sample of it; all of it with ./scripts/test --full."""

from __future__ import annotations

import subprocess
import zlib
from typing import Final

import pytest

from ..sizes import sized
from ..support.fast import environment, fast_python, needs_the_scripts
from ..support.sources import ROOT, product
from .modules import modules

pytestmark = [
    pytest.mark.not_fast("it starts the fast build itself"),
    needs_the_scripts(),
]
REACHED: Final = (
    "tests/sched/jobs", "tests/sched/gpu", "tests/sched/sim", "tests/dpu_daemon", "tests/simulation", "tests/kills",
    "tests/plugins", "tests/fuzz", "tests/cli", "tests/host_helper",
)  # fmt: skip
"""Where tests run compiled code."""
COUNT: Final = sized(quick=30, fast=30, slow=80, full=400)
SAMPLE_S: Final = 1_200
WHOLE_S: Final = 4 * 3_600
LONG: Final = "tests/simulation/test_simulation.py", "tests/kills", "tests/sched/jobs/test_book_properties.py"


def seed() -> int:
    """Another one for other sources: each state of the tree draws its own sample, and the same one each time."""
    names = set(modules("modules").COMPILED)
    crc = 0
    for path, _ in product("sched", "dpu_daemon"):
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts[1:])
        if module in names:
            crc = zlib.crc32(path.read_bytes(), crc)
    return crc


def passes(bound_s: int, *arguments: str, **switches: str) -> None:
    command = [str(ROOT / "scripts" / "build-fast"), "test", *arguments, "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=bound_s, check=False, env=environment() | switches, cwd=ROOT
    )
    again = " ".join([*(f"{name}='{value}'" for name, value in switches.items()), *command])
    assert done.returncode == 0, f"{done.stdout[-6_000:]}\n{done.stderr[-2_000:]}\nagain: {again}"


def test_a_sample_of_the_suite_passes() -> None:
    fast_python()  # builds; the bound below is for the tests
    passes(SAMPLE_S, *REACHED, OFFPATH_TEST_TIER="1", OFFPATH_TEST_SAMPLE=f"{seed()} {COUNT}")


@pytest.mark.full
def test_the_whole_suite_passes() -> None:
    fast_python()
    passes(WHOLE_S, "-n", "2", OFFPATH_TEST_TIER="1")


@pytest.mark.full
def test_the_long_sweeps_pass() -> None:
    """The whole counts of the simulated schedules, of the kill sweep and of the book's properties."""
    fast_python()
    passes(WHOLE_S, "--full", "-n", "2", *LONG)
