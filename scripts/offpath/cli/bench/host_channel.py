"""`host-channel`: the round trip of a message to a worker by each carrier, and the CPU cost of waiting.

Two processes with one connection: a daemon's end that waits for descriptors, as the daemon does, and a worker's end
that blocks for a message. Comch runs on the installed DOCA, else on the emulator, whose figures are not a device's.
"""

from __future__ import annotations

import argparse
import os
import select
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from offpath.bindings.doca.channel import ComchConnector, ComchListener
from offpath.bindings.doca.load import Library
from offpath.bindings.errors import OffpathError, PeerGone
from offpath.bindings.loopback.channel import LoopbackChannelListener, LoopbackConnector
from offpath.bindings.ports import HostConnection, HostConnector, HostListener
from offpath.bindings.zeromq.keys import make_keys, read_allowed, read_secret
from offpath.cli.bench.command import Report
from offpath.cli.bench.measure import cpu_ns, end, fork, machine, ratio
from offpath.cli.demo.doca import find

DESCRIPTION: Final = "a message to a worker and back by unix, zmq and comch; and the cost of an idle channel"
_NBYTES: Final = 128
"""About the size of a launch."""
_BOUND_S: Final = 30.0
_REST_S: Final = 0.3


def run(arguments: argparse.Namespace) -> Report:
    """All carriers, or those of ``--only``; blocks alternate, so that other load on the machine affects all."""
    blocks, count, idle_s = (5, 300, 2.0) if arguments.quick else (15, 2000, 10.0)
    directory = tempfile.mkdtemp(prefix="offpath-bench-")
    pairs: dict[str, _Pair] = {}
    try:
        doca = find()
        carriers = {"unix": _unix, "zmq": _zmq, "comch": _comch}
        chosen = [name for name in carriers if name in (arguments.only or carriers)]
        for name in chosen:
            print(f"{name} …", file=sys.stderr)
            pairs[name] = _Pair(carriers[name](directory, doca))
        times: dict[str, list[list[float]]] = {name: [] for name in chosen}
        for _ in range(blocks):
            for name in chosen:
                times[name].append(pairs[name].query(count))
        time.sleep(_REST_S)
        idle = {name: pairs[name].idle(idle_s) for name in chosen}
    finally:
        for pair in pairs.values():
            pair.close()
        shutil.rmtree(directory, ignore_errors=True)
    return _report(arguments.quick, doca, times, idle)


def _report(
    quick: bool, doca: Library, times: dict[str, list[list[float]]], idle: dict[str, tuple[float, float]]
) -> Report:  # fmt: skip
    middle = {name: [statistics.median(block) for block in blocks] for name, blocks in times.items()}
    rows: dict[str, dict[str, Any]] = {}
    for name, blocks in times.items():
        every = sorted(each for block in blocks for each in block)
        rows[name] = {
            "p50_us": round(statistics.median(every), 1), "p99_us": round(every[int(0.99 * len(every))], 1),
            "n": len(every), "idle_daemon_percent": round(idle[name][0], 2),
            "idle_worker_percent": round(idle[name][1], 2),
        }  # fmt: skip
        if "unix" in middle:
            rows[name]["over_unix"] = ratio(middle[name], middle["unix"])
    data = {
        "benchmark": "host-channel", "quick": quick, "machine": machine(), "nbytes": _NBYTES,
        "doca": doca.version, "is_emulated": doca.is_emulated, "channels": rows,
    }  # fmt: skip
    lines = [
        f"{_NBYTES} bytes to a worker and back; DOCA {doca.version}"
        + (", an emulator: not a device's figures" if doca.is_emulated else ""),
        f"{'channel':10}{'p50 µs':>10}{'p99 µs':>10}{'of unix':>10}{'idle daemon %':>16}{'idle worker %':>16}",
    ]
    for name, row in rows.items():
        over = f"{row['over_unix']['median']:.2f}" if "over_unix" in row else "-"
        lines.append(
            f"{name:10}{row['p50_us']:>10.1f}{row['p99_us']:>10.1f}{over:>10}{row['idle_daemon_percent']:>16.2f}"
            f"{row['idle_worker_percent']:>16.2f}"
        )
    return Report(data, "\n".join(lines))


# -- two processes ----------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class _Carrier:
    """How the daemon listens, and how a host connects; ``environment`` by side."""

    listen: Callable[[], HostListener]
    connector: HostConnector
    environment: dict[str, dict[str, str]] = field(default_factory=dict)


def _unix(directory: str, _doca: Library) -> _Carrier:
    path = os.path.join(directory, "host.sock")
    return _Carrier(lambda: LoopbackChannelListener(path, frozenset({os.getuid()})), LoopbackConnector(path))


