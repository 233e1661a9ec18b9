"""Copy engine `verbs`: payloads from slots into lanes, results back, by RDMA to a device of the same node.

Each imported lane has a reliable connection of its own, so that one that fails ends nobody else's copies. What is ours
is registered where no key works from outside; where the bytes of a lane lie, and what may be done to them, its worker
says (`offpath.bindings.verbs.lane`).
"""

from __future__ import annotations

import ctypes
import os
import secrets
import select
import time
from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from ipaddress import IPv6Address
from typing import Final

from offpath.bindings.errors import DeviceError, RegionError, ResourceClosed, VerbsError
from offpath.bindings.memory.region import Region
from offpath.bindings.memory.registry import Registry
from offpath.bindings.ports import CopyCompletion, Invitation, Memory, MemoryExport
from offpath.bindings.verbs.domain import Device, Domain
from offpath.bindings.verbs.domain import Region as Registered
from offpath.bindings.verbs.ends import READS, describe, described, described_half
from offpath.bindings.verbs.neighbours import answers
from offpath.bindings.verbs.queue import PSN_MASK, Address, QueuePair
from offpath.bindings.verbs.route import Copy, Route, Stretch
from offpath.bindings.verbs.taken import TakenEnds

IN_PLACE_BYTES: Final = 64 << 10
"""Between two memories of ours, up to this, the processor copies: a work request costs more."""
WRITES: Final = 64
"""Messages of a lane that are under way at once; what exceeds it waits."""
_CLOSE_S: Final = 5.0
_TIMEOUT: Final = 16  # 268 ms, seven times: a copy is long, a busy machine too, and who died is known by other ways
_FATAL: Final = "DEVICE_FATAL"


class VerbsInvitation:
    """Implements `offpath.bindings.ports.Invitation`: a queue pair that is not connected yet."""

    def __init__(self, queue: QueuePair) -> None:
        self._queue: QueuePair | None = queue
        self.descriptor = describe(queue.address)

    def take(self) -> QueuePair:
        """Use it up. Raises: RegionError: it is already."""
        if self._queue is None:
            raise RegionError("the invitation was used before")
        queue, self._queue = self._queue, None
        return queue

    def close(self) -> None:
        """See `Invitation.close`."""
        if self._queue is not None:
            self.take().close()


