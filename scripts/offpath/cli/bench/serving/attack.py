"""What attackers cost another tenant at the gateway: blocks of its requests, alternately alone and under attack.

Clients without a valid token hold connections open by sending one byte per second, and announce large bodies. A tenant
of the gateway sends compressed bombs, bodies beyond its bound, heads with two meanings, deeply nested JSON, a million
arrays of one number and truncated compressed data. The rate is limited: real attackers have machines of their own, the
benchmark has two cores.

The attackers need those cores too. The floor says what that costs: the same attack on a `sink`, a process that reads
each request to its end, refuses it and does nothing else. And `idle_work` says what any other computing costs on the
same cores: half of one core's time, at a priority below that of all others. The gateway has long bodies read like that.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import os
import re
import socket
import time
from collections.abc import Iterator
from itertools import cycle
from typing import Final

from offpath.cli.bench.measure import end, fork

LORIS: Final = 200
"""Connections that are held open, each a byte a second."""
PER_S: Final = 50
"""Hostile requests per second, with and without a valid token together."""
_READ_S: Final = 2.0
_READ_BYTES: Final = 1 << 16
_TURN_NS: Final = 5_000_000
_HEAD_BYTES: Final = 8192
_TAKEN_BYTES: Final = 16 << 20
"""A longer body is refused before it is read, as the gateway does."""


@contextlib.contextmanager
def under_attack(port: int, token: str, core: int | None) -> Iterator[None]:
    """``token``: of the tenant that attacks."""
    pid = fork(core, lambda: asyncio.run(_attack(port, token)))
    try:
        yield
    finally:
        end(pid)


@contextlib.contextmanager
def sink() -> Iterator[int]:
    """The port of a process of lowest cost that takes the attack in the gateway's place."""
    with socket.create_server(("127.0.0.1", 0), backlog=1024) as listening:
        pid = fork(None, lambda: asyncio.run(_swallow(listening)))
        try:
            yield listening.getsockname()[1]
        finally:
            end(pid)


@contextlib.contextmanager
def idle_work() -> Iterator[None]:
    """A process that computes half of the time, only while a core has nothing else to do."""
    pid = fork(None, _compute)
    try:
        yield
    finally:
        end(pid)


def _compute() -> None:
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    while True:
        until_ns = time.perf_counter_ns() + _TURN_NS
        while time.perf_counter_ns() < until_ns:
            pass
        time.sleep(_TURN_NS / 1e9)


async def _swallow(listening: socket.socket) -> None:
    server = await asyncio.get_running_loop().create_server(_Swallowing, sock=listening)
    await server.serve_forever()


class _Swallowing(asyncio.BufferedProtocol):
    """Reads what a request announces, or what is a head too long, and refuses it."""

    def __init__(self) -> None:
        self._buffer = bytearray(_READ_BYTES)
        self._head = b""
        self._left = -1
        """Bytes of the body; -1: its head is not complete."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def get_buffer(self, sizehint: int) -> bytearray:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        if self._left < 0:
            self._head += self._buffer[:nbytes]
            head, separator, body = self._head.partition(b"\r\n\r\n")
            if separator:
                announced = re.search(rb"Content-Length: (\d+)", head)
                nbytes_all = int(announced[1]) if announced else 0
                self._left = max(0, nbytes_all - len(body)) if nbytes_all <= _TAKEN_BYTES else 0
            elif len(self._head) > _HEAD_BYTES:
                self._left = 0
        else:
            self._left = max(0, self._left - nbytes)
        if self._left == 0:
            self._transport.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            self._transport.close()


async def _attack(port: int, token: str) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(_loris(port))
        for request in cycle(requests(token)):
            group.create_task(_send(port, request))
            await asyncio.sleep(1 / PER_S)


def requests(token: str) -> list[bytes]:
    """The hostile requests, in turn."""
    path = "/v2/models/identity/infer"

    def head(*lines: str, proof: str = token) -> bytes:
        named = ("Host: x", f"Authorization: Bearer {proof}", *lines)
        return "\r\n".join((f"POST {path} HTTP/1.1", *named, "", "")).encode()

    bomb = gzip.compress(bytes(32 << 20))
    nested = b"[" * 200_000
    arrays = b'{"inputs":[{"name":"x","datatype":"INT32","shape":[1],"data":[%s]}]}' % b",".join([b"[1]"] * 1_000_000)
    return [
        head("Content-Length: 1000000000000", proof="wrong"),
        head(f"Content-Length: {len(bomb)}", "Content-Encoding: gzip") + bomb,
        head("Content-Length: 1000000000000"),
        head("Content-Length: 5", "Content-Length: 6") + b"hello!",
        head("Content-Length: 5", "Transfer-Encoding: chunked") + b"0\r\n\r\nGET /v2 HTTP/1.1\r\n\r\n",
        head(f"Content-Length: {len(nested)}") + nested,
        head(f"Content-Length: {len(arrays)}") + arrays,
        head("X: " + "y" * 9000),
        head(f"Content-Length: {len(bomb) // 2}", "Content-Encoding: deflate") + bomb[: len(bomb) // 2],
    ]


async def _send(port: int, request: bytes) -> None:
    with contextlib.suppress(OSError, TimeoutError):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            async with asyncio.timeout(_READ_S):
                writer.write(request)
                await reader.read(4096)
        finally:
            writer.close()


async def _loris(port: int) -> None:
    held: list[asyncio.StreamWriter] = []
    while True:
        held = [writer for writer in held if not writer.is_closing()]
        while len(held) < LORIS:
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                held.append(writer)
        for writer in held:
            writer.write(b"G")
        await asyncio.sleep(1.0)
