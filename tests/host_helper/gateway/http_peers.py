"""Peers that pipeline, or do not read: each case opens a gateway without a daemon on the running loop."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, Final

from offpath.host_helper.gateway import connection, http, routes
from offpath.host_helper.gateway.config import GatewayFile
from offpath.host_helper.gateway.responses import Response
from offpath.host_helper.gateway.serve import Gateway

from ...support.certificates import Authority

TOKEN = "bearer-ada-xxxxxxxxxxxx"
ASK = f"GET /v2 HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n\r\n".encode()
LIVE = b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n"
MANY: Final = 1000
BOUND_S: Final = 20.0
_LONG_BYTES: Final = 4 << 20


@contextlib.asynccontextmanager
async def opened(folder: Path, **keys: Any) -> AsyncIterator[Gateway]:
    for name in ("token", "bearer"):
        (folder / name).write_text(TOKEN)
        (folder / name).chmod(0o600)
    tenant = {"name": "ada", "token_file": str(folder / "token"), "bearer_files": [str(folder / "bearer")]}
    given = {"daemon": f"unix:{folder}/none.sock", "http": "127.0.0.1:0", "grpc": "", "tenant": [tenant], **keys}
    gateway = Gateway(GatewayFile.model_validate(given))
    await gateway.start()
    try:
        yield gateway
    finally:
        await gateway.close()


async def many(gateway: Gateway, tls: ssl.SSLContext | None = None) -> None:
    """Every one of many requests that come at once is answered, in order."""
    assert gateway.http is not None
    names = {} if tls is None else {"ssl": tls, "server_hostname": "localhost"}
    reader, writer = await asyncio.open_connection(*gateway.http.address, **names)
    sending = asyncio.ensure_future(_send(writer, ASK * MANY))
    async with asyncio.timeout(BOUND_S):
        for _ in range(MANY):
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200 "), head
            length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
            assert (await reader.readexactly(length)).startswith(b'{"name":"offpath"')
    await sending
    writer.close()


def in_chunks(nbytes: int, each: int) -> bytes:
    """A request whose body of ``nbytes`` is in chunks of ``each``. Without a daemon it is answered with 503."""
    lines = f"POST /v2/repository/index HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n"
    chunk = b"%x\r\n%b\r\n" % (each, bytes(each))
    return f"{lines}Transfer-Encoding: chunked\r\n\r\n".encode() + chunk * (nbytes // each) + b"0\r\n\r\n"


async def chunks(gateway: Gateway, tls: ssl.SSLContext | None = None) -> None:
    """Bodies in chunks of many lengths, between other requests, all sent at once."""
    assert gateway.http is not None
    names = {} if tls is None else {"ssl": tls, "server_hostname": "localhost"}
    reader, writer = await asyncio.open_connection(*gateway.http.address, **names)
    bodies = [(0, 1), (20_000, 1), (1 << 20, 7_000), (3 << 20, 1 << 20), (600_000, 300_000), (100, 50)] * 2
    sending = asyncio.ensure_future(_send(writer, b"".join(in_chunks(*body) + ASK for body in bodies)))
    found = []
    async with asyncio.timeout(BOUND_S):
        for _ in range(2 * len(bodies)):
            head = await reader.readuntil(b"\r\n\r\n")
            await reader.readexactly(int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0]))
            found.append(int(head.split(b" ")[1]))
    assert found == [503, 200] * len(bodies), found
    assert gateway.http.held_bytes == 0
    await sending
    writer.close()


async def _send(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(data)
    await writer.drain()


async def pipelined(folder: Path) -> None:
    async with opened(folder) as gateway:
        await many(gateway)


async def pipelined_over_tls(folder: Path) -> None:
    authority = Authority(folder)
    server, key = authority.issue("localhost", is_server=True)
    async with opened(folder, tls={"cert_file": server, "key_file": key}) as gateway:
        await many(gateway, ssl.create_default_context(cafile=authority.ca_file))


async def half_open_over_tls(folder: Path) -> None:
    """Connections that never shake hands, more than may be: the oldest make room, and who shakes hands is served."""
    authority = Authority(folder)
    server, key = authority.issue("localhost", is_server=True)
    async with opened(folder, tls={"cert_file": server, "key_file": key}, unidentified=8) as gateway:
        assert gateway.http is not None
        silent = [await asyncio.open_connection(*gateway.http.address) for _ in range(20)]
        async with asyncio.timeout(BOUND_S):
            for reader, _ in silent[:12]:
                assert await reader.read(1) == b""
        await many(gateway, ssl.create_default_context(cafile=authority.ca_file))
        assert gateway.http.connections <= 8
        for _, writer in silent:
            writer.close()
        async with asyncio.timeout(BOUND_S):
            while gateway.http.connections:
                await asyncio.sleep(0.01)


async def chunked(folder: Path) -> None:
    async with opened(folder) as gateway:
        await chunks(gateway)


async def chunked_over_tls(folder: Path) -> None:
    authority = Authority(folder)
    server, key = authority.issue("localhost", is_server=True)
    async with opened(folder, tls={"cert_file": server, "key_file": key}) as gateway:
        await chunks(gateway, ssl.create_default_context(cafile=authority.ca_file))


async def flood(gateway: Gateway, request: bytes) -> int:
    """The most that waits unsent in the gateway while a peer never reads, and sends until nothing is taken any more."""
    assert gateway.http is not None
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.connect(gateway.http.address)
    sock.setblocking(False)
    most = refused = 0
    async with asyncio.timeout(BOUND_S):
        while refused < 50:
            try:
                sock.send(request * 50)
                refused = 0
            except BlockingIOError:
                refused += 1
            await asyncio.sleep(0.002)
            for each in list(gateway.http._all):
                assert each._transport is not None
                most = max(most, each._transport.get_write_buffer_size())
    sock.close()
    return most


async def unread(folder: Path) -> None:
    async def large(*_: Any) -> Response:
        return Response(200, (bytes(1 << 20),))

    routes.respond = large
    async with opened(folder) as gateway:
        assert 0 < await flood(gateway, ASK) < 2 << 20


async def unread_without_token(folder: Path) -> None:
    async with opened(folder) as gateway:
        assert 0 < await flood(gateway, LIVE) < 1 << 17


async def long(folder: Path) -> None:
    lines = f"POST /v2/repository/index HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n"
    most = await _most_of_a_turn(folder, f"{lines}Content-Length: {_LONG_BYTES}\r\n\r\n".encode() + bytes(_LONG_BYTES))
    assert (1 << 16) < most <= 1 << 19


async def long_in_chunks(folder: Path) -> None:
    assert (1 << 16) < await _most_of_a_turn(folder, in_chunks(_LONG_BYTES, 1 << 20)) <= 1 << 19
    assert await _most_of_a_turn(folder, in_chunks(60_000, 1)) <= 1 << 14, "each chunk costs time"


async def _most_of_a_turn(folder: Path, request: bytes) -> int:
    """Long bodies that come as fast as they are taken: what one turn of the loop takes of them, counted. The kernel's
    buffer grows with each, and libuv would take all that is there."""
    taken, turns = 0, list[int]()

    def turn() -> None:
        nonlocal taken
        turns.append(taken)
        taken = 0
        asyncio.get_running_loop().call_soon(turn)

    class Counted(connection.Connection):
        def buffer_updated(self, nbytes: int) -> None:
            nonlocal taken
            taken += nbytes
            super().buffer_updated(nbytes)

    async with opened(folder) as gateway:
        assert gateway.http is not None
        http.Connection = Counted  # type: ignore[attr-defined]
        with socket.create_connection(gateway.http.address, BOUND_S) as sock:
            turn()
            for _ in range(20):
                await asyncio.to_thread(sock.sendall, request)
                got = await asyncio.to_thread(sock.recv, 1 << 16)
                assert got.startswith(b"HTTP/1.1 503 "), got  # there is no daemon
    return max(turns)


CASES: Final[dict[str, Callable[[Path], Awaitable[None]]]] = {
    "pipelined": pipelined, "pipelined_over_tls": pipelined_over_tls, "unread": unread,
    "unread_without_token": unread_without_token, "long": long, "long_in_chunks": long_in_chunks, "chunked": chunked,
    "chunked_over_tls": chunked_over_tls, "half_open_over_tls": half_open_over_tls,
}  # fmt: skip
