"""Which boot it is: one form, the kernel's word first, and never a wrong "the same"."""

from __future__ import annotations

from pathlib import Path

import pytest

from offpath.dpu_daemon.durability.boot import BOOT_ID, boot_id, kernels_boot_id

DIGITS = "0123456789abcdef0123456789abcdef"
DASHED = "01234567-89ab-cdef-0123-456789abcdef"


@pytest.mark.parametrize("text", [DIGITS, DASHED, DASHED.upper() + "\n"])
def test_both_ways_to_write_it_are_one_boot(text: str, tmp_path: Path) -> None:
    (tmp_path / "boot").write_text(text)
    assert boot_id({}, str(tmp_path / "boot")) == DASHED
    assert boot_id({BOOT_ID: text}, str(tmp_path / "none")) == DASHED


def test_the_kernels_word_counts_more_than_the_environments(tmp_path: Path) -> None:
    (tmp_path / "boot").write_text("f" * 32)
    assert boot_id({BOOT_ID: DIGITS}, str(tmp_path / "boot")) != DASHED


@pytest.mark.parametrize("text", ["", "%b", "0" * 31, "g" * 32, "\xff" * 32, "0" * 4096])
def test_what_is_no_boot_id_is_as_good_as_none_and_two_unknown_boots_are_never_one(text: str, tmp_path: Path) -> None:
    (tmp_path / "boot").write_text(text, encoding="utf-8")
    assert kernels_boot_id(str(tmp_path / "boot")) == ""
    first, second = (boot_id({BOOT_ID: text}, str(tmp_path / "boot")) for _ in range(2))
    assert first != second
    assert len(first) == len(second) == 36
