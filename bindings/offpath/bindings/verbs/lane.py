"""Exports a lane from its worker to the copy engine `verbs`: registers its memory at the host's device, by a queue
pair.

The daemon may write the landing buffer and read the result half, nothing else. Run with host memory on `rdma_rxe`.
Never run with GPU memory: neither by dma-buf nor by its pointer, which needs nvidia-peermem.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Final

from offpath.bindings.errors import VerbsError
from offpath.bindings.ports import Lane, MemoryExport
from offpath.bindings.verbs.devices import Choice
from offpath.bindings.verbs.domain import Device, Domain, Region
from offpath.bindings.verbs.ends import READS, describe, describe_half, described
from offpath.bindings.verbs.queue import PSN_MASK, QueuePair

logger = logging.getLogger(__name__)
_WRITES: Final = 1  # the worker never writes, but a queue pair needs a send queue


class VerbsLaneExporter:
    """Implements `offpath.bindings.ports.LaneExporter`. Opens its device at the first invitation, after the fork."""

    needs_invitation: Final = True

    def __init__(self, choice: Choice, lane: Lane) -> None:
        self._choice = choice
        self._lane = lane
        self._domain: Domain | None = None
        self._queue: QueuePair | None = None
        self._halves: dict[str, int | str] = {}
        self._undo = ExitStack()

    def export(self, invitation: Mapping[str, int | str] | None = None) -> MemoryExport:
        """Give the inviting engine sole access: copies in flight of an earlier daemon are cut off. Blocks for
        milliseconds: it opens a device and registers memory. Raises: VerbsError. RegionError: no invitation, or an
        invalid one."""
        peer = described(invitation or {})
        if self._domain is None:
            self._open()
        assert self._domain is not None
        if self._queue is not None:
            self._queue.close()
        psn = secrets.randbits(24) & PSN_MASK
        self._queue = QueuePair(self._domain, psn=psn, writes=_WRITES, immediates=0, reads=READS)
        self._queue.connect(peer)
        return MemoryExport({**describe(self._queue.address), **self._halves})

    def close(self) -> None:
        """Close queue pair, registrations and device. The lane keeps the memory. Idempotent."""
        if self._queue is not None:
            self._queue.close()
            self._queue = None
        self._undo.close()
        self._domain = None

    def _open(self) -> None:
        with ExitStack() as made:
            device = Device(self._choice)
            made.callback(device.close)
            domain = Domain(device)
            made.callback(domain.close)
            landing, room = self._lane.landing_bytes, self._lane.result_bytes
            self._halves = self._half(domain, "landing", 0, landing) | self._half(domain, "result", landing, room)
            self._domain = domain
            self._undo = made.pop_all()

    def _half(self, domain: Domain, name: str, at: int, nbytes: int) -> dict[str, int | str]:
        if not nbytes:
            return describe_half(name, 0, 0, 0)
        region = self._register(domain, at, nbytes, is_landing=name == "landing")
        return describe_half(name, region.address, region.rkey, nbytes)

    def _register(self, domain: Domain, at: int, nbytes: int, *, is_landing: bool) -> Region:
        shared = self._lane.dmabuf()
        if shared is not None:
            fd, offset = shared
            try:
                return domain.register_dmabuf(
                    fd, offset + at, nbytes, remote_write=is_landing, remote_read=not is_landing
                )
            except VerbsError as fault:
                logger.info("the lane's memory is registered by its pointer: %s", fault)
        return domain.register_at(
            self._lane.peer_pointer + at, nbytes, remote_write=is_landing, remote_read=not is_landing
        )
