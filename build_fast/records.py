"""Rewrites the dataclasses of a module for mypyc: native construction, type hints as in the source.

mypyc compiles a ``@dataclass``, but its constructor stays interpreted, and its ``__annotations__`` hold erased types:
``tuple`` for ``tuple[int, ...]``. Constructors are hot, and `offpath.sched.plain` reads hints. So each class gets an
explicit ``__init__`` in place of its docstring, and the module restores the hints at its end. No line moves, so a
traceback of the compiled module names the lines of the source.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Final

_FUTURE: Final = "from __future__ import annotations"
_RECORD_IMPORT: Final = "from offpath.sched.record import record"
_KNOWN_OPTIONS: Final = frozenset({"frozen", "slots", "eq", "unsafe_hash"})


class Unsupported(Exception):
    """A dataclass uses what this module does not rewrite; the text names file, class and feature."""


@dataclass(frozen=True, slots=True)
class _Field:
    """``default`` and ``factory`` are source text, "" for none; ``is_argument``: a parameter of the constructor."""

    name: str
    hint: str
    default: str
    factory: str
    is_argument: bool

    @property
    def parameter(self) -> str:
        if self.factory:
            return f"{self.name}: {self.hint} | None = None"
        return f"{self.name}: {self.hint}" + (f" = {self.default}" if self.default else "")

    @property
    def assignment(self) -> str:
        value = f"({self.factory})() if {self.name} is None else {self.name}" if self.factory else self.name
        return f"self.{self.name} = {value}"


def expand(source: str, module: str, derived: Collection[str]) -> str:
    """The module's source with its records rewritten; the same number of lines, then one line per record.

    Args:
        derived: full names of classes that interpreted classes may derive from.
    Raises: Unsupported.
    """
    lines = source.splitlines()
    hints: list[str] = []
    is_derived = False
    for found in ast.parse(source).body:
        if not isinstance(found, ast.ClassDef):
            continue
        if f"{module}.{found.name}" in derived:
            _put(lines, found.lineno - 2, "@mypyc_attr(allow_interpreted_subclasses=True)", module)
            is_derived = True
        if (decorator := _dataclass_of(found)) is not None:
            where = f"{module}.{found.name}"
            fields = list(_fields(found, where))
            _decorate(lines, decorator, where)
            _construct(lines, found, fields, where)
            table = ", ".join(f"{field.name!r}: {field.hint!r}" for field in fields)
            hints.append(f'setattr({found.name}, "__annotations__", {{{table}}})')
    if is_derived:  # for the type checker only: mypyc reads the decorator and does not call it
        future = lines.index(_FUTURE)
        lines[future] += "; from typing import TYPE_CHECKING"
        _put(lines, future + 1, "if TYPE_CHECKING: from mypy_extensions import mypyc_attr", module)
    if hints:
        lines = [f"{line}; from dataclasses import dataclass" if line == _RECORD_IMPORT else line for line in lines]
    return "\n".join([*lines, *hints]) + "\n"


def _put(lines: list[str], at: int, text: str, module: str) -> None:
    """Write into a blank line."""
    if lines[at]:
        raise Unsupported(f"{module}:{at + 1}: not a blank line")
    lines[at] = text


def _dataclass_of(found: ast.ClassDef) -> ast.expr | None:
    for decorator in found.decorator_list:
        called = decorator.func if isinstance(decorator, ast.Call) else decorator
        if isinstance(called, ast.Name) and called.id in ("record", "dataclass"):
            return decorator
    return None


def _fields(found: ast.ClassDef, where: str) -> Iterator[_Field]:
    if found.bases:
        raise Unsupported(f"{where}: a dataclass with a base class")
    for statement in found.body:
        if not isinstance(statement, ast.AnnAssign) or not isinstance(statement.target, ast.Name):
            continue
        hint, value = ast.unparse(statement.annotation), statement.value
        if hint.startswith("ClassVar"):
            continue
        if not _is_field_call(value):
            default = ast.unparse(value) if value is not None else ""
            yield _Field(statement.target.id, hint, default, "", True)
            continue
        assert isinstance(value, ast.Call)
        options = {option.arg: option.value for option in value.keywords}
        if value.args or not options.keys() <= {"default_factory", "init"}:
            raise Unsupported(f"{where}.{statement.target.id}: {ast.unparse(value)}")
        factory = ast.unparse(options["default_factory"]) if "default_factory" in options else ""
        is_argument = "init" not in options or ast.unparse(options["init"]) == "True"
        yield _Field(statement.target.id, hint, "", factory, is_argument)


def _is_field_call(value: ast.expr | None) -> bool:
    return isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id == "field"


def _decorate(lines: list[str], decorator: ast.expr, where: str) -> None:
    """Leave `dataclass` what mypyc understands. ``frozen`` goes: mypy would refuse the assignments of ``__init__``. It
    has checked the source, where the class is frozen. ``slots`` goes: a native class has no ``__dict__``."""
    options = {"unsafe_hash": "True"}  # of `record`
    if isinstance(decorator, ast.Call):
        options = {str(option.arg): ast.unparse(option.value) for option in decorator.keywords}
        if decorator.args or not options.keys() <= _KNOWN_OPTIONS:
            raise Unsupported(f"{where}: {ast.unparse(decorator)}")
        if options.pop("frozen", "False") == "True" and options.get("eq") != "False":
            options["unsafe_hash"] = "True"
        options.pop("slots", None)
    elif ast.unparse(decorator) == "dataclass":
        options = {}
    if decorator.end_lineno != decorator.lineno:
        raise Unsupported(f"{where}: a decorator of several lines")
    lines[decorator.lineno - 1] = f"@dataclass({', '.join(f'{key}={value}' for key, value in options.items())})"


def _construct(lines: list[str], found: ast.ClassDef, fields: list[_Field], where: str) -> None:
    """Put ``__init__`` on the docstring's first line and blank its other lines."""
    first = found.body[0]
    if not isinstance(first, ast.Expr) or not isinstance(first.value, ast.Constant) or first.end_lineno is None:
        raise Unsupported(f"{where}: a dataclass without a docstring")
    arguments = [field for field in fields if field.is_argument]
    statements = [field.assignment for field in arguments]
    if any(isinstance(each, ast.FunctionDef) and each.name == "__post_init__" for each in found.body):
        statements.append("self.__post_init__()")
    parameters = ", ".join(["self", *(field.parameter for field in arguments)])
    body = "; ".join(statements) or "pass"
    lines[first.lineno - 1] = f"    def __init__({parameters}) -> None: {body}"
    for number in range(first.lineno, first.end_lineno):
        lines[number] = ""
