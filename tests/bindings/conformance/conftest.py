"""One rig per port and adapter: how a test makes both ends. A further adapter is one more class and one more param.

A rig says what the adapter can do; the promises themselves are in the test modules and know no adapter.
"""

from __future__ import annotations

import ast
import os
import socket
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from offpath.bindings.errors import PeerGone
from offpath.bindings.loopback.channel import LoopbackChannelListener, LoopbackConnection, connect_channel
from offpath.bindings.loopback.gpu import EmulatedGpu
from offpath.bindings.ports import Gpu, HostConnection, MemoryExport

from .copy_rigs import CopyRig, DocaCopyRig, LoopbackCopyRig, VerbsCopyRig
from .fabric_rigs import FabricRig, LoopbackFabricRig, VerbsFabricRig, WindowedFabricRig


@pytest.fixture(
    params=[
        pytest.param(LoopbackCopyRig, id="loopback"),
        pytest.param(DocaCopyRig, id="doca"),
        pytest.param(partial(DocaCopyRig, "target"), id="doca-to-lane"),
        pytest.param(partial(DocaCopyRig, "source"), id="doca-from-lane"),
        pytest.param(VerbsCopyRig, id="verbs", marks=[pytest.mark.rdma, pytest.mark.full]),
        pytest.param(partial(VerbsCopyRig, "target"), id="verbs-to-lane", marks=pytest.mark.rdma),
        pytest.param(partial(VerbsCopyRig, "source"), id="verbs-from-lane", marks=pytest.mark.rdma),
    ]
)
def copy_rig(request: pytest.FixtureRequest) -> Iterator[CopyRig]:
    rig = request.param()
    yield rig
    rig.close()


@pytest.fixture(
    params=[
        pytest.param(LoopbackFabricRig, id="loopback"),
        pytest.param(VerbsFabricRig, id="verbs", marks=pytest.mark.rdma),
        pytest.param(WindowedFabricRig, id="verbs-window", marks=[pytest.mark.rdma, pytest.mark.full]),
    ]
)
def fabric_rig(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[FabricRig]:
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