def _zmq(directory: str, _doca: Library) -> _Carrier:
    from offpath.bindings.zeromq.connection import ZmqConnector  # only here is pyzmq needed
    from offpath.bindings.zeromq.listener import ZmqListener

    hosts, address = os.path.join(directory, "hosts"), f"ipc://{directory}/host.zmq"
    os.mkdir(hosts, mode=0o700)
    key, _ = make_keys("bench", hosts)
    server_key, public = make_keys("daemon", directory)
    return _Carrier(
        lambda: ZmqListener(address, read_secret(server_key), read_allowed(hosts)), ZmqConnector(address, key, public)
    )


def _comch(directory: str, doca: Library) -> _Carrier:
    rendezvous = os.path.join(directory, "doca")
    os.mkdir(rendezvous, mode=0o700)
    environment = {
        side: {"DOCA_EMULATOR_SIDE": side, "DOCA_EMULATOR_DIR": rendezvous} for side in ("dpu", "host")
    }  # fmt: skip
    return _Carrier(lambda: ComchListener(doca.folder), ComchConnector(doca.folder), environment)


class _Pair:
    """A daemon's end and a worker's, each a process; the daemon's end is controlled through pipes."""

    def __init__(self, carrier: _Carrier) -> None:
        requests, self._requests = os.pipe()
        self._answer, answers = os.pipe()
        self._pids = [fork(None, lambda: _serve(carrier, requests, answers)), fork(None, lambda: _work(carrier))]
        os.close(requests)
        os.close(answers)
        self._read()

    def query(self, count: int) -> list[float]:
        """Microseconds of each of ``count`` round trips."""
        os.write(self._requests, b"%d\n" % count)
        return [float(each) for each in self._read().split()]

    def idle(self, seconds: float) -> tuple[float, float]:
        """Percent of a core that the daemon's end and the worker's use without messages."""
        before = [cpu_ns([pid]) for pid in self._pids]
        begun_ns = time.monotonic_ns()
        time.sleep(seconds)
        took_ns = time.monotonic_ns() - begun_ns
        daemon, worker = (100 * (cpu_ns([pid]) - was) / took_ns for pid, was in zip(self._pids, before, strict=True))
        return daemon, worker

    def _read(self) -> str:
        data = b""
        while not data.endswith(b"\n"):
            if not select.select([self._answer], [], [], _BOUND_S)[0]:
                raise OffpathError("no answer within the bound")
            more = os.read(self._answer, 1 << 20)
            if not more:
                raise OffpathError("a process of the benchmark ended")
            data += more
        return data.decode()

    def close(self) -> None:
        """End both, the worker first: otherwise it would log the daemon's loss."""
        for pid in reversed(self._pids):
            end(pid)
        os.close(self._requests)
        os.close(self._answer)


def _work(carrier: _Carrier) -> None:
    """The worker: echoes messages until it is killed."""
    os.environ.update(carrier.environment.get("host", {}))
    until_s = time.monotonic() + _BOUND_S
    while True:
        try:
            connection = carrier.connector.connect()
            break
        except PeerGone:  # the daemon's process has not started yet
            if time.monotonic() > until_s:
                raise
            time.sleep(0.01)
    while True:
        connection.send(connection.wait_message())


def _serve(carrier: _Carrier, requests: int, answers: int) -> None:
    """The daemon's side, until it is killed."""
    os.environ.update(carrier.environment.get("dpu", {}))
    listener = carrier.listen()
    waiting = select.epoll()
    waiting.register(listener.fileno(), select.EPOLLIN)
    connection: HostConnection | None = None
    while connection is None:
        waiting.poll()
        connection = listener.accept()
    waiting.register(connection.fileno(), select.EPOLLIN)
    waiting.register(requests, select.EPOLLIN)
    os.write(answers, b"up\n")
    message = os.urandom(_NBYTES)
    while True:
        for fd, _ in waiting.poll():
            if fd == requests:
                count = int(os.read(requests, 64))
                taken = [_round_trip_us(connection, listener, waiting, message) for _ in range(count)]
                os.write(answers, (" ".join(f"{each:.1f}" for each in taken) + "\n").encode())
            elif fd == listener.fileno():
                listener.accept()


def _round_trip_us(
    connection: HostConnection, listener: HostListener, waiting: select.epoll, message: bytes
) -> float:  # fmt: skip
    begun_ns = time.perf_counter_ns()
    connection.send(message)
    while True:
        for fd, _ in waiting.poll():
            if fd == listener.fileno():
                listener.accept()  # where connections share a carrier, it dispatches received messages
        if (came := connection.receive_message()) is not None:
            break
    taken_us = (time.perf_counter_ns() - begun_ns) / 1e3
    if came != message:
        raise OffpathError("the answer is not what was sent")
    return taken_us