class VerbsCopyEngine:
    """Implements `offpath.bindings.ports.CopyEngine`. Not for several threads."""

    def __init__(self, device: Device) -> None:
        """Owns ``device``, also on failure. Raises: VerbsError."""
        self.bytes_copied = 0
        self.taken: Final = TakenEnds()
        self._device = device
        self._routes: dict[int, Route] = {}
        self._invitations: list[VerbsInvitation] = []
        self._done: deque[CopyCompletion] = deque()
        self._is_marked = False
        self._broken = ""
        self._closed = False
        with ExitStack() as made:
            made.callback(device.close)
            self._domain = Domain(device)
            made.callback(self._domain.close)
            # Here the target must be open to the peer, which is ourselves; so nobody else is in this domain.
            self._own_domain = Domain(device)
            made.callback(self._own_domain.close)
            self._registry = Registry(partial(_register, self._domain, by_peers=False))
            # What is written there is written by the peer, not by what we read.
            self._own_registry = Registry(partial(_register, self._own_domain, by_peers=True))
            self._own: Route | None = None
            self._epoll = select.epoll()
            made.callback(self._epoll.close)
            self._mark = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
            made.callback(os.close, self._mark)
            self._epoll.register(self._mark, select.EPOLLIN)
            self._epoll.register(device.fileno(), select.EPOLLIN)
            self._undo = made.pop_all()

    # -- linking ------------------------------------------------------------------------------------------------------
    def invite(self) -> Invitation | None:
        """See `CopyEngine.invite`: the lane's worker connects to a fresh queue pair. Raises: VerbsError."""
        self._check_open()
        invitation = VerbsInvitation(self._queue(self._domain))
        self._invitations = [each for each in self._invitations if each._queue is not None] + [invitation]
        return invitation

    def import_memory(self, export: MemoryExport, invitation: Invitation | None = None) -> Memory:
        """See `CopyEngine.import_memory`. A key or an address that is not the exporter's shows when it is used: it ends
        this lane's copies, and nothing else."""
        for fd in export.fds:
            os.close(fd)
        if self._closed or not isinstance(invitation, VerbsInvitation):
            raise RegionError("a memory is imported against an invitation of this engine, while that is open")
        queue = invitation.take()
        try:
            far = [Stretch(*described_half(export.descriptor, name)) for name in ("landing", "result")]
            if not any(stretch.nbytes for stretch in far):
                raise RegionError("an export of no bytes")
            peer = described(export.descriptor)
            self._must_answer(peer)
            if not self.taken.take(peer):
                raise RegionError("the exported memory's queue pair is another lane's, or a session's")
            queue.on_close.append(partial(self.taken.give_back, peer))
            try:
                queue.connect(peer)
            except DeviceError as fault:
                raise RegionError(f"the exported memory cannot be reached: {fault}") from None
        except BaseException:
            queue.close()
            raise
        return self._route(queue, far)

    def reaches(self, memory: Memory) -> bool:
        """See `CopyEngine.reaches`."""
        return not (isinstance(memory, Route) and memory.failure)

    # -- copies -------------------------------------------------------------------------------------------------------
    def post(
        self, token: int, source: Memory, source_offset: int, target: Memory, target_offset: int, nbytes: int
    ) -> CopyCompletion | None:
        """See `CopyEngine.post`. The first copy with a memory of ours registers it, which takes its time.

        A lane that failed, a memory that cannot be registered: the copy completes at once, with an error.
        """
        self._check_open()
        _check(source, source_offset, nbytes)
        _check(target, target_offset, nbytes)
        if not nbytes:
            return CopyCompletion(token, None)
        try:
            if isinstance(source, Region) and isinstance(target, Region):
                if nbytes <= IN_PLACE_BYTES:
                    ctypes.memmove(target.address + target_offset, source.address + source_offset, nbytes)
                    self.bytes_copied += nbytes
                    return CopyCompletion(token, None)
                ended = self._within(token, source, source_offset, target, target_offset, nbytes)
            elif isinstance(source, Region) and isinstance(target, Route):
                far = target.stretches(target_offset, nbytes)
                ended = self._across(token, target, source, source_offset, far, is_read=False)
            elif isinstance(source, Route) and isinstance(target, Region):
                far = source.stretches(source_offset, nbytes)
                ended = self._across(token, source, target, target_offset, far, is_read=True)
            else:
                raise RegionError("one side of a copy by RDMA is memory of ours")
        except DeviceError as fault:
            return CopyCompletion(token, str(fault))
        self._end(ended)
        return None

    def fileno(self) -> int:
        """See `CopyEngine.fileno`."""
        return self._epoll.fileno()

    def poll(self) -> list[CopyCompletion]:
        """Take the finished copies; after `close` too, what was still in flight then."""
        if not self._closed:
            self._turn(0)
        done = list(self._done)
        self._done.clear()
        self._set_mark()
        return done

    def is_working(self) -> bool:
        """See `CopyEngine.is_working`: a lane's failure is not the engine's."""
        return not self._closed and not self._broken

    def close(self) -> None:
        """See `CopyEngine.close`."""
        if self._closed:
            return
        self._epoll.unregister(self._mark)  # what is done waits to be taken, and must not keep us awake
        until = time.monotonic() + _CLOSE_S
        while any(route.is_busy for route in self._routes.values()) and (left := until - time.monotonic()) > 0:
            self._turn(left)
        for route in list(self._routes.values()):
            self._end(route.fail("the copy engine was closed"))
        for invitation in self._invitations:
            invitation.close()
        self._closed = True
        self._undo.close()

    # -- within -------------------------------------------------------------------------------------------------------
    def _check_open(self) -> None:
        if self._closed:
            raise ResourceClosed("copy engine")

    def _must_answer(self, peer: Address) -> None:
        """Raises: RegionError: nobody near has that address."""
        address, ours = IPv6Address(peer.gid).ipv4_mapped, self._device.choice.gid.ipv4
        assert address is not None
        assert ours is not None
        if not answers(address, ours):
            raise RegionError(f"the exported memory cannot be reached: no neighbour answers for {address}")

    def _queue(self, domain: Domain) -> QueuePair:
        psn = secrets.randbits(24) & PSN_MASK
        queue = QueuePair(domain, psn=psn, writes=WRITES, immediates=0, reads=READS, timeout=_TIMEOUT)
        if not self.taken.take(queue.address):
            queue.close()
            raise VerbsError("make a queue pair", "somebody named it as its own before we had it")
        queue.on_close.append(partial(self.taken.give_back, queue.address))
        return queue

    def _route(self, queue: QueuePair, far: Sequence[Stretch]) -> Route:
        fd = queue.fileno()

        def part() -> None:
            del self._routes[fd]
            self._epoll.unregister(fd)
            queue.close()

        self._epoll.register(fd, select.EPOLLIN)
        self._routes[fd] = route = Route(queue, self._device.message_bytes, far, part)
        return route

    def _across(
        self, token: int, route: Route, near: Region, at: int, far: Sequence[Stretch], *, is_read: bool
    ) -> list[Copy]:
        """Between memory of ours and a lane. Raises: VerbsError."""
        if route.failure:
            raise VerbsError(route.failure)
        registration = self._registry.use(near, is_written=is_read)
        nbytes = sum(stretch.nbytes for stretch in far)
        return route.start(Copy(token, nbytes, is_read, [registration]), registration, at, far)

    def _within(
        self, token: int, source: Region, source_at: int, target: Region, target_at: int, nbytes: int
    ) -> list[Copy]:
        """Between memories of ours, by a queue pair that is connected to itself. Raises: VerbsError."""
        if self._own is None or self._own.failure:
            queue = self._queue(self._own_domain)
            try:
                queue.connect(queue.address)
            except BaseException:
                queue.close()
                raise
            self._own = self._route(queue, ())
        near = self._own_registry.use(source, is_written=False)
        try:
            there = self._own_registry.use(target, is_written=True)
        except VerbsError:
            near.release()
            raise
        far = [Stretch(there.region.address + target_at, there.region.rkey, nbytes)]
        return self._own.start(Copy(token, nbytes, False, [near, there]), near, source_at, far)

    def _turn(self, timeout_s: float) -> None:
        """Take in what has completed."""
        for fd, _ in self._epoll.poll(timeout_s):
            if fd in self._routes:
                self._end(self._routes[fd].take())
            elif fd == self._device.fileno():
                self._look_at_device()

    def _look_at_device(self) -> None:
        """A device that is lost may complete nothing more."""
        try:
            if _FATAL not in self._device.events():
                return
            self._broken = _FATAL
        except DeviceError as fault:
            self._broken = str(fault)
        self._epoll.unregister(self._device.fileno())
        for route in list(self._routes.values()):
            self._end(route.fail(f"the device: {self._broken}"))

    def _end(self, copies: list[Copy]) -> None:
        for copy in copies:
            copy.release()
            if copy.error is None:
                self.bytes_copied += copy.nbytes
            self._done.append(CopyCompletion(copy.token, copy.error))
        self._set_mark()

    def _set_mark(self) -> None:
        """What no queue pair shows keeps our descriptor readable until it is taken."""
        wanted = bool(self._done)
        if wanted is not self._is_marked and not self._closed:
            self._is_marked = wanted
            if wanted:
                os.eventfd_write(self._mark, 1)
            else:
                os.eventfd_read(self._mark)


def _register(domain: Domain, memory: Region, is_written: bool, *, by_peers: bool) -> Registered:
    return domain.register(memory.view, local_write=is_written, remote_write=is_written and by_peers)


def _check(memory: Memory, offset: int, nbytes: int) -> None:
    if not isinstance(memory, (Region, Route)):
        raise RegionError("the engine copies between regions and what it imported")
    if memory.closed if isinstance(memory, Region) else memory.is_closed:
        raise RegionError("copy with a closed region")
    if nbytes < 0 or offset < 0 or offset + nbytes > memory.nbytes:
        raise RegionError(f"copy of {nbytes} bytes leaves a region")
