"""The RDMA copy engine on ./scripts/rxe-vm (-m rdma): the engine on rxe0, the lanes behind rxe1.

What every copy engine promises is in ../conformance; here is what only this one can do wrong.
"""

from __future__ import annotations

import gc
import os
import random
import select
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import orjson
import pytest

from offpath.bindings.errors import DeviceGone, RegionError, VerbsError
from offpath.bindings.memory.region import Region
from offpath.bindings.ports import CopyCompletion, Memory, MemoryExport
from offpath.bindings.transfer import IN_PLACE_BYTES
from offpath.bindings.verbs.copy import WRITES, VerbsCopyEngine
from offpath.bindings.verbs.devices import Choice, choose
from offpath.bindings.verbs.domain import Device
from offpath.bindings.verbs.lane import VerbsLaneExporter

from ..conformance.copy_rigs import HostLane
from .test_queue import resources

pytestmark = pytest.mark.rdma
BOUND_S = 120.0  # emulated, on a machine that may be busy
MIB = 1 << 20
PAGE = 4096


@pytest.fixture(scope="module")
def choices() -> list[Choice]:
    return [choose(device="rxe0"), choose(device="rxe1")]


class Bench:
    """An engine, and lanes of this process behind the other device."""

    def __init__(self, choices: list[Choice]) -> None:
        self._choice = choices[1]
        self._held = ExitStack()
        self.engine = VerbsCopyEngine(Device(choices[0]))
        self._held.callback(self.engine.close)

    def region(self, nbytes: int, seed: int | None = None) -> Region:
        made = Region.create("test", nbytes)
        self._held.callback(made.close)
        if seed is not None:
            made.view[:nbytes] = random.Random(seed).randbytes(nbytes)
        return made

    def end(self, backing: Region, landing: int, result: int) -> VerbsLaneExporter:
        made = VerbsLaneExporter(self._choice, HostLane(backing, landing, result))  # type: ignore[arg-type]
        self._held.callback(made.close)
        return made

    def link(self, end: VerbsLaneExporter, **changes: Any) -> Memory:
        """The lane as the engine reaches it; ``changes`` to what its worker says of it."""
        invitation = self.engine.invite()
        assert invitation is not None
        export = end.export(invitation.descriptor)
        memory = self.engine.import_memory(MemoryExport({**export.descriptor, **changes}), invitation)
        self._held.callback(memory.close)
        return memory

    def lane(self, landing: int, result: int = 0, /, **changes: Any) -> tuple[Memory, Region]:
        """A lane, and what lies behind it."""
        backing = self.region(landing + result)
        return self.link(self.end(backing, landing, result), **changes), backing

    def done(self, count: int = 1) -> list[CopyCompletion]:
        """The next ``count`` completions, waited for by the descriptor alone."""
        found: list[CopyCompletion] = []
        while len(found) < count:
            assert select.select([self.engine.fileno()], [], [], BOUND_S)[0], found
            found += self.engine.poll()
        return found

    def copy(self, source: Memory, at: int, target: Memory, there: int, nbytes: int) -> str | None:
        """One copy to its end: its error."""
        ended = self.engine.post(1, source, at, target, there, nbytes) or self.done()[0]
        assert ended.token == 1
        return ended.error

    def close(self) -> None:
        self._held.close()


@pytest.fixture
def bench(choices: list[Choice]) -> Iterator[Bench]:
    made = Bench(choices)
    yield made
    made.close()


# -- what arrives -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("more", [-1, 0, 1])
def test_what_exceeds_a_message_goes_as_several_and_comes_back_so(bench: Bench, more: int) -> None:
    nbytes = bench.engine._device.message_bytes + more
    ours, back = bench.region(nbytes, seed=1), bench.region(nbytes)
    room = (nbytes + PAGE) // PAGE * PAGE
    lane, theirs = bench.lane(room, room)
    assert bench.copy(ours, 0, lane, 0, nbytes) is None
    assert theirs.view[:nbytes] == ours.view[:nbytes]
    assert not any(theirs.view[nbytes : nbytes + 64])
    theirs.view[room : room + nbytes] = theirs.view[:nbytes]
    assert bench.copy(lane, room, back, 0, nbytes) is None
    assert back.view[:nbytes] == ours.view[:nbytes]


