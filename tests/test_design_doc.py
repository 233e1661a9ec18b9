"""What code and docs refer to exists: headings of docs/design.md, pages, tests. Nothing lies outside the repository."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest

from .support.sources import ROOT, tree

DESIGN = (ROOT / "docs" / "design.md").read_text("utf-8")
REFERENCE = re.compile(r"docs/design\.md,\s+([A-Z][a-z]+(?:[ -][A-Za-z]+)*)")
OUTSIDE = re.compile(r"\bDESIGN(?:\.md)?\b|\b(?:LAYOUT|STYLE)\.md\b|\bnotes/[a-z-]+\.md\b")
HERE = Path(__file__).relative_to(ROOT)


@cache
def texts() -> dict[Path, str]:
    """Every text file that git knows, but for the outputs in docs/evidence and this file, by its path."""
    git = shutil.which("git") or "false"
    listed = subprocess.run([git, "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("no git, or no checkout: what belongs to the repository is not known")
    found = {}
    for name in filter(None, listed.stdout.split("\0")):
        path = Path(name)
        if path == HERE or path.is_relative_to("docs/evidence") or not (ROOT / path).is_file():
            continue
        try:
            found[path] = (ROOT / path).read_text("utf-8")
        except UnicodeDecodeError:
            continue
    return found


def headings(text: str) -> set[str]:
    """The text of all headings of a page."""
    return set(re.findall(r"^#+ (.+)$", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S), re.M))


def anchors(text: str) -> set[str]:
    """The headings as links name them."""
    return {re.sub(r"[^\w\- ]", "", heading).lower().replace(" ", "-") for heading in headings(text)}


def referred(text: str) -> set[str]:
    """The headings of docs/design.md that a text names; a reference may run over a line's end and its comment sign."""
    return {re.sub(r"\s+", " ", found) for found in REFERENCE.findall(re.sub(r"\n\s*#? *", " ", text))}


def begins_with_a_heading(reference: str) -> bool:
    return any(reference == each or reference.startswith(each + " ") for each in headings(DESIGN))


def test_every_heading_of_the_design_that_is_referred_to_exists() -> None:
    named = {(str(path), each) for path, text in texts().items() for each in referred(text)}
    assert len(named) >= 10
    assert {(path, each) for path, each in named if not begins_with_a_heading(each)} == set()


@pytest.mark.parametrize("text", ["docs/design.md, Garantees", "(docs/design.md,\n# Requestz)"])
def test_a_reference_to_a_heading_that_is_not_there_is_found(text: str) -> None:
    assert [each for each in referred(text) if begins_with_a_heading(each)] == []
    assert referred(text)


def test_nothing_refers_to_a_document_outside_of_the_repository() -> None:
    fuzzed = Path("tests/fuzz/corpus")  # bytes that a search made up
    assert [
        f"{path}: {found[0]}"
        for path, text in texts().items() if not path.is_relative_to(fuzzed)
        for found in OUTSIDE.finditer(text)
    ] == []  # fmt: skip


@pytest.mark.parametrize("text", ["(DESIGN §3)", "see DESIGN.md", "LAYOUT.md", "notes/review.md"])
def test_a_reference_to_the_outside_is_found(text: str) -> None:
    assert OUTSIDE.search(text)


def test_links_between_the_pages_lead_somewhere() -> None:
    """To files that exist, and to headings that exist in them."""
    dead = []
    for path, text in texts().items():
        if path.suffix != ".md":
            continue
        for link in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"^```.*?^```|`[^`\n]*`", "", text, flags=re.M | re.S)):
            file, _, anchor = link.partition("#")
            if ":" in file:
                continue
            target = (ROOT / path.parent / file).resolve() if file else ROOT / path
            if not target.exists() or (anchor and anchor not in anchors(target.read_text("utf-8"))):
                dead.append(f"{path}: {link}")
    assert dead == []


def test_pages_that_code_refers_to_exist() -> None:
    named = {page for path, text in texts().items() for page in re.findall(r"\bdocs/[a-z/-]+\.md\b", text)}
    assert sorted(page for page in named if not (ROOT / page).exists()) == []


def test_every_guarantee_names_a_test_that_exists() -> None:
    table = re.search(r"<!-- check: guarantees -->\n((?:\|.*\n)+)", DESIGN)
    assert table is not None
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table[1].splitlines()]
    assert rows[0] == ["guarantee", "how it is kept", "test"]
    assert len(rows[2:]) >= 10
    for guarantee, _, test in rows[2:]:
        file, _, function = test.partition("::")
        names = {node.name for node in tree(ROOT / "tests" / file).body if isinstance(node, ast.FunctionDef)}
        assert function in names, f"{guarantee}: no {test}"


def test_the_glossary_has_the_words_that_only_offpath_uses() -> None:
    """One line each, in the order of the alphabet, and linked from where newcomers begin."""
    page = (ROOT / "docs" / "glossary.md").read_text("utf-8")
    words = re.findall(r"^\| ([^|]+?) \| [^|]", page, re.M)[1:]
    plain = [re.sub(r" \(.*\)", "", word).replace("α", "alpha") for word in words]
    assert plain == sorted(plain)
    wanted = {
        "lane", "lease", "slot", "credit", "generation", "lineage", "epoch", "term", "incarnation", "alpha", "boundary",
        "book", "ledger", "scrub", "grant", "ticket", "demand",
    }  # fmt: skip
    assert wanted <= set(plain)
    for linking in ("README.md", "docs/architecture.md", "docs/design.md"):
        assert "glossary.md" in (ROOT / linking).read_text("utf-8"), linking
