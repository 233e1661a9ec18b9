"""The process in which a policy plug-in runs: ``python -m offpath.dpu_daemon.policy.plugin_child FD NAME``.

It makes the plug-in anew at each `START`, passes on what it is told and asked, and ends with its daemon. What the
plug-in raises is the answer to the next question.
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
"""Bytes that a plug-in may map for itself; more is a MemoryError, and so a fault of its own."""
_SAID: Final[dict[type, Callable[[Any], Answer]]] = {
    Placement: lambda said: Answer(placement=said),
    LeasePlan: lambda said: Answer(plan=said),
    Refusal: lambda said: Answer(refusal=said),
}


class PluginHost:
    """Holds the plug-in, and its first fault."""

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
            "lease_lost": lambda lease: self._policy.lease_lost(lease),
            "release": lambda placement, share, now_ns: self._policy.release(
                from_plain(Placement, placement), share, now_ns
            ),
        }
        self._queries: dict[str, Callable[..., Answer]] = {START: self._start, PLACE: self._place, PLAN: self._plan}

    def on_request(self, kind: str, arguments: list[Any]) -> bytes | None:
        """The reply to a question, nothing to what it is told."""
        asked = self._queries.get(kind)
        if kind == START:
            self._fault = ""
        try:
            if self._fault:
                pass
            elif asked is not None:
                return orjson.dumps([ANSWER, to_plain(asked(*arguments))])
            else:
                self._notices[kind](*arguments)
        except Exception as fault:  # a plug-in may raise anything
            self._fault = f"{kind}: {type(fault).__name__}: {fault}"
        return orjson.dumps([RAISED, self._fault]) if asked is not None else None

    def _start(self, state: Any) -> Answer:
        self._policy = self._make()
        self._policy.restore(from_plain(PolicyState, state))
        return Answer()

    def _place(self, demand: Any, now_ns: int) -> Answer:
        return _answer(self._policy.place(from_plain(Demand, demand), now_ns))

    def _plan(self, demand: Any, now_ns: int, opening: Any) -> Answer:
        return _answer(self._policy.plan(from_plain(Demand, demand), now_ns, from_plain(Opening, opening)))


def _answer(said: object) -> Answer:
    made = _SAID.get(type(said))
    if made is None:
        raise TypeError(f"{type(said).__name__} is no answer")
    return made(said)


def loaded(name: str) -> PluginHost:
    """The plug-in of that entry point. Raises: LookupError: it is not installed; what its import or making raises."""
    found = [point for point in entry_points(group=GROUP) if point.name == name]
    if not found:
        known = sorted(point.name for point in entry_points(group=GROUP))
        raise LookupError(f"no installed package has the entry point {name!r} in {GROUP}; there are: {known}")
    return PluginHost(found[0].load())


def send(sock: socket.socket, data: bytes) -> None:
    """One message. Raises: OSError."""
    sock.sendall(LENGTH.pack(len(data)) + data)


class Host(Protocol):
    """What answers in the plug-in's name."""

    def on_request(self, kind: str, arguments: list[Any]) -> bytes | None:
        """The reply to a question, nothing to what it is told."""


def serve(fd: int, name: str, load: Callable[[str], Host]) -> None:
    """Until the daemon ends, or ends us. ``load`` may raise anything."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # for the daemon, whose end is ours: it may be told with all its group
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
        file.write("1000")  # if memory runs out, it is ours
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(ValueError):  # the daemon itself may have less
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
    os._exit(0)  # whatever threads a plug-in has started
