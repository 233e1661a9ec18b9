"""A reliable-connection queue pair with its completion queue.

It keeps the receive queue filled, so that each of the peer's writes with an immediate finds a receive. It posts writes
of any length and distinguishes completions from failures. Only `connect` and `bind` block.
"""

from __future__ import annotations

import errno
import select
import socket
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from ipaddress import IPv6Address
from mmap import mmap
from typing import Any, Final, NamedTuple

from offpath.bindings.errors import PeerGone, RegionError, ResourceClosed, VerbsError, WorkFailed
from offpath.bindings.verbs.domain import Domain, Region, Window, opening, with_descriptor
from offpath.bindings.verbs.library import attempt, library

PSN_MASK: Final = 0xFF_FFFF

# 4.096 us x 2^14 = 67 ms for an acknowledgement, 6 retries; 10 ms for a receive, 6 retries. Here 7 means for ever.
_TIMEOUT, _RETRIES = 14, 6
_RNR_TIMER, _RNR_RETRIES = 20, 6
_HOPS: Final = 64
_KEY_BYTE: Final = 0xFF
"""The part of a key that the binder of a window chooses."""
_POLLED: Final = 32
_SCRATCH_BYTES: Final = 64
_SENT: Final = "NO_WRITE"
_BIND_S: Final = 10.0  # no peer is involved: only a stuck device takes that long

CHECKS: Final = {
    "LOC_LEN_ERR": "a message longer than the device's limit",
    "LOC_QP_OP_ERR": "the queue pair's attributes: a bug in offpath",
    "LOC_PROT_ERR": "the local region, its key or bounds: a bug in offpath",
    "WR_FLUSH_ERR": "the request was flushed: the queue pair had failed before",
    "MW_BIND_ERR": "the memory window, or the region that it is opened on: a bug in offpath",
    "REM_INV_REQ_ERR": "the peer's queue pair and its limits: it allows no such request",
    "REM_ACCESS_ERR": "the peer's region: its key, bounds and rights",
    "REM_OP_ERR": "the peer's side: it could not complete the request",
    "RETRY_EXC_ERR": "is the peer alive, its link up, the route there, the MTU the same all the way?",
    "RNR_RETRY_EXC_ERR": "the peer keeps no receive posted: it does not keep up",
    _SENT: "the peer sent a message, but requesters only write",
    "FATAL_ERR": "the device: see the kernel's log",
}


@dataclass(frozen=True, slots=True)
class Address:
    """One end, which the other needs before either can connect.

    ``psn``: the first packet's number, 24 bits. ``mtu``: libibverbs' number of it, 1 (256 bytes) to 5 (4 096).
    """

    qp_num: int
    psn: int
    gid: str
    mtu: int

    @property
    def gid_bytes(self) -> bytes:
        """The GID as compared and as sent: a text has several spellings, and of an address mapped from IPv4 Python 3.13
        prints another one than Python 3.12. Raises: ValueError: not a GID."""
        return IPv6Address(self.gid).packed


@dataclass(frozen=True, slots=True)
class Completion:
    """The end of a local request (``token``), an immediate of the peer (``imm``), or a failure that belongs to neither.

    ``nbytes``: what the message with the immediate wrote.
    """

    token: int | None = None
    imm: int | None = None
    nbytes: int = 0
    error: WorkFailed | None = None


class WriteSegment(NamedTuple):
    """Local bytes, and their address at the peer."""

    region: Region
    offset: int
    nbytes: int
    remote: int


class _Request(NamedTuple):
    opcode: int
    address: int
    nbytes: int
    lkey: int
    remote: int
    rkey: int
    imm: int


class _Posted(NamedTuple):
    token: int | None
    requests: int
    is_signalled: bool


