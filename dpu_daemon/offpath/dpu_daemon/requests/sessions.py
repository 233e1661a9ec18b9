"""Serves one requester's session: its doorbell, its slots, and its protocol violations.

The session reads doorbells and headers and writes answers; the job book decides about requests. A peer that violates
the protocol affects only its own session. The session is closed after three violations in ten seconds, or after one
that no correct client can commit.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping
from typing import Final, Protocol

from offpath.bindings.errors import DoorbellError, HeaderError, PeerGone
from offpath.bindings.native import pack_answer
from offpath.bindings.ports import (
    IMM_CANCEL,
    IMM_CREDIT,
    IMM_NEXT,
    IMM_SLOT_MASK,
    IMM_SUBMIT,
    NEXT_SLOT_BITS,
    FabricSession,
)
from offpath.bindings.wire.codes import Reason, Status
from offpath.bindings.wire.header import RequestHeader
from offpath.dpu_daemon.requests.inflight import JobRef
from offpath.dpu_daemon.requests.pacing import Turns

logger = logging.getLogger(__name__)
VIOLATIONS: Final = 3
VIOLATION_WINDOW_NS: Final = 10_000_000_000
_NEXT_SLOT_MASK: Final = (1 << NEXT_SLOT_BITS) - 1
CROSSED: Final = 2
"""Further refusals that a requester may receive after the first, before it counts as ignoring the wait."""


def memory_name(session: int) -> str:
    """The service manager's name for a session's stored memory: its slots, then its answers."""
    return f"session-{session}"


class Ingress(Protocol):
    """Receives the requests of a session's peer and the session's state changes."""

    def submit(
        self, session: Session, slot: int, header: RequestHeader, header_crc: int, former: JobRef | None
    ) -> JobRef | None:
        """A valid request; the peer has read the answer of ``former``. None: requests are no longer accepted, and
        nothing is recorded."""

    def credit(self, ref: JobRef) -> None:
        """The peer has read the answer."""

    def took(self, ref: JobRef, number: int) -> None:
        """The peer has read an answer of a stream. Raises: DoorbellError: it is not the one in the slot."""

    def came_back(self, ref: JobRef, taken: int) -> None:
        """The peer resumes, and has read so many answers of the job's stream."""

    def cancel(self, ref: JobRef) -> None:
        """The peer cancels the job."""

    def lost(self, session: Session, detail: str) -> None:
        """The peer's connection broke."""

    def ended(self, session: Session, code: str, detail: str) -> None:
        """The session has ended: its peer violated the protocol."""

    def violated(self) -> None:
        """The peer violated the protocol; this alone does not end the session."""


