"""One rig per port and adapter: how a test makes both ends. A further adapter is one more class and one more param.

A rig says what the adapter can do; the promises themselves are in the test modules and know no adapter.
"""

from __future__ import annotations

import ast
import os
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from offpath.bindings.errors import PeerGone
from offpath.bindings.loopback.channel import LoopbackChannelListener, LoopbackConnection, connect_channel
from offpath.bindings.loopback.copy import LoopbackCopyEngine
from offpath.bindings.loopback.fabric import LoopbackFabricListener, LoopbackFabricSession, redeem_ticket
from offpath.bindings.loopback.gpu import EmulatedGpu
from offpath.bindings.loopback.region import Region
from offpath.bindings.ports import (
    CopyEngine,
    FabricSession,
    Gpu,
    HostConnection,
    Memory,
    MemoryExport,
    RequesterSession,
)


class LoopbackCopyRig:
    """Memories are sealed memfds; an export is a descriptor with its range."""

    inline_limit = 64 << 10
    """Largest copy that completes at once."""

    def __init__(self) -> None:
        self._held: list[Memory | CopyEngine] = []

    def engine(self) -> CopyEngine:
        self._held.append(engine := LoopbackCopyEngine(self.inline_limit))
        return engine

    def memory(self, content: bytes) -> Memory:
        """Registered memory that holds ``content``."""
        self._held.append(region := Region.create("test", len(content)))
        region.view[: len(content)] = content
        return region

    def read(self, memory: Memory, offset: int, nbytes: int) -> bytes:
        assert isinstance(memory, Region)
        return bytes(memory.view[offset : offset + nbytes])

    def export(self, memory: Memory) -> MemoryExport:
        """What another process would hand us for this memory."""
        assert isinstance(memory, Region)
        return MemoryExport({"offset": 0, "nbytes": memory.nbytes}, (os.dup(memory.fd),))

    def close(self) -> None:
        for held in reversed(self._held):
            held.close()


@pytest.fixture(params=[LoopbackCopyRig], ids=["loopback"])
def copy_rig(request: pytest.FixtureRequest) -> Iterator[LoopbackCopyRig]:
    rig = request.param()
    yield rig
    rig.close()


class LoopbackFabricRig:
    """Tickets are redeemed on a Unix socket; `serve` plays the daemon's shell for one peer."""

    def __init__(self, folder: Path) -> None:
        self.path = str(folder / "fabric.sock")
        self.listener = LoopbackFabricListener(self.path)
        self._held: list[FabricSession | RequesterSession] = []

    def offer(
        self,
        ticket: str,
        *,
        slots: int = 4,
        payload_bytes: int = 10_000,
        result_bytes: int = 5_000,
        ttl_s: float = 5.0,
    ) -> None:
        expires_ns = time.monotonic_ns() + int(ttl_s * 1e9)
        self.listener.offer(ticket, slots, payload_bytes, result_bytes, expires_ns)

    def redeem(self, ticket: str) -> RequesterSession:
        """The requester's way in; blocks until `serve` ran, so it belongs into another thread or process."""
        return redeem_ticket(self.path, ticket)

    def serve(self) -> FabricSession:
        """Let the next peer in. Raises: TicketRefused, PeerGone."""
        peer = self._await(self.listener.accept)
        os.set_blocking(peer.fileno(), True)
        _, offer = self.listener.take_ticket(peer, time.monotonic_ns())
        with peer:
            session = LoopbackFabricSession(offer.slots, offer.payload_bytes, offer.result_bytes)
            self._held.append(session)
            session.hand_over(peer)
        return session

    def pair(self, **sizes: int) -> tuple[FabricSession, RequesterSession]:
        """Both ends in this process."""
        self.offer("a-ticket-for-the-pair", **sizes)
        with ThreadPoolExecutor(1) as thread:
            redeemed = thread.submit(self.redeem, "a-ticket-for-the-pair")
            session = self.serve()
            self._held.append(requester := redeemed.result())
        return session, requester

    def refusal(self, ticket: str) -> tuple[BaseException | None, BaseException | None]:
        """What the daemon's and the requester's side raise when ``ticket`` is shown."""
        with ThreadPoolExecutor(1) as thread:
            redeemed = thread.submit(self.redeem, ticket)
            ours: BaseException | None = None
            try:
                self.serve()
            except Exception as fault:
                ours = fault
            theirs = redeemed.exception()
            if theirs is None:
                redeemed.result().close()
        return ours, theirs

    def read_slots(self, session: FabricSession, offset: int, nbytes: int) -> bytes:
        """The daemon's view of the slots, as its copy engine would read them."""
        assert isinstance(session.slots, Region)
        return bytes(session.slots.view[offset : offset + nbytes])

    def payload_offset(self, session: FabricSession, slot: int) -> int:
        assert isinstance(session, LoopbackFabricSession)
        return session.payload_offset(slot)

    def close(self) -> None:
        for held in reversed(self._held):
            held.close()
        self.listener.close()

    def _await(self, accept: Callable[[], socket.socket | None]) -> socket.socket:
        end = time.monotonic() + 10
        while (peer := accept()) is None:
            assert time.monotonic() < end, "nobody came"
            time.sleep(0.0005)
        return peer