class QueuePair:
    """``writes``: local requests that may be in flight. ``immediates``: the peer's immediates between two polls.
    ``reads``: reads that each end may have in flight. ``timeout``: 4.096 us x 2^timeout for an acknowledgement, seven
    times."""

    def __init__(
        self,
        domain: Domain,
        *,
        psn: int,
        writes: int = 64,
        immediates: int = 64,
        reads: int = 0,
        timeout: int = _TIMEOUT,
    ) -> None:
        """Make it, in state INIT, with its receives posted. Raises: VerbsError: the device's resources are
        exhausted."""
        self._domain, self._device, self._psn = domain, domain.device, psn & PSN_MASK
        self._room = self._writes = writes
        self._reads = reads
        self._timeout = timeout
        self._in_flight: deque[_Posted] = deque()
        self._unsignalled = 0
        self._failed: WorkFailed | None = None
        self._closed = False
        self.on_close: list[Callable[[], None]] = []
        self._statuses = _statuses()
        verbs = self._verbs = library()
        e = verbs.enums
        with ExitStack() as made:  # undone in reverse if a later step fails

            def make(what: str, call: Callable[[], Any]) -> Any:
                thing = attempt(f"make a {what}", call)
                made.callback(thing.close)
                return thing

            self._landing = domain.register(mmap(-1, _SCRATCH_BYTES))  # every receive must name some memory
            made.callback(self._landing.close)
            context = self._device.context
            self._channel, self._fd = with_descriptor(
                lambda: make("completion channel", lambda: verbs.cq.CompChannel(context)), "fd"
            )
            self._waiting = select.poll()
            self._waiting.register(self._fd, select.POLLIN)
            self._depth = depth = writes + immediates
            self._cq = make("completion queue", lambda: verbs.cq.CQ(context, depth, None, self._channel, 0))
            attempt("arm a completion queue", self._cq.req_notify)
            cap = verbs.qp.QPCap(
                max_send_wr=writes, max_recv_wr=immediates, max_send_sge=1, max_recv_sge=1,
                max_inline_data=self._device.inline_bytes,
            )  # fmt: skip
            init = verbs.qp.QPInitAttr(qp_type=e.IBV_QPT_RC, scq=self._cq, rcq=self._cq, cap=cap, sq_sig_all=0)
            self.qp = make("queue pair", lambda: verbs.qp.QP(domain.pd, init, self._attributes()))
            self._receive_sge = verbs.wr.SGE(self._landing.address, 0, self._landing.lkey)
            made.callback(self._receive_sge.close)
            self._receive = verbs.wr.RecvWR(sg=[self._receive_sge], num_sge=1)  # posted repeatedly
            made.callback(self._receive.close)
            for _ in range(immediates):
                attempt("post a receive", self._post_receive)
            self._undo = made.pop_all()

    @property
    def address(self) -> Address:
        """What the peer needs to connect."""
        return Address(self.qp.qp_num, self._psn, str(self._device.choice.gid.address), self._device.mtu)

    @property
    def in_flight(self) -> int:
        """Calls whose end was not yet reported."""
        return len(self._in_flight)

    def fence(self) -> None:
        """Request a completion for all that is in flight, if its last request has none. Does not block."""
        if self._in_flight and not self._in_flight[-1].is_signalled and self._failed is None and self._room:
            opcode, landing = self._verbs.enums.IBV_WR_RDMA_WRITE, self._landing
            self._post(0, [_Request(opcode, landing.address, 0, landing.lkey, 0, 0, 0)])

    @property
    def has_failed(self) -> bool:
        """It accepts nothing more."""
        return self._failed is not None

    def connect(self, peer: Address) -> None:
        """INIT → RTR → RTS: both ends may send.

        Blocks until the peer's address is resolved. Raises: VerbsError.
        """
        attributes = self._attributes()
        try:
            gid = peer.gid_bytes.hex(":", 2)  # libibverbs' spelling
        except ValueError:
            raise VerbsError(f"connect to {peer.gid[:64]!r}", "not a GID") from None
        attributes.ah_attr = self._verbs.addr.AHAttr(
            gr=self._verbs.addr.GlobalRoute(
                dgid=self._verbs.addr.GID(gid), sgid_index=self._device.choice.gid.index, hop_limit=_HOPS
            ),
            is_global=1,
            port_num=self._device.choice.port.number,
        )
        attributes.dest_qp_num, attributes.rq_psn, attributes.sq_psn = peer.qp_num, peer.psn & PSN_MASK, self._psn
        attributes.path_mtu = min(self._device.mtu, peer.mtu)
        attributes.max_rd_atomic = attributes.max_dest_rd_atomic = self._reads
        attributes.timeout, attributes.min_rnr_timer = self._timeout, _RNR_TIMER
        attributes.retry_cnt, attributes.rnr_retry = _RETRIES, _RNR_RETRIES
        attempt(f"connect to {peer.gid}", lambda: self.qp.to_rts(attributes))

    # -- requests -----------------------------------------------------------------------------------------------------
    def write(self, token: int | None, parts: Sequence[WriteSegment], rkey: int, imm: int | None = None) -> bool:
        """Write each part to the peer's memory; ``imm`` rings there when all of it has arrived.

        Data above the message limit is split; the last message has the immediate. One completion for all. With
        ``token`` None only a failure completes, so that nothing wakes up needlessly. False: no capacity now, nothing
        was posted; poll first. Does not block. Raises: RegionError, WorkFailed.
        """
        requests = self._requests(self._verbs.enums.IBV_WR_RDMA_WRITE, parts, rkey)
        if imm is not None:
            opcode = self._verbs.enums.IBV_WR_RDMA_WRITE_WITH_IMM
            # pyverbs passes the immediate's bytes unconverted
            requests[-1] = requests[-1]._replace(opcode=opcode, imm=socket.htonl(imm))
        return self._post(token, requests)

    def read(self, token: int, parts: Sequence[WriteSegment], rkey: int) -> bool:
        """Read each part from the peer's memory; otherwise as `write`."""
        return self._post(token, self._requests(self._verbs.enums.IBV_WR_RDMA_READ, parts, rkey))

    def ring(self, token: int | None, imm: int) -> bool:
        """Send an immediate without bytes; otherwise as `write`."""
        opcode, landing = self._verbs.enums.IBV_WR_RDMA_WRITE_WITH_IMM, self._landing
        return self._post(token, [_Request(opcode, landing.address, 0, landing.lkey, 0, 0, socket.htonl(imm))])

    def bind(self, region: Region) -> Window:
        """Bind a window on ``region``, by which the peer may write it; its key is valid on this queue pair only.

        Call it before the peer knows this end: immediates that arrive meanwhile are lost. Blocks until it is bound, at
        most some seconds. Raises: VerbsError, WorkFailed.
        """
        e, mr = self._verbs.enums, self._verbs.mr
        if not self._device.has_windows:
            raise VerbsError(
                "bind a memory window", f"{self._device.choice.port.device} has none of type 2B",
                check="`ibv_devinfo -v` would show MEM_WINDOW_TYPE_2B; without it, seal sessions by their domain",
            )  # fmt: skip
        window = attempt("make a memory window", lambda: mr.MW(self._domain.pd, e.IBV_MW_TYPE_2))
        self._undo.callback(window.close)  # before the queue pair, whose destruction would wait for its windows
        rkey = window.rkey & ~_KEY_BYTE | window.rkey + 1 & _KEY_BYTE  # as pyverbs expects, like ibv_inc_rkey
        info = mr.MWBindInfo(region.registered, region.address, region.nbytes, e.IBV_ACCESS_REMOTE_WRITE)
        with ExitStack() as made:
            request = self._verbs.wr.SendWR(opcode=e.IBV_WR_BIND_MW, send_flags=e.IBV_SEND_SIGNALED, num_sge=0)
            made.callback(request.close)
            request.set_bind_wr(window, info)
            self._room -= 1
            self._in_flight.append(_Posted(0, 1, True))
            attempt("bind a memory window", lambda: self.qp.post_send(request))
        until = time.monotonic() + _BIND_S
        while self._in_flight:
            left = until - time.monotonic()
            if left <= 0:
                raise VerbsError("bind a memory window", f"not done within {_BIND_S:g} s", errno.ETIMEDOUT)
            self._waiting.poll(left * 1e3)
            self.poll()
        if self._failed is not None:
            raise self._failed
        return Window(window, region, rkey)

    # -- completions --------------------------------------------------------------------------------------------------
    def fileno(self) -> int:
        """Readable when `poll` has something."""
        return self._fd

    def poll(self) -> list[Completion]:
        """Take the completions. Does not block.

        The first failure ends the queue pair: it is reported once for all requests in flight, and no more are accepted.
        Raises: PeerGone: it failed before.
        """
        if self._closed:
            raise ResourceClosed("the queue pair is closed")
        if self._failed is not None:
            raise PeerGone(str(self._failed))
        if self._waiting.poll(0):
            self._take_event()
        found: list[Completion] = []
        while self._failed is None and len(found) < self._depth:  # bounded, even if the peer never stops
            count, completions = self._cq.poll(_POLLED)
            if not count:
                break
            for each in completions:
                if refusal := self._refusal(each):
                    self._fail(refusal, found)
                    break
                found.append(self._completed(each))
        return found

    def close(self) -> None:
        """Close queue pair, completion queue and channel. The domain stays open. Idempotent."""
        if not self._closed:
            self._closed = True
            with opening:
                self._undo.close()
            for callback in self.on_close:
                callback()

    # -- within -------------------------------------------------------------------------------------------------------
    def _requests(self, opcode: int, parts: Sequence[WriteSegment], rkey: int) -> list[_Request]:
        """One request for each message that the parts need."""
        limit, made = self._device.message_bytes, []
        for region, offset, nbytes, remote in parts:
            at = region.check(offset, nbytes)
            for done in range(0, nbytes, limit):
                part = min(limit, nbytes - done)
                made.append(_Request(opcode, at + done, part, region.lkey, remote + done, rkey, 0))
        return made

    def _attributes(self) -> Any:
        e = self._verbs.enums
        attributes = self._verbs.qp.QPAttr(port_num=self._device.choice.port.number)
        attributes.qp_access_flags = e.IBV_ACCESS_REMOTE_WRITE | (e.IBV_ACCESS_REMOTE_READ if self._reads else 0)
        return attributes

    def _post_receive(self) -> None:
        self.qp.post_recv(self._receive)

    def _post(self, token: int | None, requests: list[_Request]) -> bool:
        if self._closed:
            raise ResourceClosed("the queue pair is closed")
        if self._failed is not None:
            raise self._failed
        if len(requests) > self._writes:
            raise RegionError(f"{len(requests)} messages are more than the {self._writes} that may be in flight")
        if len(requests) > self._room:
            return False
        self._room -= len(requests)
        self._unsignalled += len(requests)
        # Requests without a token are signalled only as often as queue space must be reclaimed.
        is_signalled = token is not None or 2 * self._unsignalled >= self._writes
        if is_signalled:
            self._unsignalled = 0
        self._in_flight.append(_Posted(token, len(requests), is_signalled))
        last = len(requests) - 1
        for number, request in enumerate(requests):
            self._post_one(request, is_signalled and number == last)
        return True

    def _post_one(self, request: _Request, is_signalled: bool) -> None:
        """Post one message. Posting copies entry and request. Unclosed they leak; a second close aborts."""
        e, wr = self._verbs.enums, self._verbs.wr
        flags = e.IBV_SEND_SIGNALED if is_signalled else 0
        if request.nbytes <= self._device.inline_bytes and request.opcode != e.IBV_WR_RDMA_READ:
            flags |= e.IBV_SEND_INLINE
        entry = wr.SGE(request.address, request.nbytes, request.lkey)
        try:
            made = wr.SendWR(opcode=request.opcode, send_flags=flags, imm_data=request.imm, sg=[entry], num_sge=1)
            try:
                made.set_wr_rdma(request.rkey, request.remote)
                attempt("post a request", lambda: self.qp.post_send(made))
            finally:
                made.close()
        finally:
            entry.close()

    def _take_event(self) -> None:
        """At most one event waits: the queue is armed again only here, before it is drained. Later completions raise a
        new one."""
        error = self._verbs.error
        try:
            self._channel.get_cq_event(self._cq)
        except error.PyverbsRDMAError as fault:
            if fault.error_code not in (errno.EINTR, errno.EAGAIN):  # otherwise it is taken the next time
                raise WorkFailed("FATAL_ERR", CHECKS["FATAL_ERR"]) from fault
            return
        self._cq.ack_events(1)
        self._cq.req_notify()

    def _completed(self, completion: Any) -> Completion:
        e = self._verbs.enums
        if completion.opcode & e.IBV_WC_RECV:
            attempt("post a receive", self._post_receive)
            return Completion(imm=socket.ntohl(completion.imm_data), nbytes=completion.byte_len)
        while True:  # a reliable connection completes in order: earlier unsignalled requests have ended too
            posted = self._in_flight.popleft()
            self._room += posted.requests
            if posted.is_signalled:
                return Completion(token=posted.token)

    def _refusal(self, completion: Any) -> str:
        """Why this completion ends the queue pair; empty: it is valid."""
        e, status = self._verbs.enums, completion.status
        if status != e.IBV_WC_SUCCESS:
            return self._statuses.get(status, f"status {status}")
        is_received = completion.opcode & e.IBV_WC_RECV  # the bit that all opcodes of the receive queue share
        return _SENT if is_received and completion.opcode != e.IBV_WC_RECV_RDMA_WITH_IMM else ""

    def _fail(self, name: str, found: list[Completion]) -> None:
        self._failed = WorkFailed(name, CHECKS.get(name, "the device: see the kernel's log"))
        ended = [Completion(token=each.token, error=self._failed) for each in self._in_flight if each.token is not None]
        found += ended or [Completion(error=self._failed)]
        self._in_flight.clear()


def _statuses() -> dict[int, str]:
    """libibverbs' names of failures, by number."""
    enums = library().enums
    prefix, suffix = "IBV_WC_", "_ERR"
    return {
        int(getattr(enums, name)): name.removeprefix(prefix)
        for name in dir(enums)
        if name.startswith(prefix) and name.endswith(suffix)
    }
