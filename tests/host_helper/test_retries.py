"""Which requests both requesters send again, over a session that answers each with RETRY_SAFE; and the order in which
the async one sends those that wait for a slot."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from offpath.bindings.errors import PeerGone
from offpath.bindings.ports import IMM_CANCEL
from offpath.bindings.wire.codes import Reason, Status
from offpath.bindings.wire.header import pack_answer
from offpath.host_helper import Options, requester
from offpath.host_helper.aio import AsyncRequester
from offpath.host_helper.errors import RequestFailed
from offpath.host_helper.requester import Requester
from offpath.host_helper.slots import Result

OF_NONE, OF_A_SEQUENCE = Options(), Options(sequence_id=7)
_KIND_SHIFT = 24


class Session:
    """One slot. ``sent``: the first byte of each request's payload. ``status``: the answer to each; None: the test
    calls `answer`."""

    slot_count, payload_bytes, result_bytes = 1, 64, 4096

    def __init__(self, status: Status | None = Status.RETRY_SAFE) -> None:
        self.here, self.there = socket.socketpair()
        self.here.setblocking(False)
        self.sent: list[int] = []
        self._status = status
        self._payload = bytearray(64)
        self._header = b""

    def fileno(self) -> int:
        return self.here.fileno()

    def poll(self) -> list[int]:
        with contextlib.suppress(BlockingIOError):
            return [0] * len(self.here.recv(100))
        return []

    def wait(self, timeout_s: float | None) -> list[int]:
        return self.poll()

    def ring(self, imm: int) -> None:
        if imm >> _KIND_SHIFT != IMM_CANCEL:
            self.sent.append(self._payload[0])
            if self._status is not None:
                self.answer(self._status)

    def answer(self, status: Status) -> None:
        """Ring for slot 0."""
        self._header = pack_answer(len(self.sent), status, Reason.NONE, 0, 0, 0, 0, 0, (0,) * 6, b"", 0, 0)
        self.there.send(b"x")

    def payload_view(self, slot: int) -> memoryview:
        return memoryview(self._payload)

    def write_header(self, slot: int, header: bytes, nbytes: int) -> None:
        pass

    def answer_header(self, slot: int) -> bytes:
        return self._header.ljust(640, b"\0")

    def result_view(self, slot: int, nbytes: int) -> memoryview:
        return memoryview(bytes(nbytes))

    def close(self) -> None:
        self.here.close()
        self.there.close()


def link_of(session: Session) -> Any:
    kernels = SimpleNamespace(kernels={"k": SimpleNamespace(kernel_id=1)}, close=lambda: None)
    return SimpleNamespace(session=session, negotiation=kernels, welcome=None)


def array(value: int) -> list[Any]:
    return [np.array([value], np.uint8)]


BOTH = pytest.mark.parametrize("call", ["submit", "stream"])
WHICH = pytest.mark.parametrize(("options", "times"), [(OF_NONE, 4), (OF_A_SEQUENCE, 1)], ids=["none", "sequence"])


@BOTH
@WHICH
def test_a_request_that_did_not_start_is_sent_again_unless_it_is_of_a_sequence(
    call: str, options: Options, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = Session()
    monkeypatch.setattr(requester, "Way", lambda *given, **more: SimpleNamespace(first=lambda: link_of(session)))

    def run(blocking: Requester) -> None:
        if call == "stream":
            list(blocking.stream("k", array(1), options=options, timeout=20.0))
        else:
            blocking.submit("k", array(1), options=options, timeout=20.0)

    with Requester() as blocking, pytest.raises(RequestFailed) as failed:
        run(blocking)
    assert failed.value.status is Status.RETRY_SAFE
    assert len(session.sent) == times


@contextlib.asynccontextmanager
async def opened(session: Session) -> Any:
    way: Any = None
    async with AsyncRequester(way, link_of(session)) as made:
        yield made


@BOTH
@WHICH
async def test_so_does_the_async_requester(call: str, options: Options, times: int) -> None:
    session = Session()

    async def run(asynced: AsyncRequester) -> None:
        if call == "stream":
            _ = [each async for each in asynced.stream("k", array(1), options=options, timeout=20.0)]
        else:
            await asynced.submit("k", array(1), options=options, timeout=20.0)

    async with opened(session) as asynced:
        with pytest.raises(RequestFailed) as failed:
            await run(asynced)
    assert failed.value.status is Status.RETRY_SAFE
    assert len(session.sent) == times


async def turns(count: int = 20) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def until_sent(session: Session, count: int) -> None:
    async with asyncio.timeout(20):
        while len(session.sent) < count:
            await asyncio.sleep(0.001)


async def test_requests_that_wait_for_a_slot_are_sent_in_the_order_of_their_calls() -> None:
    """A slot becomes free. Before the request that waits for it goes on, another one is submitted."""
    session = Session(status=None)
    async with asyncio.timeout(20), opened(session) as asynced, asyncio.TaskGroup() as tasks:
        for value in (0, 1, 2):
            tasks.create_task(asynced.submit("k", array(value)))
        await turns()
        assert session.sent == [0]
        session.answer(Status.COMPLETED)
        tasks.create_task(asynced.submit("k", array(3)))
        asynced._readable()  # as the loop does for the doorbell
        for count in (2, 3, 4):
            await until_sent(session, count)
            session.answer(Status.COMPLETED)
    assert session.sent == [0, 1, 2, 3]


@pytest.mark.parametrize("how", ["cancelled", "late"])
async def test_a_request_that_leaves_while_it_waits_holds_no_other_up(how: str) -> None:
    session = Session(status=None)
    async with asyncio.timeout(20), opened(session) as asynced, asyncio.TaskGroup() as tasks:
        tasks.create_task(asynced.submit("k", array(0)))
        await turns()
        leaves = asyncio.ensure_future(asynced.submit("k", array(1), timeout=0.01 if how == "late" else None))
        await turns()
        tasks.create_task(asynced.submit("k", array(2)))
        await turns()
        if how == "cancelled":
            session.answer(Status.COMPLETED)
            asynced._readable()
            leaves.cancel()  # it was woken in this turn
        await asyncio.gather(leaves, return_exceptions=True)
        if how == "late":
            session.answer(Status.COMPLETED)
        await until_sent(session, 2)
        session.answer(Status.COMPLETED)
    assert session.sent == [0, 2]
    assert not asynced._room


async def test_a_request_that_is_woken_when_the_connection_breaks_stays_the_first() -> None:
    session = Session(status=None)
    async with asyncio.timeout(20), opened(session) as asynced, asyncio.TaskGroup() as tasks:
        for value in (0, 1, 2):
            tasks.create_task(asynced.submit("k", array(value)))
        await turns()
        session.answer(Status.COMPLETED)
        asynced._readable()
        asynced._returning = asyncio.ensure_future(asyncio.sleep(0))  # as `_lost` does
        await turns()
        assert session.sent == [0]
        tasks.create_task(asynced.submit("k", array(3)))
        asynced._returning = None  # as `_come_back` does
        asynced._wake_first()
        for count in (2, 3, 4):
            await until_sent(session, count)
            session.answer(Status.COMPLETED)
    assert session.sent == [0, 1, 2, 3]


async def test_all_that_wait_for_a_slot_end_with_the_session_also_the_one_that_was_woken() -> None:
    session = Session(status=None)
    async with asyncio.timeout(20), opened(session) as asynced:
        waiting = [asyncio.ensure_future(asynced.submit("k", array(value))) for value in (0, 1, 2)]
        await turns()
        session.answer(Status.COMPLETED)
        asynced._readable()
        asyncio.get_running_loop().remove_reader(session.fileno())
        asynced._fail(PeerGone("lost"))
        ended = await asyncio.gather(*waiting, return_exceptions=True)
        assert [type(each) for each in ended] == [Result, PeerGone, PeerGone]
        assert not asynced._room
    assert session.sent == [0]
