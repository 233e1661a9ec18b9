"""The copy engine `cuda` between its two ends: what it sends, what a worker takes, and what neither may do."""

from __future__ import annotations

import logging
import mmap
import os
import random
import stat
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from offpath.bindings import forked
from offpath.bindings.cuda import whole
from offpath.bindings.cuda.copy import CudaCopyEngine
from offpath.bindings.cuda.instance import CudaInstance
from offpath.bindings.errors import (
    DeviceError,
    DeviceGone,
    HostMessageError,
    OffpathError,
    ProtocolError,
    RegionError,
)
from offpath.bindings.loopback.gpu import EmulatedLane
from offpath.bindings.memory.region import Region
from offpath.bindings.ports import CopyCompletion, Lane, Memory
from offpath.bindings.wire import regions
from offpath.cli.bench.gpu.kernels import SAXPY, DeviceCode

from ...support.gpu_machine import Machine
from ...support.processes import BOUND_S
from ...support.worker_lane import PAGE, WorkerEnd

SOME = 600


class Rig:
    """An engine, and workers with a lane each."""

    def __init__(self) -> None:
        self.engine = CudaCopyEngine()
        self.held: list[Any] = [self.engine]

    def worker(self, lane: Lane | None = None) -> tuple[WorkerEnd, Memory]:
        """A worker, and its lane as the engine knows it."""
        worker = WorkerEnd(4 * PAGE, PAGE, lane)
        self.held.append(worker)
        memory = self.engine.import_memory(worker.export())
        self.held.append(memory)
        self.engine.attach(memory, worker.channel, worker.lane.landing_bytes)
        return worker, memory

    def session(self, content: bytes, nbytes: int = 2 * PAGE) -> Region:
        """A session's slots."""
        region = Region.create("offpath-slots", nbytes)
        self.held.append(region)
        region.view[: len(content)] = content
        return region

    def copies(self, source: Region, memory: Memory, nbytes: int = SOME, at: int = 0) -> None:
        assert self.engine.post(1, source, at, memory, 0, nbytes) == CopyCompletion(1, None)

    def close(self) -> None:
        for held in reversed(self.held):
            held.close()


@pytest.fixture
def rig() -> Iterator[Rig]:
    made = Rig()
    yield made
    made.close()


def some(seed: int) -> bytes:
    return random.Random(seed).randbytes(SOME)


# -- what the engine sends ------------------------------------------------------------------------------------------
def test_a_sessions_memory_is_sent_once_to_each_worker_and_taken_back_when_it_closes(rig: Rig) -> None:
    (one, first), (two, second) = rig.worker(), rig.worker()
    slots = rig.session(some(1))
    for _ in range(3):
        rig.copies(slots, first)
    rig.copies(slots, second)
    assert (one.read(0, SOME), two.read(0, SOME)) == (some(1), some(1))
    assert (one.payloads.count, two.payloads.count) == (1, 1)
    slots.close()
    assert (one.drain(), two.drain()) == (1, 1), "a message each: drop it"
    assert (one.payloads.count, two.payloads.count) == (0, 0)
    after = rig.session(some(2))
    rig.copies(after, first)
    assert one.read(0, SOME) == some(2)


def test_a_worker_can_only_read_what_it_is_sent(rig: Rig) -> None:
    worker, memory = rig.worker()
    slots = rig.session(some(1))
    rig.copies(slots, memory)
    received = worker.end.receive()
    assert received is not None
    (fd,) = received[1]
    try:
        with pytest.raises(PermissionError):
            mmap.mmap(fd, PAGE)
        assert stat.S_IMODE(os.fstat(fd).st_mode) == 0o600, "another user cannot open it again for writing"
    finally:
        os.close(fd)


