"""`verbs`: a round trip of 4 KiB each way over the fabric, beside `ibv_rc_pingpong` between the same ports; and the
cost of more queue pairs.

Two processes: one holds the daemon's ends of all sessions and answers each request with its payload, like the daemon
but without scheduling. The other sends one request at a time.
"""

from __future__ import annotations

import argparse
import os
import re
import select
import shutil
import socket
import statistics
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from typing import Any, Final

import orjson

from offpath.bindings.errors import NoRdmaDevice, OffpathError
from offpath.bindings.ports import RequesterSession
from offpath.bindings.verbs.devices import Choice, choose, ports
from offpath.bindings.verbs.domain import Device
from offpath.bindings.verbs.fabric import VerbsFabricSession, VerbsRequesterSession
from offpath.bindings.verbs.link import End, LivenessChannel
from offpath.bindings.verbs.queue import Address
from offpath.cli.bench.command import Report
from offpath.cli.bench.measure import end, fork, machine, ratio

DESCRIPTION: Final = "round trips over RDMA beside ibv_rc_pingpong, and with up to 256 queue pairs (needs RDMA devices)"
_NBYTES: Final = 4096
_HEADER: Final = bytes(192)
_COUNTS: Final = (1, 4, 16, 64, 256)
_PORT: Final = 18_515
_WAIT_S: Final = 60.0
_PER_ITERATION: Final = re.compile(r"iters in [\d.]+ seconds = ([\d.]+) usec/iter")


@dataclass(frozen=True, slots=True)
class _Ends:
    """The two ports: the daemon's and the requester's; the same if there is only one."""

    daemon: Choice
    requester: Choice


def run(arguments: argparse.Namespace) -> Report:
    """Both parts, or those of ``--only`` (`round-trip`, `queue-pairs`). Raises: NoRdmaDevice, VerbsError."""
    usable = [port.device for port in ports() if port.is_active and port.usable_gids]
    if not usable:
        raise NoRdmaDevice("no active port with a GID of RoCEv2 over IPv4; see `offpath doctor`")
    ends = _Ends(choose(device=usable[0]), choose(device=usable[-1]))
    data: dict[str, Any] = {
        "benchmark": "verbs", "quick": arguments.quick, "machine": machine(),
        "daemon_port": str(ends.daemon.port), "requester_port": str(ends.requester.port), "nbytes": _NBYTES,
    }  # fmt: skip
    lines = [f"{_NBYTES} bytes each way, {ends.requester.port} to {ends.daemon.port} and back"]
    parts = {"round-trip": _round_trip, "queue-pairs": _queue_pairs}
    for name in arguments.only or parts:
        print(f"{name} …", file=sys.stderr)
        parts[name](ends, arguments.quick, data, lines)
    return Report(data, "\n".join(lines))


