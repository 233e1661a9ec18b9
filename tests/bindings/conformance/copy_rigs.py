"""Rigs of the copy-engine port: how a test makes memory of ours, and memory of another process."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from contextlib import ExitStack
from typing import Any

from offpath.bindings.cuda.copy import CudaCopyEngine
from offpath.bindings.doca.copy import DocaCopyEngine
from offpath.bindings.doca.device import Ability, open_device
from offpath.bindings.doca.load import load
from offpath.bindings.loopback.copy import LoopbackCopyEngine
from offpath.bindings.memory.region import Region
from offpath.bindings.ports import CopyEngine, Invitation, Memory, MemoryExport
from offpath.bindings.verbs.copy import VerbsCopyEngine
from offpath.bindings.verbs.devices import choose
from offpath.bindings.verbs.domain import Device
from offpath.bindings.verbs.lane import VerbsLaneExporter

from ...support.doca import HostProcess, emulator, on_the_dpu
from ...support.worker_lane import PAGE, WorkerEnd


class CopyRig(ABC):
    """What tests use. Make an engine first; memories made after it are for it."""

    inline_limit = 64 << 10
    """Largest copy that may complete at once."""
    bound_s = 10.0
    """How long what must happen may take."""
    long_bytes = 32 << 20
    """A copy of so much is still under way when `post` returns."""

    can_be_written = True
    """Imported memory; else it can be read."""

    completes_at_once = False
    """Copies of any size: they are ordered before all that the lane's worker does next."""

    def __init__(self) -> None:
        self._held: list[Any] = []

    @abstractmethod
    def engine(self) -> CopyEngine:
        """A new one."""

    @abstractmethod
    def export(self, memory: Memory, invitation: Invitation | None) -> MemoryExport:
        """What another process would hand us for this memory, when it was invited."""

    @abstractmethod
    def nonsense(self, descriptor: dict[str, Any]) -> list[dict[str, Any]]:
        """Descriptors that must be refused, made from a good one."""

    def fds(self, memory: Memory) -> tuple[int, ...]:
        """Descriptors that travel beside an export."""
        return ()

    def memory(self, content: bytes) -> Memory:
        """Memory of ours that holds ``content``."""
        region = Region.create("test", max(1, len(content)))
        self._held.append(region)
        region.view[: len(content)] = content
        return region

    def source(self, content: bytes) -> Memory:
        """Memory to copy from."""
        return self.memory(content)

    def target(self, content: bytes) -> Memory:
        """Memory to copy to."""
        return self.memory(content)

    def read(self, memory: Memory, offset: int, nbytes: int) -> bytes:
        """What it holds."""
        assert isinstance(memory, Region)
        return bytes(memory.view[offset : offset + nbytes])

    def close(self) -> None:
        """Everything that was made."""
        for held in reversed(self._held):
            held.close()


class LoopbackCopyRig(CopyRig):
    """Memories are sealed memfds; an export is a descriptor with its range."""

    def engine(self) -> CopyEngine:
        self._held.append(engine := LoopbackCopyEngine(self.inline_limit))
        return engine

    def export(self, memory: Memory, invitation: Invitation | None = None) -> MemoryExport:
        return MemoryExport({"offset": 0, "nbytes": memory.nbytes}, self.fds(memory))

    def fds(self, memory: Memory) -> tuple[int, ...]:
        assert isinstance(memory, Region)
        return (os.dup(memory.fd),)

    def nonsense(self, descriptor: dict[str, Any]) -> list[dict[str, Any]]:
        return [
            {},
            {"offset": "0", "nbytes": 4096},
            {**descriptor, "nbytes": 1 << 40},
            {**descriptor, "nbytes": 0},
            {**descriptor, "nbytes": -4096},
            {**descriptor, "nbytes": 1 << 70},
            {**descriptor, "offset": -4096},
            {**descriptor, "offset": 1},
            {**descriptor, "offset": 1 << 70},
        ]


class HostLane:
    """Memory of the host's in the place of a GPU's, as much of `Lane` as is exported."""

    def __init__(self, region: Region, landing_bytes: int, result_bytes: int) -> None:
        self.peer_pointer = region.address
        self.landing_bytes = landing_bytes
        self.result_bytes = result_bytes

    def dmabuf(self) -> None:
        return None


