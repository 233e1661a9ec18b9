"""Fabric `verbs`: one reliable-connection queue pair per session, in its own protection domain.

The requester writes payload and header into the daemon's slots. The daemon writes results and answers into the
requester's memory. The last write of each carries the doorbell. Ends are exchanged against a ticket, over the
negotiation's connection (`offpath.bindings.wire.negotiating.Redeem`).
"""

from __future__ import annotations

import time
from mmap import mmap
from typing import Final, Literal

from offpath.bindings.errors import HeaderError, PeerGone
from offpath.bindings.memory.slots import SlotMemory, slot_stride
from offpath.bindings.verbs.domain import Device, Region, Window
from offpath.bindings.verbs.link import End, Link, LivenessChannel
from offpath.bindings.verbs.queue import WriteSegment
from offpath.bindings.wire.header import HEADER_PART_BYTES, copied_answer, parse_answer

Seal = Literal["pd", "mw"]
"""What the key of a session's slots is bound to: its protection domain, or by a memory window also its queue pair."""

_MOST_WRITES: Final = 2048
_RING_WAIT_S: Final = 5.0
_FLUSH_S: Final = 1.0


def doorbells(slots: int) -> int:
    """Doorbells that an end accepts before it must poll: submit and cancel of every slot, doubled because up to half
    may be taken and not yet granted again, and a reserve. A slot of a stream may have a third one on its way, since an
    abandoned stream rings its cancel and the next answer's; more than fit wait for a grant."""
    return 4 * slots + 16


