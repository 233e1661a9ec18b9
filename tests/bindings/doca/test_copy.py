"""Copies by DOCA as its daemon uses them: many, large, split, delayed; and what a failure costs, and whom."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import uvloop

from offpath.bindings import transfer
from offpath.bindings.doca import context
from offpath.bindings.doca.copy import DocaCopyEngine
from offpath.bindings.doca.device import Ability, open_device
from offpath.bindings.doca.dma import TASKS
from offpath.bindings.doca.route import STOPS, Route
from offpath.bindings.errors import RegionError
from offpath.bindings.memory.region import Region
from offpath.bindings.ports import CopyCompletion, MemoryExport

from ...support.doca import HostProcess, environment

Regions = Callable[[bytes], Region]
KIB, MIB = 1 << 10, 1 << 20
FAULTS = "DOCA_EMULATOR_FAULTS"


@pytest.fixture(scope="module", autouse=True)
def _libuv_has_its_own_descriptors() -> None:
    """Those that it opens with the first loop and keeps."""
    uvloop.new_event_loop().close()


@pytest.fixture
def another_host(doca: Any) -> Iterator[HostProcess]:
    process = HostProcess()
    yield process
    process.close()


def lane(engine: DocaCopyEngine, host: HostProcess, region: Region, landing: int, result: int) -> Route:
    memory = engine.import_memory(MemoryExport(host.export(region, landing, result)))
    assert isinstance(memory, Route)
    return memory


def take(engine: DocaCopyEngine, readable: Any, count: int) -> dict[int, str | None]:
    """The next ``count`` completions by token, woken only by `fileno`."""
    done: dict[int, str | None] = {}
    while len(done) < count:
        assert readable(engine.fileno(), 20.0), f"{len(done)} of {count} completions came"
        for completion in engine.poll():
            assert completion.token not in done, "a copy completes once"
            done[completion.token] = completion.error
    return done


def copied(engine: DocaCopyEngine, readable: Any, *post: Any) -> str | None:
    """The error of one copy."""
    at_once = engine.post(1, *post)
    return at_once.error if at_once is not None else take(engine, readable, 1)[1]


def test_the_halves_of_a_lane_are_one_range(
    engine: DocaCopyEngine, host: HostProcess, regions: Regions, readable: Any
) -> None:
    """A copy that goes over the border from the landing buffer into the result half reads both."""
    content = random.Random(1).randbytes(8192)
    far, near = regions(content), regions(bytes(8192))
    memory = lane(engine, host, far, 4096, 4096)
    assert memory.nbytes == 8192
    assert copied(engine, readable, memory, 1000, near, 0, 6000) is None
    assert near.view[:6000] == content[1000:7000]
    memory.close()


def test_what_the_worker_did_not_open_for_writing_is_not_written(
    engine: DocaCopyEngine, host: HostProcess, regions: Regions, readable: Any
) -> None:
    far, near = regions(bytes(8192)), regions(b"\xff" * 8192)
    memory = lane(engine, host, far, 4096, 4096)
    error = copied(engine, readable, near, 0, memory, 4096, 100)
    assert error is not None
    assert "NOT_PERMITTED" in error
    assert far.view[:8192] == bytes(8192)
    memory.close()


@pytest.mark.parametrize("most", [4096, 5000, 64 * KIB, 1 * MIB])
def test_a_copy_above_the_device_s_limit_goes_as_several_tasks(
    doca: Any, host: HostProcess, regions: Regions, readable: Any, most: int
) -> None:
    nbytes = 3 * MIB + 17
    content = random.Random(most).randbytes(nbytes)
    near, far = regions(content), regions(bytes(nbytes + 64))
    with environment(DOCA_EMULATOR_DMA_MAX=str(most)):
        engine = DocaCopyEngine(open_device(doca, Ability.COPY))
        memory = lane(engine, host, far, nbytes + 64, 0)
        assert copied(engine, readable, near, 0, memory, 32, nbytes) is None
    assert far.view[: nbytes + 64] == bytes(32) + content + bytes(32)
    assert engine.bytes_copied == nbytes
    memory.close()
    engine.close()


def test_more_copies_than_there_are_tasks_wait_for_room(
    engine: DocaCopyEngine, host: HostProcess, regions: Regions, readable: Any
) -> None:
    count = 10 * TASKS
    content = random.Random(3).randbytes(count * 100)
    near, far = regions(content), regions(bytes(len(content)))
    memory = lane(engine, host, far, len(content), 0)
    for token in range(count):
        assert engine.post(token, near, 100 * token, memory, 100 * token, 100) is None
    assert memory.dma.inventory.free == 0
    assert take(engine, readable, count) == dict.fromkeys(range(count))
    assert far.view[: len(content)] == content
    assert memory.dma.inventory.free == memory.dma.inventory.size
    memory.close()


@pytest.mark.parametrize("faults", ["delay=3", "reorder=7", "delay=2,reorder=11"])
def test_completions_come_late_and_in_any_order_and_each_once(
    engine: DocaCopyEngine, host: HostProcess, regions: Regions, readable: Any, faults: str
) -> None:
    content = random.Random(5).randbytes(300 * 512)
    near, far = regions(content), regions(bytes(len(content)))
    memory = lane(engine, host, far, len(content), 0)
    with environment(**{FAULTS: faults}):
        for token in range(300):
            assert engine.post(token, near, 512 * token, memory, 512 * token, 512) is None
        assert take(engine, readable, 300) == dict.fromkeys(range(300))
    assert far.view[: len(content)] == content
    memory.close()


def test_on_a_loop_no_completion_is_slept_through(engine: DocaCopyEngine, host: HostProcess, regions: Regions) -> None:
    """One copy after the other, each posted at another moment against the last wake-up: a lost one would hang."""
    near, far = regions(bytes(64 * KIB)), regions(bytes(64 * KIB))
    memory = lane(engine, host, far, 64 * KIB, 0)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(post_at_any_moment(engine, near, memory))
    memory.close()


async def post_at_any_moment(engine: DocaCopyEngine, near: Region, memory: Route) -> None:
    loop, dice = asyncio.get_running_loop(), random.Random(9)
    waiting: dict[int, asyncio.Future[None]] = {}

    def taken() -> None:
        for completion in engine.poll():
            assert completion.error is None
            waiting.pop(completion.token).set_result(None)

    loop.add_reader(engine.fileno(), taken)
    try:
        for round_ in range(400):
            posted = []
            with environment(**{FAULTS: dice.choice(["", "", "", "delay=1"])}):
                for token in range(8 * round_, 8 * round_ + dice.randint(1, 8)):
                    waiting[token] = future = loop.create_future()
                    posted.append(future)
                    assert engine.post(token, near, 0, memory, 0, dice.choice([1, 4096, 60_000])) is None
                    if dice.random() < 0.3:
                        await asyncio.sleep(0)
                async with asyncio.timeout(20):
                    await asyncio.gather(*posted)
    finally:
        loop.remove_reader(engine.fileno())


# -- failures ---------------------------------------------------------------------------------------------------------
def test_a_task_that_fails_ends_its_lane_s_copies_and_no_other_lane_s(
    engine: DocaCopyEngine, host: HostProcess, regions: Regions, readable: Any
) -> None:
    near, far, other = regions(bytes(64 * KIB)), regions(bytes(64 * KIB)), regions(bytes(64 * KIB))
    bad, good = lane(engine, host, far, 64 * KIB, 0), lane(engine, host, other, 64 * KIB, 0)
    with environment(**{FAULTS: "delay=20,dma_error=1"}):
        for token in range(8):
            assert engine.post(token, near, 0, bad, 0, 4096) is None
        for token in range(8, 16):
            assert engine.post(token, near, 0, good, 0, 4096) is None
        done = take(engine, readable, 16)
    assert all("copy: DOCA_ERROR_IO_FAILED" in (done[token] or "") for token in range(8))
    assert [done[token] for token in range(8, 16)] == [None] * 8
    assert engine.is_working()
    bad.close()
    good.close()


def test_a_lane_whose_context_stopped_goes_on_when_it_is_started_again(
    engine: DocaCopyEngine, host: HostProcess, regions: Regions, readable: Any
) -> None:
    near, far = regions(b"\x05" * 4096), regions(bytes(4096))
    memory = lane(engine, host, far, 4096, 0)
    for _ in range(5):
        with environment(**{FAULTS: "dma_error=1"}):
            assert "IO_FAILED" in (copied(engine, readable, near, 0, memory, 0, 4096) or "")
        assert engine.reaches(memory)
        assert copied(engine, readable, near, 0, memory, 0, 4096) is None
    assert far.view[:4096] == b"\x05" * 4096
    memory.close()


def test_a_task_too_large_at_completion_fails_its_copy_and_leaves_the_lane(
    engine: DocaCopyEngine, host: HostProcess, regions: Regions, readable: Any
) -> None:
    near, far = regions(b"\x05" * MIB), regions(bytes(MIB))
    memory = lane(engine, host, far, MIB, 0)
    with environment(DOCA_EMULATOR_DMA_MAX="4096"):  # it told more when it was asked
        error = copied(engine, readable, near, 0, memory, 0, MIB)
    assert error is not None
    assert "IO_FAILED" in error
    assert "larger than the device takes" in error
    assert copied(engine, readable, near, 0, memory, 0, MIB) is None
    memory.close()


def test_an_exporter_killed_with_copies_under_way_ends_them_and_is_given_up(
    engine: DocaCopyEngine, host: HostProcess, another_host: HostProcess, regions: Regions, readable: Any
) -> None:
    near = regions(b"\x05" * 64 * KIB)
    doomed = lane(engine, host, regions(bytes(64 * KIB)), 64 * KIB, 0)
    other = regions(bytes(64 * KIB))
    safe = lane(engine, another_host, other, 64 * KIB, 0)
    with environment(**{FAULTS: "delay=30"}):
        for token in range(4 * TASKS):
            assert engine.post(token, near, 0, doomed, 0, 4096) is None
            assert engine.post(1000 + token, near, 0, safe, 0, 64 * KIB) is None
        host.kill()
        done = take(engine, readable, 8 * TASKS)
    assert {done[1000 + token] for token in range(4 * TASKS)} == {None}
    assert all("DOCA_ERROR" in (done[token] or "") for token in range(4 * TASKS))
    assert other.view[: 64 * KIB] == near.view[: 64 * KIB]
    while engine.reaches(doomed):  # once may be chance; twice in a row is not
        assert copied(engine, readable, near, 0, doomed, 0, 4096) is not None
    assert engine.post(7, near, 0, doomed, 0, 4096) is not None
    assert engine.reaches(safe)
    assert copied(engine, readable, near, 0, safe, 0, 4096) is None
    doomed.close()
    safe.close()


def test_a_copy_posted_while_its_lane_is_being_given_up_ends_too(
    engine: DocaCopyEngine, host: HostProcess, regions: Regions, readable: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its context has stopped for the last time and is not idle yet: the lane still looks as if it could be reached."""
    near = regions(b"\x05" * 4 * KIB)
    doomed = lane(engine, host, regions(bytes(4 * KIB)), 4 * KIB, 0)
    host.kill()
    with monkeypatch.context() as slow:
        slow.setattr(doomed, "_start_again", lambda: None)
        assert engine.post(1, near, 0, doomed, 0, 4096) is None
        assert take(engine, readable, 1)[1] is not None
        doomed._stops = STOPS - 1
        assert engine.reaches(doomed)
        assert engine.post(2, near, 0, doomed, 0, 4096) is None
    assert "DOCA_ERROR" in (take(engine, readable, 1)[2] or "")
    assert not engine.reaches(doomed)


