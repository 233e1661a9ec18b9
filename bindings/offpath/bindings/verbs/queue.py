"""A protection domain with one reliable-connection queue pair: what a session's two ends are connected by.

The owner keeps the receive queue stocked, so that the peer's writes with an immediate find a receive each; posts
writes of any length; and tells completions from failures. Nothing here blocks but `connect`, and nothing waits.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import socket
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from ipaddress import IPv6Address
from mmap import mmap
from threading import Lock
from typing import Any, Final

from offpath.bindings.errors import PeerGone, RegionError, ResourceClosed, WorkFailed
from offpath.bindings.verbs.devices import Choice
from offpath.bindings.verbs.library import attempt, library

PSN_MASK: Final = 0xFF_FFFF

# 4.096 us x 2^14 = 67 ms for an acknowledgement, 6 times more; 10 ms for a receive, 6 times more. Here 7 is for ever.
_TIMEOUT, _RETRIES = 14, 6
_RNR_TIMER, _RNR_RETRIES = 20, 6
_HOPS: Final = 64
_POLLED: Final = 32
_SCRATCH_BYTES: Final = 64
_EVENT_LINK: Final = "anon_inode:[infinibandevent]"
_opening = Lock()  # the channel's descriptor is told by which one is new

CHECKS: Final = {
    "LOC_LEN_ERR": "a message longer than the device's limit",
    "LOC_QP_OP_ERR": "the queue pair's attributes: a fault of ours",
    "LOC_PROT_ERR": "our own region, its key or bounds: a fault of ours",
    "WR_FLUSH_ERR": "it was given up: the queue pair had failed before",
    "REM_INV_REQ_ERR": "the peer's queue pair and its limits: it allows no such request",
    "REM_ACCESS_ERR": "the peer's region: its key, bounds and rights",
    "REM_OP_ERR": "the peer's side: it could not complete the request",
    "RETRY_EXC_ERR": "is the peer alive, its link up, the route there, the MTU the same all the way?",
    "RNR_RETRY_EXC_ERR": "the peer keeps no receive posted: it does not keep up",
    "FATAL_ERR": "the device: see the kernel's log",
}


@dataclass(frozen=True, slots=True)
class Address:
    """One end, as the other must know it before either can connect.

    ``psn``: the first packet's number, 24 bits. ``mtu``: libibverbs' number of it, 1 (256 bytes) to 5 (4 096).
    """

    qp_num: int
    psn: int
    gid: str
    mtu: int


@dataclass(frozen=True, slots=True)
class Completion:
    """A write of ours that ended (``token``), an immediate of the peer's (``imm``), or a failure that hit neither.

    ``nbytes``: what the message with the immediate wrote.
    """

    token: int | None = None
    imm: int | None = None
    nbytes: int = 0
    error: WorkFailed | None = None


class Region:
    """Registered memory of a protection domain. Made by `QueuePair.register`."""

    def __init__(self, region: Any, export: Any, address: int, nbytes: int) -> None:
        self._region = region
        self._export = export
        self.address = address
        self.nbytes = nbytes
        self.lkey: int = region.lkey
        self.rkey: int = region.rkey

    def close(self) -> None:
        """Take the device's access back, then let the mapping go. Repeating it is harmless."""
        if self._region is not None:
            self._region.close()
            self._region = self._export = None

    def check(self, offset: int, nbytes: int) -> int:
        """The address of a range in it. Raises: RegionError: out of bounds, or closed."""
        if self._region is None:
            raise RegionError("the region is closed")
        if offset < 0 or nbytes < 1 or offset + nbytes > self.nbytes:
            raise RegionError(f"{nbytes} bytes at {offset} of a region of {self.nbytes}")
        return self.address + offset


class Device:
    """An opened RDMA device, from which queue pairs are made; close those first."""

    def __init__(self, choice: Choice) -> None:
        """Open it. Raises: VerbsMissing, VerbsError."""
        self.choice = choice
        verbs, name = library(), choice.port.device
        with _opening:
            self.context: Any = attempt(f"open {name}", lambda: verbs.device.Context(name=name))
        port = attempt(f"query {choice.port}", lambda: self.context.query_port(choice.port.number))
        self.mtu: int = port.active_mtu
        self.message_bytes: int = port.max_msg_sz

    def close(self) -> None:
        """Repeating it is harmless."""
        self.context.close()


