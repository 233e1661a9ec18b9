"""A MIG instance or a whole GPU as one process's memory, and its scrub before it changes its tenant."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from offpath.bindings.cuda.context import Context
from offpath.bindings.cuda.driver import OUT_OF_MEMORY
from offpath.bindings.cuda.kernels import ZeroCheck
from offpath.bindings.cuda.lane import BLOCK_UNIT, CudaLane
from offpath.bindings.cuda.share import MpsShare
from offpath.bindings.errors import CudaError, DeviceError
from offpath.bindings.memory.region import round_to_page

logger = logging.getLogger(__name__)
_LARGEST_PIECE: Final = 2 << 30


class CudaInstance:
    """Implements `InstanceMemory` for the GPU or MIG instance ``uuid``. One process opens one.

    ``others``: further GPUs that kernels use, see `Context`. Lanes are on the first."""

    def __init__(self, uuid: str, *, others: Sequence[str] = (), is_spinning: bool = False) -> None:
        """Raises: see `Context`."""
        self._context = Context(uuid, others=others, is_spinning=is_spinning)
        self._lanes: list[CudaLane] = []

    def require(self, share: MpsShare) -> None:
        """Check that this process has its share under MPS. Raises: MpsNotInForce."""
        share.check(self._context)

    def reserve(self, lane: int, lanes: int, landing_bytes: int, result_bytes: int) -> CudaLane:
        """See `InstanceMemory.reserve`. Each worker allocates its own lane; all of them must fit."""
        if not 0 <= lane < lanes:
            raise DeviceError(f"lane {lane} of {lanes}")
        share = round_to_page(landing_bytes) + round_to_page(result_bytes)
        _, total = self._context.memory()
        if share * lanes > total:
            raise DeviceError(f"{lanes} lanes of {share} bytes do not fit the instance's {total}")
        try:
            made = CudaLane(self._context, landing_bytes, result_bytes)
        except CudaError as fault:
            if fault.code == OUT_OF_MEMORY:
                free, total = self._context.memory()
                raise DeviceError(f"a lane of {share} bytes does not fit: {free} of {total} bytes are free") from fault
            raise
        self._lanes.append(made)
        return made

    def close(self) -> None:
        """Close lanes, then the context."""
        for lane in self._lanes:
            lane.close()
        self._lanes.clear()
        self._context.close()


def scrub(uuid: str) -> int:
    """Overwrite all memory of the instance that a process can get, and check it. Returns the bytes verified as zero:
    the driver keeps some for the context, page tables and rounding.

    Raises: DeviceError: bytes remained, or nothing could be allocated. CudaError, CudaLost, CudaMissing.
    """
    context = Context(uuid)
    try:
        stream = context.driver.call("cuStreamCreate", 0)
        check = ZeroCheck(context, stream)
        verified = 0
        for pointer, nbytes in _all_memory(context):
            context.driver.call("cuMemsetD8Async", pointer, 0, nbytes, stream)
            if not check.is_zero(pointer, nbytes):
                raise DeviceError(f"the scrub of {uuid} left bytes that are not zero")
            verified += nbytes
        free, total = context.memory()
        logger.info("%s: %d of %d bytes verified as zero, %d could not be allocated", uuid, verified, total, free)
    finally:
        context.close()
    if not verified:
        raise DeviceError(f"the scrub of {uuid} got no memory: another process holds it")
    return verified


def _all_memory(context: Context) -> list[tuple[int, int]]:
    """(address, bytes) of pieces that exhaust the device, from 2 GiB down to 2 MiB."""
    pieces = []
    size = _LARGEST_PIECE
    while size >= BLOCK_UNIT:
        try:
            pieces.append((int(context.driver.call("cuMemAlloc", size)), size))
        except CudaError as fault:
            if fault.code != OUT_OF_MEMORY:
                raise
            size //= 2
    return pieces
