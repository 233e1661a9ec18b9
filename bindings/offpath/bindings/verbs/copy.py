"""Copy engine `verbs`: payloads from slots into lanes, and results back, by RDMA to a device of the same node.

Each imported lane has its own reliable connection, so that its failure ends no other lane's copies. Local memory is
registered without remote access. The lane's worker determines where the lane's bytes lie and which access they permit
(`offpath.bindings.verbs.lane`).
"""

from __future__ import annotations

import os
import secrets
import select
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from ipaddress import IPv6Address
from typing import Final

from offpath.bindings.errors import DeviceError, RegionError, ResourceClosed, VerbsError
from offpath.bindings.memory.region import Region
from offpath.bindings.memory.registry import Registry
from offpath.bindings.ports import Invitation, Memory, MemoryExport
from offpath.bindings.transfer import Copy, SegmentedCopyEngine, cut
from offpath.bindings.verbs.domain import Device, Domain
from offpath.bindings.verbs.domain import Region as Registered
from offpath.bindings.verbs.ends import READS, describe, described, described_half
from offpath.bindings.verbs.neighbours import answers
from offpath.bindings.verbs.queue import PSN_MASK, Address, QueuePair
from offpath.bindings.verbs.queue_pairs_in_use import QueuePairsInUse
from offpath.bindings.verbs.route import LocalRange, RemoteRange, Route, Segment

WRITES: Final = 64
"""Messages in flight per lane; the rest waits."""
_TIMEOUT: Final = 16  # 268 ms, seven times: copies are long, machines may be busy, a dead peer is detected otherwise
_FATAL: Final = "DEVICE_FATAL"


class VerbsInvitation:
    """Implements `offpath.bindings.ports.Invitation`: a queue pair that is not connected."""

    def __init__(self, queue: QueuePair) -> None:
        self._queue: QueuePair | None = queue
        self.descriptor = describe(queue.address)

    def take(self) -> QueuePair:
        """Consume it. Raises: RegionError: it was used before."""
        if self._queue is None:
            raise RegionError("the invitation was used before")
        queue, self._queue = self._queue, None
        return queue

    def close(self) -> None:
        """See `Invitation.close`."""
        if self._queue is not None:
            self.take().close()


