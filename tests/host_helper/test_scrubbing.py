"""A scrub in a process of its own: what it reports, and what is left when it cannot."""

from __future__ import annotations

import mmap
import os
import signal
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from offpath.bindings.errors import DeviceError
from offpath.bindings.loopback.gpu import EmulatedGpu
from offpath.host_helper.scrubbing import scrub


class Gpu:
    """A GPU whose scrub is ``act``."""

    uuid = "GPU-0"

    def __init__(self, act: Callable[[], int]) -> None:
        self._act = act

    def scrub_instance(self, instance: int) -> int:
        return self._act()


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    before = os.listdir("/proc/self/fd"), children()
    yield
    assert (os.listdir("/proc/self/fd"), children()) == before


def children() -> list[int]:
    """Pids of this process's children, ended ones too; whichever of its threads started them, or have ended since."""
    return sorted(int(pid) for each in Path("/proc/self/task").glob("*/children") for pid in each.read_text().split())


def scrubbed(act: Callable[[], int], **options: Any) -> int:
    gpu: Any = Gpu(act)
    return scrub(gpu, 1, **options)


def test_the_memory_is_zero_and_another_process_did_it() -> None:
    gpu = EmulatedGpu("GPU-0", "A100-40GB", slice_bytes=1 << 16)
    instance = gpu.create_instance("2g.10gb", 2)
    memory = gpu.open_instance(instance)
    lane = memory.reserve(0, 1, 8192, 4096)
    lane.write(0, b"\xaa" * 12288)
    assert scrub(gpu, instance) == gpu.profile_bytes("2g.10gb")
    assert lane.read(0, 12288) == bytes(12288)
    memory.close()
    gpu.close()
    seen = mmap.mmap(-1, 8)

    def note() -> int:
        struct.pack_into("q", seen, 0, os.getpid())
        return 5

    assert scrubbed(note) == 5
    assert struct.unpack_from("q", seen)[0] not in (0, os.getpid())
    seen.close()


def refuse() -> int:
    raise DeviceError("bytes remained: " + "ä" * 4000)


def die() -> int:
    os.kill(os.getpid(), signal.SIGKILL)
    return 1


def hang() -> int:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(60)
    return 1


def talk() -> Any:
    return "much" * 40_000


def break_down() -> int:
    raise RuntimeError("a bug")


@pytest.mark.parametrize(
    ("act", "options", "detail"),
    [
        (refuse, {}, "bytes remained: ä"),
        (die, {}, "ended without a result"),
        (hang, {"limit_s": 0.1}, "longer than 0.1 s"),
        (break_down, {}, "ended without a result"),
        (talk, {}, "more than 65536 bytes"),
    ],
    ids=["refused", "killed", "hanging", "a bug", "too much"],
)
def test_a_scrub_that_fails_is_a_device_error(act: Callable[[], int], options: dict[str, Any], detail: str) -> None:
    with pytest.raises(DeviceError, match=detail):
        scrubbed(act, **options)


@pytest.mark.parametrize("call", ["fork", "pipe2"])
def test_a_host_without_processes_or_descriptors_is_a_device_error(monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    def exhausted(*_: object) -> int:
        raise OSError(11, "exhausted")

    monkeypatch.setattr(os, call, exhausted)
    with pytest.raises(DeviceError, match="exhausted"):
        scrubbed(lambda: 1)
