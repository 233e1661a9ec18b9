"""Requesters as actors: they negotiate, fill slots with the real slot table, ring, cancel, take answers, leave or die.

The hostile one knows the wire and keeps none of its rules.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from pydantic import BaseModel

from offpath.bindings.errors import ControlError, NegotiationRefused, PeerGone
from offpath.bindings.ports import IMM_CANCEL, IMM_CREDIT, IMM_SUBMIT, immediate, next_of
from offpath.bindings.wire import control, negotiating
from offpath.bindings.wire.header import FLAG_STREAM, pack_request, parse_answer
from offpath.dpu_daemon.ingress.admission import Carrier, Grant
from offpath.host_helper.slots import Options, Result, SlotTable

from . import batches, sequences, streams
from .judge import Request
from .promises import promise
from .reloads import KERNELS
from .wires import Bell, RequesterEnd, SessionMemory, SimSocket

if TYPE_CHECKING:
    from .world import World

MS = 1_000_000
_TAG = struct.Struct("<III")
SIZES = (12, 90, 90, 90, 90, 200)
"""Payload bytes; the kernel `large` makes a result of them that fits a message, the lane, or nothing."""


class Negotiation:
    """A negotiation connection: `ingress.admission.Peer` at the daemon's end, a list of news at the other.

    The daemon's end keeps the rules of `ingress.negotiation.Negotiator`, whose streams are not simulated.
    """

    def __init__(self, world: World, carrier: Carrier, requester: SimRequester) -> None:
        self._world = world
        self._requester = requester
        self._carrier = carrier
        self._fd = world.loop.open_fd()
        self._inbox: deque[bytes] = deque()
        self._peer_is_open = True
        self._grant: Grant | None = None
        self.is_open = True
        world.owned[self] = None
        self.news: deque[BaseModel] = deque()
        world.loop.running(world.loop.add_reader, self._fd, self._readable)

    # -- the daemon's end
    def _readable(self) -> None:
        world = self._world
        try:
            if not self._inbox:
                if not self._peer_is_open:
                    self._over(None)
                return
            said = control.decode(negotiating.TO_DAEMON, self._inbox.popleft())
            world.loop.flag(self._fd, bool(self._inbox) or not self._peer_is_open)
            if self._grant is None and isinstance(said, negotiating.Hello):
                self._grant = world.admission.admit(self._carrier, said, self)
            elif isinstance(said, control.Goodbye):
                self._over(None, is_goodbye=True)
            else:
                raise ControlError("out_of_turn", said.kind)
        except NegotiationRefused as refused:
            self._over(
                negotiating.Refused(code=refused.code, detail=refused.detail, retry_after_ms=refused.retry_after_ms)
            )
        except ControlError as broken:
            self._over(negotiating.Refused(code=broken.code, detail=broken.detail[:500]))

    def _over(self, last: BaseModel | None, *, is_goodbye: bool = False) -> None:
        if last is not None:
            self.send(last)
        if self._grant is not None:
            self._world.admission.peer_left(self._grant, self, is_goodbye=is_goodbye)
        self.hang_up()

    def send(self, message: BaseModel) -> None:
        if self.is_open:
            self.news.append(message)
            self._requester.wake()

    renew = send

    def hang_up(self) -> None:
        if self.is_open:
            self.is_open = False
            del self._world.owned[self]
            self._world.loop.remove_reader(self._fd)
            self._world.loop.close_fd(self._fd)
            self._requester.wake()

    close = hang_up

    # -- the requester's end
    def deliver(self, message: BaseModel) -> None:
        if self.is_open:
            self._inbox.append(control.encode(message))
            self._world.loop.flag(self._fd, True)

    def leave(self) -> None:
        self._peer_is_open = False
        if self.is_open:
            self._world.loop.flag(self._fd, True)


class SimRequester:
    """One requester process with one session at a time."""

    def __init__(self, world: World, number: int, tenant: str, *, is_hostile: bool = False) -> None:
        self.world = world
        self.number = number
        self.tenant = tenant
        self.name = f"{'hostile ' if is_hostile else ''}requester {number} of {tenant}"
        self.is_hostile = is_hostile
        self.key = ("requester", number)
        random = world.random
        self.left = random.choice((2, 5, 10, 16)) * (3 if is_hostile else 2 if world.setup.is_sequential else 1)
        self.slots_wanted = random.choice((1, 2, 4, 8))
        self.think_ns = random.choice((0, 0, 100_000, 2 * MS, 30 * MS))
        self.cancels = world.setup.cancels
        self.returns_credits = random.choice((0.0, 0.3, 1.0))
        self.is_alive = True
        self.is_done = False
        self._may_fill = True
        self._refusals = 0
        self._removals = 0
        """How often its tenant had been removed when it asked for its session."""
        self._lost_ns = 0
        self._not_before_ns = 0
        self.negotiation: Negotiation | None = None
        self.session: RequesterEnd | None = None
        self._lost: RequesterEnd | None = None
        self._held: negotiating.Welcome | None = None
        self._sock: SimSocket | None = None
        self._welcome: negotiating.Welcome | None = None
        self._slots: SlotTable[Request] | None = None
        self._kernels: dict[str, int] = {}
        self._last: Request | None = None
        self._sequences = sequences.Client()
        self._serial = 0
        self._to_cancel: deque[Request] = deque()
        self._arrived: list[int] = []
        """Slots with an answer of a stream that was rung and is not taken."""
        world.loop.after(random.choice((0, 0, MS, 50 * MS)), self.key, self.wake)

    def wake(self) -> None:
        """There may be something to do."""
        if self.is_alive:
            self.world.loop.outside[self.key] = self._act

    # -- one action -----------------------------------------------------------------------------------------------
    def _act(self) -> None:
        if not self.is_alive or self.is_done:
            return
        world = self.world
        if self.negotiation is None:
            if world.loop.now_ns >= self._not_before_ns:
                self._say_hello()
        elif self.negotiation.news:
            self._hear(self.negotiation.news.popleft())
        elif self.session is None:
            if not self.negotiation.is_open:
                self._again()
            return
        else:
            try:
                self._work(self.session)
            except PeerGone:
                self._session_gone()
        if self.is_alive and world.happens("requester_dies"):
            self.die()

    def _say_hello(self) -> None:
        world = self.world
        if world.channel is None:
            self._wait(20)
            return
        random = world.random
        if self._lost is None:
            self._removals = world.removals[self.tenant]
        by_token = random.random() < 0.5
        carrier = Carrier(uid=world.uid) if by_token else Carrier(certified=self.tenant)
        self.negotiation = Negotiation(world, carrier, self)
        token: str | None = world.tokens[self.tenant] if by_token else None
        tenant: str | None = self.tenant
        if self.is_hostile and random.random() < 0.3:
            tenant, token = random.choice(list(world.tokens)), "0123456789abcdef-wrong" if by_token else None
        self.negotiation.deliver(
            negotiating.Hello(
                client="sim", tenant=tenant, token=token, slots=self.slots_wanted,
                payload_bytes=random.choice((200, 1000)),
                result_bytes=random.choice((4096, 4096, 4096, 4096, 4096, 300, 16)), resume=self._resume(),
            )
        )  # fmt: skip

    def _resume(self) -> negotiating.Resume | None:
        """Where the connection was lost with requests in flight: the way back."""
        world = self.world
        if self.is_hostile and world.judge.sessions and world.random.random() < 0.5:
            session = world.random.choice(list(world.judge.sessions))
            return negotiating.Resume(
                session=session, lineage=world.daemon.identity.lineage, token="stolen-or-guessed", unanswered=[]
            )
        if self._lost is None or self._held is None or self._slots is None:
            return None
        unanswered = self._slots.unanswered()
        held = self._held
        return negotiating.Resume(
            session=held.session, lineage=held.lineage, token=held.resume_token,
            unanswered=[request for request, _ in unanswered], taken=[taken for _, taken in unanswered],
        )  # fmt: skip

    def _hear(self, said: BaseModel) -> None:
        world = self.world
        if isinstance(said, negotiating.Welcome):
            promise(said.tenant == self.tenant, f"{self.name} is welcomed as {said.tenant}")
            self._welcome = self._held = said
            self._learn(said.kernels)
            self._take_stock(said.resumed)
            if not world.happens("ticket_late"):
                self._show_ticket(said)
            else:
                world.loop.after(6_000 * MS, self.key, lambda: self._show_ticket(said))
        elif isinstance(said, negotiating.Kernels):
            self._learn(said.kernels)
        elif isinstance(said, negotiating.Refused):
            is_out = said.code in ("tenant_removed", "denied") and bool(world.removals[self.tenant])
            self._refusals += 0 if is_out and not self.is_hostile else 1
            if self._lost is not None and (is_out or said.code == "resume_unknown"):
                self._give_up()
            self._again(said.retry_after_ms)
        self.wake()

    def _take_stock(self, resumed: list[negotiating.Resumed]) -> None:
        """What the daemon says became of the requests that were in flight."""
        if self._slots is None or self.is_hostile:
            return
        waiting = {request.request_id: request for request in self._slots.waiters.values()}
        promise(
            len(resumed) == (len(waiting) if self._lost is not None else 0), f"{self.name}: {resumed} for {waiting}"
        )
        for request in waiting.values():
            request.free_ns = self.world.loop.now_ns
        for told in resumed:
            if told.state == "retry_safe":
                request = waiting[told.request_id]
                promise(not request.starts, f"{request} is said to be retry_safe and has started")
                promise(request.answer is None, f"{request} is said to be retry_safe and was answered")
                self._forget(request)

    def _forget(self, request: Request) -> None:
        """It will never be answered, and its slot is free."""
        assert self._slots is not None
        request.is_taken = True
        self._slots._vacate(request.slot)

    def _give_up(self) -> None:
        """The session is gone: what was in flight may have run, or not."""
        waiting = self._slots.waiters.values() if self._slots is not None else ()
        # The last answer of a stream that ended may wait for its slot.
        is_idle = all(request.answer is not None or not request.job or request.ended_ns for request in waiting)
        may = self.world.may_lose_sessions or self.is_hostile or self._was_long_away() or is_idle or self._was_removed()
        promise(may, f"{self.name} may not come back to its session")
        if self._lost is not None:
            self._lost.leave()
        self._lost = self._slots = None
        self._to_cancel.clear()

    def _was_removed(self) -> bool:
        """Its tenant was, since it asked for its session."""
        return self.world.removals[self.tenant] > self._removals

    def _was_long_away(self) -> bool:
        """For longer than the daemon had promised to wait."""
        held = self._held
        return held is not None and self.world.loop.now_ns - self._lost_ns >= held.resume_ttl_s * 1_000 * MS

    def _learn(self, kernels: list[negotiating.KernelInfo]) -> None:
        self._kernels = {kernel.name: kernel.kernel_id for kernel in kernels}

    def _show_ticket(self, welcome: negotiating.Welcome) -> None:
        """Nobody shows the ticket of a former welcome."""
        world = self.world
        if not self.is_alive or self._welcome is not welcome or world.channel is None:
            return
        ticket = welcome.ticket.encode()
        if self.is_hostile and world.random.random() < 0.4:
            ticket = world.random.choice((b"no-such-ticket-at-all", ticket[:-1], *world.old_tickets))

        def news(memory: SessionMemory | None, bell: Bell | None) -> None:
            if memory is not None and bell is not None:
                world.old_tickets.append(ticket)
                self._enter(memory, bell, welcome.session)
            elif self.session is None and self.is_alive:
                self._again()
            self.wake()

        self._sock = SimSocket(world, news)
        world.listener.connect(self._sock)
        self._sock.show(ticket)

    def _enter(self, memory: SessionMemory, bell: Bell, number: int) -> None:
        bell.notify = self.wake
        if not self.is_alive:
            bell.leave()
        elif self._lost is not None and self._lost.memory is memory:
            self.session, self._lost = self._lost, None
            self.session.bell = bell
            self.world.log("%s is back in session %s", self.name, number)
        else:
            self.session = RequesterEnd(memory, bell)
            self._sequences = sequences.Client()
            self._slots = SlotTable(self.session)  # type: ignore[arg-type]
            self.world.entered(self, memory, number)

    def _again(self, wait_ms: int = 0) -> None:
        """Negotiate anew, some time."""
        if self._refusals > 5 or (self.is_hostile and self.left <= 0):
            self.is_done = True
            return
        if self.negotiation is not None:
            self.negotiation.leave()
        self.negotiation = None
        self._welcome = None
        self._wait(wait_ms + 10)

    def _wait(self, ms: int) -> None:
        """Before the next hello. Who is woken meanwhile waits on."""
        self._not_before_ns = self.world.loop.now_ns + ms * MS
        self.world.loop.after(ms * MS, self.key, self.wake)

    def _session_gone(self) -> None:
        """The daemon hung up. If it was killed, or lost us, we come back; else it had better have a reason."""
        assert self.session is not None
        world = self.world
        self.session.bell.leave()
        self._lost, self.session = self.session, None
        self._lost_ns = world.loop.now_ns
        self._arrived.clear()
        has_reason = self.is_hostile or world.deaths or self._was_removed()
        promise(has_reason, f"the daemon closes the session of {self.name}, which kept the rules")
        if not self.is_hostile and not world.deaths and self._slots is not None:
            self._judge_end(self._slots.waiters.values())
        if self.is_hostile or not world.setup.is_durable:
            self._give_up()
        self._again()

    def _judge_end(self, waiting: Iterable[Request]) -> None:
        """A removed tenant's session ends when all is answered, or when the time for that is over."""
        world = self.world
        since = world.removed[self.tenant][self._removals :]  # added again and removed again, it leaves since the first
        is_over = any(world.loop.now_ns - at_ns >= drain_ms * MS for at_ns, drain_ms in since)
        untold = [str(request) for request in waiting if request.read_ns and not request.answer]
        promise(is_over or not untold, f"the daemon closes the session of {self.name} before it answers", *untold)

    # -- work -----------------------------------------------------------------------------------------------------
    def _work(self, session: RequesterEnd) -> None:
        slots = self._slots
        assert slots is not None
        random = self.world.random
        if not session.bell.is_open and not session.is_rung():
            raise PeerGone("the daemon closed the session")
        can_fill = self._may_fill and self.left > 0 and bool(self._kernels) and session.has_room()
        can_fill = can_fill and (slots.has_room() or self.is_hostile)
        if session.is_rung() and (not can_fill or random.random() < 0.7):
            self._take(session, slots)
        elif self._arrived and session.has_room():
            self._take_next(session, slots)
        elif self._to_cancel and session.has_room():
            self._cancel(session)
        elif can_fill:
            if self.is_hostile and random.random() < 0.6:
                self._mischief(session)
            else:
                self._fill(session, slots)
            self.left -= 1
            if self.think_ns and self.left > 0:
                self._may_fill = False
                self.world.loop.after(int(random.expovariate(1.0) * self.think_ns), self.key, self._thought)
        elif self.left <= 0 and not slots.waiters:
            self._leave()
            return
        else:
            return
        self.wake()

    def _thought(self) -> None:
        self._may_fill = True
        self.wake()

    def _payload(self) -> bytes:
        self._serial += 1
        nbytes = self.world.random.choice(SIZES)
        tag = _TAG.pack(self.number, self._serial, self.world.number_of(self.tenant))
        return tag + bytes((self._serial * 7 + i) & 0xFF for i in range(nbytes - len(tag)))

    def _fill(self, session: RequesterEnd, slots: SlotTable[Request]) -> None:
        world, random = self.world, self.world.random
        if not slots.has_room():
            return
        payload = self._payload()
        name = world.draw_kernel()
        arrays = [np.frombuffer(payload, np.uint8)]
        if name == batches.NAME:
            tag = _TAG.pack(self.number, self._serial, self.world.number_of(self.tenant))
            payload = batches.payload_of(tag, random.choice((1, 1, 2, 4)))
            arrays = [batches.array_of(payload)]
        if name not in self._kernels:
            return  # an intruder took the helper's place
        options = Options(
            demand=random.choice((0, 0, 0, 5, 14, 20)) if name != "whole" else 0,
            priority=random.choice((0, 0, 0, 3)),
            budget_ms=random.choice((0, 0, 0, 1, 5, 40, 300)),
            is_idempotent=random.random() < world.setup.idempotent,
            with_checksum=random.random() < 0.2,
        )
        if name == sequences.NAME:
            options = replace(options, **self._sequences.options(world.orders))
        waiter = Request(self, session.memory, -1, 0, name, payload, options.is_idempotent, options.budget_ms * MS)
        waiter.options = options
        waiter.slot = slots.fill(self._kernels[name], arrays, options, waiter, is_stream=name == streams.NAME)
        waiter.request_id = int.from_bytes(session.last_header[8:16], "little")
        world.judge.filled(waiter)
        if world.happens("requester_dies_filled"):
            self.die()
            return
        session.ring(immediate(IMM_SUBMIT, waiter.slot).to_bytes(4, "little"))
        world.log("%s rings %s", self.name, waiter)
        self._last = waiter
        if random.random() < self.cancels:
            delay_ns = int(random.expovariate(1.0) * world.setup.kernel_ns)
            world.loop.after(delay_ns, self.key, lambda: self._want_cancel(waiter))

    def _want_cancel(self, request: Request) -> None:
        if self.session is not None and request.session is self.session.memory and self.is_alive:
            self._to_cancel.append(request)
            self.wake()

    def _cancel(self, session: RequesterEnd) -> None:
        request = self._to_cancel.popleft()
        if not request.is_taken:
            request.is_cancelled = True
            session.ring(immediate(IMM_CANCEL, request.slot).to_bytes(4, "little"))
            self.world.log("%s cancels %s", self.name, request)

    def _take(self, session: RequesterEnd, slots: SlotTable[Request]) -> None:
        slot = session.take()
        if slot is None:
            return
        request = slots.waiters.get(slot)
        if self.is_hostile and request is None:
            return
        promise(request is not None, f"{self.name} is rung for slot {slot}, where nothing waits")
        assert request is not None
        if slots.is_stream(slot):
            promise(self.is_hostile or slot not in self._arrived, f"{request} is rung twice for one answer")
            self._arrived += [slot] if slot not in self._arrived else []
            return
        self._take_last(session, slots, slot)

    def _take_next(self, session: RequesterEnd, slots: SlotTable[Request]) -> None:
        """Take an answer of a stream, or leave it where it is for a while."""
        world, random = self.world, self.world.random
        slot = self._arrived.pop(random.randrange(len(self._arrived)))
        if self.is_hostile and slot not in slots.waiters:
            return
        if random.random() < world.setup.slow_takers:
            world.loop.after(
                int(random.expovariate(1.0) * 5 * MS), self.key, lambda since=self._lost_ns: self._later(slot, since)
            )
            return
        header = session.answer_header(slot)
        if not parse_answer(header, session.result_bytes).has_more:
            self._take_last(session, slots, slot)
            return
        request, outcome = slots.take(slot)
        assert request is not None
        promise(isinstance(outcome, Result), f"{request}: {outcome}")
        assert isinstance(outcome, Result)
        if not self.is_hostile:
            world.judge.stream_taken(request, header, b"".join(a.tobytes() for a in outcome.arrays))
        world.log("%s takes answer %s of %s", self.name, request.taken, request)
        session.ring(slots.next_of(slot).to_bytes(4, "little"))

    def _later(self, slot: int, since_ns: int) -> None:
        """Unless its connection was lost meanwhile: then the answer is rung again."""
        if self.session is not None and self.is_alive and since_ns == self._lost_ns:
            self._arrived.append(slot)
            self.wake()

    def _take_last(self, session: RequesterEnd, slots: SlotTable[Request], slot: int) -> None:
        world, request = self.world, slots.waiters[slot]
        header = session.answer_header(slot)
        _, outcome = slots.take(slot)
        self._sequences.taken(request, outcome)
        body = b"".join(a.tobytes() for a in outcome.arrays) if isinstance(outcome, Result) else b""
        if not self.is_hostile:
            world.judge.answer_taken(request, header, body)
        world.log("%s takes %s: %s", self.name, request, outcome)
        if world.random.random() < self.returns_credits and session.has_room():
            session.ring(immediate(IMM_CREDIT, slot).to_bytes(4, "little"))

    def is_there(self) -> bool:
        """False once it left or died, and while its connection is lost."""
        return self.is_alive and not self.is_done and self.session is not None and self.session.bell.is_open

    def _leave(self) -> None:
        """All is answered."""
        self.is_done = True
        self.world.log("%s leaves", self.name)
        if self.negotiation is not None:
            if self.world.random.random() < 0.5:
                self.negotiation.deliver(control.Goodbye())
            self.negotiation.leave()
        if self.session is not None:
            self.session.leave()

    def die(self) -> None:
        """The process is killed; its sockets close, its memory stays with the daemon."""
        if not self.is_alive:
            return
        self.world.log("%s dies", self.name)
        self.is_alive = False
        self.is_done = True
        self.world.loop.outside.pop(self.key, None)
        ends = [end for end in (self.negotiation, self.session or self._lost) if end is not None]
        self.world.random.shuffle(ends)
        for end in ends:
            end.leave()
        if self._sock is not None and self.session is None:
            self._sock.hang_up()

    # -- mischief -------------------------------------------------------------------------------------------------
    def _mischief(self, session: RequesterEnd) -> None:
        random = self.world.random
        kind = random.randrange(8)
        slot = random.randrange(session.slot_count)
        self.world.log("%s plays trick %s on slot %s", self.name, kind, slot)
        if kind == 0:
            session.ring(bytes(random.randrange(9)))
        elif kind == 1:
            session.ring(random.randrange(1 << 32).to_bytes(4, "little"))
        elif kind == 2:
            session.ring(immediate(IMM_SUBMIT, slot).to_bytes(4, "little"))
        elif kind == 3 and self._last is not None:  # after the doorbell, maybe after the copy
            view = session.payload_view(self._last.slot)
            view[_TAG.size : _TAG.size + 1] = b"\xff"
        elif kind == 4:
            session.write_header(slot, bytes(random.randrange(256) for _ in range(64)), 0)
        elif kind == 5:
            for _ in range(random.choice((3, 40))):
                if session.has_room():
                    kind = random.choice((IMM_CREDIT, IMM_CANCEL))
                    imm = immediate(kind, slot)
                    if self.world.setup.is_streaming and random.random() < 0.3:
                        imm = next_of(slot, random.randrange(4))
                    session.ring(imm.to_bytes(4, "little"))
        else:
            self._odd_header(session, slot)

    def _odd_header(self, session: RequesterEnd, slot: int) -> None:
        """A header whose checksum is right and whose wishes are not; or one that is cut about."""
        random = self.world.random
        payload = self._payload()
        name, _ = random.choice(KERNELS)
        ours = 10_000 + self._serial
        request = Request(self, session.memory, slot, random.choice((ours, ours, 1)), name, payload, False, 0)
        header = bytearray(
            pack_request(
                request_id=request.request_id, kernel_id=random.choice((self._kernels.get(name, 1), 999)),
                payload_bytes=random.choice((len(payload), 0, session.payload_bytes + 1, 1 << 40)),
                demand=random.choice((0, 0, 1, 101, 300, 65_535)), priority=random.randrange(256),
                flags=FLAG_STREAM if self.world.setup.is_streaming and random.random() < 0.3 else 0,
            )
        )  # fmt: skip
        if random.random() < 0.3:
            header[random.randrange(len(header))] ^= 1 << random.randrange(8)
        session.payload_view(slot)[: len(payload)] = payload
        session.write_header(slot, bytes(header), len(payload))
        self.world.judge.filled(request)
        session.ring(immediate(IMM_SUBMIT, slot).to_bytes(4, "little"))
