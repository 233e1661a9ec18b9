"""System shared memory: whose objects, which parts, and what becomes of them while requests use them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offpath.host_helper.gateway import regions as module
from offpath.host_helper.gateway.errors import Refused
from offpath.host_helper.gateway.regions import Regions


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "x").write_bytes(bytes(range(100)))
    return tmp_path


@pytest.fixture
def regions(folder: Path) -> Iterator[Regions]:
    made = Regions({os.getuid()}, str(folder))
    yield made
    made.close()


def test_parts_are_read_and_written(regions: Regions, folder: Path) -> None:
    regions.register("r", "/x", 10, 50)
    region = regions.borrow("r")
    room = bytearray(5)
    region.read_into(memoryview(room), region.part(3, 5))
    assert room == bytes(range(13, 18))
    region.write(memoryview(b"hello"), region.part(45, 5))
    assert (folder / "x").read_bytes() == bytes(range(55)) + b"hello" + bytes(range(60, 100))


@given(st.integers(-5, 120), st.integers(-5, 120), st.integers(-5, 120), st.integers(-5, 120))
def test_no_part_is_outside_its_region(offset: int, nbytes: int, at: int, length: int) -> None:
    folder = Path(os.environ.get("TMPDIR", "/tmp")) / f"offpath-regions-{os.getpid()}"
    folder.mkdir(exist_ok=True)
    (folder / "x").write_bytes(bytes(100))
    regions = Regions({os.getuid()}, str(folder))
    try:
        try:
            regions.register("r", "x", offset, nbytes)
        except Refused:
            assert offset < 0 or nbytes < 0 or offset + nbytes > 100
            return
        region = regions.borrow("r")
        try:
            begin = region.part(at, length)
        except Refused:
            assert at < 0 or length < 0 or at + length > nbytes
            return
        assert offset <= begin <= begin + length <= offset + nbytes <= 100
    finally:
        regions.close()
        (folder / "x").unlink()
        folder.rmdir()


@pytest.mark.parametrize("key", ["", "/", ".", "..", "/..", "/../x", "a/b", "//x", "/nokey", "\0", "/x\0", "x" * 300])
def test_what_is_no_object_is_not_there(regions: Regions, key: str) -> None:
    with pytest.raises(Refused, match="Unable to open shared memory region"):
        regions.register("r", key, 0, 1)
    assert regions.status() == []


def test_nothing_but_a_plain_file_of_the_tenants_users(folder: Path) -> None:
    os.symlink(folder / "x", folder / "link")
    os.mkfifo(folder / "pipe")
    (folder / "folder").mkdir()
    descriptors = len(os.listdir("/proc/self/fd"))
    mine = Regions({os.getuid()}, str(folder))
    for key in ("link", "pipe", "folder"):
        with pytest.raises(Refused, match="Unable to open"):
            mine.register("r", key, 0, 0)
    for uids in (set(), {os.getuid() + 1}):
        with pytest.raises(Refused, match="Unable to open"):
            Regions(uids, str(folder)).register("r", "x", 0, 1)
    assert len(os.listdir("/proc/self/fd")) == descriptors


def test_an_object_that_becomes_shorter_ends_the_request_and_nothing_else(regions: Regions, folder: Path) -> None:
    regions.register("r", "x", 0, 100)
    region = regions.borrow("r")
    os.truncate(folder / "x", 10)
    with pytest.raises(Refused, match="has become shorter"):
        region.read_into(memoryview(bytearray(20)), 0)
    with pytest.raises(Refused, match="has become shorter"):
        region.write(memoryview(bytes(20)), 0)
    assert os.path.getsize(folder / "x") == 10, "and it is not made longer"


def test_a_region_in_use_is_unregistered_when_its_requests_have_ended(regions: Regions) -> None:
    """As in current Triton: until then it is found, and its name is taken."""
    for name in ("a", "b"):
        regions.register(name, "x", 0, 10)
    with pytest.raises(Refused, match="already in manager"):
        regions.register("a", "x", 0, 10)
    region = regions.borrow("a")
    regions.unregister("a")
    regions.unregister_all()
    assert [each["name"] for each in regions.status()] == ["a"]
    with pytest.raises(Refused, match="already in manager"):
        regions.register("a", "x", 0, 10)
    another = regions.borrow("a")
    regions.give_back(region)
    assert [each["name"] for each in regions.status()] == ["a"]
    another.write(memoryview(b"late"), another.part(0, 4))
    regions.give_back(another)
    assert another.fd == -1
    regions.unregister("never")
    assert regions.status() == []
    with pytest.raises(Refused, match="Unable to find system shared memory region: 'a'"):
        regions.status("a")
    with pytest.raises(Refused, match="Unable to find shared memory region: 'a'"):
        regions.borrow("a")
    regions.register("a", "x", 10, 20)
    assert regions.status("a")[0]["offset"] == 10


def test_who_may_not_any_more_loses_its_regions(regions: Regions, folder: Path) -> None:
    descriptors = len(os.listdir("/proc/self/fd"))
    for name in ("a", "b"):
        regions.register(name, "x", 0, 10)
    used = regions.borrow("a")
    regions.allow({os.getuid() + 1})
    assert regions.status() == []
    with pytest.raises(Refused, match="Unable to find"):
        regions.borrow("a")
    used.write(memoryview(b"late"), used.part(0, 4))  # the request that has it goes on
    regions.give_back(used)
    assert used.fd == -1
    assert len(os.listdir("/proc/self/fd")) == descriptors


def test_a_closed_region_is_an_error_and_never_another_file(regions: Regions, folder: Path) -> None:
    regions.register("a", "x", 0, 10)
    region = regions.borrow("a")
    regions.close()
    regions.give_back(region)
    (folder / "other").write_bytes(bytes(10))
    with open(folder / "other", "r+b"):  # has the number that the region's object had
        with pytest.raises(Refused, match="Bad file descriptor"):
            region.write(memoryview(b"0123456789"), 0)
        with pytest.raises(Refused, match="Bad file descriptor"):
            region.read_into(memoryview(bytearray(10)), 0)
    assert (folder / "other").read_bytes() == bytes(10)


def test_their_number_is_bounded(regions: Regions, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_REGIONS", 3)
    for n in range(3):
        regions.register(str(n), "x", 0, 1)
    with pytest.raises(Refused, match="at most 3"):
        regions.register("more", "x", 0, 1)
    for name in ("", "n" * 257):
        with pytest.raises(Refused, match="1 to 256 characters"):
            regions.register(name, "x", 0, 1)
