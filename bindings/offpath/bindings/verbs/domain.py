"""An opened RDMA device, its protection domains, and memory registered in them."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import select
import time
from collections.abc import Callable
from contextlib import ExitStack
from mmap import mmap
from threading import Lock
from typing import Any, Final, Protocol

from offpath.bindings.errors import DeviceGone, RegionError
from offpath.bindings.verbs.devices import Choice
from offpath.bindings.verbs.library import attempt, library

_EVENT_LINK: Final = "anon_inode:[infinibandevent]"
_INLINE_BYTES: Final = 256
_LINGER_S: Final = 2.0
opening = Lock()  # a new descriptor is found by comparison: none may be closed meanwhile


class Closing(Protocol):
    """A connection that was hung up and may still have requests in flight."""

    def is_quiet(self) -> bool:
        """No request is in flight."""

    def close(self) -> None:
        """Release all resources."""


class Device:
    """An opened RDMA device, from which protection domains are made. Close those first."""

    def __init__(self, choice: Choice) -> None:
        """Open it. Raises: VerbsMissing, VerbsError."""
        self.choice = choice
        verbs, name = library(), choice.port.device
        self.context: Any
        self.context, self._fd = with_descriptor(
            lambda: attempt(f"open {name}", lambda: verbs.device.Context(name=name)), "async_fd"
        )
        port = attempt(f"query {choice.port}", lambda: self.context.query_port(choice.port.number))
        self.mtu: int = port.active_mtu
        self.message_bytes: int = port.max_msg_sz
        self.inline_bytes = _INLINE_BYTES
        """Up to this size, data is sent inside the work request, without access to its memory."""
        able = attempt(f"query {name}", self.context.query_device).device_cap_flags
        self.has_windows = bool(able & verbs.enums.IBV_DEVICE_MEM_WINDOW_TYPE_2B)
        """The device can bind a memory window to a queue pair and its protection domain."""
        self._names = _event_names()
        self._closing: list[tuple[Closing, float]] = []

    def fileno(self) -> int:
        """Readable when `events` has something."""
        return self._fd

    def events(self) -> list[str]:
        """The device's events since the last call: libibverbs' names without IBV_EVENT_. Does not block.

        Includes events of queue pairs, which their completions explain. Raises: DeviceGone.
        """
        found = []
        waiting = select.poll()
        waiting.register(self._fd, select.POLLIN)
        while waiting.poll(0):
            error = library().error
            try:
                event = self.context.get_async_event()
            except error.PyverbsRDMAError as fault:
                if fault.error_code in (errno.EINTR, errno.EAGAIN):
                    continue
                raise DeviceGone(f"{self.choice.port}: {fault}") from fault
            found.append(self._names.get(int(event.event_type), f"event {event.event_type}"))
            event.ack()  # otherwise closing the event's object would block for ever
        return found

    def release(self, connection: Closing) -> None:
        """Close it when it is quiet: a destroyed queue pair sends nothing, and its peer would miss the last doorbells.
        The owner calls `sweep` from time to time."""
        self._closing.append((connection, time.monotonic() + _LINGER_S))
        self.sweep()

    def sweep(self) -> bool:
        """Close connections that are quiet or overdue. True: some are left. Does not block."""
        waiting, self._closing = self._closing, []
        for connection, until_s in waiting:
            if time.monotonic() >= until_s or connection.is_quiet():
                connection.close()
            else:
                self._closing.append((connection, until_s))
        return bool(self._closing)

    def close(self) -> None:
        """Close without waiting. Idempotent."""
        for connection, _ in self._closing:
            connection.close()
        self._closing = []
        with opening:
            self.context.close()


class Region:
    """Registered memory of a protection domain. Made by `Domain.register`."""

    def __init__(self, region: Any, export: Any, address: int, nbytes: int) -> None:
        self._region = region
        self._export = export
        self.address = address
        self.nbytes = nbytes
        self.lkey: int = region.lkey
        self.rkey: int = region.rkey

    @property
    def registered(self) -> Any:
        """The pyverbs object. Raises: RegionError: closed."""
        if self._region is None:
            raise RegionError("the region is closed")
        return self._region

    def close(self) -> None:
        """Revoke the device's access, then release the mapping. Idempotent."""
        if self._region is not None:
            self._region.close()
            self._region = self._export = None

    def check(self, offset: int, nbytes: int) -> int:
        """The address of a range in it. Raises: RegionError: out of bounds, or closed."""
        if self._region is None:
            raise RegionError("the region is closed")
        if offset < 0 or nbytes < 1 or offset + nbytes > self.nbytes:
            raise RegionError(f"{nbytes} bytes at {offset} of a region of {self.nbytes}")
        return self.address + offset


