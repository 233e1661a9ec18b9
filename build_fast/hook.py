"""The fast build's part of the wheel's build hook: adds the compiled modules beside their sources."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any, Final

REQUIRES: Final = ("mypy[mypyc]~=2.4", "orjson>=3.10", "pydantic>=2", "pyzmq>=26")
"""The compiler, and the packages whose types the compiled modules use."""


def is_wanted() -> bool:
    """True with ``OFFPATH_FAST=1``, unless ``OFFPATH_PURE=1``."""
    return os.environ.get("OFFPATH_FAST") == "1" and os.environ.get("OFFPATH_PURE") != "1"


def add_compiled(root: Path, build_data: dict[str, Any]) -> None:
    """Compile, and put the extension modules into the wheel, which then serves this interpreter's version only.

    Raises: RuntimeError: something cannot be compiled. A build that asks for the fast wheel gets no other.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "offpath" / "fast"
    command = [sys.executable, "-I", str(root / "build_fast" / "compiling.py"), str(root), str(cache)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise RuntimeError("the fast build failed; the compiler's reason is above")
    for place, file in json.loads(done.stdout).items():
        build_data["force_include"][file] = place
    version = f"cp{sys.version_info.major}{sys.version_info.minor}"
    build_data["pure_python"] = False
    build_data["tag"] = f"{version}-{version}-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"
