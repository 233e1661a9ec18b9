"""docs/security.md promises nothing without a test: each one named there exists."""

from __future__ import annotations

import ast
import re

from .support.sources import ROOT, tree

DOC = (ROOT / "docs" / "security.md").read_text("utf-8")


def protections() -> list[list[str]]:
    """The cells of each row of the checked table."""
    found = re.search(r"<!-- check: protections -->\n+((?:\|.*\n)+)", DOC)
    assert found is not None
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in found[1].splitlines()]
    assert rows[0] == ["threat", "from whom", "how", "test"]
    return rows[2:]


def test_every_protection_names_tests_that_exist() -> None:
    functions: dict[str, set[str]] = {}
    assert len(protections()) >= 20
    for threat, *_, tests in protections():
        named = tests.split(", ")
        assert named, threat
        for each in named:
            file, _, function = each.partition("::")
            if file not in functions:
                kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
                functions[file] = {node.name for node in tree(ROOT / "tests" / file).body if isinstance(node, kinds)}
            assert function in functions[file], f"{threat}: no {each}"


def test_every_threat_of_the_model_that_exists_today_is_spoken_of() -> None:
    """A3 (drivers) and A5 (the wire) concern what is not built yet."""
    named = {word for threat, *_ in protections() for word in re.findall(r"\bA\d+\b", threat)}
    assert named == {"A1", "A2", "A4", "A6", "A7", "A8", "A9", "A10", "A11"}
