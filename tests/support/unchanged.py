"""A long hunt that passed is not repeated whole until its code changes: the verdict is kept with the code's hash.

The verdicts are in docs/evidence/verdicts.json. ``OFFPATH_EVIDENCE=docs/evidence ./scripts/test FILE`` runs a hunt
whole where its files have changed and writes its verdict anew; `./scripts/test --full` always runs it whole.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from ..conftest import SIZE

ROOT: Final = Path(__file__).resolve().parents[2]
VERDICTS: Final = ROOT / "docs" / "evidence" / "verdicts.json"
_SUFFIXES: Final = (".py", ".patch", ".pml", ".json")


def digest(*places: str) -> str:
    """SHA-256 over all code, patches and models below ``places`` (relative to the root). Comments, docstrings and the
    layout of Python code do not count: they change nothing that a hunt could find."""
    files = {path for place in places for path in _files(ROOT / place)}
    total = hashlib.sha256()
    for path in sorted(files):
        content = code(path.read_bytes()) if path.suffix == ".py" else path.read_bytes()
        total.update(f"{path.relative_to(ROOT)}\0{len(content)}\0".encode())
        total.update(content)
    return total.hexdigest()


def code(source: bytes) -> bytes:
    """What of Python source runs: its syntax tree without docstrings."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            node.body = [each for each in node.body if not _is_text(each)] or [ast.Pass()]
    return ast.unparse(tree).encode()


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def is_unchanged(name: str, *places: str) -> bool:
    """Whether the hunt ``name`` has passed whole with ``places`` as they are. Never in `./scripts/test --full`."""
    return SIZE != "full" and _verdicts().get(name, {}).get("sha256") == digest(*places)


def passed(name: str, said: str, *places: str) -> None:
    """The hunt ``name`` has passed whole: keep that, where ``OFFPATH_EVIDENCE`` names a folder."""
    if folder := os.environ.get("OFFPATH_EVIDENCE"):
        kept = _verdicts() | {name: {"sha256": digest(*places), "said": said}}
        Path(folder, VERDICTS.name).write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n", "utf-8")


def _verdicts() -> dict[str, dict[str, str]]:
    kept: dict[str, dict[str, str]] = json.loads(VERDICTS.read_text("utf-8")) if VERDICTS.exists() else {}
    return kept


def _files(place: Path) -> Iterable[Path]:
    if place.is_file():
        return [place]
    return (path for path in place.rglob("*") if path.suffix in _SUFFIXES and "__pycache__" not in path.parts)
