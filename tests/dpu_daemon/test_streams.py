"""Connections of peers that vanish: their faults are taken, so that the loop reports none of them as unseen."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from pathlib import Path

import pytest

from offpath.dpu_daemon.ingress import streams
from offpath.dpu_daemon.ingress.streams import StreamListener
from offpath.dpu_daemon.listening.accepting import Unidentified

BOUND_S = 20.0


def is_taken(protocol: asyncio.BaseProtocol | None) -> bool:
    """The connection has ended, and nobody will be told of its fault: else the loop reports it when the stream's future
    is dropped, unless the stream happens to be dropped first."""
    assert isinstance(protocol, asyncio.StreamReaderProtocol)
    ended = protocol._get_close_waiter(None)
    return ended.done() and not ended._log_traceback


@pytest.mark.parametrize("is_waiting", [True, False])
async def test_the_fault_of_a_peer_that_is_gone_when_it_is_answered_is_taken(tmp_path: Path, is_waiting: bool) -> None:
    over, gone = asyncio.Event(), asyncio.Event()
    held: list[asyncio.BaseProtocol] = []

    async def converse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        held.append(writer.transport.get_protocol())
        try:
            await reader.readexactly(1)
            await gone.wait()
            writer.write(bytes(10))
            with contextlib.suppress(OSError):
                if is_waiting:
                    await writer.drain()
        finally:
            writer.close()
            over.set()

    sock = socket.socket(socket.AF_UNIX)
    sock.bind(str(tmp_path / "s"))
    sock.listen()
    sock.setblocking(False)
    listener = StreamListener("test", sock, converse, Unidentified(4))
    listener.open()
    with socket.socket(socket.AF_UNIX) as peer:
        peer.connect(str(tmp_path / "s"))
        peer.send(b"a")
    gone.set()
    await asyncio.wait_for(over.wait(), BOUND_S)
    await listener.close()
    (protocol,) = held
    await asyncio.wait_for(ended(protocol), BOUND_S)
    assert is_taken(protocol)


async def ended(protocol: asyncio.BaseProtocol) -> None:
    """Wait for the connection's end without taking its fault."""
    assert isinstance(protocol, asyncio.StreamReaderProtocol)
    while not protocol._get_close_waiter(None).done():
        await asyncio.sleep(0.001)


async def test_a_fault_before_the_conversation_is_an_end_of_the_stream() -> None:
    local, remote = socket.socketpair()
    local.setblocking(False)
    reader = asyncio.StreamReader()
    protocol = streams._Stream(reader)
    transport, _ = await asyncio.get_running_loop().connect_accepted_socket(lambda: protocol, local)
    try:
        protocol.connection_lost(ConnectionResetError())
        assert await asyncio.wait_for(reader.read(1), BOUND_S) == b""
        assert is_taken(protocol)
    finally:
        transport.close()
        remote.close()


async def test_the_fault_of_a_server_that_is_gone_is_taken(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "s"))
        server.listen()
        _, writer = await asyncio.open_unix_connection(str(tmp_path / "s"))
    protocol = writer.transport.get_protocol()
    writer.write(bytes(10))
    await asyncio.wait_for(streams.hang_up(writer), BOUND_S)
    assert is_taken(protocol)