class VerbsCopyEngine(SegmentedCopyEngine[Route]):
    """Implements `offpath.bindings.ports.CopyEngine`. Not thread-safe."""

    def __init__(self, device: Device) -> None:
        """Owns ``device``, also on failure. Raises: VerbsError."""
        super().__init__(Route)
        self.ends_in_use: Final = QueuePairsInUse()
        self._device = device
        self._by_fd: dict[int, Route] = {}
        self._invitations: list[VerbsInvitation] = []
        with ExitStack() as made:
            made.callback(device.close)
            self._domain = Domain(device)
            made.callback(self._domain.close)
            # Its targets must be writable by the peer, which is this engine itself. So the domain has no other peer.
            self._own_domain = Domain(device)
            made.callback(self._own_domain.close)
            self._registry = Registry(partial(_register, self._domain, by_peers=False))
            # The peer's write writes the target; a local read does not.
            self._own_registry = Registry(partial(_register, self._own_domain, by_peers=True))
            self._own: Route | None = None
            self._open_descriptor(made)
            self._epoll.register(device.fileno(), select.EPOLLIN)
            made.callback(self._close_invitations)
            self._undo = made.pop_all()

    # -- linking ------------------------------------------------------------------------------------------------------
    def invite(self) -> Invitation | None:
        """See `CopyEngine.invite`: a fresh queue pair, to which the lane's worker connects. Raises: VerbsError."""
        if self._closed:
            raise ResourceClosed("copy engine")
        invitation = VerbsInvitation(self._queue(self._domain))
        self._invitations = [each for each in self._invitations if each._queue is not None] + [invitation]
        return invitation

    def import_memory(self, export: MemoryExport, invitation: Invitation | None = None) -> Memory:
        """See `CopyEngine.import_memory`. A key or an address that is not the exporter's fails on first use. That ends
        this lane's copies only."""
        for fd in export.fds:
            os.close(fd)
        if self._closed or not isinstance(invitation, VerbsInvitation):
            raise RegionError("an import requires an invitation of this engine, which must be open")
        queue = invitation.take()
        try:
            remote = [RemoteRange(*described_half(export.descriptor, name)) for name in ("landing", "result")]
            if not any(each.nbytes for each in remote):
                raise RegionError("an export of no bytes")
            peer = described(export.descriptor)
            self._must_answer(peer)
            if not self.ends_in_use.take(peer):
                raise RegionError("the exported memory's queue pair belongs to another lane or session")
            queue.on_close.append(partial(self.ends_in_use.give_back, peer))
            try:
                queue.connect(peer)
            except DeviceError as fault:
                raise RegionError(f"the exported memory cannot be reached: {fault}") from None
        except BaseException:
            queue.close()
            raise
        return self._route(queue, remote)

    # -- within -------------------------------------------------------------------------------------------------------
    def _close_invitations(self) -> None:
        for invitation in self._invitations:
            invitation.close()

    def _must_answer(self, peer: Address) -> None:
        """Raises: RegionError: no neighbour has that address."""
        address, ours = IPv6Address(peer.gid).ipv4_mapped, self._device.choice.gid.ipv4
        assert address is not None
        assert ours is not None
        if not answers(address, ours):
            raise RegionError(f"the exported memory cannot be reached: no neighbour answers for {address}")

    def _queue(self, domain: Domain) -> QueuePair:
        psn = secrets.randbits(24) & PSN_MASK
        queue = QueuePair(domain, psn=psn, writes=WRITES, immediates=0, reads=READS, timeout=_TIMEOUT)
        if not self.ends_in_use.take(queue.address):
            queue.close()
            raise VerbsError("make a queue pair", "a peer had named it as its own before it was made")
        queue.on_close.append(partial(self.ends_in_use.give_back, queue.address))
        return queue

    def _route(self, queue: QueuePair, remote: Sequence[RemoteRange]) -> Route:
        fd = queue.fileno()

        def release() -> None:
            self._routes.remove(self._by_fd.pop(fd))
            self._epoll.unregister(fd)
            queue.close()

        self._epoll.register(fd, select.EPOLLIN)
        self._by_fd[fd] = route = Route(queue, remote, release)
        self._routes.append(route)
        return route

    def _start(self, copy: Copy, source: Memory, source_offset: int, target: Memory, target_offset: int) -> list[Copy]:
        if isinstance(source, Region) and isinstance(target, Region):
            return self._within(copy, source, source_offset, target, target_offset)
        if isinstance(source, Region):
            assert isinstance(target, Route)
            return self._across(copy, target, target_offset, source, source_offset, is_read=False)
        assert isinstance(source, Route)
        assert isinstance(target, Region)
        return self._across(copy, source, source_offset, target, target_offset, is_read=True)

    def _across(self, copy: Copy, route: Route, there: int, near: Region, here: int, *, is_read: bool) -> list[Copy]:
        """Between local memory and a lane. Raises: VerbsError."""
        if route.failure:
            raise VerbsError(route.failure)
        local = LocalRange(copy.use(self._registry, near, is_written=is_read), here, copy.nbytes)
        return route.start(self._segments(copy, is_read, local, route.ranges(there, copy.nbytes)))

    def _within(self, copy: Copy, source: Region, source_at: int, target: Region, target_at: int) -> list[Copy]:
        """Between two local memories, by a queue pair that is connected to itself. Raises: VerbsError."""
        if self._own is None or self._own.failure:
            queue = self._queue(self._own_domain)
            try:
                queue.connect(queue.address)
            except BaseException:
                queue.close()
                raise
            self._own = self._route(queue, ())
        local = LocalRange(copy.use(self._own_registry, source, is_written=False), source_at, copy.nbytes)
        there = copy.use(self._own_registry, target, is_written=True)
        remote = RemoteRange(there.address + target_at, there.rkey, copy.nbytes)
        return self._own.start(self._segments(copy, False, local, [remote]))

    def _segments(self, copy: Copy, is_read: bool, local: LocalRange, remote: Sequence[RemoteRange]) -> list[Segment]:
        pairs = cut([local], remote, self._device.message_bytes)
        return [Segment(copy, is_read, here, there) for here, there in pairs]

    def _turn(self, timeout_s: float) -> None:
        for fd, _ in self._epoll.poll(timeout_s):
            if fd in self._by_fd:
                self._end(self._by_fd[fd].take())
            elif fd == self._device.fileno():
                self._look_at_device()

    def _look_at_device(self) -> None:
        """Abort all copies if the device is lost: it may complete nothing more."""
        try:
            if _FATAL not in self._device.events():
                return
            self._broken = _FATAL
        except DeviceError as fault:
            self._broken = str(fault)
        self._epoll.unregister(self._device.fileno())
        self._give_up(f"the device: {self._broken}")


def _register(domain: Domain, memory: Region, is_written: bool, *, by_peers: bool) -> Registered:
    return domain.register(memory.view, local_write=is_written, remote_write=is_written and by_peers)
