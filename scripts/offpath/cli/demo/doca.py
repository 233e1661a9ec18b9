"""Selects the demo's DOCA: the installed one, else the emulator of this source tree, which is built on demand."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Final

from offpath.bindings.doca.load import Library, load
from offpath.bindings.errors import DocaMissing

_BUILDER: Final = Path(__file__).parents[3] / "doca-emulator"
_BUILD_S: Final = 300


def find() -> Library:
    """Raises: DocaMissing: neither exists, or the emulator cannot be built (it needs a C compiler)."""
    try:
        return load()
    except DocaMissing:
        if not _BUILDER.exists():
            raise
    built = subprocess.run([_BUILDER], capture_output=True, text=True, timeout=_BUILD_S, check=False)
    if built.returncode:
        last = built.stderr.strip().splitlines()[-1:] or ["no reason given"]
        raise DocaMissing("the emulator of DOCA", f"not built: {last[0].removeprefix('offpath: ')}")
    return load(built.stdout.strip())
