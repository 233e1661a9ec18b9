"""Programs of others that a script of the source tree fetches: `./scripts/slurm-env`, `./scripts/ray-env`."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Final

from offpath.bindings.errors import EngineMissing

_SCRIPTS: Final = Path(__file__).resolve().parents[3]


def fetched(script: str, what: str, bound_s: float) -> Path:
    """The folder that the script names; made on first use. ``what``: for errors. Raises: EngineMissing."""
    try:
        done = subprocess.run([_SCRIPTS / script], capture_output=True, text=True, check=False, timeout=bound_s)
    except (OSError, subprocess.TimeoutExpired) as fault:
        raise EngineMissing(f"{what}: {fault}") from None
    if done.returncode:
        raise EngineMissing(f"{what}: {done.stderr.strip()[-500:]}")
    return Path(done.stdout.strip())
