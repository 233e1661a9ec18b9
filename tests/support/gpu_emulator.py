"""The GPU emulator for tests: where its libraries are, its settings, and processes that use it."""

from __future__ import annotations

import ctypes
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from .compiler import built
from .doca import environment

__all__ = ["ROOT", "emulator", "environment", "load", "machine"]

ROOT = Path(__file__).resolve().parents[2]
PREFIX = "OFFPATH_GPU_EMULATOR_"


def emulator() -> Path:
    """The folder of its libraries, built on first use; without a C compiler the test is skipped."""
    return Path(built(ROOT / "scripts" / "gpu-emulator"))


@cache
def load(name: str) -> ctypes.CDLL:
    """One of its libraries, so that NVIDIA's packages find it by its SONAME."""
    return ctypes.CDLL(str(emulator() / name), os.RTLD_NOW | ctypes.RTLD_GLOBAL)


@contextmanager
def machine(**settings: str | int) -> Iterator[Path]:
    """A folder of its own, with these settings of the emulator (``models="A30-24GB"``) and no others."""
    kept = {name: "" for name in os.environ if name.startswith(PREFIX)}
    values = {PREFIX + name.upper(): str(value) for name, value in settings.items()}
    with tempfile.TemporaryDirectory(prefix="offpath-gpu-") as folder:
        os.chmod(folder, 0o700)
        with environment(**{**kept, **values, PREFIX + "DIR": folder}):
            yield Path(folder)