def test_what_exceeds_the_send_queue_waits_in_the_engine_and_all_of_it_arrives(bench: Bench) -> None:
    bench.engine._device.message_bytes = 1024  # as if the device had small messages
    count, nbytes = 5, (WRITES + 7) * 1024 + 100
    ours = bench.region(nbytes, seed=2)
    lane, theirs = bench.lane(nbytes * count)
    for number in range(count):
        assert bench.engine.post(number, ours, 0, lane, number * nbytes, nbytes) is None
    assert [each.token for each in bench.done(count)] == list(range(count))
    for number in range(count):
        assert theirs.view[number * nbytes : (number + 1) * nbytes] == ours.view[:nbytes]


def test_a_range_across_both_halves_is_one_range(bench: Bench) -> None:
    """They are registered apart; what may be done to them differs."""
    backing, ours = bench.region(2 * PAGE, seed=3), bench.region(2 * PAGE)
    lane = bench.link(bench.end(backing, PAGE, PAGE))
    assert lane.nbytes == 2 * PAGE
    assert bench.copy(lane, PAGE + 5, ours, 7, 100) is None
    assert ours.view[7:107] == backing.view[PAGE + 5 : PAGE + 105]


def test_copies_of_a_memory_register_it_once_and_give_it_back_when_it_ends(bench: Bench) -> None:
    lane, _ = bench.lane(PAGE, PAGE)
    at_rest = resources()["mr"]
    ours = Region.create("slots", 4 * PAGE)
    for _ in range(5):
        assert bench.copy(ours, 0, lane, 0, PAGE) is None
        assert resources()["mr"] == at_rest + 1
    assert bench.copy(lane, PAGE, ours, 0, PAGE) is None  # to be written it takes other rights
    assert resources()["mr"] == at_rest + 2
    ours.close()
    assert resources()["mr"] == at_rest
    forgotten = Region.create("slots", PAGE)
    fd = forgotten.fd
    assert bench.copy(forgotten, 0, lane, 0, PAGE) is None
    assert resources()["mr"] == at_rest + 1
    del forgotten
    gc.collect()
    assert resources()["mr"] == at_rest
    os.close(fd)


def test_a_lane_that_is_offered_again_is_the_next_daemons_alone(choices: list[Choice], bench: Bench) -> None:
    """What the daemon before had under way, or still posts, does not land."""
    backing, ours = bench.region(PAGE), bench.region(PAGE, seed=4)
    end = bench.end(backing, PAGE, 0)
    former = bench.link(end)
    assert bench.copy(ours, 0, former, 0, 8) is None
    lane = bench.link(end)
    error = bench.copy(ours, 0, former, 8, 8)
    assert error is not None
    assert "RETRY_EXC_ERR" in error
    assert not any(backing.view[8:16])
    assert bench.copy(ours, 0, lane, 16, 8) is None
    assert backing.view[16:24] == ours.view[:8]


def test_a_dma_buf_that_the_device_does_not_take_leaves_the_pointer(bench: Bench) -> None:
    """No kernel here takes one: this is all that can be shown of dma-bufs."""
    backing, ours = bench.region(PAGE), bench.region(PAGE, seed=5)
    lane = HostLane(backing, PAGE, 0)
    lane.dmabuf = lambda: (backing.fd, 0)  # type: ignore[assignment,method-assign,return-value]
    end = VerbsLaneExporter(bench._choice, lane)  # type: ignore[arg-type]
    try:
        assert bench.copy(ours, 0, bench.link(end), 0, 8) is None
        assert backing.view[:8] == ours.view[:8]
    finally:
        end.close()


# -- what fails ---------------------------------------------------------------------------------------------------
def failed(bench: Bench, lane: Memory, copy: Callable[[Memory], str | None], status: str) -> None:
    """The copy fails as said, further ones fail at once, and another lane goes on."""
    error = copy(lane)
    assert error is not None
    assert status in error
    assert not bench.engine.reaches(lane)
    region = bench.region(PAGE, seed=6)
    at_once = bench.engine.post(2, region, 0, lane, 0, 8)
    assert at_once == CopyCompletion(2, error)
    other, behind = bench.lane(PAGE)
    assert bench.copy(region, 0, other, 0, 8) is None
    assert behind.view[:8] == region.view[:8]
    assert bench.engine.is_working()
    assert bench.engine.poll() == []


@pytest.mark.parametrize(
    "lie",
    [
        {"landing_rkey": 0},
        {"landing_rkey": 0xFFFF_FFFF},
        {"landing": 0},
        {"landing": (1 << 63) - (1 << 20)},
        {"qp_num": (1 << 24) - 1},
    ],
    ids=lambda lie: "-".join(map(str, next(iter(lie.items())))),
)
def test_a_worker_that_lies_about_its_lane_loses_its_own_copies_only(bench: Bench, lie: dict[str, int]) -> None:
    lane, theirs = bench.lane(PAGE, **lie)
    ours = bench.region(PAGE, seed=7)
    status = "RETRY_EXC_ERR" if "qp_num" in lie else "REM_ACCESS_ERR"
    failed(bench, lane, lambda far: bench.copy(ours, 0, far, 0, 64), status)
    assert not any(theirs.view)