class QueuePair:
    """A queue pair in a protection domain of its own: no key of another session is valid here.

    ``writes``: how many of ours may be in flight; ``immediates``: how many of the peer's before we poll.
    """

    def __init__(self, device: Device, *, psn: int, writes: int = 64, immediates: int = 64) -> None:
        """Make it, in state INIT, with its receives posted. Raises: VerbsError: the device has no more to give."""
        self._device, self._psn = device, psn & PSN_MASK
        self._room = self._writes = writes
        self._in_flight: deque[tuple[int, int]] = deque()  # token, work requests
        self._failed: WorkFailed | None = None
        self._regions: list[Region] = []
        self._closed = False
        self._statuses = _statuses()
        verbs = self._verbs = library()
        e = verbs.enums
        with ExitStack() as made:  # undone in reverse if a later step fails

            def make(what: str, call: Callable[[], Any]) -> Any:
                thing = attempt(f"make a {what}", call)
                made.callback(thing.close)
                return thing

            self._pd = make("protection domain", lambda: verbs.pd.PD(device.context))
            made.callback(self._close_regions)
            landing = self.register(mmap(-1, _SCRATCH_BYTES), writable=False)  # every receive must name some memory
            with _opening:
                before = _event_descriptors()
                self._channel = make("completion channel", lambda: verbs.cq.CompChannel(device.context))
                self._fd = _descriptor(self._channel, before)
            # get_cq_event waits with the interpreter locked: it must never wait.
            fcntl.fcntl(self._fd, fcntl.F_SETFL, fcntl.fcntl(self._fd, fcntl.F_GETFL) | os.O_NONBLOCK)
            depth = writes + immediates
            self._cq = make("completion queue", lambda: verbs.cq.CQ(device.context, depth, None, self._channel, 0))
            attempt("arm a completion queue", self._cq.req_notify)
            cap = verbs.qp.QPCap(max_send_wr=writes, max_recv_wr=immediates, max_send_sge=1, max_recv_sge=1)
            init = verbs.qp.QPInitAttr(qp_type=e.IBV_QPT_RC, scq=self._cq, rcq=self._cq, cap=cap, sq_sig_all=0)
            self._qp = make("queue pair", lambda: verbs.qp.QP(self._pd, init, self._attributes()))
            self._receive_sge = verbs.wr.SGE(landing.address, 0, landing.lkey)
            made.callback(self._receive_sge.close)
            self._receive = verbs.wr.RecvWR(sg=[self._receive_sge], num_sge=1)  # posted again and again
            made.callback(self._receive.close)
            for _ in range(immediates):
                attempt("post a receive", self._post_receive)
            self._undo = made.pop_all()

    @property
    def address(self) -> Address:
        """What the peer connects to."""
        return Address(self._qp.qp_num, self._psn, str(self._device.choice.gid.address), self._device.mtu)

    def register(self, memory: mmap, *, writable: bool) -> Region:
        """Let the device read ``memory``, and the peer write to it if it is ``writable``; nobody may read it remotely.

        Raises: VerbsError: RLIMIT_MEMLOCK, or a mapping that cannot be written.
        """
        e, nbytes = self._verbs.enums, len(memory)
        access = e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE if writable else 0
        export = ctypes.c_char.from_buffer(memory)  # keeps the mapping: the device does not
        address = ctypes.addressof(export)
        made = attempt(f"register {nbytes} bytes", lambda: self._verbs.mr.MR(self._pd, nbytes, access, address=address))
        region = Region(made, export, address, nbytes)
        self._regions.append(region)
        return region

    def connect(self, peer: Address) -> None:
        """INIT → RTR → RTS: both may send. Blocks until the peer's address is resolved. Raises: VerbsError."""
        attributes = self._attributes()
        attributes.ah_attr = self._verbs.addr.AHAttr(
            gr=self._verbs.addr.GlobalRoute(
                dgid=self._verbs.addr.GID(IPv6Address(peer.gid).exploded),
                sgid_index=self._device.choice.gid.index,
                hop_limit=_HOPS,
            ),
            is_global=1,
            port_num=self._device.choice.port.number,
        )
        attributes.dest_qp_num, attributes.rq_psn, attributes.sq_psn = peer.qp_num, peer.psn & PSN_MASK, self._psn
        attributes.path_mtu = min(self._device.mtu, peer.mtu)
        attributes.max_rd_atomic = attributes.max_dest_rd_atomic = 0  # nobody reads
        attributes.timeout, attributes.min_rnr_timer = _TIMEOUT, _RNR_TIMER
        attributes.retry_cnt, attributes.rnr_retry = _RETRIES, _RNR_RETRIES
        attempt(f"connect to {peer.gid}", lambda: self._qp.to_rts(attributes))

    def write(
        self, token: int, source: Region, offset: int, nbytes: int, remote: int, rkey: int, imm: int | None = None
    ) -> bool:
        """Write to the peer's memory at ``remote``; ``imm`` rings there when all of it has arrived.

        More than a message may hold goes as several, the last of them with the immediate; one completion for all.
        False: no room now, nothing was posted; poll first. Does not block. Raises: RegionError, WorkFailed.
        """
        start, limit = source.check(offset, nbytes), self._device.message_bytes
        messages = -(-nbytes // limit)
        if messages > self._writes:
            raise RegionError(f"{nbytes} bytes are more than {self._writes} messages of {limit}")
        if not self._take_room(token, messages):
            return False
        for done in range(0, nbytes, limit):
            part = min(limit, nbytes - done)
            is_last = done + part == nbytes
            self._post_write(start + done, part, source.lkey, remote + done, rkey, is_last, imm if is_last else None)
        return True

    def ring(self, token: int, imm: int) -> bool:
        """An immediate without bytes; otherwise as `write`."""
        landing = self._regions[0]
        if self._take_room(token, 1):
            self._post_write(landing.address, 0, landing.lkey, 0, 0, True, imm)
            return True
        return False

    def fileno(self) -> int:
        """Readable when `poll` has something."""
        return self._fd

    def poll(self) -> list[Completion]:
        """Take what has completed. Does not block.

        The first failure ends the queue pair: it is reported once, for every write in flight, and no write is taken any
        more. Raises: PeerGone: it failed before.
        """
        if self._closed:
            raise ResourceClosed("the queue pair is closed")
        if self._failed is not None:
            raise PeerGone(str(self._failed))
        events = 0
        while self._take_event():
            events += 1
        if events:
            self._cq.ack_events(events)
        self._cq.req_notify()  # before the queue is drained: what comes in between makes an event
        found: list[Completion] = []
        while self._failed is None:
            count, completions = self._cq.poll(_POLLED)
            if not count:
                break
            for each in completions:
                if each.status != self._verbs.enums.IBV_WC_SUCCESS:
                    self._fail(each.status, found)
                    break
                found.append(self._completed(each))
        return found

    def close(self) -> None:
        """Queue pair, completion queue, channel, regions, domain, in this order. Repeating it is harmless."""
        if not self._closed:
            self._closed = True
            self._undo.close()

    # -- within -------------------------------------------------------------------------------------------------------
    def _take_room(self, token: int, messages: int) -> bool:
        if self._closed:
            raise ResourceClosed("the queue pair is closed")
        if self._failed is not None:
            raise self._failed
        if messages > self._room:
            return False
        self._room -= messages
        self._in_flight.append((token, messages))
        return True

    def _close_regions(self) -> None:
        for region in self._regions:
            region.close()

    def _attributes(self) -> Any:
        attributes = self._verbs.qp.QPAttr(port_num=self._device.choice.port.number)
        attributes.qp_access_flags = self._verbs.enums.IBV_ACCESS_REMOTE_WRITE
        return attributes

    def _post_receive(self) -> None:
        self._qp.post_recv(self._receive)

    def _post_write(
        self, address: int, nbytes: int, lkey: int, remote: int, rkey: int, is_last: bool, imm: int | None
    ) -> None:
        """One message. Its entry and request are copied when posted; unclosed they leak, closed twice they abort."""
        e, wr = self._verbs.enums, self._verbs.wr
        with ExitStack() as made:
            entry = wr.SGE(address, nbytes, lkey)
            made.callback(entry.close)
            request = wr.SendWR(
                opcode=e.IBV_WR_RDMA_WRITE if imm is None else e.IBV_WR_RDMA_WRITE_WITH_IMM,
                send_flags=e.IBV_SEND_SIGNALED if is_last else 0,
                imm_data=0 if imm is None else socket.htonl(imm),  # pyverbs passes it on as it lies in memory
                sg=[entry],
                num_sge=1,
            )
            made.callback(request.close)
            request.set_wr_rdma(rkey, remote)
            attempt("post a write", lambda: self._qp.post_send(request))

    def _take_event(self) -> bool:
        error = self._verbs.error
        while True:
            try:
                self._channel.get_cq_event(self._cq)
                return True
            except error.PyverbsRDMAError as fault:
                if fault.error_code == errno.EINTR:
                    continue
                if fault.error_code == errno.EAGAIN:
                    return False
                raise WorkFailed("FATAL_ERR", CHECKS["FATAL_ERR"]) from fault

    def _completed(self, completion: Any) -> Completion:
        e = self._verbs.enums
        if completion.opcode & e.IBV_WC_RECV:  # the bit that all opcodes of the receive queue share
            attempt("post a receive", self._post_receive)
            return Completion(imm=socket.ntohl(completion.imm_data), nbytes=completion.byte_len)
        token, messages = self._in_flight.popleft()  # a reliable connection completes in order
        self._room += messages
        return Completion(token=token)

    def _fail(self, status: int, found: list[Completion]) -> None:
        name = self._statuses.get(status, f"status {status}")
        self._failed = WorkFailed(name, CHECKS.get(name, "the device: see the kernel's log"))
        found += [Completion(token=token, error=self._failed) for token, _ in self._in_flight]
        if not self._in_flight:
            found.append(Completion(error=self._failed))
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


def _event_descriptors() -> set[int]:
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{name}") == _EVENT_LINK:
                found.add(int(name))
        except OSError:  # the listing's own descriptor
            continue
    return found


def _descriptor(channel: Any, before: set[int]) -> int:
    """The channel's descriptor: pyverbs 44 does not show it, but it is the one that was not there before."""
    shown = getattr(channel, "fd", None)
    if shown is not None:
        return int(shown)
    (new,) = _event_descriptors() - before
    return new
