"""The async requester's streams over a fake session: each doorbell leads to one taking, whatever ends meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
from types import SimpleNamespace
from typing import Any

from offpath.bindings.ports import IMM_NEXT
from offpath.bindings.wire.codes import Reason, Status
from offpath.bindings.wire.header import FLAG_MORE, pack_answer
from offpath.host_helper.aio import AsyncRequester

KIND_SHIFT = 24


class Session:
    """One slot, in which the first answer of a stream lies, and a socket for its doorbells."""

    slot_count, payload_bytes, result_bytes = 1, 64, 4096

    def __init__(self) -> None:
        self.here, self.there = socket.socketpair()
        self.here.setblocking(False)
        self.rung: list[int] = []
        self.header = pack_answer(1, Status.COMPLETED, Reason.NONE, 0, 0, 0, 0, 0, (0,) * 6, b"", FLAG_MORE, 1)

    def fileno(self) -> int:
        return self.here.fileno()

    def poll(self) -> list[int]:
        with contextlib.suppress(BlockingIOError):
            return [0] * len(self.here.recv(100))
        return []

    def ring(self, imm: int) -> None:
        self.rung.append(imm)

    def answers(self) -> None:
        """The daemon rings for slot 0."""
        self.there.send(b"x")

    @property
    def taken(self) -> int:
        """How many answers were confirmed."""
        return sum(imm >> KIND_SHIFT == IMM_NEXT for imm in self.rung)

    def payload_view(self, slot: int) -> memoryview:
        return memoryview(bytearray(64))

    def write_header(self, slot: int, header: bytes, nbytes: int) -> None:
        pass

    def answer_header(self, slot: int) -> bytes:
        return self.header.ljust(640, b"\0")

    def result_view(self, slot: int, nbytes: int) -> memoryview:
        return memoryview(bytes(nbytes))


@contextlib.asynccontextmanager
async def waiting() -> Any:
    """A task that waits for the first answer of a stream; its session, and the iterator."""
    session = Session()
    kernels = SimpleNamespace(kernels={"k": SimpleNamespace(kernel_id=1)})
    link: Any = SimpleNamespace(session=session, negotiation=kernels, welcome=None)
    way: Any = None
    requester = AsyncRequester(way, link)
    answers = requester.stream("k", [])
    task = asyncio.ensure_future(anext(answers))
    await asyncio.sleep(0)
    while not session.rung:
        await asyncio.sleep(0)
    yield session, task, answers
    asyncio.get_running_loop().remove_reader(session.fileno())
    session.here.close()
    session.there.close()


def test_an_answer_that_is_rung_in_the_turn_of_a_cancellation_is_taken() -> None:
    async def main() -> None:
        async with waiting() as (session, task, _):
            session.answers()
            await asyncio.sleep(0)  # the loop sees the doorbell in the turn in which the task is cancelled
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await asyncio.sleep(0.01)
            assert session.taken == 1

    asyncio.run(main())


def test_an_answer_that_is_rung_after_a_cancellation_is_taken() -> None:
    async def main() -> None:
        async with waiting() as (session, task, _):
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            session.answers()
            await asyncio.sleep(0.01)
            assert session.taken == 1

    asyncio.run(main())


def test_answers_at_the_time_of_a_timeout_are_all_taken() -> None:
    async def main() -> None:
        chance = random.Random(1)
        loop = asyncio.get_running_loop()
        for _ in range(200):
            async with waiting() as (session, task, answers):
                loop.call_later(0.002 + chance.uniform(-0.0005, 0.0005), session.answers)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(task, 0.002)
                await answers.aclose()
                until = loop.time() + 1
                while not session.taken and loop.time() < until:
                    await asyncio.sleep(0.0005)
                assert session.taken == 1

    asyncio.run(main())
