"""An attacker with sessions of its own, and the victims beside them: the daemon's ends on rxe0, requesters on rxe1.

A failed request ends a queue pair, so the attacker has many seats: each is a session that the daemon opened for it, and
a bare queue pair, whose requests are its own to make up. After a volley the used seats are made ready again.
"""

from __future__ import annotations

import random
import socket
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from mmap import mmap
from typing import Any, Final

from offpath.bindings.verbs.devices import Choice
from offpath.bindings.verbs.domain import Device, Domain
from offpath.bindings.verbs.fabric import Seal, VerbsFabricSession, VerbsRequesterSession
from offpath.bindings.verbs.library import library
from offpath.bindings.verbs.link import End, LivenessChannel
from offpath.bindings.verbs.queue import PSN_MASK, Address, QueuePair

BOUND_S: Final = 120.0  # emulated, on a machine that may be busy
SLOTS, PAYLOAD_BYTES, RESULT_BYTES = 2, 4096, 2048
LANDING_BYTES: Final = 1 << 20
_HEADER_BYTES: Final = 64


class Victim:
    """A live session and its requester. What lies in their memories is known to the byte."""

    def __init__(self, daemon: Device, requesters: Choice, seal: Seal, dice: random.Random) -> None:
        self._dice = dice
        self.requester = VerbsRequesterSession(Device(requesters), SLOTS, PAYLOAD_BYTES, RESULT_BYTES)
        self.session = VerbsFabricSession(SLOTS, PAYLOAD_BYTES, RESULT_BYTES)
        self.requester_end = self.requester.end()
        ours, theirs = socket.socketpair()
        self.end = self.session.open(daemon, self.requester_end, LivenessChannel(ours.fileno(), ours.close), seal)
        self.requester.connect(self.end, LivenessChannel(theirs.fileno(), theirs.close))
        self._memories = [
            self.session.slots.view, self.session.answers.view, self.requester._slots, self.requester._answers
        ]  # fmt: skip
        for memory in self._memories:
            memory[:] = dice.randbytes(len(memory))
        self._known = [bytes(memory) for memory in self._memories]
        self.exchange()

    @property
    def slots_bytes(self) -> int:
        return len(self._memories[0])

    def queue(self, *, of_daemon: bool) -> QueuePair:
        link = self.session._link if of_daemon else self.requester._link
        assert link is not None
        return link._queue

    def expected_psn(self, *, at_daemon: bool) -> int:
        """The number of the next packet that this end would take."""
        attributes = self.queue(of_daemon=at_daemon).qp.query(library().enums.IBV_QP_RQ_PSN)[0]
        return int(attributes.rq_psn)

    def assert_untouched(self) -> None:
        """No byte changed, and nobody rang, at either end."""
        assert self.session.poll() is None
        assert self.requester.poll() == []
        assert [bytes(memory) for memory in self._memories] == self._known

    def exchange(self) -> None:
        """A request and its answer pass, with fresh bytes."""
        header, payload, answer, result = map(
            self._dice.randbytes, (_HEADER_BYTES, PAYLOAD_BYTES, _HEADER_BYTES, RESULT_BYTES)
        )
        self.requester.payload_view(1)[:] = payload
        self.requester.write_header(1, header, PAYLOAD_BYTES)
        self.requester.ring(1)
        until = time.monotonic() + BOUND_S
        while (imm := self.session.poll()) is None:
            assert time.monotonic() < until, "the victim's request does not arrive"
        assert imm == 1
        at = self.session.payload_offset(1)
        assert self.session.read_header(1)[:_HEADER_BYTES] == header
        assert self.session.slots.view[at : at + PAYLOAD_BYTES] == payload
        self.session.write_answer(1, answer, result, RESULT_BYTES)
        while not self.session.ring(1):
            assert time.monotonic() < until, "the victim's answer is not taken"
            assert self.session.poll() is None
        assert self.requester.wait(BOUND_S) == [1]
        assert self.requester.answer_header(1)[:_HEADER_BYTES] == answer
        assert self.requester.result_view(1, RESULT_BYTES) == result
        self._known = [bytes(memory) for memory in self._memories]

    def close(self) -> None:
        self._memories.clear()
        self.requester.close()
        self.session.close()


