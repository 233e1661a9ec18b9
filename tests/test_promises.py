"""Each promise of docs/failures.md and docs/security.md has a test in the fast tier, or needs an RDMA device.

Those that need a device run in the suite `rdma`, whose verdict goes stale with what they test.
"""

from __future__ import annotations

import ast
import re
from functools import cache

import pytest

from .suites.table import in_fast_tier, suites
from .support.sources import ROOT, tree

PAGES = ("failures", "security")
LEAST = 170
RDMA_FILES = {
    "bindings/verbs/test_attacks.py", "bindings/verbs/test_copy.py", "dpu_daemon/test_rdma_copies.py",
    "dpu_daemon/test_verbs_port.py", "dpu_daemon/test_verbs_sessions.py",
}  # fmt: skip
"""Files with tests marked rdma."""


def promises() -> list[tuple[str, list[str]]]:
    """What each row promises, and its tests as ``file::function``."""
    found = []
    for page in PAGES:
        text = (ROOT / "docs" / f"{page}.md").read_text("utf-8")
        for line in text.splitlines():
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            if line.startswith("|") and re.search(r"\.py::test_|cases\.py::", cells[-1]):
                found.append((f"{page}: {cells[0]}", re.findall(r"[\w/]+\.py::\w+", cells[-1])))
    return found


@cache
def needs_a_device(test: str) -> bool:
    """Whether the test, or its whole file, is marked rdma."""
    file, _, function = test.partition("::")
    if file not in RDMA_FILES:
        return False
    source = tree(ROOT / "tests" / file)
    marked = [node for node in source.body if isinstance(node, ast.Assign) and "pytestmark" in ast.unparse(node)]
    named = [node for node in source.body if getattr(node, "name", "") == function]
    decorators = [ast.unparse(each) for node in named for each in getattr(node, "decorator_list", ())]
    return any("rdma" in ast.unparse(node) for node in marked) or any("rdma" in text for text in decorators)


PROMISES = promises()


def test_all_rows_were_read() -> None:
    assert len(PROMISES) >= LEAST


@pytest.mark.parametrize(("promise", "tests"), PROMISES, ids=[promise[:70] for promise, _ in PROMISES])
def test_a_promise_has_a_test_in_the_fast_tier(promise: str, tests: list[str]) -> None:
    fast = [test for test in tests if in_fast_tier(f"tests/{test}") and not needs_a_device(test)]
    assert fast or all(needs_a_device(test) for test in tests), f"{promise}: all of {tests} are slow"


def test_what_needs_a_device_is_run_by_the_suite_rdma() -> None:
    with_device = {
        f"tests/{test.partition('::')[0]}" for _, tests in PROMISES for test in tests if needs_a_device(test)
    }
    assert with_device
    sources = suites()["rdma"].sources
    assert [file for file in with_device if not any(file.startswith(each.partition("*")[0]) for each in sources)] == []
