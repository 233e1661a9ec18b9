"""What mypyc compiles differs from the sources in its dataclasses only, and no line moves."""

from __future__ import annotations

import ast
import dataclasses
import sys
import types
from typing import Any

import pytest

from ..support.sources import ROOT
from .modules import modules

EXPAND = modules("records").expand
LIST = modules("modules")
SOURCE = '''"""A module."""

from __future__ import annotations

from dataclasses import dataclass, field

MOST = 3


@dataclass(frozen=True, slots=True)
class Point:
    """A point: a docstring
    of two lines."""

    x: int
    y: int = MOST
    names: tuple[str, ...] = ("a", "b")


@dataclass(slots=True, eq=False)
class Path:
    """Some points."""

    points: list[Point] = field(default_factory=list)
    counts: dict[int, int] = field(default_factory=lambda: {1: 2})
    length: int = field(init=False)
    """A field's own docstring stays."""

    def __post_init__(self) -> None:
        self.length = len(self.points)


class Derived:
    """No record."""
'''


def load(source: str) -> dict[str, Any]:
    module = types.ModuleType("sample")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "sample", module)  # dataclasses look their module up
        exec(compile(source, "sample", "exec"), vars(module))
    return vars(module)


def test_a_record_is_made_and_compared_as_before() -> None:
    names = load(EXPAND(SOURCE, "sample", ()))
    point, path = names["Point"], names["Path"]
    assert point(1) == point(x=1, y=3, names=("a", "b")) != point(2)
    assert hash(point(1)) == hash(point(1))
    assert dataclasses.replace(point(1), y=5) == point(1, 5)
    assert path().points == []
    assert path().points is not path().points
    assert path().counts == {1: 2}
    assert path([point(1)]).length == 1
    assert path() != path()


def test_its_constructor_is_in_the_source_and_its_hints_are_kept() -> None:
    expanded = EXPAND(SOURCE, "sample", ())
    assert "def __init__(self, x: int, y: int = MOST, names: tuple[str, ...] = ('a', 'b')) -> None:" in expanded
    assert load(expanded)["Path"].__annotations__ == {
        "points": "list[Point]", "counts": "dict[int, int]", "length": "int",
    }  # fmt: skip


def test_no_line_moves() -> None:
    """A traceback of the compiled module names the lines of the source."""
    before, after = SOURCE.splitlines(), EXPAND(SOURCE, "sample", ()).splitlines()
    assert len(after) == len(before) + 2
    for number, line in enumerate(before):
        if line.startswith(("class ", "    def ", "        self.", "    x", "MOST")):
            assert after[number] == line


def test_a_class_that_plug_ins_derive_from_says_so_to_mypyc_only() -> None:
    expanded = EXPAND(SOURCE, "sample", {"sample.Derived"}).splitlines()
    at = expanded.index("class Derived:")
    assert expanded[at - 1] == "@mypyc_attr(allow_interpreted_subclasses=True)"
    assert at == SOURCE.splitlines().index("class Derived:")
    assert "if TYPE_CHECKING: from mypy_extensions import mypyc_attr" in expanded


@pytest.mark.parametrize(
    ("before", "after", "why"),
    [
        ("class Point:", "class Point(object):", "a dataclass with a base class"),
        ("slots=True, eq=False", "slots=True, order=True", "dataclass(slots=True, order=True)"),
        ("field(init=False)", "field(repr=False)", "field(repr=False)"),
        ('    """Some points."""\n', "    MORE = 1\n", "without a docstring"),
    ],
)
def test_what_cannot_be_rewritten_is_refused(before: str, after: str, why: str) -> None:
    assert before in SOURCE
    with pytest.raises(modules("records").Unsupported) as refused:
        EXPAND(SOURCE.replace(before, after), "sample", ())
    assert why in str(refused.value)


@pytest.mark.parametrize("module", LIST.COMPILED)
def test_every_compiled_module_can_be_rewritten(module: str) -> None:
    (path,) = (found for role in LIST.PORTIONS if (found := ROOT / role / LIST.source_of(module)).exists())
    ast.parse(EXPAND(path.read_text("utf-8"), module, LIST.DERIVED))


def test_what_plug_ins_may_derive_from_is_compiled() -> None:
    assert {name.rpartition(".")[0] for name in LIST.DERIVED} <= set(LIST.COMPILED)
