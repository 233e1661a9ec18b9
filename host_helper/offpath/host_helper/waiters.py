"""What an async requester's callers wait for: the answer of a request, or the next one of a stream."""

from __future__ import annotations

import asyncio
from typing import Any, TypeVar

from offpath.bindings.errors import OffpathError
from offpath.host_helper.errors import RequestTimeout
from offpath.host_helper.slots import Result

Answer = asyncio.Future[Result]
_T = TypeVar("_T")


class Stream:
    """A stream in flight. ``has_answer``: one lies in its slot and was not taken. ``ready`` only wakes the task that
    waits: cancelling that task cancels it, so its state tells nothing about the slot."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.ready: asyncio.Future[None] = loop.create_future()
        self.has_answer = False
        self.failed: OffpathError | None = None
        self.is_abandoned = False

    def arrived(self) -> None:
        """An answer lies in the slot."""
        self.has_answer = True
        self._wake()

    def fail(self, failed: OffpathError) -> None:
        """The stream has ended without an answer."""
        self.has_answer = False
        self.failed = failed
        self._wake()

    def reset(self) -> None:
        """The answer was taken, or is rung again."""
        self.has_answer = False

    def waiting(self) -> asyncio.Future[None]:
        """The future that the next answer, or the end, resolves."""
        if self.ready.done():
            self.ready = self._loop.create_future()
        return self.ready

    def _wake(self) -> None:
        if not self.ready.done():
            self.ready.set_result(None)


def fail(waiter: Answer | Stream, failed: OffpathError) -> None:
    """The request has ended without an answer."""
    if isinstance(waiter, Stream):
        waiter.fail(failed)
    elif not waiter.done():
        waiter.set_exception(failed)


async def wait(waiting: asyncio.Future[_T], deadline: float | None) -> _T:
    """Its result. ``deadline``: by the loop's clock; None: it has none. Raises: RequestTimeout: not until then."""
    timer = waiting.get_loop().call_at(deadline, _late, waiting) if deadline is not None else None
    try:
        return await waiting
    finally:
        if timer is not None:
            timer.cancel()


def _late(waiting: asyncio.Future[Any]) -> None:
    """The time is over."""
    if not waiting.done():
        waiting.set_exception(RequestTimeout("no answer in time"))