def test_a_lane_that_is_smaller_than_it_says_takes_nothing_beyond_its_end(bench: Bench) -> None:
    lane, theirs = bench.lane(PAGE, landing_bytes=1 << 30)
    ours = bench.region(PAGE, seed=8)
    behind = theirs.nbytes
    failed(bench, lane, lambda far: bench.copy(ours, 0, far, behind - 8, 16), "REM_ACCESS_ERR")


def test_the_result_half_is_not_written_and_the_landing_buffer_not_read(bench: Bench) -> None:
    ours = bench.region(PAGE, seed=9)
    lane, theirs = bench.lane(PAGE, PAGE)
    failed(bench, lane, lambda far: bench.copy(ours, 0, far, PAGE, 8), "REM_ACCESS_ERR")
    lane, theirs = bench.lane(PAGE, PAGE)
    failed(bench, lane, lambda far: bench.copy(far, 0, ours, 0, 8), "REM_ACCESS_ERR")
    assert not any(theirs.view)


def test_all_copies_of_a_lane_that_fails_end_once_those_that_wait_too(bench: Bench) -> None:
    lane, _ = bench.lane(PAGE, landing_rkey=0)
    ours = bench.region(PAGE)
    count = 3 * WRITES
    for token in range(count):
        assert bench.engine.post(token, ours, 0, lane, 0, 8) is None
    found = bench.done(count)
    assert [each.token for each in found] == list(range(count))
    assert all(each.error and "REM_ACCESS_ERR" in each.error for each in found)
    assert bench.engine.poll() == []
    assert bench.engine.bytes_copied == 0


