"""A job's processes on the network of an emulated statistical switch: connections and time; all else is in the cores.

A worker calls `Worker.all_reduce`; the job's parameter server runs `serve` in a process or thread of its own.
"""

from __future__ import annotations

import hashlib
import select
import socket
import time
from types import TracebackType
from typing import Final

import numpy as np
from numpy.typing import NDArray

from offpath.bindings.errors import PeerGone
from offpath.bindings.ina.address import parse_address, tune
from offpath.bindings.ina.packets import Packet, PacketKind, PacketReader, Refusal, pack
from offpath.host_helper.ina.statistical.parameter_server import ParameterServer, ServerCounters
from offpath.host_helper.ina.statistical.sender import Sender

PATIENCE_S: Final = 30.0
"""A worker without any result for that long gives up."""
START_S: Final = 60.0
"""Time for all processes of a job to attach."""
_READ_BYTES: Final = 1 << 16
_SEND_S: Final = 10.0


def job_number(identity: str) -> int:
    """64 bits of a job's identity (``OFFPATH_JOB``), by which packets name it."""
    return int.from_bytes(hashlib.blake2b(identity.encode(), digest_size=8).digest(), "little")


class Connection:
    """Blocking; one process's. A context manager."""

    def __init__(self, address: str, attach: Packet, within_s: float = START_S) -> None:
        """Attach, and wait until all processes of the job have. The switch may still have to start.

        Raises: PeerGone: refused, or not all have attached in time. FabricAddressError.
        """
        until = time.monotonic() + within_s
        self._reader = PacketReader()
        self._waiting: list[Packet] = []
        self._socket = _connected(address, until)
        try:
            self.send([attach])
            answer = self.receive(until - time.monotonic(), most=1)
            if not answer:
                raise PeerGone(f"{address}: not all processes of the job attached within {within_s:g} s")
            if answer[0].kind is not PacketKind.READY:
                reason = Refusal(answer[0].psn).name.lower() if answer[0].kind is PacketKind.REFUSED else "no answer"
                raise PeerGone(f"{address}: the switch refuses the process: {reason}")
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Connection:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Idempotent."""
        self._socket.close()

    def send(self, packets: list[Packet]) -> None:
        """Raises: PeerGone."""
        if not packets:
            return
        try:
            self._socket.settimeout(_SEND_S)
            self._socket.sendall(b"".join(map(pack, packets)))
        except OSError as fault:
            raise PeerGone(f"connection to the switch lost: {fault}") from None

    def receive(self, wait_s: float, most: int = 1 << 30) -> list[Packet]:
        """What has arrived, after at most ``wait_s`` if nothing has. Raises: PeerGone, PacketError."""
        if not self._waiting and select.select([self._socket], [], [], max(0.0, wait_s))[0]:
            try:
                data = self._socket.recv(_READ_BYTES)
            except OSError as fault:
                raise PeerGone(f"connection to the switch lost: {fault}") from None
            if not data:
                raise PeerGone("the switch closed the connection")
            self._waiting = self._reader.feed(data)
        taken, self._waiting = self._waiting[:most], self._waiting[most:]
        return taken


def _connected(address: str, until: float) -> socket.socket:
    family, target = parse_address(address)
    while True:
        sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            sock.settimeout(_SEND_S)
            sock.connect(target)
            tune(sock)
            return sock
        except OSError as fault:
            sock.close()
            if time.monotonic() > until:
                raise PeerGone(f"{address}: {fault}") from None
            time.sleep(0.05)


class Worker:
    """One worker of a job. A context manager. ``payload_bytes``: of a packet, a multiple of four, the same for all
    workers."""

    def __init__(self, address: str, sender: Sender, attach: Packet, payload_bytes: int = 4096) -> None:
        """``attach``: see `attach_of`. Raises: as `Connection`."""
        self.sender = sender
        self.flowed_bps = 0.0
        """Rate of the last call's results, from the first to the last; 0: there was one packet only."""
        self._payload_bytes = payload_bytes
        self._connection = Connection(address, attach)

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *raised: object) -> None:
        self._connection.close()

    def all_reduce(self, values: NDArray[np.int32]) -> NDArray[np.int32]:
        """The sum over all workers, shape [n]; all call it with the same n. int32 wraps.

        Raises: PeerGone: the connection is lost, the PS has ended, or no result arrives. PacketError.
        """
        began_ns = time.monotonic_ns()
        data = np.ascontiguousarray(values, "<i4").tobytes()
        total = bytearray(len(data))
        at: dict[int, int] = {}
        for begin in range(0, len(data), self._payload_bytes):
            at[self.sender.offer(data[begin : begin + self._payload_bytes])] = begin
        heard_ns, first_ns, flowed = began_ns, 0, 0
        while at:
            now_ns = time.monotonic_ns()
            self._connection.send(self.sender.packets(now_ns))
            if now_ns - heard_ns > PATIENCE_S * 1e9:
                raise PeerGone(f"no result within {PATIENCE_S:g} s")
            deadline_ns = self.sender.deadline_ns()
            wait_s = (deadline_ns - now_ns) / 1e9 if deadline_ns is not None else PATIENCE_S
            for packet in self._connection.receive(min(wait_s, PATIENCE_S)):
                heard_ns = time.monotonic_ns()
                if packet.kind is PacketKind.RESULT and self.sender.receive(packet, heard_ns):
                    begin = at.pop(packet.psn)
                    total[begin : begin + len(packet.payload)] = packet.payload
                    flowed += len(packet.payload) if first_ns else 0
                    first_ns = first_ns or heard_ns
        self.flowed_bps = flowed * 8e9 / max(1, heard_ns - first_ns)
        return np.frombuffer(total, "<i4")


def attach_of(job: int, workers: int, server: str, rank: int | None) -> Packet:
    """The ATTACH of a process on ``server``; ``rank`` None: the job's PS."""
    return Packet(PacketKind.ATTACH, job, 0, workers, 0 if rank is None else 1 << rank, payload=server.encode())


def serve(address: str, attach: Packet, ring: int, flush_s: float) -> ServerCounters:
    """Be a job's PS until its last worker has disconnected. See `ParameterServer`.

    Raises: as `Connection`; PeerGone: the connection is lost; PacketError.
    """
    core = ParameterServer(attach.job, attach.workers, ring, round(flush_s * 1e9))
    left = 0
    with Connection(address, attach) as connection:
        while left != (1 << attach.workers) - 1:
            now_ns = time.monotonic_ns()
            deadline_ns = core.deadline_ns()
            wait_s = (deadline_ns - now_ns) / 1e9 if deadline_ns is not None else PATIENCE_S
            answers: list[Packet] = []
            for packet in connection.receive(wait_s):
                if packet.kind is PacketKind.DATA:
                    answers += core.data(packet, time.monotonic_ns())
                elif packet.kind is PacketKind.DETACHED:
                    left |= packet.bitmap
            answers += core.due(time.monotonic_ns())
            connection.send(answers)
    return core.counters
