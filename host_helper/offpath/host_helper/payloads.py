"""Requesters' memory in a worker, for the copy engine `cuda`: mapped and pinned once, then the source of payloads.

The daemon sends a session's memory before the first payload of it, says which regions to drop, and holds the bounds;
the worker holds them too. What cannot be pinned is copied unpinned, which is slower. The lane's stream orders a copy
before the kernel that uses it, so nothing here waits, except before a region is unmapped.
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass

from offpath.bindings.errors import DeviceError, DeviceGone, HostMessageError
from offpath.bindings.memory.borrowed import BorrowedMemory
from offpath.bindings.ports import Lane
from offpath.bindings.wire import regions

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Region:
    memory: BorrowedMemory
    is_pinned: bool


class Payloads:
    """The regions of one lane's worker, by number."""

    def __init__(self, lane: Lane, name: str) -> None:
        """``name``: of the lane, for the log."""
        self._lane = lane
        self._name = name
        self._regions: dict[int, _Region] = {}
        self.pinned_bytes = 0
        """Of the regions that are pinned."""
        self._has_warned = False
        self._loaded = 0
        """Bytes of the payload that was copied last and not launched."""

    @property
    def count(self) -> int:
        """Regions that are mapped."""
        return len(self._regions)

    def handle(self, message: bytes, fds: tuple[int, ...]) -> bytes:
        """Carry out the messages of this engine at the start of ``message``; returns what follows them, which may be
        nothing. Takes ownership of ``fds``.

        Raises: HostMessageError: it breaks the protocol. RegionError: the memory cannot be mapped. DeviceError: the
        device failed.
        """
        try:
            while message and message[0] in regions.KINDS:
                first, message = regions.split(message)
                self._carry_out(regions.parse(first), fds)
            return message
        finally:
            for fd in fds:
                os.close(fd)

    def _carry_out(
        self, order: regions.RegionCopy | regions.RegionOffer | regions.RegionDrop, fds: tuple[int, ...]
    ) -> None:
        if isinstance(order, regions.RegionOffer):
            self._map(order, fds)
        elif isinstance(order, regions.RegionDrop):
            self._drop(order.region)
        else:
            self._copy(order)

    def take(self, nbytes: int) -> None:
        """A launch on ``nbytes`` of payload follows. Raises: HostMessageError: its payload was not copied."""
        if nbytes and nbytes != self._loaded:
            raise HostMessageError("not_copied", f"a launch on {nbytes} bytes after a copy of {self._loaded}")
        self._loaded = 0

    def clear(self) -> None:
        """A new connection: the daemon sends again what it uses. A payload that was copied stays in the lane. Raises:
        DeviceError: the device failed."""
        for number in list(self._regions):
            self._drop(number)

    def _map(self, offer: regions.RegionOffer, fds: tuple[int, ...]) -> None:
        if len(fds) != 1:
            raise HostMessageError("region_descriptors", str(len(fds)))
        if offer.region in self._regions:
            raise HostMessageError("region_twice", str(offer.region))
        if len(self._regions) >= regions.MOST_REGIONS:
            raise HostMessageError("too_many_regions", str(len(self._regions)))
        memory = BorrowedMemory(fds[0], offer.nbytes, is_writable=offer.is_writable)
        self._regions[offer.region] = _Region(memory, self._pin(memory))

    def _pin(self, memory: BorrowedMemory) -> bool:
        """False: it is not pinned. Raises: DeviceGone."""
        if self.pinned_bytes + memory.nbytes > regions.MOST_PINNED_BYTES:
            self._warn(f"{memory.nbytes} bytes beside {self.pinned_bytes} exceed {regions.MOST_PINNED_BYTES}")
            return False
        try:
            self._lane.pin(memory.address, memory.nbytes)
        except DeviceGone:
            raise
        except DeviceError as fault:  # RLIMIT_MEMLOCK, no memory, a driver that pins no such mapping
            self._warn(str(fault))
            return False
        self.pinned_bytes += memory.nbytes
        return True

    def _warn(self, why: str) -> None:
        """Once per lane: every session's memory may fail alike."""
        if not self._has_warned:
            self._has_warned = True
            logger.warning("%s: payloads are copied from unpinned memory, which is slower: %s", self._name, why)

    def _drop(self, number: int) -> None:
        region = self._regions.pop(number, None)
        if region is None:
            raise HostMessageError("no_region", str(number))
        self._lane.synchronize()  # a copy out of it may be in flight
        if region.is_pinned:
            self.pinned_bytes -= region.memory.nbytes
            self._lane.unpin(region.memory.address)
        region.memory.close()

    def _copy(self, copy: regions.RegionCopy) -> None:
        region = self._regions.get(copy.region)
        if region is None:
            raise HostMessageError("no_region", str(copy.region))
        if copy.offset + copy.nbytes > region.memory.nbytes:
            raise HostMessageError("region_bounds", f"{copy.nbytes} bytes at {copy.offset} of {region.memory.nbytes}")
        if copy.at + copy.nbytes > self._lane.landing_bytes:
            raise HostMessageError("lane_bounds", f"{copy.nbytes} bytes at {copy.at} of {self._lane.landing_bytes}")
        self._lane.load(copy.at, region.memory.address + copy.offset, copy.nbytes)
        self._loaded = copy.at + copy.nbytes
