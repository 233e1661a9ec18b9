"""The ledger: what was written is read again after a kill at any byte, and what is unreadable harms nobody."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offpath.bindings.errors import PlaceUnusable
from offpath.host_helper.migd.ledger import MAX_ENTRIES, Entry, Ledger, kernels_boot_id


def entry(number: int, **changes: object) -> Entry:
    made = Entry(
        handle=f"{number:032x}", kind="lease", uid=1, gpu="GPU-1", profile="1g.5gb", start=0, size=1,
        generation=1, state="ready",
    )  # fmt: skip
    return made.model_copy(update=changes)


def test_what_was_put_is_there_after_a_restart_and_what_was_removed_is_not(tmp_path: Path) -> None:
    path = str(tmp_path / "ledger")
    ledger = Ledger(path, "boot")
    for number in range(3):
        ledger.put(entry(number))
    ledger.put(entry(1, state="destroying"))
    ledger.remove(entry(0).handle)
    ledger.remove(entry(0).handle)
    again = Ledger(path, "boot")
    assert again.entries() == [entry(1, state="destroying"), entry(2)]
    assert again.entries("GPU-2") == []
    assert again.get(entry(2).handle) == entry(2)


def test_a_generation_is_not_given_twice_by_later_ledgers_of_the_boot(tmp_path: Path) -> None:
    path = str(tmp_path / "ledger")
    given = [Ledger(path, "boot").next_generation() for _ in range(5)]
    assert given == [1, 2, 3, 4, 5]


def test_the_ledger_of_another_boot_is_empty(tmp_path: Path) -> None:
    path = str(tmp_path / "ledger")
    Ledger(path, "boot").put(entry(1))
    assert Ledger(path, "another").entries() == []
    assert Ledger(path, "boot").entries() == [], "and it was replaced"


@given(cut=st.integers(0, 400), flip=st.integers(0, 400))
def test_a_spoilt_file_is_moved_aside_and_never_raises(
    tmp_path_factory: pytest.TempPathFactory, cut: int, flip: int
) -> None:
    path = tmp_path_factory.mktemp("spoilt") / "ledger"
    Ledger(str(path), "boot").put(entry(1))
    body = bytearray(path.read_bytes())
    if flip < len(body):
        body[flip] ^= 0xFF
    path.write_bytes(bytes(body[:cut]))
    assert len(Ledger(str(path), "boot").entries()) <= 1
    Ledger(str(path), "boot").put(entry(2))


@pytest.mark.parametrize("left", [b"", b"{", b'{"version":1'])
def test_a_half_written_successor_is_ignored(tmp_path: Path, left: bytes) -> None:
    path = tmp_path / "ledger"
    Ledger(str(path), "boot").put(entry(1))
    (tmp_path / "ledger.new").write_bytes(left)
    assert Ledger(str(path), "boot").entries() == [entry(1)]


def test_a_write_that_fails_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "run" / "ledger"
    path.parent.mkdir()
    ledger = Ledger(str(path), "boot")
    ledger.put(entry(1))
    os.rename(path.parent, tmp_path / "elsewhere")
    for call in (lambda: ledger.put(entry(2)), lambda: ledger.remove(entry(1).handle), ledger.next_generation):
        with pytest.raises(PlaceUnusable):
            call()
    assert ledger.entries() == [entry(1)]
    os.rename(tmp_path / "elsewhere", path.parent)
    assert Ledger(str(path), "boot").entries() == [entry(1)]


def test_the_ledger_has_a_limit(tmp_path: Path) -> None:
    ledger = Ledger(str(tmp_path / "ledger"), "boot")
    for number in range(MAX_ENTRIES):
        ledger.put(entry(number))
    with pytest.raises(PlaceUnusable):
        ledger.put(entry(MAX_ENTRIES))
    assert len(Ledger(str(tmp_path / "ledger"), "boot").entries()) == MAX_ENTRIES


def test_a_link_in_the_place_of_the_new_file_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("kept")
    (tmp_path / "ledger.new").symlink_to(tmp_path / "victim")
    with pytest.raises(PlaceUnusable):
        Ledger(str(tmp_path / "ledger"), "boot")
    assert (tmp_path / "victim").read_text() == "kept"


def test_threads_lose_no_entry(tmp_path: Path) -> None:
    ledger = Ledger(str(tmp_path / "ledger"), "boot")
    threads = [
        threading.Thread(target=lambda first=first: [ledger.put(entry(first + n)) for n in range(10)])
        for first in range(0, 80, 10)
    ]  # fmt: skip
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(Ledger(str(tmp_path / "ledger"), "boot").entries()) == 80


def test_the_boot_is_the_kernels_or_an_error(tmp_path: Path) -> None:
    (tmp_path / "id").write_text("abc\n")
    assert kernels_boot_id(str(tmp_path / "id")) == "abc"
    assert len(kernels_boot_id()) == 36
    (tmp_path / "empty").touch()
    for name in ("empty", "missing"):
        with pytest.raises(PlaceUnusable):
            kernels_boot_id(str(tmp_path / name))