@dataclass(frozen=True, slots=True)
class Shot:
    """One forged request. ``to``: another queue pair than the seat's own, with the first packet's number;
    ``is_answered`` False: nobody will refuse it by name, the attacker's own retries run out."""

    opcode: str
    remote: int
    rkey: int
    nbytes: int
    to: Address | None = None
    psn: int = 0
    is_answered: bool = True


class Bare:
    """A queue pair without any of our code: whatever libibverbs lets through goes out."""

    def __init__(self, domain: Domain, queue: Any, landing: Any) -> None:
        verbs = library()
        self._e, self._verbs = verbs.enums, verbs
        self._domain, self._landing = domain, landing
        cap = verbs.qp.QPCap(max_send_wr=2, max_recv_wr=1, max_send_sge=1, max_recv_sge=1)
        init = verbs.qp.QPInitAttr(qp_type=self._e.IBV_QPT_RC, scq=queue, rcq=queue, cap=cap, sq_sig_all=1)
        self.qp = verbs.qp.QP(domain.pd, init, verbs.qp.QPAttr(port_num=1))

    def address(self, psn: int) -> Address:
        return Address(self.qp.qp_num, psn, str(self._domain.device.choice.gid.address), self._domain.device.mtu)

    def connect(self, peer: Address, psn: int, *, is_answered: bool) -> None:
        """From whatever state it is in. Where no answer will come, none is waited for long."""
        reset(self.qp)
        device, verbs = self._domain.device, self._verbs
        self.qp.to_init(verbs.qp.QPAttr(port_num=1))
        attributes = verbs.qp.QPAttr(port_num=1)
        route = verbs.addr.GlobalRoute(
            dgid=verbs.addr.GID(peer.gid_bytes.hex(":", 2)), sgid_index=device.choice.gid.index, hop_limit=64
        )  # fmt: skip
        attributes.ah_attr = verbs.addr.AHAttr(gr=route, is_global=1, port_num=1)
        attributes.dest_qp_num, attributes.rq_psn, attributes.sq_psn = peer.qp_num, peer.psn, psn
        attributes.path_mtu, attributes.max_rd_atomic, attributes.max_dest_rd_atomic = device.mtu, 1, 1
        attributes.timeout, attributes.retry_cnt = (14, 6) if is_answered else (10, 1)
        attributes.rnr_retry, attributes.min_rnr_timer = 6, 12
        self.qp.to_rts(attributes)

    def fire(self, number: int, shot: Shot) -> None:
        wr, e = self._verbs.wr, self._e
        with ExitStack() as made:
            entry = wr.SGE(self._landing.address, shot.nbytes, self._landing.lkey)
            made.callback(entry.close)
            request = wr.SendWR(
                wr_id=number, opcode=getattr(e, f"IBV_WR_{shot.opcode}"), sg=[entry], num_sge=1,
                imm_data=shot.rkey if shot.opcode == "SEND_WITH_INV" else 0,  # one field of the structure
                send_flags=e.IBV_SEND_SIGNALED,
            )  # fmt: skip
            made.callback(request.close)
            if "ATOMIC" in shot.opcode:
                request.set_wr_atomic(shot.rkey, shot.remote, 0, 1)
            elif "RDMA" in shot.opcode:
                request.set_wr_rdma(shot.rkey, shot.remote)
            self.qp.post_send(request)


def reset(qp: Any) -> None:
    verbs = library()
    qp.modify(verbs.qp.QPAttr(qp_state=verbs.enums.IBV_QPS_RESET), verbs.enums.IBV_QP_STATE)


