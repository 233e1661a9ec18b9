"""The tables of docs/testing.md, made from ``tests/suites.toml`` and from the planted bugs."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from .table import REST, ROOT, changed_by, suites

PAGE: Final = ROOT / "docs" / "testing.md"
PLANTED: Final = {
    "tests/simulation/bugs": "planted-node",
    "tests/ina/simulation/bugs": "planted-ina",
}
"""Folders of patches, each with the suite that hunts them one by one."""


def tables() -> str:
    """All generated tables, each below its mark."""
    return f"{_suites()}\n\n{_planted()}\n\n{_planted_in_tests()}"


def _suites() -> str:
    lines = [
        "<!-- made by: python -m tests.suites page -->",
        "",
        "| suite | promise | beyond README it needs | on every change |",
    ]
    lines.append("| --- | --- | --- | --- |")
    for suite in suites().values():
        guards = ", ".join(f"`{guard.removeprefix('tests/')}`" for guard in suite.guards)
        name = "the fast tier, with larger counts" if suite.name == REST else suite.name
        lines.append(f"| {name} | {suite.what} | {suite.needs} | {guards} |")
    return "\n".join(lines)


def _planted() -> str:
    lines = ["| file that planted bugs change | bugs | suite that goes stale with it |", "| --- | --- | --- |"]
    for folder, suite in PLANTED.items():
        counts: dict[str, int] = {}
        for patch in sorted(Path(ROOT, folder).rglob("*.patch")):
            for file in changed_by(patch):
                counts[file] = counts.get(file, 0) + 1
        lines += [f"| `{file}` | {count} | {suite} |" for file, count in sorted(counts.items())]
    return "\n".join(lines)


def _planted_in_tests() -> str:
    """Bugs that are planted in Python or in a model, not by a patch: in the tests of a suite of their own."""
    lines = ["| bugs planted by tests of | suite | goes stale with |", "| --- | --- | --- |"]
    for suite in suites().values():
        if (suite.name.startswith("planted-") or suite.name == "models") and not suite.hunts:
            tests = ", ".join(f"`{test.removeprefix('tests/')}`" for test in suite.tests)
            sources = ", ".join(f"`{source}`" for source in suite.sources if not source.startswith("tests/"))
            lines.append(f"| {tests} | {suite.name} | these tests{sources and ', '}{sources} |")
    return "\n".join(lines)
