"""What the loopback copy engine maps of what it is handed: sealed memory, and nothing else."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from offpath.bindings.errors import RegionError
from offpath.bindings.loopback.copy import LoopbackCopyEngine
from offpath.bindings.memory.region import PAGE, Region, sealed_memfd
from offpath.bindings.ports import MemoryExport


@pytest.fixture
def engine() -> Iterator[LoopbackCopyEngine]:
    engine = LoopbackCopyEngine()
    yield engine
    engine.close()


def unsealed(seals: int = 0) -> int:
    fd = os.memfd_create("unsealed", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, 4 * PAGE)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    return fd


def read_only() -> int:
    fd = sealed_memfd("read-only", 4 * PAGE)
    reopened = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC)
    os.close(fd)
    return reopened


def pipe_end() -> int:
    ours, theirs = os.pipe()
    os.close(theirs)
    return ours


WRONG: dict[str, Callable[[], int]] = {
    "an unsealed memfd": unsealed,
    "one sealed against growing only": lambda: unsealed(fcntl.F_SEAL_GROW),
    "one sealed against writing": lambda: unsealed(fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE),
    "one smaller than its range": lambda: sealed_memfd("small", PAGE),
    "one opened for reading": read_only,
    "a pipe": pipe_end,
    "a device": lambda: os.open("/dev/zero", os.O_RDWR | os.O_CLOEXEC),
    "a file": lambda: os.open(__file__, os.O_RDONLY | os.O_CLOEXEC),
}


@pytest.mark.parametrize("what", WRONG)
def test_wrong_memory_is_refused_and_its_descriptor_closed(
    engine: LoopbackCopyEngine, count_fds: Any, what: str
) -> None:
    before = count_fds()
    with pytest.raises(RegionError):
        engine.import_memory(MemoryExport({"offset": 0, "nbytes": 4 * PAGE}, (WRONG[what](),)))
    assert count_fds() == before


@pytest.mark.parametrize("count", [0, 2, 3])
def test_an_export_of_any_but_one_descriptor_is_refused_and_all_are_closed(
    engine: LoopbackCopyEngine, count_fds: Any, count: int
) -> None:
    before = count_fds()
    fds = tuple(sealed_memfd("one", PAGE) for _ in range(count))
    with pytest.raises(RegionError):
        engine.import_memory(MemoryExport({"offset": 0, "nbytes": PAGE}, fds))
    assert count_fds() == before


def test_an_import_takes_the_descriptor_over_and_gives_it_back_on_close(
    engine: LoopbackCopyEngine, count_fds: Any
) -> None:
    before = count_fds()
    imported = engine.import_memory(MemoryExport({"offset": PAGE, "nbytes": PAGE}, (sealed_memfd("mine", 2 * PAGE),)))
    assert imported.nbytes == PAGE
    imported.close()
    imported.close()
    assert count_fds() == before


def test_memory_whose_peer_cannot_shrink_it_survives_the_attempt() -> None:
    region = Region.create("shared", 4 * PAGE)
    for size in (0, PAGE, 8 * PAGE):
        with pytest.raises(PermissionError):
            os.ftruncate(region.fd, size)
    region.view[4 * PAGE - 1] = 1
    region.close()


def test_a_view_that_outlives_its_region_stays_readable_and_goes_with_its_last_user(count_fds: Any) -> None:
    before = count_fds()
    region = Region.create("viewed", PAGE)
    region.view[:3] = b"abc"
    held = region.view[:3]
    region.close()
    assert bytes(held) == b"abc"
    held.release()
    assert count_fds() == before


@pytest.mark.parametrize("nbytes", [(1 << 63) - 1, 1 << 63, 1 << 80])
def test_a_size_no_memory_can_have_is_refused(count_fds: Any, nbytes: int) -> None:
    before = count_fds()
    with pytest.raises(RegionError):
        sealed_memfd("too much", nbytes)
    assert count_fds() == before
