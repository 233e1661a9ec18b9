"""The memory of an NVIDIA instance for tests: in a process of its own, because a process sees one instance only."""

from __future__ import annotations

import multiprocessing
import os
import socket
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from offpath.bindings.errors import OffpathError
from offpath.bindings.ports import InstanceMemory, MemoryExport

from .processes import BOUND_S


class RemoteMemory:
    """Implements `InstanceMemory`: ``make`` opens it in a child, where every call on it and its lanes happens."""

    def __init__(self, make: Callable[[], InstanceMemory]) -> None:
        self._exported: list[int] = []
        context = multiprocessing.get_context("fork")
        self._link, theirs = context.Pipe()
        self._fds, their_fds = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._process = context.Process(target=_serve, args=(make, theirs, their_fds), daemon=True)
        self._process.start()
        theirs.close()
        their_fds.close()
        try:
            self._answer()
        except BaseException:
            self._end()
            raise

    @property
    def pid(self) -> int:
        return self._process.pid or 0

    def reserve(self, lane: int, lanes: int, landing_bytes: int, result_bytes: int) -> Any:
        number, sizes = self.call(None, "reserve", lane, lanes, landing_bytes, result_bytes)
        return RemoteLane(self, number, *sizes)

    def close(self) -> None:
        if not self._link.closed:
            self.call(None, "close")
            self._end()

    def kill(self) -> None:
        if not self._link.closed:
            self._process.kill()
            self._end()

    def call(self, lane: int | None, name: str, *arguments: Any) -> Any:
        self._link.send((lane, name, arguments))
        return self._answer()

    def _answer(self) -> Any:
        assert self._link.poll(BOUND_S), "the process with the memory does not answer"
        is_well, value = self._link.recv()
        if not is_well:
            raise value
        if isinstance(value, MemoryExport):
            _, fds, _, _ = socket.recv_fds(self._fds, 1, 4)
            self._exported += fds
            return MemoryExport(value.descriptor, tuple(fds))
        return value

    def _end(self) -> None:
        self._process.join(BOUND_S)
        self._process.close()
        self._link.close()
        self._fds.close()
        for fd in self._exported:
            os.close(fd)


class RemoteLane:
    """Implements `Lane`, with every call made where the memory is."""

    def __init__(self, memory: RemoteMemory, number: int, landing_bytes: int, result_bytes: int, pointer: int) -> None:
        self._memory = memory
        self._number = number
        self.landing_bytes, self.result_bytes, self.pointer = landing_bytes, result_bytes, pointer

    @property
    def device(self) -> tuple[int, int]:
        device: tuple[int, int] = self._memory.call(self._number, "device")
        return device

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return lambda *arguments: self._memory.call(self._number, name, *map(_plain, arguments))


def _plain(value: Any) -> Any:
    return bytes(value) if isinstance(value, memoryview) else value


def _serve(make: Callable[[], InstanceMemory], link: Connection, fds: socket.socket) -> None:
    lanes: list[Any] = []
    memory: Any = None
    try:
        memory = make()
        link.send((True, None))
    except OffpathError as fault:
        link.send((False, _portable(fault)))
        return
    while True:
        try:
            number, name, arguments = link.recv()
        except EOFError:
            return
        try:
            target = memory if number is None else lanes[number]
            found = getattr(target, name)
            value = found(*arguments) if callable(found) else found
            if name == "reserve":
                lanes.append(value)
                value = len(lanes) - 1, (value.landing_bytes, value.result_bytes, value.pointer)
            link.send((True, value))
            if isinstance(value, MemoryExport):
                socket.send_fds(fds, [b"x"], list(value.fds))
        except OffpathError as fault:
            link.send((False, _portable(fault)))
        if name == "close" and number is None:
            return


def _portable(fault: OffpathError) -> OffpathError:
    """The nearest class that is made from a text alone: errors with more fields cannot be pickled."""
    for kind in type(fault).__mro__:
        if issubclass(kind, OffpathError) and kind.__init__ in (OffpathError.__init__, Exception.__init__):
            return kind(str(fault))
    return OffpathError(str(fault))
