"""The sweep under AddressSanitizer and UndefinedBehaviorSanitizer, and a bug that only they see."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ...sizes import sized
from ...support.sources import ROOT
from .built import compiled, hook

pytestmark = pytest.mark.not_fast("it makes records of wrong types, which a compiled class refuses")

INPUTS = sized(quick=2_000, fast=2_000, slow=5_000, full=100_000)
SANITIZE = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer", "-g", "-O1")


def swept(made: Path, inputs: int) -> subprocess.CompletedProcess[str]:
    compiler = hook().compiler()
    libraries = [
        subprocess.run([*compiler, f"-print-file-name={name}"], capture_output=True, text=True, check=True).stdout
        for name in ("libasan.so", "libubsan.so")
    ]
    environment = os.environ | {
        "LD_PRELOAD": " ".join(path.strip() for path in libraries),
        "PYTHONMALLOC": "malloc",  # each object an allocation of its own, which the sanitizer watches
        "ASAN_OPTIONS": "detect_leaks=0",  # the interpreter keeps what it made until its end; see test_leaks
    }
    return subprocess.run(
        [sys.executable, "-m", "tests.bindings.path.sweep", str(made), str(inputs), "2"],
        cwd=ROOT, env=environment, capture_output=True, text=True, timeout=900, check=False,
    )  # fmt: skip


def test_the_sweep_passes_under_the_sanitizers(tmp_path: Path) -> None:
    done = swept(compiled(tmp_path, *SANITIZE), INPUTS)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count(f": {INPUTS} inputs, ") == 9


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("request.c", "count > MAX_TENSORS)", "count > MAX_TENSORS + 1)"), "stack-buffer-overflow"),
        (("messages.c", "nbytes < LAUNCH_BYTES || message[0]", "message[0]"), "heap-buffer-overflow"),
        (("journal.c", "LARGEST = 96,", "LARGEST = 0,"), "stack-buffer-overflow"),
    ],
    ids=["a-descriptor-too-many", "a-launch-cut-short", "an-entry-too-long"],
)
def test_the_sanitizers_see_what_changes_no_result(change: tuple[str, str, str], said: str, tmp_path: Path) -> None:
    """Bytes beyond a buffer are read or written, and the twin or luck hides it."""
    done = swept(compiled(tmp_path, *SANITIZE, change=change), 3_000)
    assert done.returncode != 0
    assert f"AddressSanitizer: {said}" in done.stderr, done.stderr[-3000:]
