"""Two queue pairs, one on each device of ./scripts/rxe-vm, in one process: what arrives, what fails, what is left."""

from __future__ import annotations

import asyncio
import os
import random
import select
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from mmap import mmap

import pytest
import uvloop

from offpath.bindings.errors import PeerGone, RegionError, ResourceClosed, VerbsError, WorkFailed
from offpath.bindings.verbs.devices import Choice, choose
from offpath.bindings.verbs.domain import Device, Domain, Region
from offpath.bindings.verbs.queue import Completion, QueuePair, WriteSegment

pytestmark = pytest.mark.rdma
BOUND_S = 120.0  # emulated, on a machine that may be busy
MIB = 1 << 20


class Side:
    """A queue pair in a protection domain of its own."""

    def __init__(self, device: Device, *, psn: int, immediates: int = 64) -> None:
        self.domain = Domain(device)
        try:
            self.queue = QueuePair(self.domain, psn=psn, writes=16, immediates=immediates)
        except BaseException:
            self.domain.close()
            raise
        self.address = self.queue.address
        self.connect, self.poll, self.ring = self.queue.connect, self.queue.poll, self.queue.ring
        self.fileno = self.queue.fileno

    def register(self, memory: mmap, *, writable: bool) -> Region:
        return self.domain.register(memory, remote_write=writable)

    def write(
        self, token: int, source: Region, offset: int, nbytes: int, remote: int, rkey: int, imm: int | None = None
    ) -> bool:
        return self.queue.write(token, [WriteSegment(source, offset, nbytes, remote)], rkey, imm)

    def close(self) -> None:
        self.queue.close()
        self.domain.close()


class Pair:
    """A requester on rxe0 and a daemon on rxe1, connected."""

    def __init__(self, held: ExitStack, devices: tuple[Device, Device], *, immediates: int = 64) -> None:
        self.requester, self.daemon = (
            Side(device, psn=0xABC000 + number, immediates=immediates) for number, device in enumerate(devices)
        )
        held.callback(self.daemon.close)
        held.callback(self.requester.close)
        self.requester.connect(self.daemon.address)
        self.daemon.connect(self.requester.address)


@pytest.fixture
def held() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture(scope="module", autouse=True)
def a_loop_before() -> None:
    """The first loop of a process opens a pipe for signals that libuv keeps: no descriptor of ours."""
    uvloop.new_event_loop().close()


@pytest.fixture(scope="module")
def choices() -> list[Choice]:
    return [choose(device="rxe0"), choose(device="rxe1")]


@pytest.fixture
def devices(held: ExitStack, choices: list[Choice]) -> tuple[Device, Device]:
    opened = (Device(choices[0]), Device(choices[1]))
    for device in opened:
        held.callback(device.close)
    return opened


@pytest.fixture
def pair(held: ExitStack, devices: tuple[Device, Device]) -> Pair:
    return Pair(held, devices)


def completions(queue: Side, count: int = 1) -> list[Completion]:
    """The next ``count``, waited for by the descriptor alone: a lost wake-up shows as a time-out."""
    found: list[Completion] = []
    while len(found) < count:
        assert select.select([queue.fileno()], [], [], BOUND_S)[0], found
        found += queue.poll()
    return found


def memory(nbytes: int, *, seed: int | None = None) -> mmap:
    made = mmap(-1, nbytes)
    if seed is not None:
        made[:] = random.Random(seed).randbytes(nbytes)
    return made


def failure(found: list[Completion]) -> str:
    (only,) = found
    assert only.error is not None
    assert only.error.check
    return only.error.status


# -- what arrives -------------------------------------------------------------------------------------------------
def test_a_write_with_an_immediate_arrives_both_ways(pair: Pair) -> None:
    ours, theirs = memory(8192, seed=1), memory(8192)
    source = pair.requester.register(ours, writable=True)
    target = pair.daemon.register(theirs, writable=True)
    assert pair.requester.write(7, source, 100, 5000, target.address + 50, target.rkey, imm=0x0102_0304)
    assert completions(pair.requester) == [Completion(token=7)]
    assert completions(pair.daemon) == [Completion(imm=0x0102_0304, nbytes=5000)]
    assert theirs[50:5050] == ours[100:5100]
    assert theirs[:50] + theirs[5050:] == bytes(8192 - 5000)

    assert pair.daemon.write(8, target, 50, 10, source.address, source.rkey, imm=0xFFFF_FFFF)
    assert completions(pair.requester) == [Completion(imm=0xFFFF_FFFF, nbytes=10)]
    assert ours[:10] == theirs[50:60]


def test_an_immediate_needs_no_bytes(pair: Pair) -> None:
    assert pair.requester.ring(1, 0)
    assert pair.daemon.ring(2, 0x0200_0001)
    assert sorted(map(str, completions(pair.requester, 2))) == sorted(
        map(str, [Completion(token=1), Completion(imm=0x0200_0001)])
    )
    assert sorted(map(str, completions(pair.daemon, 2))) == sorted(map(str, [Completion(token=2), Completion(imm=0)]))


