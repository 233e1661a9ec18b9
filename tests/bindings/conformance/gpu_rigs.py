"""Rigs of the GPU port: the loopback emulator, and NVIDIA's stack (migd, NVML, CUDA) on the GPU emulator."""

from __future__ import annotations

import ast
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from offpath.bindings import forked
from offpath.bindings.cuda.instance import CudaInstance, scrub
from offpath.bindings.cuda.whole import WholeGpu, visible
from offpath.bindings.loopback.gpu import EmulatedGpu
from offpath.bindings.mig import WHOLE
from offpath.bindings.ports import Gpu, InstanceMemory, MemoryExport
from offpath.host_helper.migd.gpu import InstanceIdentity, InstanceOpener, MigGpu

from ...host_helper.migd.rig import Migd
from ...support.doca import environment
from ...support.gpu_machine import Machine
from ...support.real_gpu import SYSTEM, real_gpu
from ...support.remote_memory import RemoteMemory
from .copy_rigs import LoopbackCopyRig

MODELS = ("A30-24GB", "A100-40GB", "A100-80GB", "H100-80GB", "H200-141GB", "B200-180GB")
_SLICE_BYTES = 4 << 20
_SCRUB_S = 30.0


class LoopbackGpuRig:
    """An emulated GPU with small slices, and the copy engine that reaches its lanes."""

    slice_bytes = 256 << 10
    models = MODELS

    def __init__(self) -> None:
        self.copies = LoopbackCopyRig()
        self._held: list[Gpu] = []

    def gpu(self, model: str = "A100-40GB", *, delayed_visibility: bool = False) -> Gpu:
        gpu = EmulatedGpu(f"GPU-{model}", model, slice_bytes=self.slice_bytes, delayed_visibility=delayed_visibility)
        self._held.append(gpu)
        return gpu

    def instance_bytes(self, gpu: Gpu, profile: str) -> int:
        """How much memory an instance of the profile really offers here."""
        return gpu.profile_bytes(profile)

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


class NvidiaMachine:
    """A machine with one GPU of each model, and migd as a process on it. One for all tests of a session."""

    def __init__(self, folder: Path) -> None:
        machine = Machine(folder / "machine", models=",".join(MODELS), slice_bytes=str(_SLICE_BYTES))
        self.environment = {name: value for name, value in os.environ.items() if name.startswith("OFFPATH_GPU_")}
        self.migd = Migd(machine, folder / "migd")
        machine.close()  # the machine stays: only this process's environment is as it was

    def close(self) -> None:
        self.migd.close()


class NvidiaGpuRig(LoopbackGpuRig):
    """migd's GPUs; each instance's memory in a process of its own."""

    def __init__(self, machine: NvidiaMachine) -> None:
        super().__init__()
        self._machine = machine
        self._client = machine.migd.client()
        self._opened: list[RemoteMemory] = []
        self._pid = os.getpid()

    def gpu(self, model: str = "A100-40GB", *, delayed_visibility: bool = False) -> Gpu:
        """Payloads pass through host memory: they are always invisible until `acquire`."""
        uuid = self._client.gpus().gpus[MODELS.index(model)].uuid
        gpu = MigGpu(self._client, uuid, InstanceOpener(self._open, self._scrub))
        self._held.append(gpu)
        return gpu

    def _open(self, identity: InstanceIdentity) -> InstanceMemory:
        def make() -> InstanceMemory:
            os.environ.update(self._machine.environment)
            return CudaInstance(identity.visible)

        if os.getpid() != self._pid:  # a worker of the test's: one process, one instance
            return make()
        self._opened.append(RemoteMemory(make))
        return self._opened[-1]

    def _scrub(self, identity: InstanceIdentity) -> int:
        def run() -> str:
            os.environ.update(self._machine.environment)
            return str(scrub(identity.visible))

        return int(forked.call(run, "scrub", _SCRUB_S))

    def close(self) -> None:
        for memory in self._opened:
            memory.kill()
        for gpu in self._held:
            for instance, _, _ in gpu.instances():
                gpu.destroy_instance(instance)
        self._client.close()
        super().close()


@contextmanager
def nvidia_machine(folder: Path) -> Iterator[Any]:
    """See `NvidiaMachine`."""
    made = NvidiaMachine(folder)
    try:
        yield made
    finally:
        made.close()


class WholeMachine:
    """This machine's GPU with the system's libraries; without one, an emulated GPU with MIG off."""

    def __init__(self, folder: Path) -> None:
        self.environment = dict(SYSTEM)
        found = real_gpu()
        if found is None:
            machine = Machine(folder / "machine", models="H100-80GB", mig="off", slice_bytes=str(_SLICE_BYTES))
            self.environment = {name: value for name, value in os.environ.items() if name.startswith("OFFPATH_GPU_")}
            machine.close()
            with environment(**self.environment):
                (found,) = visible()
        self.found = found


class OnlyInstance(WholeGpu):
    """A whole GPU for tests that name some profile: its one instance is what they get, with its memory in another
    process."""

    def __init__(self, machine: WholeMachine) -> None:
        super().__init__(machine.found)
        self._environment = machine.environment
        self.opened: list[RemoteMemory] = []

    def create_instance(self, profile: str, start: int) -> int:
        return super().create_instance(WHOLE, 0)

    def open_instance(self, instance: int) -> Any:
        self._check(instance)

        def make() -> InstanceMemory:
            os.environ.update(self._environment)
            return CudaInstance(self.uuid)

        self.opened.append(RemoteMemory(make))
        return self.opened[-1]


class WholeGpuRig(LoopbackGpuRig):
    """A GPU that nobody cuts: the promises about lanes, on hardware where there is some."""

    def __init__(self, machine: WholeMachine) -> None:
        super().__init__()
        self._machine = machine
        self._gpus: list[OnlyInstance] = []

    def gpu(self, model: str = "", *, delayed_visibility: bool = False) -> Gpu:
        """Whatever model there is. Payloads pass through host memory: invisible until `acquire`."""
        self._gpus.append(OnlyInstance(self._machine))
        self._held.append(self._gpus[-1])
        return self._gpus[-1]

    def close(self) -> None:
        for memory in (memory for gpu in self._gpus for memory in gpu.opened):
            memory.kill()
        super().close()
