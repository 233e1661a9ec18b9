"""docs/failures.md speaks of every kind of failure, and names only tests that exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DOC = (ROOT / "docs" / "failures.md").read_text("utf-8")


def failures() -> list[list[str]]:
    """The cells of each row of the checked table."""
    found = re.search(r"<!-- check: failures -->\n+((?:\|.*\n)+)", DOC)
    assert found is not None
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in found[1].splitlines()]
    assert rows[0] == ["failure", "detected by", "bound", "what happens", "test"]
    return rows[2:]


def test_every_failure_names_tests_that_exist() -> None:
    functions: dict[str, set[str]] = {}
    for failure, *cells, tests in failures():
        assert all(cells), failure
        for each in tests.split(", "):
            file, _, function = each.partition("::")
            if file not in functions:
                tree = ast.parse((ROOT / "tests" / file).read_text("utf-8"))
                kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
                functions[file] = {node.name for node in tree.body if isinstance(node, kinds)}
            assert function in functions[file], f"{failure}: no {each}"


def test_every_part_of_the_node_is_spoken_of() -> None:
    said = " ".join(failure for failure, *_ in failures())
    parts = ("requester", "daemon", "helper", "worker", "lane", "link", "clock", "disk", "configuration", "more work")
    assert [part for part in parts if part not in said] == []


def test_the_keys_that_bound_a_failure_are_keys_of_the_configuration() -> None:
    keys = set(re.findall(r"^\| `([a-z_.]+)`", (ROOT / "docs" / "configuration.md").read_text("utf-8"), re.M))
    named = {
        key for row in failures() for key in re.findall(r"`((?:limits|durability|leasing)\.[a-z_]+)`", " ".join(row))
    }
    assert len(named) >= 5
    assert named <= keys