def test_an_export_made_anew_closes_the_one_before(
    engine: DocaCopyEngine, host: HostProcess, regions: Regions, readable: Any
) -> None:
    """What a daemon that died had under way must not land in the lane of its successor."""
    near, far = regions(b"\x05" * 4096), regions(bytes(4096))
    before = lane(engine, host, far, 4096, 0)
    after = engine.import_memory(MemoryExport(host.again()))
    assert copied(engine, readable, near, 0, before, 0, 4096) is not None
    assert far.view[:4096] == bytes(4096)
    assert copied(engine, readable, near, 0, after, 0, 4096) is None
    assert far.view[:4096] == b"\x05" * 4096
    before.close()
    after.close()


def test_what_a_host_withdrew_cannot_be_imported(engine: DocaCopyEngine, host: HostProcess, regions: Regions) -> None:
    descriptor = host.export(regions(bytes(4096)), 4096, 0)
    host.withdraw()
    with pytest.raises(RegionError, match="the exported memory cannot be reached: doca_mmap_create_from_export"):
        engine.import_memory(MemoryExport(descriptor))


@pytest.mark.parametrize("has_dmabuf", ["1", "0"])
def test_a_lane_with_a_dma_buf_is_exported_by_it_or_else_by_its_pointer(
    doca: Any, engine: DocaCopyEngine, regions: Regions, readable: Any, has_dmabuf: str
) -> None:
    host = HostProcess(DOCA_EMULATOR_DMABUF=has_dmabuf)
    near, far = regions(b"\x05" * 8192), regions(b"\x06" * 8192)
    memory = engine.import_memory(MemoryExport(host.export(far, 4096, 4096, dmabuf=True)))
    assert copied(engine, readable, near, 0, memory, 0, 4096) is None
    assert copied(engine, readable, memory, 4096, near, 0, 4096) is None
    assert far.view[:8192] == b"\x05" * 4096 + b"\x06" * 4096
    assert near.view[:4096] == b"\x06" * 4096
    memory.close()
    host.close()


