"""What an async requester's callers wait for: the answer of a request, or the next one of a stream."""

from __future__ import annotations

import asyncio
from typing import Any

from offpath.bindings.errors import OffpathError
from offpath.host_helper.errors import RequestTimeout
from offpath.host_helper.slots import Result

Answer = asyncio.Future[Result]


class Stream:
    """A stream in flight. ``ready``: its slot has an answer that was not taken, or the stream has ``failed``."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.ready: asyncio.Future[None] = loop.create_future()
        self.failed: OffpathError | None = None
        self.is_abandoned = False

    @property
    def has_answer(self) -> bool:
        """True if an answer lies in the slot."""
        ready = self.ready
        return ready.done() and not ready.cancelled() and ready.exception() is None and self.failed is None

    def arrived(self) -> None:
        """An answer lies in the slot, or the stream has failed."""
        if not self.ready.done():
            self.ready.set_result(None)

    def fail(self, failed: OffpathError) -> None:
        """The stream has ended without an answer."""
        self.failed = failed
        self.arrived()

    def abandon(self) -> None:
        """Nobody waits any more."""
        self.is_abandoned = True
        if not self.has_answer:
            self.reset()

    def reset(self) -> None:
        """The answer was taken, or is rung again; or waiting for it was ended."""
        if self.ready.done():
            self.ready = self._loop.create_future()


def fail(waiter: Answer | Stream, failed: OffpathError) -> None:
    """The request has ended without an answer."""
    if isinstance(waiter, Stream):
        waiter.fail(failed)
    elif not waiter.done():
        waiter.set_exception(failed)


def late(waiting: asyncio.Future[Any]) -> None:
    """The time is over."""
    if not waiting.done():
        waiting.set_exception(RequestTimeout("no answer in time"))
