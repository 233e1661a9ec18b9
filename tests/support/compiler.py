"""The C compiler for tests. Without one a test is skipped, and the reason says what is missing."""

from __future__ import annotations

import os
import shlex
import subprocess
from functools import cache
from pathlib import Path
from typing import Final

import pytest

MISSING: Final = "needs a C compiler: cc, and Python's headers"
_LACKS: Final = 69
"""Exit code of a script that needs what the machine does not have (`offpath_lacks` in scripts/_env)."""


@cache
def find_compiler() -> list[str]:
    """Its command; empty if there is none, or none that finds the headers of libc."""
    named = shlex.split(os.environ.get("CC", ""))
    for command in [named] if named else [["gcc"], ["cc"], ["clang"]]:
        check = [*command, "-fsyntax-only", "-x", "c", "-"]
        try:
            subprocess.run(check, input=b"#include <stdio.h>", capture_output=True, check=True)
        except (OSError, subprocess.CalledProcessError):
            continue
        return command
    return []


def compiler() -> list[str]:
    """As `find_compiler`; without one the calling test is skipped."""
    return find_compiler() or pytest.skip(MISSING)


def built(script: Path, *arguments: str) -> str:
    """What a script prints that compiles on first use; where it cannot, the calling test is skipped.

    The script is asked even without a compiler: what another machine compiled may be in the cache.
    """
    done = _run(script, *arguments)
    if done.returncode == _LACKS:
        pytest.skip(MISSING)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@cache
def _run(script: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([script, *arguments], capture_output=True, text=True, check=False)