def test_closing_waits_a_bounded_time_for_a_device_that_does_not_answer(
    doca: Any, host: HostProcess, regions: Regions, children: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a child: it keeps what the device may still write into, for as long as it lives. The device answers after ten
    minutes."""
    assert (transfer._CLOSE_S, context._STOP_S) == (5.0, 2.0)
    for module, name in ((transfer, "_CLOSE_S"), (context, "_STOP_S")):
        monkeypatch.setattr(module, name, 0.2)

    def close_early() -> None:
        engine = DocaCopyEngine(open_device(doca, Ability.COPY))
        near, far = regions(bytes(4096)), regions(bytes(4096))
        memory = lane(engine, host, far, 4096, 0)
        with environment(**{FAULTS: "delay=600000"}):
            for token in range(3):
                assert engine.post(token, near, 0, memory, 0, 4096) is None
            engine.close()
        assert engine.poll() == [CopyCompletion(token, "the copy engine was closed") for token in range(3)]

    assert children.fork(close_early).wait(30) == 0


# -- leaks ------------------------------------------------------------------------------------------------------------
def test_a_thousand_copies_leave_nothing_behind(
    engine: DocaCopyEngine, host: HostProcess, regions: Regions, readable: Any, count_fds: Any
) -> None:
    near, far = regions(b"\x05" * MIB), regions(bytes(2 * MIB))
    memory = lane(engine, host, far, MIB, MIB)
    dice = random.Random(2)
    assert copied(engine, readable, near, 0, memory, 0, 1) is None
    before = count_fds()
    for _ in range(1000):
        assert copied(engine, readable, near, 0, memory, 0, dice.randint(1, MIB)) is None
    assert count_fds() == before
    assert memory.dma.inventory.free == memory.dma.inventory.size
    assert [each.mmap.buffers() for each in memory.remote] == [0, 0]
    assert engine._engine.in_flight() == 0
    memory.close()
    assert memory.dma.is_closed
    assert all(each.mmap.is_closed for each in memory.remote)


def test_lanes_that_come_and_go_leave_nothing_behind(
    engine: DocaCopyEngine, host: HostProcess, regions: Regions, readable: Any, count_fds: Any
) -> None:
    counts = []
    for _ in range(50):
        near = Region.create("near", 4096)
        far = Region.create("far", 4096)
        memory = lane(engine, host, far, 4096, 0)
        assert copied(engine, readable, near, 0, memory, 0, 4096) is None
        memory.close()
        host.withdraw()
        near.close()
        far.close()
        counts.append((count_fds(), len(engine._device._children), len(os.listdir(os.environ["DOCA_EMULATOR_DIR"]))))
    assert len(set(counts)) == 1, counts