class Seat:
    """A session that the attacker holds by right."""

    def __init__(self, daemon: Device, bare: Bare, dice: random.Random) -> None:
        self._daemon, self._dice = daemon, dice
        self.bare = bare
        self.session = VerbsFabricSession(1, PAYLOAD_BYTES, RESULT_BYTES)
        self.end: End
        self.open()

    def open(self, seal: Seal = "pd") -> None:
        """By the daemon's own way; what the session had before is hung up."""
        peer = self.bare.address(self._dice.randrange(PSN_MASK + 1))
        ours, self._line = socket.socketpair()
        try:
            self.end = self.session.open(
                self._daemon, End(peer, 16, 0, 0), LivenessChannel(ours.fileno(), ours.close), seal
            )
        except BaseException:
            ours.close()
            self._line.close()
            raise
        self.bare.connect(self.end.address, peer.psn, is_answered=True)

    def hang_up(self) -> None:
        self.session.hang_up()
        self._line.close()

    def renew(self) -> None:
        """Make both queue pairs as new. The session keeps its protection domain and its region."""
        link = self.session._link
        if link is None:
            self.open()
            return
        queue = link._queue
        while queue._cq.poll(64)[0]:
            pass
        reset(queue.qp)
        queue.qp.to_init(queue._attributes())
        peer = self.bare.address(self._dice.randrange(PSN_MASK + 1))
        queue.connect(peer)
        queue._post_receive()
        self.bare.connect(self.end.address, peer.psn, is_answered=True)

    def close(self) -> None:
        self.hang_up()
        self.session.close()


class Attacker:
    """Seats, and beside them bare queue pairs that send from another address than a victim's peer has: ``inner`` on the
    daemon's device to the daemon, ``outer`` on the requesters' to requesters. (A queue pair of rdma_rxe keeps the route
    that it first took, so none of these is ever pointed at another device.)"""

    def __init__(self, daemon: Device, requesters: Device, seats: int, dice: random.Random) -> None:
        self._undo = ExitStack()
        e = library().enums
        self._statuses = {int(getattr(e, name)): name.removeprefix("IBV_WC_") for name in _statuses(e)}
        self.landing = mmap(-1, LANDING_BYTES)
        self._queues: list[Any] = []
        held = self._bare(requesters, seats)
        self.inner, self.outer = self._bare(daemon, seats), self._bare(requesters, seats)
        self.seats: list[Seat] = []
        for each in held:
            self.seats.append(seat := Seat(daemon, each, dice))
            self._undo.callback(seat.close)

    def _bare(self, device: Device, count: int) -> list[Bare]:
        domain = Domain(device)
        self._undo.callback(domain.close)
        queue = library().cq.CQ(device.context, 2 * count, None, None, 0)
        self._undo.callback(queue.close)
        self._queues.append(queue)
        landing = domain.register(self.landing, local_write=True)
        made = [Bare(domain, queue, landing) for _ in range(count)]
        for each in made:
            self._undo.callback(each.qp.close)
        return made

    def volley(self, shots: Sequence[tuple[Seat | Bare, Shot]]) -> list[str]:
        """Fire each from its own queue pair, all at once; returns how each ended, in order."""
        for number, (source, shot) in enumerate(shots):
            bare = source.bare if isinstance(source, Seat) else source
            if shot.to is not None:
                bare.connect(shot.to, shot.psn, is_answered=shot.is_answered)
            bare.fire(number, shot)
        ended: dict[int, str] = {}
        until = time.monotonic() + BOUND_S
        while len(ended) < len(shots):
            assert time.monotonic() < until, f"{len(ended)} of {len(shots)} ended"
            for queue in self._queues:
                for each in queue.poll(64)[1]:
                    assert each.wr_id not in ended
                    ended[each.wr_id] = self._statuses[each.status]
            time.sleep(0.001)
        return [ended[number] for number in range(len(shots))]

    def close(self) -> None:
        self._undo.close()


def _statuses(enums: Any) -> list[str]:
    return [each for each in dir(enums) if each == "IBV_WC_SUCCESS" or (each[:7] == "IBV_WC_" and each[-4:] == "_ERR")]
