"""docs/architecture.md names every sub-package of the five portions and every module outside of one, and no other."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from .support.sources import ROOT
from .test_layout import LEAVES

PAGE = (ROOT / "docs" / "architecture.md").read_text("utf-8")


def named(portion: str) -> tuple[set[str], set[str]]:
    """The sub-packages and the modules that the page's section names, from the first and the last column."""
    section = PAGE.split(f"\n### `{portion}`\n")[1].split("\n### ")[0].split("\n## ")[0]
    rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in re.findall(r"^\|.*", section, re.M)]
    packages = {word for row in rows for word in re.findall(r"`([a-z_/]+)`", row[0])}
    modules = {word for row in rows for word in re.findall(r"`([a-z_0-9]+\.py)`", row[-1])}
    return packages, modules


def there(portion: Path) -> tuple[set[str], set[str]]:
    """Of the tree: folders with code or data, and modules in the portion's own folder."""
    folders = {path.parent.relative_to(portion) for path in portion.rglob("*") if path.is_file()}
    packages = {str(each) for each in folders if each.parts and "__pycache__" not in each.parts}
    modules = {path.name for path in portion.glob("*.py")} - {"__init__.py"}
    return packages, modules


@pytest.mark.parametrize(("role", "portion"), LEAVES.items())
def test_every_sub_package_is_named_and_no_other(role: str, portion: str) -> None:
    assert named(portion)[0] == there(ROOT / role / "offpath" / portion)[0]


@pytest.mark.parametrize(("role", "portion"), LEAVES.items())
def test_every_module_outside_of_a_sub_package_is_named_and_no_other(role: str, portion: str) -> None:
    assert named(portion)[1] == there(ROOT / role / "offpath" / portion)[1]