def test_what_exceeds_a_message_goes_as_several_and_rings_once(pair: Pair, devices: tuple[Device, Device]) -> None:
    limit = devices[0].message_bytes
    for nbytes, of_last in ((limit - 1, limit - 1), (limit, limit), (limit + 1, 1)):
        ours, theirs = memory(nbytes, seed=nbytes), memory(nbytes + 1)
        source = pair.requester.register(ours, writable=False)
        target = pair.daemon.register(theirs, writable=True)
        assert pair.requester.write(1, source, 0, nbytes, target.address, target.rkey, imm=5)
        assert completions(pair.requester) == [Completion(token=1)]
        assert completions(pair.daemon) == [Completion(imm=5, nbytes=of_last)]
        assert theirs[:nbytes] == ours[:]
        assert theirs[nbytes] == 0
        source.close()
        target.close()


def test_no_doorbell_is_lost_on_an_event_loop(pair: Pair) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(doorbells(pair, 300))


async def doorbells(pair: Pair, rounds: int) -> None:
    """Far more than there are receives, each answered at once, so that both ends arm and drain all the time."""
    loop, seen, done = asyncio.get_running_loop(), [], asyncio.Event()
    source = pair.requester.register(memory(4096), writable=True)
    target = pair.daemon.register(memory(4096), writable=True)

    def ask(number: int) -> None:
        assert pair.requester.write(number, source, 0, 8, target.address, target.rkey, imm=number)

    def at_daemon() -> None:
        for each in pair.daemon.poll():
            if each.imm is not None:
                assert pair.daemon.write(each.imm, target, 0, 8, source.address, source.rkey, imm=each.imm)

    def at_requester() -> None:
        for each in pair.requester.poll():
            if each.imm is not None:
                seen.append(each.imm)
                if each.imm + 4 < rounds:
                    ask(each.imm + 4)
        if len(seen) == rounds:
            done.set()

    loop.add_reader(pair.daemon.fileno(), at_daemon)
    loop.add_reader(pair.requester.fileno(), at_requester)
    for number in range(4):
        ask(number)
    await asyncio.wait_for(done.wait(), BOUND_S)
    loop.remove_reader(pair.daemon.fileno())
    loop.remove_reader(pair.requester.fileno())
    assert seen == list(range(rounds))


def test_an_idle_queue_pair_answers_at_once_that_there_is_nothing(pair: Pair) -> None:
    assert pair.daemon.poll() == []
    assert pair.daemon.poll() == []


def test_writes_beyond_the_room_are_not_posted_and_room_comes_back(pair: Pair) -> None:
    source = pair.requester.register(memory(4096), writable=False)
    target = pair.daemon.register(memory(4096), writable=True)

    def write(token: int) -> bool:
        return pair.requester.write(token, source, 0, 8, target.address, target.rkey)

    assert [write(token) for token in range(17)] == [True] * 16 + [False]
    assert [each.token for each in completions(pair.requester, 16)] == list(range(16))
    assert write(17)


# -- what fails ---------------------------------------------------------------------------------------------------
def test_a_wrong_key_is_refused_at_the_peer_and_ends_both_queue_pairs(pair: Pair) -> None:
    theirs = memory(4096)
    source = pair.requester.register(memory(4096, seed=1), writable=False)
    target = pair.daemon.register(theirs, writable=True)
    for token in (1, 2):
        assert pair.requester.write(token, source, 0, 64, target.address, target.rkey ^ 1)
    found = completions(pair.requester, 2)
    assert [(each.token, each.error and each.error.status) for each in found] == [
        (1, "REM_ACCESS_ERR"), (2, "REM_ACCESS_ERR")
    ]  # fmt: skip
    assert failure(completions(pair.daemon)) in {"REM_ACCESS_ERR", "WR_FLUSH_ERR"}
    assert theirs[:] == bytes(4096)
    with pytest.raises(WorkFailed, match="REM_ACCESS_ERR"):
        pair.requester.write(3, source, 0, 64, target.address, target.rkey)
    with pytest.raises(PeerGone):
        pair.requester.poll()


@pytest.mark.parametrize(("offset", "nbytes"), [(-64, 64), (4096 - 63, 64), (4096, 64), (1 << 20, 8)])
def test_a_write_out_of_bounds_changes_nothing(pair: Pair, offset: int, nbytes: int) -> None:
    theirs = memory(4096)
    source = pair.requester.register(memory(4096, seed=1), writable=False)
    target = pair.daemon.register(theirs, writable=True)
    assert pair.requester.write(1, source, 0, nbytes, target.address + offset, target.rkey, imm=1)
    assert failure(completions(pair.requester)) == "REM_ACCESS_ERR"
    assert theirs[:] == bytes(4096)


