"""The settings that need no daemon, each as processes that serve requests.

floor  bare doorbells through three processes and the same two copies: the least cost of such a path in Python
1      a bare TCP server on the host core that copies once into instance memory
2      the requester writes directly into instance memory and rings the worker; no scheduling
"""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import time

from offpath.bindings.memory.region import Region
from offpath.cli.bench.kernels import compute
from offpath.cli.bench.measure import Block, Cores, CpuMeter, end, fork
from offpath.cli.bench.request_path.backend import DEPTH, LARGEST, SMALL, Payload

_IMM = struct.Struct("<I")


class _Paced:
    """Keeps ``in_flight`` requests under way over the send and receive of the concrete setting."""

    name = ""

    def cpu_pids(self) -> dict[str, list[int]]:
        """The processes by role; those of ``worker`` run on the host."""
        raise NotImplementedError

    def realtime_pids(self) -> list[int]:
        """None: these settings have no such option."""
        return []

    def send(self, slot: int, payload: Payload, kernel_ms: int) -> None:
        raise NotImplementedError

    def receive(self) -> list[int]:
        """The answered slots."""
        raise NotImplementedError

    def block(self, payload: Payload, count: int, in_flight: int, kernel_ms: int) -> Block:
        """See `Backend.block`."""
        started = [0] * in_flight
        latencies: list[int] = []
        meter = CpuMeter(self.cpu_pids())
        begin = time.perf_counter_ns()
        for slot in range(in_flight):
            started[slot] = time.perf_counter_ns()
            self.send(slot, payload, kernel_ms)
        sent = in_flight
        while len(latencies) < count:
            for slot in self.receive():
                now = time.perf_counter_ns()
                latencies.append(now - started[slot])
                if sent < count:
                    sent += 1
                    started[slot] = time.perf_counter_ns()
                    self.send(slot, payload, kernel_ms)
        wall = time.perf_counter_ns() - begin
        spent = meter.spent()
        return Block(latencies, wall, spent["worker"], cpu_ns=spent)


def _pair() -> tuple[socket.socket, socket.socket]:
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


class _Memory:
    """Slots that hold one of the largest payloads or sixteen small ones."""

    def __init__(self, name: str) -> None:
        self.region = Region.create(name, max(LARGEST, DEPTH * SMALL))
        self.region.prefault()

    def at(self, slot: int, nbytes: int) -> slice:
        """The position of a slot's payload."""
        return slice(slot * SMALL, slot * SMALL + nbytes) if slot else slice(0, nbytes)


class Floor(_Paced):
    """Requester → middle (copies) → worker → middle → requester, nothing else."""

    name = "floor"

    def __init__(self, cores: Cores) -> None:
        self._slots, self._lanes = _Memory("floor-slots"), _Memory("floor-lanes")
        self._bell, middle = _pair()
        to_worker, worker = _pair()
        self._middle = fork(cores.dpu, lambda: self._relay(middle, to_worker))
        self._worker = fork(cores.host, lambda: _bare_worker(worker, self._lanes))
        middle.close()
        to_worker.close()
        worker.close()

    def _relay(self, requester: socket.socket, worker: socket.socket) -> None:
        source, target = self._slots.region.view, self._lanes.region.view
        poller = select.epoll()
        poller.register(requester, select.EPOLLIN)
        poller.register(worker, select.EPOLLIN)
        acceptor = requester.fileno()
        while True:
            for fd, _ in poller.poll():
                if fd == acceptor:
                    message = requester.recv(16)
                    slot, nbytes, _ms = struct.unpack("<IQI", message)
                    place = self._slots.at(slot, nbytes)
                    target[place] = source[place]
                    worker.send(message)
                else:
                    requester.send(worker.recv(16))

    def cpu_pids(self) -> dict[str, list[int]]:
        """The middle stands for the daemon."""
        return {"daemon": [self._middle], "worker": [self._worker]}

    def send(self, slot: int, payload: Payload, kernel_ms: int) -> None:
        """Write one-sidedly, then ring."""
        self._slots.region.view[self._slots.at(slot, payload.nbytes)] = payload.data
        self._bell.send(struct.pack("<IQI", slot, payload.nbytes, kernel_ms))

    def receive(self) -> list[int]:
        """Block for one answer."""
        return [_IMM.unpack(self._bell.recv(8))[0]]

    def close(self) -> None:
        """End both processes."""
        end(self._middle)
        end(self._worker)
        self._bell.close()
        self._slots.region.close()
        self._lanes.region.close()


