"""Long bodies are read in a process of their own.

Reading JSON, or numbers one by one, holds Python's lock: up to half a second for 4 MiB. In the gateway's own process
all tenants would wait for it. Packed bodies are unpacked there too: threads would take both cores from everybody. The
process has a lower priority, so that it takes no time from the other tenants either, and it does one job of a tenant at
a time.

The loop itself speaks with the process. An executor's threads would take Python's lock several times for each body, and
a thread that loses its core with the lock keeps the loop waiting.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import logging
import multiprocessing
import os
import pickle
import signal
import socket
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.context import SpawnProcess
from typing import Any, Final, TypeVar, cast

from offpath.host_helper.gateway.buffers import SharedBuffer
from offpath.host_helper.gateway.errors import unavailable

logger = logging.getLogger(__name__)
_NICENESS: Final = 10
_PR_SET_PDEATHSIG: Final = 1
MOST_S: Final = 30.0
"""For one job. A long one takes half a second of a core's time, and a busy machine gives it a tenth of a core."""
_LENGTH: Final = struct.Struct("!Q")
"""Before each message, a pickle."""
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class _Child:
    process: SpawnProcess
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter


class ReaderProcess:
    """The process of all tenants. It starts with the first long body, and again after its death."""

    def __init__(self) -> None:
        self._child: _Child | None = None
        self._turn = asyncio.Lock()
        self._is_closed = False

    async def run(self, message: bytes) -> Any:
        """The answer to a pickled function with its arguments. If it is cancelled after the process has begun, or takes
        longer than `MOST_S`, the process ends. Raises: Refused: there is no process, or it has ended; what the function
        raises."""
        async with self._turn:
            try:
                child = await self._present()
            except OSError as fault:
                logger.warning("long bodies cannot be read: %s", fault.strerror, extra={"code": "gateway_reader"})
                raise no_reader() from None
            try:
                async with asyncio.timeout(MOST_S):
                    child.writer.write(_LENGTH.pack(len(message)) + message)
                    (length,) = _LENGTH.unpack(await child.reader.readexactly(_LENGTH.size))
                    answer = await child.reader.readexactly(length)
            except (OSError, asyncio.IncompleteReadError) as fault:  # TimeoutError is an OSError
                if self._child is child:  # else it was closed
                    why = "was too slow" if isinstance(fault, TimeoutError) else "has ended"
                    logger.warning("the process that reads long bodies %s", why, extra={"code": "gateway_reader"})
                    self._end()
                raise no_reader() from None
            except asyncio.CancelledError:
                self._end()
                raise
        is_fault, got = pickle.loads(answer)
        if is_fault:
            raise got
        return got

    async def _present(self) -> _Child:
        """The process, a new one if there is none. Raises: OSError: there can be none. Refused: it is closed."""
        if self._child is None and not self._is_closed:
            self._child = await _started()
        if self._is_closed:
            self._end()
        if self._child is None:
            raise no_reader()
        return self._child

    def close(self) -> None:
        """End the process; no other one is started. Idempotent."""
        self._is_closed = True
        self._end()

    def _end(self) -> None:
        if self._child is not None:
            child, self._child = self._child, None
            child.writer.close()
            child.process.kill()
            child.process.join()


class Reader:
    """A tenant's turn at the process."""

    def __init__(self, process: ReaderProcess) -> None:
        self._process = process
        self._turn = asyncio.Semaphore(1)

    async def run(self, function: Callable[..., _T], *arguments: Any, of: Sequence[memoryview] = ()) -> _T:
        """The function's result. Arguments and result are pickled; what is long is a `Place`. ``of``: what the process
        reads or writes there; the memory stays as long as the process needs it. If the caller is cancelled, what the
        process has begun goes on, and the tenant's next body waits for it. Raises: Refused: the process has ended; what
        the function raises.
        """
        message = pickle.dumps((function, arguments))
        await self._turn.acquire()
        shared = [each.obj for each in of if isinstance(each.obj, SharedBuffer)]
        for buffer in shared:
            buffer.readers += 1
        running = asyncio.ensure_future(self._process.run(message))

        def ended(_: asyncio.Future[Any]) -> None:
            for buffer in shared:
                buffer.readers -= 1
            self._turn.release()
            if not running.cancelled():
                running.exception()  # or asyncio logs it if nobody waits any more

        running.add_done_callback(ended)
        return cast(_T, await asyncio.shield(running))


def no_reader() -> Exception:
    """What the client is told when the process has died."""
    return unavailable("the body was not read: the process that reads long ones has ended")


async def _started() -> _Child:
    """A new process. Raises: OSError: no process or descriptor is left."""
    ours, theirs = socket.socketpair()
    try:
        context = multiprocessing.get_context("spawn")  # a fork would inherit grpc's threads, and tokens
        process = context.Process(target=_serve, args=(theirs, os.getpid()), daemon=True)
        process.start()
        reader, writer = await asyncio.open_unix_connection(sock=ours)
    except BaseException:
        ours.close()
        raise
    finally:
        theirs.close()
    return _Child(process, reader, writer)


def _serve(sock: socket.socket, gateway: int) -> None:
    """The process: it ends with the gateway, and leaves its signals to it."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
    if os.getppid() != gateway:
        return  # it died before
    for each in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(each, signal.SIG_IGN)
    os.nice(_NICENESS)
    gc.disable()  # JSON has no cycles, and each look at a million lists costs as much as reading them
    with sock, sock.makefile("rb") as asked:
        while head := asked.read(_LENGTH.size):
            (length,) = _LENGTH.unpack(head)
            answer = _answer(asked.read(length))
            sock.sendall(_LENGTH.pack(len(answer)))
            sock.sendall(answer)


def _answer(message: bytes) -> bytes:
    try:
        function, arguments = pickle.loads(message)
        return pickle.dumps((False, function(*arguments)), pickle.HIGHEST_PROTOCOL)
    except Exception as fault:
        with contextlib.suppress(Exception):
            return pickle.dumps((True, fault))
        return pickle.dumps((True, RuntimeError(repr(fault))))