def test_a_region_that_is_not_writable_is_not_written(pair: Pair) -> None:
    source = pair.requester.register(memory(4096, seed=1), writable=False)
    target = pair.daemon.register(memory(4096), writable=False)
    assert pair.requester.write(1, source, 0, 8, target.address, target.rkey)
    assert failure(completions(pair.requester)) == "REM_ACCESS_ERR"


def test_a_key_of_another_session_is_worth_nothing(held: ExitStack, devices: tuple[Device, Device], pair: Pair) -> None:
    """The same process and device, another protection domain."""
    other, theirs = Pair(held, devices), memory(4096)
    source = pair.requester.register(memory(4096, seed=1), writable=False)
    target = other.daemon.register(theirs, writable=True)
    assert pair.requester.write(1, source, 0, 8, target.address, target.rkey)
    assert failure(completions(pair.requester)) == "REM_ACCESS_ERR"
    assert theirs[:] == bytes(4096)
    assert other.daemon.poll() == []


def test_a_peer_that_is_gone_is_noticed_within_bounded_retries(pair: Pair) -> None:
    source = pair.requester.register(memory(4096), writable=False)
    target = pair.daemon.register(memory(4096), writable=True)
    address, rkey = target.address, target.rkey
    pair.daemon.close()
    assert pair.requester.write(1, source, 0, 8, address, rkey)
    assert failure(completions(pair.requester)) == "RETRY_EXC_ERR"


def test_a_peer_that_keeps_no_receive_posted_is_noticed_too(held: ExitStack, devices: tuple[Device, Device]) -> None:
    """It does not poll, so the third immediate finds no receive."""
    pair = Pair(held, devices, immediates=2)
    source = pair.requester.register(memory(4096), writable=False)
    target = pair.daemon.register(memory(4096), writable=True)
    for token in range(3):
        assert pair.requester.write(token, source, 0, 8, target.address, target.rkey, imm=token)
    found = completions(pair.requester, 3)
    assert [(each.token, each.error and each.error.status) for each in found] == [
        (0, None), (1, None), (2, "RNR_RETRY_EXC_ERR")
    ]  # fmt: skip


def test_a_range_outside_our_own_region_is_not_posted(pair: Pair) -> None:
    source = pair.requester.register(memory(4096), writable=False)
    for offset, nbytes in ((-1, 8), (4090, 8), (0, 0), (0, 4097)):
        with pytest.raises(RegionError):
            pair.requester.write(1, source, offset, nbytes, 0, 0)
    source.close()
    with pytest.raises(RegionError, match="closed"):
        pair.requester.write(1, source, 0, 8, 0, 0)


def test_a_peer_that_cannot_be_reached_is_an_error_that_says_so(
    held: ExitStack, devices: tuple[Device, Device]
) -> None:
    fresh = Side(devices[0], psn=1)
    held.callback(fresh.close)
    with pytest.raises(VerbsError, match="connect to ::ffff:10"):
        fresh.connect(replace(fresh.address, gid="::ffff:10.99.77.1"))


# -- what is left -------------------------------------------------------------------------------------------------
def resources() -> dict[str, int]:
    """Objects that the kernel holds for this process, and its descriptors."""
    found = {"fd": len(os.listdir("/proc/self/fd"))}
    for kind in ("qp", "cq", "mr", "pd"):
        shown = subprocess.run(["rdma", "resource", "show", kind], capture_output=True, text=True, check=True).stdout
        found[kind] = sum(f" pid {os.getpid()} " in line for line in shown.splitlines())
    return found


def test_closing_leaves_nothing_and_may_be_repeated(held: ExitStack, devices: tuple[Device, Device]) -> None:
    at_rest = resources()
    for _ in range(10):
        pair = Pair(held, devices)
        region = pair.requester.register(memory(4096), writable=True)
        target = pair.daemon.register(memory(4096), writable=True)
        assert pair.requester.write(1, region, 0, 8, target.address, target.rkey, imm=1)
        completions(pair.requester)
        assert resources() != at_rest
        for closing in (pair.requester, pair.daemon, pair.requester, region):
            closing.close()
        with pytest.raises(ResourceClosed):
            pair.requester.poll()
    assert resources() == at_rest


def test_memory_is_given_back_when_its_region_is_closed(pair: Pair) -> None:
    """Until then the mapping cannot be closed under the device."""
    ours = memory(4096)
    region = pair.requester.register(ours, writable=True)
    with pytest.raises(BufferError):
        ours.close()
    region.close()
    ours.close()


def test_a_failure_halfway_leaves_nothing(devices: tuple[Device, Device], monkeypatch: pytest.MonkeyPatch) -> None:
    at_rest = resources()

    def refuse(queue: QueuePair) -> None:
        raise VerbsError("post a receive")

    monkeypatch.setattr(QueuePair, "_post_receive", refuse)
    with pytest.raises(VerbsError):
        Side(devices[0], psn=1)
    assert resources() == at_rest
