"""docs/testing.md has the tables that the suites and the planted bugs give."""

from __future__ import annotations

from . import page


def test_the_page_has_the_present_tables() -> None:
    assert page.PAGE.read_text("utf-8").endswith(f"{page.tables()}\n"), "run: python -m tests.suites page"


def test_every_folder_of_patches_is_in_the_table_of_planted_bugs() -> None:
    folders = {str(path.relative_to(page.ROOT)) for path in (page.ROOT / "tests").rglob("*.patch")}
    assert [path for path in folders if not path.startswith(tuple(page.PLANTED))] == []
