"""Source files as syntax trees, parsed and walked once in a run: several tests look at all of them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class LogCall:
    """A call of a module's ``logger``. ``template``: None if it is no literal; ``code`` "": it carries none."""

    where: str
    template: str | None
    arguments: int
    code: str


def log_calls(*folders: str) -> Iterator[LogCall]:
    """All calls that log, in the product's files in these role folders."""
    for path, found in product(*folders):
        for node in found:
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr in ("debug", "info", "warning", "error", "exception", "log")
                and isinstance(node.func.value, ast.Name)
                and node.func.value.id == "logger"
            ):
                template, *arguments = node.args[node.func.attr == "log" :]
                where = f"{path.relative_to(ROOT)}:{node.lineno}"
                assert not any(isinstance(each, ast.Starred) for each in arguments), f"{where}: how many?"
                literal = template.value if isinstance(template, ast.Constant) else None
                extra = [ast.literal_eval(each.value) for each in node.keywords if each.arg == "extra"]
                yield LogCall(where, literal, len(arguments), extra[0]["code"] if extra else "")