class VerbsCopyRig(CopyRig):
    """The engine is on rxe0; what lies in another process lies behind rxe1. It can be the source or the target of
    copies, or neither: all memory is ours then."""

    bound_s = 120.0  # emulated, on a machine that may be busy
    long_bytes = 4 << 20

    def __init__(self, far: str = "") -> None:
        super().__init__()
        self._far = far
        self.can_be_written = far != "source"
        self._backing: dict[Memory, Region] = {}
        self._engine: VerbsCopyEngine | None = None

    def engine(self) -> CopyEngine:
        self._engine = VerbsCopyEngine(Device(choose(device="rxe0")))
        self._held.append(self._engine)
        return self._engine

    def source(self, content: bytes) -> Memory:
        return self.lane(content) if self._far == "source" else self.memory(content)

    def target(self, content: bytes) -> Memory:
        return self.lane(content) if self._far == "target" else self.memory(content)

    def lane(self, content: bytes) -> Memory:
        """Imported memory that holds ``content``."""
        assert self._engine is not None
        backing = self.memory(content)
        assert isinstance(backing, Region)
        invitation = self._engine.invite()
        memory = self._engine.import_memory(self.export(backing, invitation), invitation)
        self._held.append(memory)
        self._backing[memory] = backing
        return memory

    def read(self, memory: Memory, offset: int, nbytes: int) -> bytes:
        return super().read(self._backing.get(memory, memory), offset, nbytes)

    def export(self, memory: Memory, invitation: Invitation | None) -> MemoryExport:
        """All of it as landing buffer, or, where the source is far, as result half."""
        assert isinstance(memory, Region)
        assert invitation is not None
        halves = (0, memory.nbytes) if self._far == "source" else (memory.nbytes, 0)
        end = VerbsLaneExporter(choose(device="rxe1"), HostLane(memory, *halves))  # type: ignore[arg-type]
        self._held.append(end)
        return end.export(invitation.descriptor)

    def nonsense(self, descriptor: dict[str, Any]) -> list[dict[str, Any]]:
        half, empty = ("landing", "result") if self.can_be_written else ("result", "landing")
        nonsense: dict[str, list[Any]] = {
            "engine": ["loopback", 1],
            "qp_num": [0, 1 << 24, -1, True, "17", None],
            "psn": [1 << 24, -1, "1"],
            "gid": ["", "fe80::1", "::1", "10.99.1.1", 17, "::ffff:10.99.1.1%eth0", "x" * 5000, "::ffff:0.0.0.0.0"],
            "mtu": [0, 6, -1, 1 << 70, "5", True],
            half: [-1, 1 << 63, 1 << 70, (1 << 63) - 4096, "0"],
            f"{half}_rkey": [-1, 1 << 32, "0", None],
            f"{half}_bytes": [0, -1, 1 << 62, 1 << 70, "4096"],
            f"{empty}_rkey": [1 << 32],
            f"{empty}_bytes": [-1, 1 << 62, True],
        }
        changed = [{**descriptor, name: value} for name, values in nonsense.items() for value in values]
        missing = [{k: v for k, v in descriptor.items() if k != name} for name in descriptor]
        return [{}, {"offset": 0, "nbytes": 4096}, *changed, *missing]


class DocaCopyRig(CopyRig):
    """The engine is on the emulated DPU; what lies in another process lies in one on the emulated host. It can be the
    source or the target of copies, or neither: all memory is ours then."""

    bound_s = 20.0

    def __init__(self, far: str = "") -> None:
        emulator()  # a skip that a forked process raised would be a failure here
        super().__init__()
        self._far = far
        self.can_be_written = far != "source"
        self._backing: dict[Memory, Region] = {}
        self._engine: DocaCopyEngine | None = None
        self._undo = ExitStack()
        self._undo.enter_context(on_the_dpu())
        self._host: HostProcess | None = None

    def engine(self) -> CopyEngine:
        self._engine = DocaCopyEngine(open_device(load(emulator()), Ability.COPY))
        self._held.append(self._engine)
        return self._engine

    def source(self, content: bytes) -> Memory:
        return self.lane(content) if self._far == "source" else self.memory(content)

    def target(self, content: bytes) -> Memory:
        return self.lane(content) if self._far == "target" else self.memory(content)

    def lane(self, content: bytes) -> Memory:
        """Imported memory that holds ``content``."""
        assert self._engine is not None
        backing = self.memory(content)
        assert isinstance(backing, Region)
        memory = self._engine.import_memory(self.export(backing))
        self._held.append(memory)
        self._backing[memory] = backing
        return memory

    def read(self, memory: Memory, offset: int, nbytes: int) -> bytes:
        return super().read(self._backing.get(memory, memory), offset, nbytes)

    def export(self, memory: Memory, invitation: Invitation | None = None) -> MemoryExport:
        """All of it as landing buffer, or, where the source is far, as result half."""
        assert isinstance(memory, Region)
        if self._host is None:
            self._host = HostProcess()
        halves = (0, memory.nbytes) if self._far == "source" else (memory.nbytes, 0)
        return MemoryExport(self._host.export(memory, *halves))

    def nonsense(self, descriptor: dict[str, Any]) -> list[dict[str, Any]]:
        half, empty = ("landing", "result") if self.can_be_written else ("result", "landing")
        export = str(descriptor[f"{half}_export"])
        changed_export = ("B" if export[0] == "A" else "A") + export[1:]
        nonsense: dict[str, list[Any]] = {
            "engine": ["loopback", "verbs", 1],
            half: [-1, 0, 1 << 63, 1 << 70, (1 << 63) - 4096, "0", True, descriptor[half] + 4096],
            f"{half}_bytes": [0, -1, 1 << 62, 1 << 70, "4096", descriptor[f"{half}_bytes"] + 1],
            f"{half}_export": ["", "%", 17, None, "A" * 5000, export[:-4], export + "AAAA", changed_export, "AAAA"],
            f"{empty}_export": ["AAAA", 17],
            f"{empty}_bytes": [-1, 1 << 62, True, 4096],
        }
        changed = [{**descriptor, name: value} for name, values in nonsense.items() for value in values]
        missing = [{k: v for k, v in descriptor.items() if k != name} for name in descriptor]
        return [{}, {"offset": 0, "nbytes": 4096}, *changed, *missing]

    def close(self) -> None:
        """Engine and memories, then the host."""
        super().close()
        if self._host is not None:
            self._host.close()
        self._undo.close()