def _bare_worker(bell: socket.socket, lanes: _Memory) -> None:
    view = lanes.region.view
    while True:
        slot, nbytes, kernel_ms = struct.unpack("<IQI", bell.recv(16))
        compute(view[lanes.at(slot, nbytes)], kernel_ms)
        bell.send(_IMM.pack(slot))


class Direct(_Paced):
    """Setting 2."""

    name = "2"

    def __init__(self, cores: Cores) -> None:
        self._lanes = _Memory("direct-lanes")
        self._bell, worker = _pair()
        self._worker = fork(cores.host, lambda: _bare_worker(worker, self._lanes))
        worker.close()

    def cpu_pids(self) -> dict[str, list[int]]:
        """The worker."""
        return {"worker": [self._worker]}

    def send(self, slot: int, payload: Payload, kernel_ms: int) -> None:
        """Write directly into instance memory, ring the worker."""
        self._lanes.region.view[self._lanes.at(slot, payload.nbytes)] = payload.data
        self._bell.send(struct.pack("<IQI", slot, payload.nbytes, kernel_ms))

    def receive(self) -> list[int]:
        """Block for one answer."""
        return [_IMM.unpack(self._bell.recv(8))[0]]

    def close(self) -> None:
        """End the worker."""
        end(self._worker)
        self._bell.close()
        self._lanes.region.close()


class Tcp(_Paced):
    """Setting 1."""

    name = "1"

    def __init__(self, cores: Cores) -> None:
        listener = socket.create_server(("127.0.0.1", 0))
        self._server = fork(cores.host, lambda: _tcp_server(listener))
        self._sock = socket.create_connection(listener.getsockname())
        self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        listener.close()

    def cpu_pids(self) -> dict[str, list[int]]:
        """The server is the worker."""
        return {"worker": [self._server]}

    def send(self, slot: int, payload: Payload, kernel_ms: int) -> None:
        """Send the request's bytes through the socket."""
        head = struct.pack("<IQI", slot, payload.nbytes, kernel_ms)
        sent = self._sock.sendmsg([head, payload.data])
        if sent < len(head) + payload.nbytes:
            self._sock.sendall(payload.data[max(0, sent - len(head)) :])

    def receive(self) -> list[int]:
        """Block for one answer."""
        return [_IMM.unpack(_exactly(self._sock, 4))[0]]

    def close(self) -> None:
        """End the server."""
        self._sock.close()
        end(self._server)


def _exactly(sock: socket.socket, nbytes: int) -> bytes:
    data = b""
    while len(data) < nbytes:
        if not (part := sock.recv(nbytes - len(data))):
            raise ConnectionError("the peer closed")
        data += part
    return data


def _tcp_server(listener: socket.socket) -> None:
    sock, _ = listener.accept()
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    received, lane = _Memory("tcp-buffer").region.view, _Memory("tcp-lane").region.view
    with contextlib.suppress(ConnectionError):
        while True:
            slot, nbytes, kernel_ms = struct.unpack("<IQI", _exactly(sock, 16))
            at = 0
            while at < nbytes:
                at += sock.recv_into(received[at:nbytes])
            lane[:nbytes] = received[:nbytes]
            compute(lane, kernel_ms)
            sock.sendall(_IMM.pack(slot))
