"""Long bodies are read in a process of their own.

Reading JSON, or numbers one by one, holds Python's lock: up to half a second for 4 MiB. In the gateway's own process
all tenants would wait for it. Packed bodies are unpacked there too: threads would take both cores from everybody. The
process has a lower priority, so that it takes no time from the other tenants either, and it does one job of a tenant at
a time.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import logging
import multiprocessing
import os
import signal
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any, Final, TypeVar

from offpath.host_helper.gateway.buffers import SharedBuffer
from offpath.host_helper.gateway.errors import unavailable

logger = logging.getLogger(__name__)
_NICENESS: Final = 10
_PR_SET_PDEATHSIG: Final = 1
_T = TypeVar("_T")


class ReaderProcess:
    """The process of all tenants. It starts with the first long body, and again after its death."""

    def __init__(self) -> None:
        self._pool: ProcessPoolExecutor | None = None

    def submit(self, function: Callable[..., _T], *arguments: Any) -> Future[_T]:
        """Raises: Refused: there is no process, and none can be started."""
        if self._pool is None:
            context = multiprocessing.get_context("spawn")  # a fork would inherit grpc's threads, and tokens
            self._pool = ProcessPoolExecutor(1, context, _begin, (os.getpid(),))
        pool = self._pool
        try:
            future = pool.submit(function, *arguments)
        except (BrokenProcessPool, OSError) as fault:
            self._lost(pool, fault)
            raise no_reader() from None
        future.add_done_callback(lambda ended: self._look(pool, ended))
        return future

    def _look(self, pool: ProcessPoolExecutor, ended: Future[Any]) -> None:
        """In a thread of the pool's."""
        if not ended.cancelled() and isinstance(fault := ended.exception(), BrokenProcessPool):
            self._lost(pool, fault)

    def _lost(self, pool: ProcessPoolExecutor, fault: BaseException) -> None:
        """The process of this pool has died: the next body starts another."""
        if self._pool is pool:  # several requests may see one death
            self._pool = None
            logger.warning("the process that reads long bodies has ended: %s", fault, extra={"code": "gateway_reader"})

    def close(self) -> None:
        """End the process. Idempotent."""
        if self._pool is not None:
            pool, self._pool = self._pool, None
            pool.shutdown(wait=False, cancel_futures=True)


class Reader:
    """A tenant's turn at the process."""

    def __init__(self, process: ReaderProcess) -> None:
        self._process = process
        self._turn = asyncio.Semaphore(1)

    async def run(self, function: Callable[..., _T], *arguments: Any, of: Sequence[memoryview] = ()) -> _T:
        """The function's result. Arguments and result are pickled. ``of``: what the process reads or writes in its
        place; the memory stays as long as the process needs it. If the caller is cancelled, what the process has begun
        goes on, and the tenant's next body waits for it. Raises: Refused: the process has ended; what the function
        raises.
        """
        await self._turn.acquire()
        loop = asyncio.get_running_loop()
        shared = [each.obj for each in of if isinstance(each.obj, SharedBuffer)]
        try:
            future = self._process.submit(function, *arguments)
        except BaseException:
            self._turn.release()
            raise

        for buffer in shared:
            buffer.readers += 1

        def released() -> None:
            for buffer in shared:
                buffer.readers -= 1
            self._turn.release()

        def ended(_: Future[_T]) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(released)

        future.add_done_callback(ended)
        try:
            return await asyncio.wrap_future(future, loop=loop)
        except BrokenProcessPool:
            raise no_reader() from None


def no_reader() -> Exception:
    """What the client is told when the process has died."""
    return unavailable("the body was not read: the process that reads long ones has ended")


def _begin(gateway: int) -> None:
    """In the new process: it ends with the gateway, and leaves its signals to it."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
    if os.getppid() != gateway:
        os._exit(1)  # it died before
    for each in (signal.SIGINT, signal.SIGHUP):
        signal.signal(each, signal.SIG_IGN)
    os.nice(_NICENESS)
    gc.disable()  # JSON has no cycles, and each look at a million lists costs as much as reading them