def writes(device: Device, slots: int, nbytes: int) -> int:
    """Requests that an end may have in flight: those of all slots, within a limit, but at least those of two slots."""
    of_slot = 1 + -(-nbytes // device.message_bytes)
    return max(2 * of_slot, min(slots * of_slot, _MOST_WRITES)) + doorbells(slots)


class VerbsFabricSession(SlotMemory):
    """The daemon's end; implements `offpath.bindings.ports.FabricSession`. It has a queue pair from `open` to
    `hang_up`."""

    fails_alone: Final = True
    room_is_polled: Final = True

    def __init__(
        self, slots: int, payload_bytes: int, result_bytes: int, memory: tuple[int, int] | None = None
    ) -> None:
        """As `SlotMemory`."""
        super().__init__(slots, payload_bytes, result_bytes, memory)
        # After a restart the lengths are read from the answers themselves.
        self._lengths: dict[int, tuple[int, int] | None] = dict.fromkeys(range(slots)) if memory is not None else {}
        self._link: Link | None = None
        self._device: Device | None = None
        self._writable: list[Window | Region] = []

    def open(self, device: Device, peer: End, liveness: LivenessChannel, seal: Seal = "pd") -> End:
        """Hang up the old queue pair, connect a new one to the peer's, and return the daemon's end.

        Blocks while the memory is registered and the peer's address resolved. Raises: VerbsError: also if the device
        has no windows to seal with.
        """
        self.hang_up()
        link = Link(
            device, doorbells=doorbells(self.slot_count), writes=writes(device, self.slot_count, self.result_bytes)
        )
        try:
            slots = link.domain.register(self.slots.view, remote_write=seal == "pd", window=seal == "mw")
            self._answers_region = link.domain.register(self.answers.view)
            link.connect(peer, liveness, opens=False)
            self._writable = [link.bind(slots), slots] if seal == "mw" else [slots]
        except BaseException:
            link.close()
            raise
        self._link, self._device = link, device
        return link.end(self._writable[0])

    def write_answer(self, slot: int, header: bytes, inline: bytes, nbytes: int) -> None:
        """See `FabricSession.write_answer`."""
        super().write_answer(slot, header, inline, nbytes)
        self._lengths[slot] = len(header), nbytes

    def ring(self, imm: int) -> bool:
        """See `FabricSession.ring`."""
        if self._link is None:
            raise PeerGone("the other doorbell has no owner")
        return self._link.send(self._answer(imm), imm)

    def has_arrived(self) -> bool:
        """See `FabricSession.has_arrived`."""
        return self._link is None or self._link.has_arrived()

    def fileno(self) -> int:
        """See `FabricSession.fileno`."""
        return self._link.fileno() if self._link is not None else -1

    def poll(self) -> int | None:
        """See `FabricSession.poll`."""
        if self._link is None:
            raise PeerGone("the other doorbell has no owner")
        return self._link.take()

    def hang_up(self) -> None:
        """See `FabricSession.hang_up`. What was sent arrives; later writes of the peer do not."""
        if self._link is not None:
            link, self._link = self._link, None
            link.hang_up()
            for each in self._writable:  # a window before its region, which cannot be closed under it
                each.close()
            self._writable = []
            assert self._device is not None
            self._device.release(link)

    def close(self) -> None:
        """Hang up and unmap. Requests in flight keep the mapping alive."""
        self.hang_up()
        self.close_memory()

    def _answer(self, imm: int) -> list[WriteSegment]:
        """What must reach the requester before ``imm`` rings: the slot's answer if it was written, header last."""
        if imm not in self._lengths:
            return []
        assert self._link is not None
        assert self._link.peer is not None
        header, nbytes = self._lengths[imm] or self._restored(imm)
        at, there = imm * self.answer_stride, self._link.peer.memory
        parts = [WriteSegment(self._answers_region, at, header, there + at)] if header else []
        if nbytes:
            at += HEADER_PART_BYTES
            parts.insert(0, WriteSegment(self._answers_region, at, nbytes, there + at))
        return parts

    def _restored(self, slot: int) -> tuple[int, int]:
        try:
            header = self.read_answer(slot)
            return len(header), parse_answer(header, self.result_bytes).result_bytes
        except HeaderError:
            return 0, 0


class VerbsRequesterSession:
    """The requester's end; implements `offpath.bindings.ports.RequesterSession`. It fills slots locally and writes them
    to the daemon in `ring`; answers arrive locally. Call `connect` before use."""

    def __init__(self, device: Device, slots: int, payload_bytes: int, result_bytes: int) -> None:
        """Owns ``device``, also on failure. Raises: VerbsError."""
        self.slot_count = slots
        self.payload_bytes = payload_bytes
        self.result_bytes = result_bytes
        self._slot_stride = slot_stride(payload_bytes)
        self._answer_stride = slot_stride(result_bytes)
        self._device = device
        self._due: dict[int, tuple[int, int]] = {}
        self._closed = False
        try:
            self._link = Link(device, doorbells=doorbells(slots), writes=writes(device, slots, payload_bytes))
        except BaseException:
            device.close()
            raise
        try:
            self._slots = memoryview(mmap(-1, slots * self._slot_stride))
            self._answers = memoryview(mmap(-1, slots * self._answer_stride))
            self._slots_region = self._link.domain.register(self._slots)
            self._answers_region = self._link.domain.register(self._answers, remote_write=True)
        except BaseException:
            self.close()
            raise

    def fit(self, slots: int, payload_bytes: int, result_bytes: int) -> bool:
        """Adopt the granted geometry, which may have fewer slots than requested. False: other sizes were granted."""
        if slots > self.slot_count or (payload_bytes, result_bytes) != (self.payload_bytes, self.result_bytes):
            return False
        self.slot_count = slots
        return True

    def end(self) -> End:
        """The requester's end, for the daemon."""
        return self._link.end(self._answers_region)

    def connect(self, daemon: End, liveness: LivenessChannel) -> None:
        """Connect; both ends may then ring. Raises: VerbsError."""
        self._link.connect(daemon, liveness, opens=True)

    def payload_view(self, slot: int) -> memoryview:
        """See `RequesterSession.payload_view`."""
        at = slot * self._slot_stride + HEADER_PART_BYTES
        return self._slots[at : at + self.payload_bytes]

    def write_header(self, slot: int, header: bytes, nbytes: int) -> None:
        """See `RequesterSession.write_header`."""
        at = slot * self._slot_stride
        self._slots[at : at + len(header)] = header
        self._due[slot] = len(header), nbytes

    def answer_header(self, slot: int) -> bytes:
        """See `RequesterSession.answer_header`."""
        return copied_answer(self._answers, slot * self._answer_stride)

    def result_view(self, slot: int, nbytes: int) -> memoryview:
        """See `RequesterSession.result_view`."""
        at = slot * self._answer_stride + HEADER_PART_BYTES
        return self._answers[at : at + nbytes]

    def ring(self, imm: int) -> None:
        """See `RequesterSession.ring`."""
        parts = self._filled(imm)
        until: float | None = None
        while not self._link.send(parts, imm):
            now = time.monotonic()
            until = until or now + _RING_WAIT_S
            if now >= until:
                raise PeerGone(f"the daemon has read no doorbell for {_RING_WAIT_S:g} s")
            self._link.wait_for_room(until - now)
        self._due.pop(imm, None)

    def fileno(self) -> int:
        """See `RequesterSession.fileno`."""
        return self._link.fileno()

    def poll(self) -> list[int]:
        """See `RequesterSession.poll`."""
        return self._link.take_all()

    def wait(self, timeout_s: float | None) -> list[int]:
        """See `RequesterSession.wait`."""
        until = None if timeout_s is None else time.monotonic() + timeout_s
        while not (imms := self._link.take_all()):
            left = None if until is None else until - time.monotonic()
            if left is not None and left <= 0:
                return []
            self._link.wait(left)
        return imms

    def close(self) -> None:
        """Wait at most a second until rung doorbells have arrived; then hang up and release all resources.
        Idempotent."""
        if self._closed:
            return
        self._closed = True
        self._link.flush(_FLUSH_S)
        self._link.close()
        self._device.close()

    def _filled(self, imm: int) -> list[WriteSegment]:
        """What must reach the daemon before ``imm`` rings: payload, then header."""
        due = self._due.get(imm)  # a submission's immediate is its slot
        if due is None or self._link.peer is None:
            return []
        at, there = imm * self._slot_stride, self._link.peer.memory
        parts = [WriteSegment(self._slots_region, at, due[0], there + at)]
        if due[1]:
            at += HEADER_PART_BYTES
            parts.insert(0, WriteSegment(self._slots_region, at, due[1], there + at))
        return parts
