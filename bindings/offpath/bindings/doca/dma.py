"""A context that copies: tasks of at most the device's size, each with two buffers while it is in flight."""

from __future__ import annotations

from collections.abc import Callable
from ctypes import byref
from typing import Final, NamedTuple

from offpath.bindings.doca._abi_ctx import State
from offpath.bindings.doca._abi_dma import COMPLETED
from offpath.bindings.doca._abi_errors import Status
from offpath.bindings.doca._abi_types import HANDLE, U32
from offpath.bindings.doca._check import failure
from offpath.bindings.doca.buffers import Inventory
from offpath.bindings.doca.context import Context
from offpath.bindings.doca.device import Device
from offpath.bindings.doca.engine import Engine
from offpath.bindings.doca.memory import Mmap
from offpath.bindings.errors import DeviceError, DeviceGone, DocaError

TASKS: Final = 64
"""Tasks in flight on one context, if the device allows as many; the rest waits."""


class Place(NamedTuple):
    """Where a copy reads or writes: an address in its owner's address space, in that map."""

    mmap: Mmap
    address: int


class _Task(NamedTuple):
    task: int
    source: int
    target: int
    nbytes: int


class Dma(Context):
    """The engine's progress calls ``ended(serial, is_good)`` for each submitted task. The callee must call `finish`
    later, not from within. Not thread-safe."""

    def __init__(self, device: Device, engine: Engine, ended: Callable[[int, bool], None]) -> None:
        """Make and start it. Raises: DocaError, DeviceGone."""
        doca, made = device.doca, HANDLE()
        doca.call("doca_dma_create", device.pointer, byref(made))
        super().__init__(engine, "copy context", made.value, "doca_dma_destroy", "doca_dma_as_ctx", device)
        self._tasks: dict[int, _Task] = {}
        self._back: set[int] = set()
        self._ended = ended
        self._inventory: Inventory | None = None
        try:
            most = U32()
            doca.call("doca_dma_cap_get_max_num_tasks", self.pointer, byref(most))
            self.room = min(TASKS, most.value)
            good = self.keep(COMPLETED(engine.guarded(self._completed)))
            bad = self.keep(COMPLETED(engine.guarded(self._failed)))
            doca.call("doca_dma_task_memcpy_set_conf", self.pointer, good, bad, self.room)
            self._connect()
            self._inventory = Inventory(doca, 2 * self.room, self)
            self.start()
        except BaseException:
            self.close()
            raise

    @property
    def is_running(self) -> bool:
        """It accepts tasks."""
        return self.state is State.RUNNING

    @property
    def inventory(self) -> Inventory:
        """Its buffers; closed with it."""
        assert self._inventory is not None
        return self._inventory

    def submit(self, serial: int, source: Place, target: Place, nbytes: int) -> bool:
        """Start one task. False: no capacity now, nothing was started. Does not block. Raises: DocaError,
        DeviceGone."""
        if len(self._tasks) >= self.room:
            return False
        inventory = self.inventory
        source_buffer = inventory.by_data(source.mmap, source.address, nbytes)
        if source_buffer is None:
            return False
        target_buffer: int | None = None
        try:
            target_buffer = inventory.by_addr(target.mmap, target.address, nbytes)
            task = self._task(serial, source_buffer, target_buffer) if target_buffer is not None else None
            if task is not None:
                assert target_buffer is not None
                self._tasks[serial] = _Task(task, source_buffer, target_buffer, nbytes)
                return True
        except BaseException:
            self._release(source_buffer, target_buffer)
            raise
        if fault := self._release(source_buffer, target_buffer):
            raise fault
        return False

    def finish(self, serial: int, is_good: bool) -> DeviceError | None:
        """Free an ended task and return its error, or None."""
        task, source, target, nbytes = self._tasks.pop(serial)
        self._back.discard(serial)
        fault: DeviceError | None = None
        if not is_good:
            status = self.doca.value("doca_task_get_status", task) or Status.UNKNOWN
            fault = failure(status, "copy", *self.doca.describe(status))
        else:
            try:
                moved = self.inventory.data_bytes(target)
                if moved != nbytes:
                    fault = DocaError("a copy", f"{moved} of {nbytes} bytes were copied")
            except DeviceError as refused:
                fault = refused
        self.doca.value("doca_task_free", task)
        kept = self._release(source, target)
        return fault or kept

    # -- within -------------------------------------------------------------------------------------------------------
    def _task(self, serial: int, source: int, target: int) -> int | None:
        """A submitted task; None: no capacity. Raises: DocaError, DeviceGone: it was not submitted."""
        made = HANDLE()
        status = self.doca.call(
            "doca_dma_task_memcpy_alloc_init", self.pointer, source, target, serial, byref(made),
            expect=(Status.NO_MEMORY,),
        )  # fmt: skip
        if status:
            return None
        task: int = self.doca.value("doca_dma_task_memcpy_as_task", made)
        try:
            status = self.doca.call("doca_task_submit", task, expect=(Status.AGAIN,))
        except BaseException:
            self.doca.value("doca_task_free", task)
            raise
        if status:
            self.doca.value("doca_task_free", task)
            return None
        return task

    def _release(self, *buffers: int | None) -> DeviceError | None:
        """Release all buffers; return the first error."""
        fault: DeviceError | None = None
        for buffer in buffers:
            try:
                if buffer is not None:
                    self.inventory.release(buffer)
            except (DocaError, DeviceGone) as refused:
                fault = fault or refused
        return fault

    def _completed(self, _task: int, serial: int, _data: int) -> None:
        self._back.add(serial)
        self._ended(serial, True)

    def _failed(self, _task: int, serial: int, _data: int) -> None:
        self._back.add(serial)
        self._ended(serial, False)

    def _give_back(self) -> None:
        for serial in list(self._back):  # for tasks in flight at close, which have no other owner
            self.finish(serial, True)
