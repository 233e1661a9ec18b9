"""Builds the benchmarks' C programs on first use, in a cache folder outside the tree."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from importlib import resources
from typing import Final

from offpath.bindings.errors import OffpathError

_BOUND_S: Final = 120.0
_LAST_BYTES: Final = 500


class NotBuilt(OffpathError):
    """A C program cannot be built here: there is no compiler, or it fails."""


def cache_folder() -> str:
    """Where the benchmarks keep what they build: $XDG_CACHE_HOME/offpath/bench."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(base, "offpath", "bench")


def built(name: str, flags: Sequence[str] = ()) -> str:
    """Path of the program (or, with ``-shared`` among ``flags``, the library) made from ``bench/csrc/NAME``.

    The folder's name is a hash of source, compiler and flags, so a program is built once. Raises: NotBuilt.
    """
    source = (resources.files("offpath.cli.bench") / "csrc" / name).read_bytes()
    compiler = _compiler("CXX", ("c++", "g++", "clang++")) if name.endswith(".cc") else _compiler("CC", ("cc", "gcc"))
    words = [compiler, "-O2", *flags]
    key = hashlib.sha256(b"\0".join([source, *(word.encode() for word in words)])).hexdigest()[:16]
    folder = os.path.join(cache_folder(), key)
    target = os.path.join(folder, name.split(".")[0])
    if not os.path.exists(target):
        try:
            os.makedirs(folder, exist_ok=True)
            _build(words, name, source, target)
        except (OSError, subprocess.TimeoutExpired) as fault:
            raise NotBuilt(f"{name}: {fault}") from None
    return target


def _compiler(variable: str, names: Sequence[str]) -> str:
    wanted = os.environ.get(variable)
    for name in (wanted,) if wanted else names:
        if found := shutil.which(name):
            return found
    raise NotBuilt(f"no compiler: {wanted or ', '.join(names)} not found; install one or set {variable}")


def _build(words: Sequence[str], name: str, source: bytes, target: str) -> None:
    """Compile beside the target, then rename: another process sees all of the program or none of it."""
    with tempfile.TemporaryDirectory(dir=os.path.dirname(target)) as made:
        path, out = os.path.join(made, name), os.path.join(made, "out")
        with open(path, "wb") as file:
            file.write(source)
        done = subprocess.run(
            [words[0], path, "-o", out, *words[1:]], capture_output=True, timeout=_BOUND_S, check=False
        )
        if done.returncode:
            raise NotBuilt(
                f"{words[0]} fails on {name}: {done.stderr[-_LAST_BYTES:].decode('utf-8', 'replace').strip()}"
            )
        os.replace(out, target)