class Window:
    """A key to a region that is valid on one queue pair only. Made by `QueuePair.bind`; close it before either."""

    def __init__(self, window: Any, region: Region, rkey: int) -> None:
        self._window = window
        self.address = region.address
        self.rkey = rkey

    def close(self) -> None:
        """Invalidate the key. Idempotent."""
        self._window.close()


class Domain:
    """A protection domain: its keys are invalid in any other. Close its queue pairs first."""

    def __init__(self, device: Device) -> None:
        """Raises: VerbsError: the device's resources are exhausted."""
        self.device = device
        self.verbs = library()
        self._regions: list[Region] = []
        self._undo = ExitStack()
        self.pd = attempt("make a protection domain", lambda: self.verbs.pd.PD(device.context))
        self._undo.callback(self.pd.close)
        self._undo.callback(self._close_regions)

    def register(
        self,
        memory: mmap | memoryview,
        *,
        remote_write: bool = False,
        remote_read: bool = False,
        window: bool = False,
        local_write: bool = False,
    ) -> Region:
        """Let the device read ``memory``. On request: let peers write or read it, let windows be bound on it, or let
        local reads write into it.

        Raises: VerbsError: RLIMIT_MEMLOCK, or a read-only mapping.
        """
        e, nbytes = self.verbs.enums, len(memory)
        access = self._access(remote_write, remote_read) | (e.IBV_ACCESS_MW_BIND if window else 0)
        access |= e.IBV_ACCESS_LOCAL_WRITE if local_write or window else 0
        export = ctypes.c_char.from_buffer(memory)  # keeps the mapping alive: the device does not
        return self._register_at(ctypes.addressof(export), nbytes, access, export)

    def register_at(
        self, address: int, nbytes: int, *, remote_write: bool = False, remote_read: bool = False
    ) -> Region:
        """As `register`, for memory that the caller keeps mapped until the region is closed: device memory, by a
        pointer of its driver, where the kernel can pin it (nvidia-peermem; never run). Raises: VerbsError."""
        return self._register_at(address, nbytes, self._access(remote_write, remote_read), None)

    def register_dmabuf(
        self, fd: int, offset: int, nbytes: int, *, remote_write: bool = False, remote_read: bool = False
    ) -> Region:
        """As `register`, for a range of a dma-buf; ``address``, for peers, is ``offset``. Never run: the kernel needs a
        driver that supports it, and `rdma_rxe` does not. Raises: VerbsError."""
        access = self._access(remote_write, remote_read)
        made = attempt(
            f"register {nbytes} bytes of a dma-buf",
            lambda: self.verbs.mr.DmaBufMR(self.pd, nbytes, access, dmabuf=fd, offset=offset),
        )
        return self._kept(Region(made, None, offset, nbytes))

    def _access(self, remote_write: bool, remote_read: bool) -> int:
        """Access flags. Remote write requires local write."""
        e = self.verbs.enums
        access: int = e.IBV_ACCESS_REMOTE_WRITE | e.IBV_ACCESS_LOCAL_WRITE if remote_write else 0
        return access | (e.IBV_ACCESS_REMOTE_READ if remote_read else 0)

    def _register_at(self, address: int, nbytes: int, access: int, export: Any) -> Region:
        made = attempt(f"register {nbytes} bytes", lambda: self.verbs.mr.MR(self.pd, nbytes, access, address=address))
        return self._kept(Region(made, export, address, nbytes))

    def _kept(self, region: Region) -> Region:
        self._regions = [each for each in self._regions if each._region is not None] + [region]
        return region

    def close(self) -> None:
        """Close the regions, then the domain. Idempotent."""
        self._undo.close()

    def _close_regions(self) -> None:
        for region in self._regions:
            region.close()


# -- descriptors ------------------------------------------------------------------------------------------------------
def with_descriptor(make: Callable[[], Any], name: str) -> tuple[Any, int]:
    """The result of ``make``, and its event descriptor, made non-blocking: pyverbs holds the GIL while it waits for
    events. pyverbs 44 does not expose the descriptor; it is the one that did not exist before."""
    with opening:
        before = _event_descriptors()
        made = make()
        shown = getattr(made, name, None)
        if shown is None:
            (shown,) = _event_descriptors() - before
    fd = int(shown)
    fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_NONBLOCK)
    return made, fd


def _event_descriptors() -> set[int]:
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{name}") == _EVENT_LINK:
                found.add(int(name))
        except OSError:  # the listing's own descriptor
            continue
    return found


def _event_names() -> dict[int, str]:
    enums, prefix = library().enums, "IBV_EVENT_"
    return {int(getattr(enums, name)): name.removeprefix(prefix) for name in dir(enums) if name.startswith(prefix)}
