"""`offpath …` as a user types it: its own process, its exit code, what it printed where."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .processes import BOUND_S


@dataclass(frozen=True, slots=True)
class Done:
    """A command that ended."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """The one JSON document on standard output."""
        return json.loads(self.out)


def offpath(*words: str, cwd: Path | None = None, timeout: float = BOUND_S) -> Done:
    done = subprocess.run(
        [sys.executable, "-m", "offpath.cli.main", *words],
        cwd=cwd, capture_output=True, text=True, timeout=timeout, check=False,
    )  # fmt: skip
    assert "Traceback" not in done.stderr, done.stderr
    return Done(done.returncode, done.stdout, done.stderr)