class Session:
    """Owns the fabric session. While it is detached (the peer's connection is lost), its jobs continue and their
    answers are written; a peer that reconnects gets a doorbell for each answer that it has not taken."""

    def __init__(self, ingress: Ingress, number: int, tenant: str, fabric: FabricSession, turns: Turns) -> None:
        self.number = number
        self.tenant = tenant
        self.fabric = fabric
        self.is_closed = False
        self._ingress = ingress
        self._loop = asyncio.get_running_loop()
        self._slots: list[JobRef | None] = [None] * fabric.slot_count
        self._unsent: deque[int] = deque()
        self._violations: deque[int] = deque(maxlen=VIOLATIONS)
        self._end: asyncio.Handle | None = None
        self._when_answered: Callable[[], None] | None = None
        self._pause: asyncio.TimerHandle | None = None
        self.turns = turns
        self.is_parked = False
        """The loop does not watch this session; see `offpath.dpu_daemon.requests.pacing`."""
        self._waits_until_ns = 0
        self._crossed = 0
        self._fd = -1
        if fabric.fileno() >= 0:
            self.attach()

    @property
    def is_attached(self) -> bool:
        """True while a peer is connected."""
        return self._fd >= 0

    def attach(self) -> None:
        """The fabric has a new doorbell: watch it, and ring it for the answers that are not taken."""
        self._fd = self.fabric.fileno()
        self._loop.add_reader(self._fd, self._readable)
        for slot, ref in enumerate(self._slots):
            if ref is not None and ref.is_in_slot:
                self.ring(slot)

    def detach(self) -> None:
        """Disconnect the peer but keep the session's memory. Idempotent."""
        if self._fd < 0:
            return
        if self._pause is not None:
            self._pause.cancel()
            self._pause = None
        elif self.is_parked:
            self.turns.forget(self)
        else:
            self._loop.remove_reader(self._fd)
        if self._unsent:
            self._unsent.clear()
            if not self.fabric.room_is_polled:
                self._loop.remove_writer(self._fd)
        self._fd = -1
        self.fabric.hang_up()

    # -- resuming -------------------------------------------------------------------------------------------------
    def restore(self, ref: JobRef) -> None:
        """After a restart: put a job back into its slot."""
        self._slots[ref.slot] = ref

    def refs(self) -> list[JobRef]:
        """The jobs whose answer is not known to be taken."""
        return [ref for ref in self._slots if ref is not None]

    def take_stock(self, unanswered: Mapping[int, int]) -> dict[int, bool]:
        """Which of the ``unanswered`` request ids are answered: id → answered? Other answers count as taken.
        ``unanswered``: by id, how many answers of its stream the peer has taken."""
        found = {}
        for ref in self.refs():
            if ref.header.request_id in unanswered:
                if ref.stream is not None and not ref.is_answered:
                    self._ingress.came_back(ref, unanswered[ref.header.request_id])
                found[ref.header.request_id] = ref.is_answered
            elif ref.is_answered:
                self._slots[ref.slot] = None
                self._ingress.credit(ref)
        return found

    def _readable(self) -> None:
        """One doorbell per loop turn: sessions alternate, and no extra read ends in an exception for "empty"."""
        turns = self.turns
        if turns.is_paused:
            self._loop.remove_reader(self._fd)
            turns.park(self)
            return
        clock, share = turns.now_ns, turns.share
        since_ns = clock()
        self.take_doorbell()
        now_ns = clock()
        share.used_ns += now_ns - since_ns  # `Turns.charge`, inlined: a call costs as much as all of this
        if share.used_ns >= share.limit_ns:
            turns.settle(now_ns)

    def take_doorbell(self) -> bool:
        """Handle one doorbell, then send or end if the read made that possible. False: there was no doorbell."""
        imm = None
        try:
            imm = self.fabric.poll()
            if imm is not None:
                self._doorbell(imm)
            if self._unsent and self.fabric.room_is_polled:
                self._send()
            elif self._when_answered is not None:  # the last doorbells may have arrived
                self._end_if_answered()
        except PeerGone as gone:
            self._ingress.lost(self, str(gone))
        except DoorbellError as broken:
            self._ingress.violated()
            self._ingress.ended(self, broken.code, broken.detail)
        return imm is not None

    def unpark(self) -> None:
        """See `offpath.dpu_daemon.requests.pacing.Waiting.unpark`."""
        self._loop.add_reader(self._fd, self._readable)

    def _doorbell(self, imm: int) -> None:
        kind, slot = imm >> 24, imm & IMM_SLOT_MASK
        if kind == IMM_NEXT:
            slot &= _NEXT_SLOT_MASK
        if slot >= len(self._slots):
            raise DoorbellError("slot", f"{slot} of {len(self._slots)}")
        ref = self._slots[slot]
        if kind == IMM_SUBMIT:
            if len(self._unsent) >= len(self._slots):
                raise DoorbellError("answers_unread", f"{len(self._unsent)} unread answers, {len(self._slots)} slots")
            if ref is not None:
                if not ref.is_answered:
                    raise DoorbellError("slot_in_use", str(slot))
                self._slots[slot] = None
            self._submit(slot, ref)
        elif kind == IMM_CREDIT:
            if ref is not None and ref.is_answered:
                self._ingress.credit(ref)
                self._slots[slot] = None
        elif kind == IMM_CANCEL:
            if ref is not None and not ref.is_answered:
                self._ingress.cancel(ref)
        elif kind == IMM_NEXT:
            if ref is not None and not ref.is_answered:
                self._ingress.took(ref, (imm & IMM_SLOT_MASK) >> NEXT_SLOT_BITS)
        else:
            raise DoorbellError("immediate_kind", str(kind))

    def _submit(self, slot: int, former: JobRef | None) -> None:
        """``former``: the slot's previous job, whose answer is now taken."""
        try:
            header, header_crc = self.fabric.take_request(slot)
        except HeaderError as broken:
            self._turn_down(slot, former, 0, Reason.BAD_HEADER)
            self._violated(broken)
            return
        ref = self._ingress.submit(self, slot, header, header_crc, former)
        if ref is None:
            self._turn_down(slot, former, header.request_id, Reason.JOURNAL_FAILED)
            return
        self._slots[slot] = ref

    def _turn_down(self, slot: int, former: JobRef | None, request_id: int, reason: Reason) -> None:
        """Reject a request that never becomes a job. The slot's former job is credited first: otherwise a restart would
        not find its answer in the slot and would write it over this one."""
        if former is not None:
            self._ingress.credit(former)
        answer = pack_answer(request_id, Status.REJECTED, reason)
        self.fabric.write_answer(slot, answer, b"", 0)
        self.ring(slot)

    def _violated(self, broken: HeaderError) -> None:
        now_ns = self.turns.now_ns()
        self._ingress.violated()
        self._violations.append(now_ns)
        if len(self._violations) == VIOLATIONS and now_ns - self._violations[0] < VIOLATION_WINDOW_NS:
            self._ingress.ended(self, broken.code, broken.detail)

    def ring(self, slot: int) -> None:
        """Signal the peer that ``slot`` is answered: at once, or when its doorbell has room."""
        if self._fd < 0:
            self._end_if_answered()
            return
        try:
            if self._unsent or not self.fabric.ring(slot):
                if not self._unsent and not self.fabric.room_is_polled:
                    self._loop.add_writer(self._fd, self._writable)
                self._unsent.append(slot)
            self._end_if_answered()
        except PeerGone as gone:  # deferred: the book may be handling an event
            self._loop.call_soon(self._ingress.lost, self, str(gone))

    def _writable(self) -> None:
        if self._send():
            self._loop.remove_writer(self._fd)

    def _send(self) -> bool:
        """Send the queued doorbells. True: the queue is empty."""
        try:
            while self._unsent:
                if not self.fabric.ring(self._unsent[0]):
                    return False
                self._unsent.popleft()
        except PeerGone:
            self._unsent.clear()
        self._end_if_answered()
        return True

    def when_answered(self, end: Callable[[], None], bound_s: float) -> None:
        """Call ``end`` soon after all answers are written and all due doorbells have arrived, at the latest after
        ``bound_s``. (A decided answer may wait for a result that is still being copied into its slot.)"""
        self._when_answered = end
        self._end = self._loop.call_later(bound_s, end)
        self._end_if_answered()

    def _end_if_answered(self) -> None:
        if self._when_answered is None or self._unsent or not all(ref.is_answered for ref in self.refs()):
            return
        if not self.fabric.has_arrived():
            return
        if self._end is not None:
            self._end.cancel()
        self._end = self._loop.call_soon(self._when_answered)
        self._when_answered = None

    def on_wait(self, wait_ms: int) -> None:
        """The peer was refused for ``wait_ms``. If it does not wait, its doorbells are not read for ``wait_ms``. A few
        doorbells are tolerated: it may have rung them before it read the refusal."""
        now_ns = self.turns.now_ns()
        if now_ns >= self._waits_until_ns:
            self._waits_until_ns = now_ns + wait_ms * 1_000_000
            self._crossed = 0
        elif self._crossed < CROSSED:
            self._crossed += 1
        elif self._pause is None and self._fd >= 0:
            if self.is_parked:
                self.turns.forget(self)
            else:
                self._loop.remove_reader(self._fd)
            self._pause = self._loop.call_later(wait_ms / 1e3, self._unpause)

    def _unpause(self) -> None:
        self._pause = None
        self._loop.add_reader(self._fd, self._readable)

    def close(self) -> None:
        """Disconnect the peer and unmap the memory, after copies in flight. Idempotent."""
        if self.is_closed:
            return
        self.is_closed = True
        if self._end is not None:
            self._end.cancel()
        self.detach()
        self.fabric.close()
