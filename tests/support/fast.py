"""The fast build beside the one that runs the tests: ./scripts/build-fast makes it, once for the same sources."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest

from .compiler import MISSING, find_compiler
from .sources import ROOT

BUILD_S: Final = 600.0
"""On a machine that does something else too; alone it takes about a minute."""


def needs_the_scripts() -> Any:
    """Marks what builds: with a C compiler, in the environment that ./scripts make."""
    if os.environ.get("OFFPATH_PURE") == "1":
        return pytest.mark.skip(reason="OFFPATH_PURE=1: nothing is compiled")
    if Path(sys.prefix) != ROOT / ".venv":
        return pytest.mark.skip(reason="runs in the scripts' own .venv only")
    has_headers = Path(sysconfig.get_paths()["include"], "Python.h").exists()
    return pytest.mark.skipif(not (find_compiler() and has_headers), reason=MISSING)


@cache
def fast_python() -> str:
    """The interpreter of the fast build's environment, up to date with the sources."""
    return run_fast("python", "-c", "import sys; print(sys.executable)", bound_s=BUILD_S).strip()


def run_fast(*command: str, bound_s: float) -> str:
    """Standard output of a command on the fast build."""
    script = str(ROOT / "scripts" / "build-fast")
    done = subprocess.run(
        [script, "run", *command], capture_output=True, text=True, timeout=bound_s, check=False, env=environment()
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def environment() -> dict[str, str]:
    """Without what pytest's workers and coverage set for their own processes."""
    return {key: value for key, value in os.environ.items() if not key.startswith(("PYTEST_", "COV_"))}


def builds(
    do: str, folder: Path, *seeds: int, python: str = sys.executable, switches: dict[str, str] | None = None
) -> dict[str, Any]:
    """What `builds_main` prints on the build of this interpreter. ``switches``: further environment variables."""
    variables = environment() | {"PYTHONPATH": str(ROOT)} | (switches or {})
    done = subprocess.run(
        [python, "-P", "-m", "tests.support.builds_main", do, str(folder), *map(str, seeds)],
        capture_output=True, text=True, timeout=BUILD_S, check=False, env=variables,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    said: dict[str, Any] = json.loads(done.stdout)
    return said
