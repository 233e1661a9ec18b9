"""Connections of peers that vanish: their faults are taken, so that the loop reports none of them as unseen."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
from pathlib import Path

import pytest

from offpath.dpu_daemon.ingress import streams
from offpath.dpu_daemon.ingress.streams import StreamListener
from offpath.dpu_daemon.listening.accepting import Unidentified

BOUND_S = 20.0


def unseen() -> list[object]:
    """Futures whose fault nobody has taken: the loop reports them when they are dropped, unless their stream happens to
    be dropped first."""
    futures = [each for each in gc.get_objects() if isinstance(each, asyncio.Future)]
    return [each for each in futures if each.done() and each._log_traceback]


@pytest.mark.parametrize("is_waiting", [True, False])
async def test_the_fault_of_a_peer_that_is_gone_when_it_is_answered_is_taken(tmp_path: Path, is_waiting: bool) -> None:
    over, gone = asyncio.Event(), asyncio.Event()
    held: list[object] = []

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
    await asyncio.sleep(0.01)
    assert len(held) == 1
    assert unseen() == []


async def test_a_fault_before_the_conversation_is_an_end_of_the_stream() -> None:
    local, remote = socket.socketpair()
    local.setblocking(False)
    reader = asyncio.StreamReader()
    protocol = streams._Stream(reader)
    transport, _ = await asyncio.get_running_loop().connect_accepted_socket(lambda: protocol, local)
    protocol.connection_lost(ConnectionResetError())
    assert await asyncio.wait_for(reader.read(1), BOUND_S) == b""
    assert unseen() == []
    transport.abort()
    await asyncio.sleep(0)
    remote.close()


async def test_the_fault_of_a_server_that_is_gone_is_taken(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "s"))
        server.listen()
        _, writer = await asyncio.open_unix_connection(str(tmp_path / "s"))
    protocol = writer.transport.get_protocol()
    writer.write(bytes(10))
    await asyncio.wait_for(streams.hang_up(writer), BOUND_S)
    assert protocol is not None
    assert unseen() == []
