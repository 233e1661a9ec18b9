"""Runs a policy plug-in in its own process: ``python -m offpath.dpu_daemon.policy.plugin_child FD NAME``.

It creates the plug-in anew at each `START`, forwards notifications and queries, and exits with its daemon. If the
plug-in raises, the error is the reply to the next query.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import socket
import struct
import sys
from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Any, Final, Protocol

import orjson

from offpath.sched.gpu.geometry import GpuSpec
from offpath.sched.gpu.plugin import PLACE, PLAN, START, Answer
from offpath.sched.gpu.policy import Demand, LeasePlan, LeaseView, Opening, Placement, Policy, PolicyState, Refusal
from offpath.sched.plain import from_plain, to_plain

GROUP: Final = "offpath.gpu_policy"
LENGTH: Final = struct.Struct("<I")
READY: Final = "ready"
RAISED: Final = "raised"
ANSWER: Final = "answer"
_PR_SET_PDEATHSIG: Final = 1
_MOST_DATA: Final = 2 << 30
"""Bytes that a plug-in may map; beyond that, a MemoryError counts as a fault of the plug-in."""
_ANSWERS: Final[dict[type, Callable[[Any], Answer]]] = {
    Placement: lambda value: Answer(placement=value),
    LeasePlan: lambda value: Answer(plan=value),
    Refusal: lambda value: Answer(refusal=value),
}


class PluginHost:
    """Holds the plug-in and its first fault."""

    def __init__(self, make: Callable[[], Policy]) -> None:
        self._make = make
        self._policy = make()
        self._fault = ""
        self._notices: dict[str, Callable[..., None]] = {
            "gpu_added": lambda spec: self._policy.gpu_added(from_plain(GpuSpec, spec)),
            "gpu_removed": lambda gpu: self._policy.gpu_removed(gpu),
            "lease_planned": lambda lease: self._policy.lease_planned(from_plain(LeaseView, lease)),
            "lease_opened": lambda lease: self._policy.lease_opened(lease),
            "lease_draining": lambda lease: self._policy.lease_draining(lease),
            "lane_paused": lambda lease, lane: self._policy.lane_paused(lease, lane),
            "lane_taken": lambda lease, lane, share, now_ns: self._policy.lane_taken(lease, lane, share, now_ns),
            "lease_lost": lambda lease: self._policy.lease_lost(lease),
            "release": lambda placement, share, now_ns: self._policy.release(
                from_plain(Placement, placement), share, now_ns
            ),
        }
        self._queries: dict[str, Callable[..., Answer]] = {START: self._start, PLACE: self._place, PLAN: self._plan}

    def on_request(self, kind: str, arguments: list[Any]) -> bytes | None:
        """Handles a message: the reply to a query, None for a notification."""
        query = self._queries.get(kind)
        if kind == START:
            self._fault = ""
        try:
            if self._fault:
                pass
            elif query is not None:
                return orjson.dumps([ANSWER, to_plain(query(*arguments))])
            else:
                self._notices[kind](*arguments)
        except Exception as fault:  # a plug-in may raise anything
            self._fault = f"{kind}: {type(fault).__name__}: {fault}"
        return orjson.dumps([RAISED, self._fault]) if query is not None else None

    def _start(self, state: Any) -> Answer:
        self._policy = self._make()
        self._policy.restore(from_plain(PolicyState, state))
        return Answer()

    def _place(self, demand: Any, now_ns: int) -> Answer:
        return _answer(self._policy.place(from_plain(Demand, demand), now_ns))

    def _plan(self, demand: Any, now_ns: int, opening: Any) -> Answer:
        return _answer(self._policy.plan(from_plain(Demand, demand), now_ns, from_plain(Opening, opening)))


def _answer(value: object) -> Answer:
    wrap = _ANSWERS.get(type(value))
    if wrap is None:
        raise TypeError(f"{type(value).__name__} is not a valid answer")
    return wrap(value)


def loaded(name: str) -> PluginHost:
    """The plug-in of that entry point. Raises: LookupError: it is not installed; what its import or factory raises."""
    found = [point for point in entry_points(group=GROUP) if point.name == name]
    if not found:
        known = sorted(point.name for point in entry_points(group=GROUP))
        raise LookupError(f"no installed package has the entry point {name!r} in {GROUP}; available: {known}")
    return PluginHost(found[0].load())


def send(sock: socket.socket, data: bytes) -> None:
    """Send one message. Raises: OSError."""
    sock.sendall(LENGTH.pack(len(data)) + data)


class Host(Protocol):
    """Handles the daemon's messages for the plug-in."""

    def on_request(self, kind: str, arguments: list[Any]) -> bytes | None:
        """The reply to a query, None for a notification."""


def serve(fd: int, name: str, load: Callable[[str], Host]) -> None:
    """Runs until the daemon exits or kills this process. ``load`` may raise anything."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # a group signal is for the daemon; this process exits with it
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
        file.write("1000")  # if memory runs out, this process is killed first
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(ValueError):  # the daemon's own limit may be lower
        resource.setrlimit(resource.RLIMIT_DATA, (_MOST_DATA, _MOST_DATA))
    sock = socket.socket(fileno=fd)
    os.set_inheritable(fd, False)
    try:
        host = load(name)
    except BaseException as fault:
        send(sock, orjson.dumps([RAISED, f"{type(fault).__name__}: {fault}"]))
        return
    send(sock, orjson.dumps([READY]))
    with sock.makefile("rb") as file:
        while len(head := file.read(LENGTH.size)) == LENGTH.size:
            kind, *arguments = orjson.loads(file.read(*LENGTH.unpack(head)))
            reply = host.on_request(kind, arguments)
            if reply is not None:
                send(sock, reply)


if __name__ == "__main__":
    serve(int(sys.argv[1]), sys.argv[2], loaded)
    os._exit(0)  # also ends threads that the plug-in started