# -- the floor, and offpath beside it -------------------------------------------------------------------------------
def _round_trip(ends: _Ends, quick: bool, data: dict[str, Any], lines: list[str]) -> None:
    """Alternating blocks of both, so that other load on the machine affects both."""
    blocks, count = (5, 200) if quick else (15, 1000)
    floor, ours = [], []
    with _Crowd(ends, 1) as crowd:
        crowd.query(count // 4)
        for _ in range(blocks):
            floor.append(_pingpong_us(ends, count))
            ours.append(statistics.median(crowd.query(count)))
    over = ratio(ours, floor)
    data["round_trip"] = {
        "ibv_rc_pingpong_us": round(statistics.median(floor), 1), "fabric_p50_us": round(statistics.median(ours), 1),
        "fabric_over_pingpong": over, "per_block": count,
    }  # fmt: skip
    lines += [
        f"ibv_rc_pingpong   {statistics.median(floor):9.1f} µs, mean of {count}; median of {blocks} blocks",
        f"fabric            {statistics.median(ours):9.1f} µs, p50 of {count}; median of {blocks} blocks",
        f"ratio             {over['median']:9.2f} [{over['min']:.2f}, {over['max']:.2f}]",
    ]


def _pingpong_us(ends: _Ends, count: int) -> float:
    """Microseconds for a message there and one back, by libibverbs' own tool."""
    tool = shutil.which("ibv_rc_pingpong")
    if tool is None:
        raise OffpathError("ibv_rc_pingpong is not installed (package ibverbs-utils)")

    def command(choice: Choice) -> list[str]:
        port = ["-d", choice.port.device, "-i", str(choice.port.number), "-g", str(choice.gid.index)]
        return [tool, *port, "-s", str(_NBYTES), "-n", str(count), "-p", str(_PORT)]

    with subprocess.Popen(command(ends.daemon), stdout=subprocess.PIPE, text=True) as server:
        try:
            until_s = time.monotonic() + _WAIT_S
            while (done := _client(command(ends.requester))) is None:
                if server.poll() is not None or time.monotonic() > until_s:
                    raise OffpathError("ibv_rc_pingpong does not start")
                time.sleep(0.05)
        finally:
            server.kill()
    found = _PER_ITERATION.search(done)
    if found is None:
        raise OffpathError(f"ibv_rc_pingpong printed {done[-200:]!r}")
    return float(found[1])


def _client(command: list[str]) -> str | None:
    """Its output; None: nothing listened yet."""
    done = subprocess.run([*command, "127.0.0.1"], capture_output=True, text=True, check=False, timeout=_WAIT_S)
    return done.stdout if done.returncode == 0 else None


# -- more queue pairs -------------------------------------------------------------------------------------------------
def _queue_pairs(ends: _Ends, quick: bool, data: dict[str, Any], lines: list[str]) -> None:
    """Requests rotate, so that each uses another queue pair than the one before."""
    rows: list[dict[str, float]] = []
    rounds = 256 if quick else 2048
    for count in _COUNTS:
        with _Crowd(ends, count) as crowd:
            crowd.query(count)
            times = sorted(crowd.query(max(rounds, 2 * count)))
            rows.append(
                {
                    "queue_pairs": count, "p50_us": round(statistics.median(times), 1),
                    "p99_us": round(times[int(0.99 * len(times))], 1), "open_ms": round(crowd.open_ms, 1),
                }
            )  # fmt: skip
    data["queue_pairs"] = rows
    first = rows[0]["p50_us"]
    lines += [f"{'queue pairs':>12}{'p50 µs':>10}{'p99 µs':>10}{'of one':>8}{'open ms each':>14}"]
    lines += [
        f"{row['queue_pairs']:>12}{row['p50_us']:>10.1f}{row['p99_us']:>10.1f}{row['p50_us'] / first:>8.2f}"
        f"{row['open_ms']:>14.1f}"
        for row in rows
    ]


class _Crowd:
    """Sessions between this process and one that answers."""

    def __init__(self, ends: _Ends, count: int) -> None:
        lines = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(count)]
        self._ours = [ours for ours, _ in lines]
        theirs = [each for _, each in lines]
        self._child = fork(None, lambda: _answer(ends.daemon, theirs, self._ours))
        for each in theirs:
            each.close()
        begun_s = time.monotonic()
        self._sessions = [_joined(ends.requester, line) for line in self._ours]
        self.open_ms = (time.monotonic() - begun_s) * 1e3 / count

    def query(self, count: int) -> list[float]:
        """Microseconds from the payload's being in place until the answer is, for each of ``count`` requests."""
        payload, times = os.urandom(_NBYTES), []
        for number in range(count):
            session = self._sessions[number % len(self._sessions)]
            session.payload_view(0)[:] = payload
            begun_ns = time.perf_counter_ns()
            session.write_header(0, _HEADER, _NBYTES)
            session.ring(0)
            if session.wait(_WAIT_S) != [0]:
                raise OffpathError("no answer within the bound")
            came = session.result_view(0, _NBYTES)
            times.append((time.perf_counter_ns() - begun_ns) / 1e3)
            if came != payload:
                raise OffpathError("the answer is not what was sent")
        return times

    def __enter__(self) -> _Crowd:
        return self

    def __exit__(self, *_: object) -> None:
        for session in self._sessions:
            session.close()
        for line in self._ours:
            line.close()
        end(self._child)


def _joined(choice: Choice, line: socket.socket) -> RequesterSession:
    session = VerbsRequesterSession(Device(choice), 1, _NBYTES, _NBYTES)
    line.send(orjson.dumps(asdict(session.end())))
    session.connect(_end(line.recv(4096)), LivenessChannel(line.fileno(), lambda: None))
    return session


def _answer(choice: Choice, lines: list[socket.socket], others: list[socket.socket]) -> None:
    """Answer until killed."""
    for each in others:
        each.close()
    device, waiting = Device(choice), select.epoll()
    sessions: dict[int, VerbsFabricSession] = {}
    for line in lines:
        peer = _end(line.recv(4096))
        session = VerbsFabricSession(1, _NBYTES, _NBYTES)
        ours = session.open(device, peer, LivenessChannel(line.fileno(), lambda: None))
        sessions[session.fileno()] = session
        waiting.register(session.fileno(), select.EPOLLIN)
        line.send(orjson.dumps(asdict(ours)))
    while True:
        for fd, _ in waiting.poll():
            _answer_one(sessions[fd], waiting)


def _answer_one(session: VerbsFabricSession, waiting: select.epoll) -> None:
    try:
        if session.poll() is not None:
            session.read_header(0)
            at = session.payload_offset(0)
            session.write_answer(0, _HEADER, bytes(session.slots.view[at : at + _NBYTES]), _NBYTES)
            session.ring(0)
    except OffpathError:  # the benchmark closes its sessions
        waiting.unregister(session.fileno())


def _end(said: bytes) -> End:
    fields = orjson.loads(said)
    return End(Address(**fields.pop("address")), **fields)
