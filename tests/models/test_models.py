"""The protocol as a model, checked exhaustively within its bounds by spin; and that the checks can fail.

The head of each model states its bounds. The runs marked full are the larger ones.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from ..support.compiler import MISSING, find_compiler
from ..support.evidence import keep

HERE = Path(__file__).parent
pytestmark = [
    pytest.mark.skipif(shutil.which("spin") is None, reason="needs spin: the package spin of Debian and Ubuntu"),
    pytest.mark.skipif(not find_compiler(), reason=MISSING),
]


@dataclass(frozen=True, slots=True)
class Checked:
    """What the verifier says. ``fault``: the first broken promise; None: none, in all of ``states``."""

    fault: str | None
    states: int


def check(model: str, options: tuple[str, ...], folder: Path, timeout_s: int = 240, *, cycles: bool = False) -> Checked:
    """Search all states of ``model``; ``cycles``: for a way to come by a label accept_… for ever, with weak fairness.

    Raises: AssertionError: the search was cut.
    """
    subprocess.run(["spin", "-a", *options, HERE / model], cwd=folder, check=True, capture_output=True, timeout=60)
    built = [
        *find_compiler(),
        "-O2",
        "-w",
        "-DNFAIR=3" if cycles else "-DSAFETY",
        "-DVECTORSZ=2048",
        "-DMEMLIM=6000",
        "-o",
        "pan",
        "pan.c",
    ]
    subprocess.run(built, cwd=folder, check=True, capture_output=True, timeout=120)
    said = subprocess.run(
        ["./pan", "-m100000", *(["-a", "-f"] if cycles else [])],
        cwd=folder,
        check=False,
        capture_output=True,
        text=True,
        timeout=timeout_s,
    ).stdout
    errors = re.search(r"errors: (\d+)", said)
    states = re.search(r"(\d+) states, stored", said)
    assert errors, said
    assert states, said
    fault = re.search(r"pan:1: (assertion violated|invalid end state|acceptance cycle)", said)
    assert bool(fault) == (errors[1] != "0"), said
    if fault is None:
        assert "Search not completed" not in said, said
        assert "max search depth too small" not in said, said
    keep(
        f"model-{model}{''.join(options)}.txt", f"{model} {' '.join(options)}: {fault and fault[1]}, {states[1]} states"
    )
    return Checked(fault[1] if fault else None, int(states[1]))


@pytest.mark.parametrize(
    "options",
    [
        ("-DSTEPS=3",),
        ("-DSTEPS=3", "-DREPLACED=1"),
        ("-DSTEPS=2", "-DSWITCH"),
        ("-DSTEPS=2", "-DDEATH"),
        pytest.param(("-DSTEPS=2", "-DFENCE"), marks=pytest.mark.full),
        pytest.param(("-DSTEPS=2", "-DFENCE", "-DREPLACED=1"), marks=pytest.mark.full),
        pytest.param(("-DSTEPS=3", "-DRENEWED"), marks=pytest.mark.full),
        pytest.param(("-DSTEPS=3", "-DSWITCH"), marks=pytest.mark.full),
        pytest.param(("-DSTEPS=4", "-DREPLACED=2"), marks=pytest.mark.full),
    ],
    ids="".join,
)
def test_epochs_agreed_in_band_keep_their_promises(options: tuple[str, ...], tmp_path: Path) -> None:
    assert check("inband.pml", options, tmp_path, 1_800).fault is None


@pytest.mark.parametrize(
    ("mutation", "options", "fault"),
    [
        ("M_OWN", ("-DSTEPS=3",), "assertion violated"),
        ("M_NOMAX", ("-DSTEPS=3", "-DRENEWED"), "assertion violated"),
        ("M_NODRAIN", ("-DSTEPS=2",), "assertion violated"),
        ("M_EARLYDRAIN", ("-DSTEPS=2",), "assertion violated"),
        ("M_FENCEEARLY", ("-DSTEPS=2", "-DFENCE"), "assertion violated"),
        ("M_SILENT", ("-DSTEPS=2", "-DSWITCH"), "invalid end state"),
        ("M_REDO", ("-DSTEPS=2", "-DSWITCH"), "assertion violated"),
        ("M_FIRST", ("-DSTEPS=2",), "assertion violated"),
        ("R_GRANT", ("-DSTEPS=3",), "assertion violated"),
        ("R_GIVEN", ("-DSTEPS=2", "-DSWITCH"), "assertion violated"),
    ],
)
def test_a_mutation_of_the_model_is_caught_and_what_matters_is_reached(
    mutation: str, options: tuple[str, ...], fault: str, tmp_path: Path
) -> None:
    assert check("inband.pml", (*options, f"-D{mutation}"), tmp_path).fault == fault


@pytest.mark.parametrize(
    ("case", "fault"),
    [
        ("", None),
        ("LOCK_LONG", "invalid end state"),
        ("DIES", "invalid end state"),
        ("FORGETS", "assertion violated"),
        ("LOSES", "invalid end state"),
        ("RESTARTS", "assertion violated"),
        ("TIMEOUT", "assertion violated"),
        ("SHARED", "assertion violated"),
        ("LATE", "assertion violated"),
    ],
)
def test_the_papers_protocol_holds_without_faults_and_fails_with_any(
    case: str, fault: str | None, tmp_path: Path
) -> None:
    assert check("twophase.pml", (f"-D{case}",) if case else (), tmp_path).fault == fault


def test_the_papers_protocol_can_try_for_ever_without_any_fault(tmp_path: Path) -> None:
    assert check("twophase.pml", ("-DSKEWED",), tmp_path, cycles=True).fault == "acceptance cycle"
