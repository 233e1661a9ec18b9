"""A session's memory in the daemon, independent of the fabric: slots, which the requester writes, and answers, which
the daemon writes. Both are sealed memfds, so that a service manager can keep them when the daemon's process ends."""

from __future__ import annotations

import contextlib
import os
from typing import Final

from offpath.bindings.errors import RegionError
from offpath.bindings.memory.region import Region, memfd_name, round_to_page
from offpath.bindings.native import take_request
from offpath.bindings.wire.header import FIXED_BYTES, HEADER_PART_BYTES, RequestHeader, copied_answer, copied_request


def slot_stride(nbytes: int) -> int:
    """Bytes from one slot to the next: header part plus capacity, in whole pages."""
    return round_to_page(HEADER_PART_BYTES + nbytes)


class SlotMemory:
    """Slots and answers. Owns both regions, which outlive a doorbell and, with a service manager, the process."""

    def __init__(
        self, slots: int, payload_bytes: int, result_bytes: int, memory: tuple[int, int] | None = None
    ) -> None:
        """Allocate and prefault, which blocks: call it from a thread. Or map ``memory`` of an earlier process: the
        descriptors of slots and answers in any order, which it takes over. Raises: RegionError."""
        self.slot_count = slots
        self.payload_bytes = payload_bytes
        self.result_bytes = result_bytes
        self.slot_stride = slot_stride(payload_bytes)
        self.answer_stride = slot_stride(result_bytes)
        sizes = slots * self.slot_stride, slots * self.answer_stride
        if memory is None:
            self.slots, self.answers = _two_regions(*sizes)
        else:
            self.slots, self.answers = _mapped(memory, sizes)
        self.header_bytes_read = 0
        self.answer_bytes_written = 0

    def read_header(self, slot: int) -> bytes:
        """See `FabricSession.read_header`."""
        copied = copied_request(self.slots.view, slot * self.slot_stride)
        self.header_bytes_read += len(copied)
        return copied

    def take_request(self, slot: int) -> tuple[RequestHeader, int]:
        """See `FabricSession.take_request`."""
        self.header_bytes_read += FIXED_BYTES
        taken = take_request(self.slots.view, slot * self.slot_stride, self.payload_bytes)
        self.header_bytes_read += len(taken[0].tensors)
        return taken

    def read_answer(self, slot: int) -> bytes:
        """See `FabricSession.read_answer`."""
        return copied_answer(self.answers.view, slot * self.answer_stride)

    def payload_offset(self, slot: int) -> int:
        """See `FabricSession.payload_offset`."""
        return slot * self.slot_stride + HEADER_PART_BYTES

    def result_offset(self, slot: int) -> int:
        """See `FabricSession.result_offset`."""
        return slot * self.answer_stride + HEADER_PART_BYTES

    def write_answer(self, slot: int, header: bytes, inline: bytes, nbytes: int) -> None:
        """See `FabricSession.write_answer`."""
        at = slot * self.answer_stride
        view = self.answers.view
        if inline:
            view[at + HEADER_PART_BYTES : at + HEADER_PART_BYTES + len(inline)] = inline
        view[at : at + len(header)] = header
        self.answer_bytes_written += len(header) + len(inline)

    def close_memory(self) -> None:
        """Unmap both. Idempotent."""
        self.slots.close()
        self.answers.close()


_SLOTS: Final = "offpath-slots"
_ANSWERS: Final = "offpath-answers"


def _two_regions(slot_bytes: int, answer_bytes: int) -> tuple[Region, Region]:
    slots = Region.create(_SLOTS, slot_bytes)
    try:
        answers = Region.create(_ANSWERS, answer_bytes)
    except RegionError:
        slots.close()
        raise
    slots.prefault()
    answers.prefault()
    return slots, answers


def _mapped(fds: tuple[int, int], sizes: tuple[int, int]) -> tuple[Region, Region]:
    """Each by the name of its memfd, which nobody can change: systemd keeps descriptors of one name in no order."""
    try:
        by_name = {memfd_name(fd): fd for fd in fds}
    except OSError as fault:
        _close(fds)
        raise RegionError(f"the session's memory: {fault.strerror}") from fault
    if by_name.keys() != {_SLOTS, _ANSWERS}:
        _close(fds)
        raise RegionError("these are not the slots and answers of a session")
    fds = by_name[_SLOTS], by_name[_ANSWERS]
    try:
        slots = Region(fds[0], 0, sizes[0])
    except RegionError:
        os.close(fds[1])
        raise
    try:
        return slots, Region(fds[1], 0, sizes[1])
    except RegionError:
        slots.close()
        raise


def _close(fds: tuple[int, int]) -> None:
    for fd in fds:
        with contextlib.suppress(OSError):  # one of them may not be open
            os.close(fd)