class _Attached(CudaCopyEngine):
    """Knows a lane's worker as soon as it has imported the lane, as the daemon does."""

    def __init__(self, rig: CudaCopyRig) -> None:
        super().__init__(rig.inline_limit)
        self._rig = rig

    def import_memory(self, export: MemoryExport, invitation: Invitation | None = None) -> Memory:
        memory = super().import_memory(export, invitation)
        worker = self._rig.last
        assert worker is not None
        self.attach(memory, worker.channel, self._rig.landing_bytes)
        return memory


class CudaCopyRig(LoopbackCopyRig):
    """What lies in another process lies in a lane of an emulated GPU. It can be the source or the target of copies, or
    neither: all memory is ours then. The lane's worker copies only when the rig reads: as late as a worker can."""

    long_bytes = 4 << 20

    def __init__(self, far: str = "") -> None:
        super().__init__()
        self._far = far
        self.can_be_written = far != "source"
        self.completes_at_once = far == "target"
        self.last: WorkerEnd | None = None
        """Whose lane was exported last."""
        self.landing_bytes = 0
        self._backing: dict[Memory, WorkerEnd] = {}
        self._engine: CudaCopyEngine | None = None

    def engine(self) -> CopyEngine:
        self._engine = _Attached(self)
        self._held.append(self._engine)
        return self._engine

    def source(self, content: bytes) -> Memory:
        return self.lane(content) if self._far == "source" else self.memory(content)

    def target(self, content: bytes) -> Memory:
        return self.lane(content) if self._far == "target" else self.memory(content)

    def lane(self, content: bytes) -> Memory:
        """Imported memory that holds ``content``."""
        assert self._engine is not None
        backing = self.memory(content)
        memory = self._engine.import_memory(self.export(backing))
        self._held.append(memory)
        self._backing[memory] = self._backing[backing]
        return memory

    def export(self, memory: Memory, invitation: Invitation | None = None) -> MemoryExport:
        """A lane with its content in the landing buffer, or, where the source is far, in the result half."""
        assert isinstance(memory, Region)
        halves = (PAGE, memory.nbytes) if self._far == "source" else (memory.nbytes, PAGE)
        self.last = worker = WorkerEnd(*halves)
        self._held.append(worker)
        self._backing[memory] = worker
        is_source = self._far == "source"
        worker.lane.write(worker.lane.landing_bytes if is_source else 0, memory.view)
        self.landing_bytes = 0 if is_source else worker.lane.landing_bytes
        return worker.export()

    def nonsense(self, descriptor: dict[str, Any]) -> list[dict[str, Any]]:
        slots = [{**descriptor, "slots": value} for value in ("", "all", 1, None)]
        others = [{"slots": "read", **each} for each in super().nonsense(descriptor)]
        return [{name: descriptor[name] for name in ("offset", "nbytes")}, *slots, *others]

    def read(self, memory: Memory, offset: int, nbytes: int) -> bytes:
        worker = self._backing.get(memory)
        return super().read(memory, offset, nbytes) if worker is None else worker.read(offset, nbytes)
