"""Source files as syntax trees, parsed and walked once in a run: several tests look at all of them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@cache
def tree(path: Path) -> ast.Module:
    """Callers share it and must not change it."""
    return ast.parse(path.read_text("utf-8"))


@cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    """All nodes of the file's tree, as `ast.walk` gives them."""
    return tuple(ast.walk(tree(path)))


def product(*folders: str) -> Iterator[tuple[Path, tuple[ast.AST, ...]]]:
    """The product's files in these role folders, sorted, each with its nodes."""
    for folder in folders:
        for path in sorted((ROOT / folder / "offpath").rglob("*.py")):
            yield path, nodes(path)
