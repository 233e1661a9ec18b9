"""One requester's session in the shell: its doorbell, its slots, and the manners it is held to.

The session reads doorbells and headers and writes answers. What becomes of a request is the job book's affair. A peer
that breaks the rules costs only itself: three violations in ten seconds, or one that no honest client can commit,
and the session is closed.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING, Final

from offpath.bindings.errors import DoorbellError, HeaderError, PeerGone
from offpath.bindings.loopback.fabric import LoopbackFabricSession
from offpath.bindings.ports import IMM_CANCEL, IMM_CREDIT, IMM_SLOT_MASK, IMM_SUBMIT
from offpath.bindings.wire.codes import Reason, Status
from offpath.bindings.wire.header import RequestHeader, pack_answer, parse_request
from offpath.bindings.wire.host import Result

if TYPE_CHECKING:
    from offpath.dpu_daemon.daemon import Daemon
    from offpath.dpu_daemon.host import LaneLink

logger = logging.getLogger(__name__)
VIOLATIONS: Final = 3
VIOLATION_WINDOW_NS: Final = 10_000_000_000


class JobRef:
    """The shell's side of a job: where its bytes are. ``result`` waits here between worker and answer; ``fetching`` is
    the lane out of which a result is being copied, ``waiting`` a later attempt's result that comes next."""

    __slots__ = ("fetching", "header", "is_answered", "job", "result", "session", "slot", "waiting")

    def __init__(self, job: int, session: Session, slot: int, header: RequestHeader) -> None:
        self.job = job
        self.session = session
        self.slot = slot
        self.header = header
        self.result: Result | None = None
        self.is_answered = False
        self.fetching: LaneLink | None = None
        self.waiting: tuple[LaneLink, Result] | None = None


class Session:
    """Owns the fabric's end; lives until the peer goes, breaks the rules, or the daemon ends."""

    def __init__(self, daemon: Daemon, number: int, tenant: str, fabric: LoopbackFabricSession) -> None:
        self.number = number
        self.tenant = tenant
        self.fabric = fabric
        self.is_closed = False
        self._daemon = daemon
        self._loop = asyncio.get_running_loop()
        self._slots: list[JobRef | None] = [None] * fabric.slot_count
        self._unsent: deque[int] = deque()
        self._violations: deque[int] = deque(maxlen=VIOLATIONS)
        self._resume: asyncio.TimerHandle | None = None
        self._fd = fabric.fileno()
        self._loop.add_reader(self._fd, self._readable)

    def _readable(self) -> None:
        """One doorbell a turn: sessions take turns, and no read ends in an exception to say that there is no more."""
        try:
            imm = self.fabric.poll()
            if imm is not None:
                self._doorbell(imm)
        except PeerGone as gone:
            self._daemon.session_ended(self, "peer_gone", str(gone))
        except DoorbellError as broken:
            self._daemon.counters["violations"] += 1
            self._daemon.session_ended(self, broken.code, broken.detail)

    def _doorbell(self, imm: int) -> None:
        kind, slot = imm >> 24, imm & IMM_SLOT_MASK
        if slot >= len(self._slots):
            raise DoorbellError("slot", f"{slot} of {len(self._slots)}")
        ref = self._slots[slot]
        if kind == IMM_SUBMIT:
            if len(self._unsent) >= len(self._slots):
                raise DoorbellError("answers_unread", f"{len(self._unsent)} wait, of {len(self._slots)} slots")
            if ref is not None:
                if not ref.is_answered:
                    raise DoorbellError("slot_in_use", str(slot))
                self._slots[slot] = None
            self._submit(slot)
            if ref is not None:
                self._daemon.credit(ref)  # after the new request: nobody waits for this one
        elif kind == IMM_CREDIT:
            if ref is not None and ref.is_answered:
                self._daemon.credit(ref)
                self._slots[slot] = None
        elif kind == IMM_CANCEL:
            if ref is not None and not ref.is_answered:
                self._daemon.cancel(ref)
        else:
            raise DoorbellError("immediate_kind", str(kind))

    def _submit(self, slot: int) -> None:
        try:
            header = parse_request(self.fabric.read_header(slot), self.fabric.payload_bytes)
        except HeaderError as broken:
            answer = pack_answer(request_id=0, status=Status.REJECTED, reason=Reason.BAD_HEADER)
            self.fabric.write_answer(slot, answer, b"")
            self.ring(slot)
            self._violated(broken)
            return
        self._slots[slot] = self._daemon.submit(self, slot, header)

    def _violated(self, broken: HeaderError) -> None:
        now_ns = self._daemon.now_ns()
        self._daemon.counters["violations"] += 1
        self._violations.append(now_ns)
        if len(self._violations) == VIOLATIONS and now_ns - self._violations[0] < VIOLATION_WINDOW_NS:
            self._daemon.session_ended(self, broken.code, broken.detail)

    def ring(self, slot: int) -> None:
        """Tell the peer that ``slot`` is answered; if it takes no more now, when it does again."""
        if self.is_closed:
            return
        try:
            if self._unsent or not self.fabric.ring(slot):
                if not self._unsent:
                    self._loop.add_writer(self._fd, self._writable)
                self._unsent.append(slot)
        except PeerGone as gone:  # not now: the book is in the middle of something
            self._loop.call_soon(self._daemon.session_ended, self, "peer_gone", str(gone))

    def _writable(self) -> None:
        try:
            while self._unsent:
                if not self.fabric.ring(self._unsent[0]):
                    return
                self._unsent.popleft()
        except PeerGone:
            self._unsent.clear()
        self._loop.remove_writer(self._fd)

    def pause(self, wait_ms: int) -> None:
        """Read no doorbell of this session for ``wait_ms``: a requester that was told to wait and does not."""
        if self._resume is None and not self.is_closed:
            self._loop.remove_reader(self._fd)
            self._resume = self._loop.call_later(wait_ms / 1e3, self._unpause)

    def _unpause(self) -> None:
        self._resume = None
        self._loop.add_reader(self._fd, self._readable)

    def close(self) -> None:
        """Hang up and unmap (copies in flight first). Repeating it is harmless."""
        if self.is_closed:
            return
        self.is_closed = True
        if self._resume is not None:
            self._resume.cancel()
        else:
            self._loop.remove_reader(self._fd)
        if self._unsent:
            self._loop.remove_writer(self._fd)
        self.fabric.close()
