"""One rig per port and adapter: how a test makes both ends. A further adapter is one more class and one more param.

A rig says what the adapter can do; the promises themselves are in the test modules and know no adapter.
"""

from __future__ import annotations

import ast
import os
import socket
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from offpath.bindings.loopback.gpu import EmulatedGpu
from offpath.bindings.ports import Gpu, MemoryExport

from .channel_rigs import ChannelRig, ComchChannelRig, LoopbackChannelRig, ZmqChannelRig
from .copy_rigs import CopyRig, DocaCopyRig, LoopbackCopyRig, VerbsCopyRig
from .fabric_rigs import FabricRig, LoopbackFabricRig, VerbsFabricRig, WindowedFabricRig
from .matrix import Matrix

_MATRIX = pytest.StashKey[Matrix]()


def pytest_collection_finish(session: pytest.Session) -> None:
    """With ``-m conformance`` what becomes of each test is kept for the table."""
    if "conformance" in (session.config.option.markexpr or ""):
        session.config.stash[_MATRIX] = Matrix(session.items)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """See `Matrix.saw`."""
    Matrix.saw(report)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """The table adapter x test, at the very end."""
    if (matrix := config.stash.get(_MATRIX, None)) is not None:
        terminalreporter.section("conformance: adapter x test")
        for line in matrix.lines():
            terminalreporter.write_line(line)


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


@pytest.fixture(
    params=[
        pytest.param(LoopbackChannelRig, id="loopback"),
        pytest.param(ZmqChannelRig, id="zmq"),
        pytest.param(ComchChannelRig, id="comch"),
    ]
)
def channel_rig(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ChannelRig]:
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
