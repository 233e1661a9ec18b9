"""What a parser's verdict depends on: the files that it runs, and all that these import."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any, Final

from ..suites.sources import digest
from ..support.sources import ROOT
from .engine import Case, judge
from .target import Target

_PORTIONS: Final = ("bindings", "dpu_daemon", "host_helper", "sched", "scripts")
_OWN: Final = ("tests/fuzz/engine.py", "tests/fuzz/mutate.py", "bindings/csrc/path")
"""How inputs are made and judged, and the C twins of some parsers."""


def sources_of(name: str, target: Target, cases: Iterable[Case]) -> str:
    """The hash of all of them. Every code that the parser can give is reached by its kept cases."""
    return digest([*_OWN, f"tests/fuzz/corpus/{name}.jsonl", *sorted(imported(run_by(target, cases)))])


def run_by(target: Target, cases: Iterable[Case]) -> set[str]:
    """The files of the product whose functions the cases call, relative to the root."""
    found: set[str] = set()

    def seen(frame: FrameType, event: str, argument: Any) -> None:
        found.add(frame.f_code.co_filename)

    sys.setprofile(seen)
    try:
        for case in cases:
            judge(target, case.data, case.numbers)
    finally:
        sys.setprofile(None)
    roots = [ROOT / portion / "offpath" for portion in _PORTIONS]
    return {str(path.relative_to(ROOT)) for path in map(Path, found) if any(root in path.parents for root in roots)}


def imported(files: Iterable[str]) -> set[str]:
    """The files, and those of the product that they import, and so on."""
    found, todo = set[str](), list(files)
    while todo:
        file = todo.pop()
        if file not in found:
            found.add(file)
            todo += _imports(file)
    return found


@cache
def _imports(file: str) -> list[str]:
    names = set[str]()
    for node in ast.walk(ast.parse((ROOT / file).read_text("utf-8"))):
        if isinstance(node, ast.Import):
            names |= {each.name for each in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names |= {node.module, *(f"{node.module}.{each.name}" for each in node.names)}
    return [path for name in names if name.startswith("offpath.") for path in _files(name)]


def _files(module: str) -> list[str]:
    where = module.replace(".", "/")
    some = [f"{portion}/{where}{end}" for portion in _PORTIONS for end in (".py", "/__init__.py")]
    return [path for path in some if (ROOT / path).is_file()]
