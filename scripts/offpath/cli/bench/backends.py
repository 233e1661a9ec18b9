"""The settings of Conspirator §4.1 and the floor, each as processes that serve requests.

floor  bare doorbells through three processes and the same two copies: the least cost of any such path here
1      a bare TCP server on the host core that copies once into instance memory
2      the requester writes directly into instance memory and rings the worker; no scheduling
3      offpath with its daemon on the host core: scheduler and copy on the host, through shared memory
4      offpath
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import time
from collections import deque
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from offpath.bindings.memory.region import Region
from offpath.cli.bench.measure import Block, Cores, children, cpu_ns, end, fork, pin
from offpath.cli.local.child import COMMAND_LINE, start
from offpath.host_helper.helper import Helper
from offpath.host_helper.kernels import LaneContext
from offpath.host_helper.requester import Pending, Requester

LARGEST: Final = 128 * 614_400
SMALL: Final = 614_400
DEPTH: Final = 16
LANES: Final = 4
_IMM = struct.Struct("<I")
_KERNEL_MS: Final = ("0", "4")
Payload = NDArray[np.uint8]


class Backend(Protocol):
    """A setting that serves requests."""

    name: str

    def realtime_pids(self) -> list[int]:
        """Processes that the product can run at real-time priority (`Helper.run(realtime=True)`)."""

    def block(self, payload: Payload, count: int, in_flight: int, kernel_ms: int) -> Block:
        """Run ``count`` requests, ``in_flight`` at a time."""

    def close(self) -> None:
        """End the setting's processes."""


def compute(view: memoryview | Payload, kernel_ms: int) -> int:
    """The kernel: reads one byte, which must have arrived, then takes the GPU's time, during which the host idles."""
    first = view[0]
    if kernel_ms:
        time.sleep(kernel_ms / 1e3)
    return int(first)


class _Paced:
    """Keeps ``in_flight`` requests under way over the send and receive of the concrete setting."""

    name = ""

    def host_pids(self) -> list[int]:
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
        pids = self.host_pids()
        cpu = cpu_ns(pids)
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
        return Block(latencies, wall, cpu_ns(pids) - cpu)


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

    def host_pids(self) -> list[int]:
        """The worker."""
        return [self._worker]

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

    def host_pids(self) -> list[int]:
        """The worker."""
        return [self._worker]

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

    def host_pids(self) -> list[int]:
        """The server."""
        return [self._server]

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


class Offpath:
    """Settings 3 and 4: the real daemon, helper and workers, one lease of a whole emulated GPU."""

    def __init__(self, name: str, cores: Cores, *, daemon_on_host: bool) -> None:
        self.name = name
        self._cores = cores
        self._directory = tempfile.mkdtemp(prefix="offpath-bench-")
        token = os.path.join(self._directory, "token")
        with open(os.open(token, os.O_CREAT | os.O_WRONLY, 0o600), "w", encoding="ascii") as file:
            file.write(os.urandom(24).hex())
        config = os.path.join(self._directory, "offpathd.toml")
        with open(config, "w", encoding="utf-8") as file:
            file.write(
                f'[[tenant]]\nname = "bench"\ntoken_file = "{token}"\n'
                f'[[lease]]\ntenant = "bench"\nprofile = "7g.40gb"\n'
                f"[leasing]\nlanes = {LANES}\nlanding_bytes = {LARGEST}\n"
            )
        core = cores.host if daemon_on_host else cores.dpu
        runtime = os.path.join(self._directory, "run")
        words = ["daemon", "run", "--config", config, "--runtime-dir", runtime]
        words += ["--cpu", str(core)] if core is not None else []
        self._daemon_on_host = daemon_on_host
        self._daemon = start(COMMAND_LINE, *words, stderr=subprocess.DEVNULL)
        self._helper = fork(cores.host, lambda: _serve_kernels(os.path.join(runtime, "host.sock")))
        address = f"unix:{os.path.join(runtime, 'negotiate.sock')}"
        self._large = _connect(address, token, 1, LARGEST)
        self._small = _connect(address, token, DEPTH, SMALL)
        self._large.submit("k0", [np.zeros(64, np.uint8)], timeout=30.0)

    def host_pids(self) -> list[int]:
        """Helper and workers, and the daemon if it runs on the host."""
        pids = [self._helper, *children(self._helper)]
        return [*pids, self._daemon.pid] if self._daemon_on_host else pids

    def realtime_pids(self) -> list[int]:
        """Helper and workers."""
        return [self._helper, *children(self._helper)]

    def block(self, payload: Payload, count: int, in_flight: int, kernel_ms: int) -> Block:
        """See `Backend.block`."""
        requester = self._small if payload.nbytes <= SMALL else self._large
        kernel = f"k{kernel_ms}"
        latencies: list[int] = []
        stages: list[tuple[int, ...]] = []
        arrays = [payload]
        flying: deque[tuple[int, Pending]] = deque()
        pids = self.host_pids()
        cpu = cpu_ns(pids)
        begin = time.perf_counter_ns()
        for _ in range(count):
            if len(flying) == in_flight:
                _take(flying, latencies, stages)
            started = time.perf_counter_ns()
            flying.append((started, requester.begin(kernel, arrays)))
        while flying:
            _take(flying, latencies, stages)
        wall = time.perf_counter_ns() - begin
        return Block(latencies, wall, cpu_ns(pids) - cpu, stages)

    def close(self) -> None:
        """End helper and daemon, remove the directory."""
        self._large.close()
        self._small.close()
        end(self._helper, signal.SIGTERM)
        self._daemon.terminate()
        self._daemon.wait(10)
        shutil.rmtree(self._directory)


def _take(flying: deque[tuple[int, Pending]], latencies: list[int], stages: list[tuple[int, ...]]) -> None:
    started, pending = flying.popleft()
    result = pending.result()
    latencies.append(time.perf_counter_ns() - started)
    s = result.stages
    stages.append((s.queued, s.copy, s.launch, s.kernel, s.back, s.total))


def _connect(address: str, token: str, slots: int, payload_bytes: int) -> Requester:
    deadline = time.monotonic() + 20
    while True:
        try:
            requester = Requester(
                address, tenant="bench", token_file=token, slots=slots, payload_bytes=payload_bytes,
                result_bytes=4096, timeout_s=20.0,
            )  # fmt: skip
            requester.kernel_id("k0")
            return requester
        except Exception:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def _serve_kernels(channel: str) -> None:
    helper = Helper()

    @helper.lane_opened
    def touch(lane: LaneContext) -> None:
        """Fault in the lane's pages before the measurement."""
        np.frombuffer(lane.landing, np.uint8)[::4096] = 0

    for ms in _KERNEL_MS:
        register_kernel(helper, int(ms))
    helper.run(channel)


def register_kernel(helper: Helper, kernel_ms: int) -> None:
    """Register ``k<ms>`` with the helper."""

    @helper.kernel(f"k{kernel_ms}", demand=14)
    def run(view: Payload) -> NDArray[np.uint8]:
        return np.array([compute(view, kernel_ms)], np.uint8)


def open_backends(cores: Cores) -> list[Backend]:
    """All five; the requester (this process) is pinned to the host core."""
    pin(cores.host)
    made: list[Backend] = []
    try:
        for make in (Floor, Tcp, Direct):
            made.append(make(cores))
        made.append(Offpath("3", cores, daemon_on_host=True))
        made.append(Offpath("4", cores, daemon_on_host=False))
    except BaseException:
        for backend in made:
            backend.close()
        raise
    return made