def test_a_worker_holds_no_more_than_its_bounds_and_what_it_uses(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(regions, "MOST_REGIONS", 4)
    monkeypatch.setattr(regions, "MOST_PINNED_BYTES", 7 * PAGE)  # three sessions of two pages
    worker, memory = rig.worker()
    used = rig.session(some(0))
    for seed in range(1, 12):
        rig.copies(rig.session(some(seed)), memory)
        assert worker.read(0, SOME) == some(seed)
        rig.copies(used, memory)
        assert worker.read(0, SOME) == some(0)
        assert worker.payloads.count <= 3
    rig.copies(used, memory)
    assert worker.drain() == 1, "what is used often stays mapped"
    for seed in range(20, 30):
        rig.copies(rig.session(some(seed), PAGE), memory)
        assert worker.read(0, SOME) == some(seed)
        assert worker.payloads.count <= 4


def test_a_worker_that_is_gone_fails_its_copies_and_is_reported_as_unreachable(rig: Rig, readable: Any) -> None:
    (gone, first), (well, second) = rig.worker(), rig.worker()
    slots = rig.session(some(1))
    rig.copies(slots, first)
    gone.drain()
    gone.end.close()
    rig.copies(slots, first)
    assert rig.engine.reaches(first), "nothing was sent"
    rig.engine.flush()
    assert not rig.engine.reaches(first)
    for token in (7, 8):
        assert rig.engine.post(token, slots, 0, first, 0, SOME) is None
        assert readable(rig.engine.fileno(), BOUND_S)
        (done,) = rig.engine.poll()
        assert (done.token, bool(done.error)) == (token, True)
    assert not rig.engine.reaches(first)
    assert rig.engine.reaches(second)
    rig.copies(slots, second)
    assert well.read(0, SOME) == some(1)
    slots.close()


def test_a_worker_that_reads_nothing_blocks_nobody(rig: Rig) -> None:
    _, memory = rig.worker()
    slots = rig.session(some(1))
    count = 0
    while rig.engine.post(count, slots, 0, memory, 0, SOME) is not None:
        rig.engine.flush()
        count += 1
        if count % 10 == 0:
            slots = rig.session(some(1), PAGE)
        assert count < 100_000
    (done,) = rig.engine.poll()
    assert (done.token, done.error) == (count, "the worker reads nothing")
    assert not rig.engine.reaches(memory)


def test_a_copy_and_the_launch_behind_it_are_one_packet_and_a_copy_alone_follows_soon(rig: Rig) -> None:
    worker, memory = rig.worker()
    slots = rig.session(some(1))
    rig.copies(slots, memory)
    worker.drain()
    for message in (b"\x01 launch", b"{" + bytes(4079)):  # the second leaves no room for a copy
        rig.copies(slots, memory)
        assert worker.channel.send(message)
        rig.engine.flush()
        packets = []
        while (received := worker.end.receive()) is not None:
            packets.append(worker.payloads.handle(*received))
        assert packets == ([message] if len(message) < 4000 else [b"", message])
        worker.payloads.take(SOME)
    rig.copies(slots, memory)
    assert worker.end.receive() is None
    rig.engine.flush()
    received = worker.end.receive()
    assert received is not None
    assert worker.payloads.handle(*received) == b""
    worker.payloads.take(SOME)


def test_results_are_copied_out_of_the_result_half_and_nothing_out_of_the_landing_buffer(rig: Rig) -> None:
    worker, memory = rig.worker()
    answers = rig.session(b"")
    worker.lane.write(worker.lane.landing_bytes, some(3))
    assert rig.engine.post(1, memory, worker.lane.landing_bytes, answers, 10, SOME) == CopyCompletion(1, None)
    assert bytes(answers.view[10 : 10 + SOME]) == some(3)
    for at in (0, worker.lane.landing_bytes - 1, worker.lane.landing_bytes + PAGE):
        with pytest.raises(RegionError):
            rig.engine.post(2, memory, at, answers, 0, SOME)


# -- what a worker takes --------------------------------------------------------------------------------------------
MOST = (1 << 64) - 1
FORGED = {
    "cut off": regions.pack_copy(1, 0, 0, 1)[:-1],
    "reserved bytes": regions.pack_copy(1, 0, 0, 1)[:1] + b"\x01" + regions.pack_copy(1, 0, 0, 1)[2:],
    "unknown flags": regions.pack_region(2, PAGE, False)[:1] + b"\x02" + regions.pack_region(2, PAGE, False)[2:],
    "an unknown region": regions.pack_copy(2, 0, 0, 1),
    "another end of an unknown region": regions.pack_drop(2),
    "no bytes": regions.pack_copy(1, 0, 0, 0),
    "beyond the region": regions.pack_copy(1, 2 * PAGE, 0, 1),
    "across the region's end": regions.pack_copy(1, 2 * PAGE - 1, 0, 2),
    "an offset that wraps": regions.pack_copy(1, MOST, 0, 2),
    "a length that wraps": regions.pack_copy(1, 1, 0, MOST),
    "beyond the lane": regions.pack_copy(1, 0, 4 * PAGE, 1),
    "across the lane's end": regions.pack_copy(1, 0, 4 * PAGE - 1, 2),
    "into the result half": regions.pack_copy(1, 0, 4 * PAGE, PAGE),
    "a place that wraps": regions.pack_copy(1, 0, MOST, 2),
    "the same region twice": regions.pack_region(1, 2 * PAGE, False),
    "a region without bytes": regions.pack_region(2, 0, False),
    "a region larger than its memory": regions.pack_region(2, 2 * PAGE + 1, False),
    "a region without end": regions.pack_region(2, MOST, False),
    "a region to write": regions.pack_region(2, PAGE, True),
}


@pytest.mark.parametrize("what", FORGED)
def test_a_forged_message_is_a_typed_error_and_copies_nothing(rig: Rig, what: str) -> None:
    """Its descriptors are closed: the folder's fixture counts."""
    worker, memory = rig.worker()
    slots = rig.session(some(1))
    rig.copies(slots, memory)
    before = worker.read(0, SOME)
    worker.lane.write(0, bytes(4 * PAGE))
    fds = ()
    if FORGED[what][:1] == bytes([regions.KIND_REGION]):
        fds = (os.open(f"/proc/self/fd/{slots.fd}", os.O_RDONLY),)
    with pytest.raises((ProtocolError, RegionError)):
        worker.payloads.handle(FORGED[what], fds)
    assert before == some(1)
    assert worker.lane.read(0, 4 * PAGE + PAGE) == bytes(5 * PAGE)
    rig.copies(slots, memory)
    assert worker.read(0, SOME) == some(1)


@pytest.mark.parametrize("kind", ["none", "two", "a pipe", "unsealed"])
def test_memory_that_could_end_the_worker_is_refused(rig: Rig, kind: str) -> None:
    worker, _ = rig.worker()
    if kind == "a pipe":
        read, write = os.pipe()
        os.close(write)
        fds: tuple[int, ...] = (read,)
    else:
        fds = tuple(os.memfd_create("t") for _ in range({"none": 0, "two": 2, "unsealed": 1}[kind]))
        for fd in fds:
            os.ftruncate(fd, PAGE)
    with pytest.raises((HostMessageError, RegionError)):
        worker.payloads.handle(regions.pack_region(1, PAGE, False), fds)
    assert worker.payloads.count == 0


def test_more_regions_than_the_bound_are_refused(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(regions, "MOST_REGIONS", 3)
    worker, _ = rig.worker()
    slots = rig.session(b"")
    for number in range(3):
        worker.payloads.handle(regions.pack_region(number, PAGE, False), (os.dup(slots.fd),))
    with pytest.raises(HostMessageError, match="too_many_regions"):
        worker.payloads.handle(regions.pack_region(9, PAGE, False), (os.dup(slots.fd),))


def test_a_launch_needs_the_copy_of_its_own_payload(rig: Rig) -> None:
    worker, memory = rig.worker()
    slots = rig.session(some(1))
    worker.payloads.take(0)
    with pytest.raises(HostMessageError, match="not_copied"):
        worker.payloads.take(SOME)
    rig.copies(slots, memory)
    worker.drain()
    with pytest.raises(HostMessageError, match="not_copied"):
        worker.payloads.take(SOME + 1)
    worker.payloads.take(SOME)
    with pytest.raises(HostMessageError, match="not_copied"):
        worker.payloads.take(SOME)


@pytest.mark.parametrize("why", ["the driver", "the bound"])
def test_what_cannot_be_pinned_is_copied_all_the_same_and_logged_once(
    rig: Rig, why: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuses(self: EmulatedLane, address: int, nbytes: int) -> None:
        raise DeviceError("no memory to pin")

    if why == "the driver":
        monkeypatch.setattr(EmulatedLane, "pin", refuses)
    else:
        monkeypatch.setattr(regions, "MOST_PINNED_BYTES", PAGE)
    worker, memory = rig.worker()
    with caplog.at_level(logging.WARNING):
        for seed in range(3):
            slots = rig.session(some(seed))
            rig.copies(slots, memory)
            assert worker.read(0, SOME) == some(seed)
            slots.close()
            worker.drain()
    assert [record.message.count("unpinned memory") for record in caplog.records] == [1]


def test_a_device_that_is_lost_while_it_pins_ends_the_worker(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(self: EmulatedLane, address: int, nbytes: int) -> None:
        raise DeviceGone("gone")

    monkeypatch.setattr(EmulatedLane, "pin", fails)
    worker, memory = rig.worker()
    rig.copies(rig.session(some(1)), memory)
    with pytest.raises(DeviceGone):
        worker.drain()


# -- on a GPU, emulated ---------------------------------------------------------------------------------------------
def on_gpu(act: Callable[[Rig, CudaInstance], Any]) -> str:
    """``act`` in a process of its own, as a worker is. This process never uses CUDA."""
    (found,) = whole.visible()

    def run() -> str:
        made = Rig()
        try:
            return str(act(made, CudaInstance(found.uuid)))
        except (AssertionError, pytest.fail.Exception) as fault:
            raise OffpathError(f"assertion in the worker: {fault}") from fault

    return forked.call(run, "the worker", BOUND_S)


@pytest.mark.gpu
def test_a_kernel_follows_the_copy_on_the_stream_without_a_wait(boot: Callable[..., Machine]) -> None:
    """y += 2 x, with x copied out of the slot. Nothing waits before the launch; the copy reads the slot late."""
    boot()

    def act(rig: Rig, memory: CudaInstance) -> Any:
        lane = memory.reserve(0, 1, 4 * PAGE, PAGE)
        code = DeviceCode(lane._driver)
        base = lane._base
        kernel = code.kernel(SAXPY, 4, 2.0, base, base + 4 * PAGE, stream=lane._stream)
        worker, landing = rig.worker(lane)
        slots = rig.session(b"\x00\x00\x80\x3f" * 4)  # 1.0
        calls: list[str] = []
        driver_call = lane._call

        def counted(name: str, *arguments: Any) -> Any:
            calls.append(name)
            return driver_call(name, *arguments)

        rig.copies(slots, landing, 16)
        lane._call = counted
        worker.drain()
        slots.view[:16] = b"\x00\x00\x00\x40" * 4  # 2.0: pinned memory is read when the copy runs
        kernel.launch()
        before = list(calls)
        lane.synchronize()
        return before, lane.read(4 * PAGE, 16) == b"\x00\x00\x80\x40" * 4  # 4.0

    assert on_gpu(act) == "(['cuMemHostRegister', 'cuMemcpyHtoDAsync'], True)"


@pytest.mark.gpu
@pytest.mark.parametrize("pins_read_only", ["1", "0"])
def test_a_session_that_ends_under_a_copy_is_unpinned_after_it(
    boot: Callable[..., Machine], pins_read_only: str
) -> None:
    boot(read_only_pins=pins_read_only)

    def act(rig: Rig, memory: CudaInstance) -> Any:
        worker, landing = rig.worker(memory.reserve(0, 1, 4 * PAGE, PAGE))
        pinned = []
        for seed in range(3):
            slots = rig.session(some(seed))
            rig.copies(slots, landing)
            worker.drain()
            pinned.append(worker.payloads.pinned_bytes)
            slots.close()
            if worker.read(0, SOME) != some(seed):
                return "other bytes"
        return pinned, worker.payloads.count, worker.payloads.pinned_bytes

    assert on_gpu(act) == f"({[2 * PAGE] * 3}, 0, 0)"


@pytest.mark.gpu
def test_slots_that_the_driver_does_not_pin_are_copied_unpinned(boot: Callable[..., Machine]) -> None:
    boot(faults="cuMemHostRegister:2=2")  # CUDA_ERROR_OUT_OF_MEMORY; the first call is that of the result half

    def act(rig: Rig, memory: CudaInstance) -> Any:
        worker, landing = rig.worker(memory.reserve(0, 1, 4 * PAGE, PAGE))
        rig.copies(rig.session(some(1)), landing)
        right = worker.read(0, SOME) == some(1)
        first = worker.payloads.pinned_bytes
        rig.copies(rig.session(some(2)), landing)
        return right, first, worker.read(0, SOME) == some(2), worker.payloads.pinned_bytes == 2 * PAGE

    assert on_gpu(act) == "(True, 0, True, True)"