@pytest.fixture(params=[LoopbackFabricRig], ids=["loopback"])
def fabric_rig(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LoopbackFabricRig]:
    rig = request.param(tmp_path)
    yield rig
    rig.close()


class LoopbackChannelRig:
    """SEQPACKET sockets; the daemon listens, host processes connect."""

    carries_descriptors = True

    def __init__(self, folder: Path) -> None:
        self.path = str(folder / "channel.sock")
        self.listener = LoopbackChannelListener(self.path, frozenset({os.getuid()}))
        self._held: list[HostConnection] = []

    def connect(self) -> HostConnection:
        """The host's end; the caller's own when it runs in a child."""
        self._held.append(connection := connect_channel(self.path))
        return connection

    def accept(self) -> HostConnection:
        """The daemon's end of the next connection."""
        end = time.monotonic() + 10
        connection: LoopbackConnection | None
        while (connection := self.listener.accept()) is None:
            assert time.monotonic() < end, "nobody came"
            time.sleep(0.0005)
        self._held.append(connection)
        return connection

    def pair(self) -> tuple[HostConnection, HostConnection]:
        """(daemon's end, host's end), both in this process."""
        theirs = self.connect()
        return self.accept(), theirs

    def receive(self, connection: HostConnection) -> tuple[bytes, tuple[int, ...]]:
        """The next message within the bound."""
        end = time.monotonic() + 10
        while (got := connection.receive()) is None:
            if time.monotonic() > end:
                raise PeerGone("no message within the bound")
            time.sleep(0.0005)
        return got

    def close(self) -> None:
        for held in reversed(self._held):
            held.close()
        self.listener.close()


@pytest.fixture(params=[LoopbackChannelRig], ids=["loopback"])
def channel_rig(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LoopbackChannelRig]:
    rig = request.param(tmp_path)
    yield rig
    rig.close()


class LoopbackGpuRig:
    """An emulated GPU with small slices, and the copy engine that reaches its lanes."""

    slice_bytes = 256 << 10
    models = ("A30-24GB", "A100-40GB", "A100-80GB", "H100-80GB", "H200-141GB", "B200-180GB")

    def __init__(self) -> None:
        self.copies = LoopbackCopyRig()
        self._held: list[Gpu] = []

    def gpu(self, model: str = "A100-40GB", *, delayed_visibility: bool = False) -> Gpu:
        gpu = EmulatedGpu(f"GPU-{model}", model, slice_bytes=self.slice_bytes, delayed_visibility=delayed_visibility)
        self._held.append(gpu)
        return gpu

    def instance_bytes(self, gpu: Gpu, profile: str) -> int:
        """How much memory an instance of the profile really offers here."""
        return gpu.model.profile(profile).memory_slices * self.slice_bytes

    def peer_write(self, export: MemoryExport, offset: int, content: bytes) -> None:
        """Write into an exported lane as the DPU does: import, copy, close."""
        engine, source = self.copies.engine(), self.copies.memory(content)
        target = engine.import_memory(MemoryExport(export.descriptor, tuple(os.dup(fd) for fd in export.fds)))
        completion = engine.post(1, source, 0, target, offset, len(content))
        while completion is None:
            completion = next(iter(engine.poll()), None)
        assert completion.error is None
        target.close()

    def send_export(self, sock: socket.socket, export: MemoryExport) -> None:
        socket.send_fds(sock, [repr(export.descriptor).encode()], list(export.fds))

    def receive_export(self, sock: socket.socket) -> MemoryExport:
        text, fds, _, _ = socket.recv_fds(sock, 4096, 4)
        return MemoryExport(ast.literal_eval(text.decode()), tuple(fds))

    def close(self) -> None:
        self.copies.close()
        for held in self._held:
            held.close()


@pytest.fixture(params=[LoopbackGpuRig], ids=["loopback"])
def gpu_rig(request: pytest.FixtureRequest) -> Iterator[LoopbackGpuRig]:
    rig = request.param()
    yield rig
    rig.close()
