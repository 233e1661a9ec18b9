"""The C module, compiled for a test: as it is, with sanitizers, or with a bug planted in its sources."""

from __future__ import annotations

import importlib.util
import shutil
from importlib.machinery import ExtensionFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from offpath.bindings import twins

from ...support.compiler import MISSING, compiler
from ...support.sources import ROOT

SOURCES = ROOT / "bindings/csrc/path"
STRICT = (
    "-Werror", "-Wconversion", "-Wshadow", "-Wstrict-prototypes", "-Wmissing-prototypes", "-Wpointer-arith", "-Wundef",
)  # fmt: skip


def hook() -> ModuleType:
    """hatch_build.py, which is no package's."""
    spec = importlib.util.spec_from_file_location("offpath_hatch_build", ROOT / "hatch_build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def needs_compiler() -> None:
    """Skips the calling test where the module cannot be compiled."""
    compiler()
    build = hook()
    try:
        build.compiler()
    except build.NotBuilt as why:
        pytest.skip(f"{MISSING}: {why}")


def compiled(folder: Path, *flags: str, change: tuple[str, str, str] | None = None) -> Path:
    """The module, compiled into ``folder``. ``change``: a file, a text in it, and what the text becomes."""
    build = hook()
    needs_compiler()
    sources = SOURCES
    if change is not None:
        name, text, becomes = change
        sources = Path(shutil.copytree(SOURCES, folder / "sources"))
        original = (sources / name).read_text()
        assert original.count(text) == 1, f"{name} has {original.count(text)} places for {text!r}: plant it anew"
        (sources / name).write_text(original.replace(text, becomes))
    made = folder / "_path.abi3.so"
    build.compile_module(made, sources, flags)
    return made


def loaded(path: Path) -> Any:
    """The module in the file, configured, beside the one that the tests' own process may use."""
    loader = ExtensionFileLoader("offpath.bindings._path", str(path))
    spec = importlib.util.spec_from_file_location("offpath.bindings._path", path, loader=loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    module.configure(twins)
    return module