def test_memory_that_cannot_be_registered_is_an_error_of_its_copy(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    lane, _ = bench.lane(PAGE)
    ours = bench.region(PAGE)

    def refuse(*_: Any, **__: Any) -> None:
        raise VerbsError("register", code=12, check="raise RLIMIT_MEMLOCK")

    monkeypatch.setattr(bench.engine._domain, "register", refuse)
    at_once = bench.engine.post(1, ours, 0, lane, 0, 8)
    assert at_once is not None
    assert "RLIMIT_MEMLOCK" in str(at_once.error)
    assert bench.engine.reaches(lane)
    monkeypatch.undo()
    assert bench.copy(ours, 0, lane, 0, 8) is None


def test_a_worker_that_names_a_queue_pair_of_others_is_refused(bench: Bench) -> None:
    """Another lane's end, or one of the engine's own: what we sent there would come from whom it trusts."""
    end = bench.end(bench.region(PAGE), PAGE, 0)
    invitation = bench.engine.invite()
    assert invitation is not None
    said = end.export(invitation.descriptor).descriptor
    memory = bench.engine.import_memory(MemoryExport(said), invitation)
    with pytest.raises(RegionError, match="another lane"):
        bench.lane(PAGE, 0, qp_num=said["qp_num"])
    held = bench.engine.invite()
    assert held is not None
    with pytest.raises(RegionError, match="another lane"):
        bench.lane(PAGE, 0, qp_num=held.descriptor["qp_num"], gid=held.descriptor["gid"])
    held.close()
    memory.close()
    assert bench.engine.reaches(bench.lane(PAGE, 0)[0])


def test_an_invitation_is_good_once_and_at_its_engine(choices: list[Choice], bench: Bench) -> None:
    end = bench.end(bench.region(PAGE), PAGE, 0)
    other = Bench(choices)
    invitation = bench.engine.invite()
    assert invitation is not None
    export = end.export(invitation.descriptor)
    with pytest.raises(RegionError):
        bench.engine.import_memory(export)
    with pytest.raises(RegionError, match="qp_num"):
        bench.engine.import_memory(MemoryExport({**export.descriptor, "qp_num": 0}), invitation)
    with pytest.raises(RegionError, match="used before"):
        bench.engine.import_memory(export, invitation)
    other.close()
    with pytest.raises(RegionError):
        other.engine.import_memory(export, bench.engine.invite())


@pytest.mark.parametrize("address", ["10.99.0.77", "10.99.77.1", "203.0.113.9", "10.98.0.77", "224.0.0.1", "0.0.0.0"])
def test_an_end_that_nobody_answers_for_is_refused_before_the_kernel_waits_for_it(bench: Bench, address: str) -> None:
    with pytest.raises(RegionError, match=f"no neighbour answers for {address}"):
        bench.lane(PAGE, gid=f"::ffff:{address}")


def test_a_device_that_is_lost_ends_every_copy_and_the_engine_says_so(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    lane, _ = bench.lane(PAGE)
    assert bench.engine.post(1, bench.region(PAGE), 0, lane, 0, 8) is None

    def gone() -> list[str]:
        raise DeviceGone("rxe0/1: it left")

    monkeypatch.setattr(bench.engine._device, "events", gone)
    bench.engine._look_at_device()
    found = bench.done()
    assert found[0].token == 1
    assert not bench.engine.is_working()
    assert not bench.engine.reaches(lane)


# -- workers that die ---------------------------------------------------------------------------------------------
class Worker:
    """A lane in a process of its own, forked before any device is open."""

    def __init__(self, choice: Choice, children: Any, nbytes: int) -> None:
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)

        def serve() -> None:
            self._channel.close()
            backing = Region.create("lane", nbytes)
            end = VerbsLaneExporter(choice, HostLane(backing, nbytes, 0))  # type: ignore[arg-type]
            theirs.send(orjson.dumps(end.export(orjson.loads(theirs.recv(PAGE))).descriptor))
            theirs.recv(1)

        self.child = children.fork(serve)
        theirs.close()

    def link(self, engine: VerbsCopyEngine) -> Memory:
        invitation = engine.invite()
        assert invitation is not None
        self._channel.settimeout(BOUND_S)
        self._channel.send(orjson.dumps(invitation.descriptor))
        return engine.import_memory(MemoryExport(orjson.loads(self._channel.recv(PAGE))), invitation)

    def kill(self) -> None:
        self.child.kill()
        self._channel.close()


def test_a_worker_killed_while_its_lane_is_copied_to_ends_its_copies_and_no_others(
    choices: list[Choice], children: Any
) -> None:
    nbytes, count = 8 * MIB, 8
    victim = Worker(choices[1], children, nbytes)
    bench = Bench(choices)
    lane, (other, behind) = victim.link(bench.engine), bench.lane(nbytes)
    ours = bench.region(nbytes, seed=10)
    for token in range(count):
        assert bench.engine.post(token, ours, 0, lane, 0, nbytes) is None
    victim.kill()
    killed = time.monotonic()
    assert bench.engine.post(count, ours, 0, other, 0, nbytes) is None
    found = bench.done(count + 1)
    print(f"all copies ended {time.monotonic() - killed:.2f} s after the kill")
    by_token = {each.token: each.error for each in found}
    assert sorted(by_token) == list(range(count + 1))
    assert "RETRY_EXC_ERR" in str(by_token[count - 1])
    assert by_token[count] is None
    assert behind.view[:nbytes] == ours.view[:nbytes]
    assert not bench.engine.reaches(lane)
    bench.close()


def test_closing_the_engine_ends_copies_to_a_worker_that_is_gone_within_bounds(choices: list[Choice]) -> None:
    bench = Bench(choices)
    backing = bench.region(PAGE)
    end = bench.end(backing, PAGE, 0)
    lane, ours = bench.link(end), bench.region(PAGE)
    end.close()
    assert bench.engine.post(1, ours, 0, lane, 0, 8) is None
    started = time.monotonic()
    bench.engine.close()
    assert time.monotonic() - started < 20
    (found,) = bench.engine.poll()
    assert found.token == 1
    assert found.error is not None
    bench.close()


# -- what is left -------------------------------------------------------------------------------------------------
def test_an_engine_leaves_nothing_behind(choices: list[Choice]) -> None:
    Bench(choices).close()
    at_rest = resources()
    bench = Bench(choices)
    ours = bench.region(2 * IN_PLACE_BYTES, seed=11)
    lanes = [bench.lane(PAGE, PAGE) for _ in range(4)]
    bench.lane(PAGE, landing_rkey=0)
    for lane, _ in lanes:
        assert bench.copy(ours, 0, lane, 0, PAGE) is None
        assert bench.copy(lane, PAGE, ours, 0, PAGE) is None
    assert bench.copy(ours, 0, bench.region(2 * IN_PLACE_BYTES), 0, 2 * IN_PLACE_BYTES) is None
    assert bench.copy(ours, 0, bench.lane(PAGE, landing_rkey=0)[0], 0, 8) is not None
    bench.engine.invite()
    assert resources() != at_rest
    lanes[0][0].close()
    bench.close()
    bench.engine.close()
    gc.collect()
    assert resources() == at_rest
