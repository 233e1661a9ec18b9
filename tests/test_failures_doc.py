"""docs/failures.md speaks of every kind of failure, and names only tests that exist and that speak of it too."""

from __future__ import annotations

import ast
import re
from functools import cache

from offpath.bindings.wire.codes import Reason, Status
from offpath.dpu_daemon.operation.logs import FIELDS

from .support.sources import ROOT, log_calls, tree

DOC = (ROOT / "docs" / "failures.md").read_text("utf-8")
MESSAGES: dict[str, set[str]] = {}
"""Of each log code: its messages."""
for logged in log_calls("dpu_daemon"):
    MESSAGES.setdefault(logged.code, set()).add(logged.template or "")


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
                kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
                functions[file] = {node.name for node in tree(ROOT / "tests" / file).body if isinstance(node, kinds)}
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


# -- what a row names, its tests name ---------------------------------------------------------------------------------
PREFIX, SUFFIX = "offpath_", "_total"
PHRASE = 3
"""So many words of a log message in a row are taken for that message."""


@cache
def definitions(file: str) -> dict[str, tuple[str, frozenset[str]]]:
    """Of the file's functions, classes and constants: the source, and the names that it uses. Arguments count as names:
    they may be fixtures."""
    source = (ROOT / "tests" / file).read_text("utf-8")
    found: dict[str, tuple[str, frozenset[str]]] = {}
    for node in tree(ROOT / "tests" / file).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names = [node.name]
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = [target.id for target in targets if isinstance(target, ast.Name)]
        else:
            continue
        used = {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}
        used |= {one.arg for one in ast.walk(node) if isinstance(one, ast.arg)}
        first = min([node.lineno, *(each.lineno for each in getattr(node, "decorator_list", []))])
        text = "\n".join(source.splitlines()[first - 1 : node.end_lineno])
        found |= dict.fromkeys(names, (text, frozenset(used)))
    return found


def source_of(test: str) -> str:
    """The test and all that it calls in its file, without the test's own name."""
    file, _, function = test.partition("::")
    known, seen, todo = definitions(file), set(), [function]
    while todo:
        name = todo.pop()
        if name in known and name not in seen:
            seen.add(name)
            todo += known[name][1]
    return "\n".join(known[name][0] for name in seen).replace(function, "")


def has_word(word: str, source: str) -> bool:
    """``store_pending`` is also found as ``store.pending``."""
    parts = "[_.]".join(re.escape(part) for part in word.lower().split("_"))
    return re.search(rf"(?<![a-z0-9]){parts}(?![a-z0-9])", source.lower()) is not None


def is_shown(word: str, source: str) -> bool:
    """A status, reason or metric by its name (the counter of a metric too), a setting by its key, a log code by the
    code or by words of its message."""
    forms = {word, word.removeprefix(PREFIX), word.removeprefix(PREFIX).removesuffix(SUFFIX), word.rpartition(".")[2]}
    for message in MESSAGES.get(word, ()):
        words = [each.strip(":,") for each in message.split()]
        forms |= {" ".join(words[at : at + PHRASE]) for at in range(len(words) - PHRASE + 1)}
    return any(has_word(form, source) for form in forms)


def verdicts_of(cells: list[str]) -> set[str]:
    """The words of a row that only a test of that very failure has a reason to use."""
    text = " ".join(cells)
    quoted = set(re.findall(r"`([^`]+)`", text))
    states = {status.name for status in Status} | {reason.name for reason in Reason}
    codes = {reason.name.lower() for reason in Reason} | FIELDS.keys()
    return {word for word in re.findall(r"\b[A-Z_]{4,}\b", text) if word in states} | {
        word for word in quoted
        if word in codes or word.startswith(PREFIX) or re.fullmatch(r"(limits|durability|leasing)\.[a-z_]+", word)
    }  # fmt: skip


def unshown(rows: list[list[str]]) -> list[str]:
    """The row and word, for each that no test of the row speaks of."""
    missing = []
    for failure, *cells, tests in rows:
        source = "\n".join(source_of(test) for test in tests.split(", "))
        missing += [f"{failure}: {word}" for word in sorted(verdicts_of(cells)) if not is_shown(word, source)]
    return missing


def test_what_a_row_says_of_a_failure_its_tests_speak_of() -> None:
    assert sum(len(verdicts_of(cells)) for _, *cells, _ in failures()) >= 40
    assert unshown(failures()) == []


def test_a_row_that_names_the_wrong_test_is_found() -> None:
    """Each verdict word of the whole table is missed in a test that has nothing to do with it."""
    other = "dpu_daemon/test_boot.py::test_both_ways_to_write_it_are_one_boot"
    rows = [row for row in failures() if verdicts_of(row[1:-1])]
    swapped = unshown([[*row[:-1], other] for row in rows])
    assert len(swapped) == sum(len(verdicts_of(row[1:-1])) for row in rows)
