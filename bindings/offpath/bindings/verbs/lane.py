"""The worker's end of the daemon's copies: a lane's memory, registered at the host's device, and a queue pair.

The landing buffer may be written by the daemon, the result half may be read, and nothing else. Ran with memory of the
host's, on `rdma_rxe`. Memory of a GPU never did: neither by dma-buf nor by its pointer, which needs nvidia-peermem.
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
_WRITES: Final = 1  # we never write; a queue pair without a send queue there is not


class VerbsLaneExporter:
    """Implements `offpath.bindings.ports.LaneExporter`. Opens its device when it is first invited: after the fork."""

    needs_invitation: Final = True

    def __init__(self, choice: Choice, lane: Lane) -> None:
        self._choice = choice
        self._lane = lane
        self._domain: Domain | None = None
        self._queue: QueuePair | None = None
        self._halves: dict[str, int | str] = {}
        self._undo = ExitStack()

    def export(self, invitation: Mapping[str, int | str] | None = None) -> MemoryExport:
        """What lets the inviting engine in, and nobody else any more: what a daemon before it had under way does not
        land from here on. Blocks: opening and registering take milliseconds. Raises: VerbsError. RegionError: no
        invitation, or one that makes no sense."""
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
        """Queue pair, registrations, device. The memory is the lane's. Repeating it is harmless."""
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
