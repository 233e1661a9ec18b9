"""Placements that attack the process that runs them: each does one thing to the socket, the process or the machine."""

from __future__ import annotations

import json
import os
import signal
import struct
import sys
import time

from offpath.sched.placement.cluster import Cluster
from offpath.sched.placement.port import Decision, Request
from offpath_sample_policies.ina import LastHosts

FOR_EVER_S = 600


def _socket() -> int:
    return int(sys.argv[1])


def _write(data: bytes) -> None:
    while data:
        data = data[os.write(_socket(), data) :]


def _reply(body: bytes) -> None:
    _write(struct.pack("<I", len(body)) + body)


class Hostile(LastHosts):
    """``does`` something before each answer."""

    def place(self, cluster: Cluster, request: Request) -> Decision:
        self.does()
        return super().place(cluster, request)

    def does(self) -> None:
        raise NotImplementedError


class Huge(Hostile):
    def does(self) -> None:
        _write(struct.pack("<I", 100_000_000))
        for _ in range(100):
            _write(b" " * 1_000_000)


class Many(Hostile):
    """Few bytes for many objects."""

    def does(self) -> None:
        _reply(b'["answer",[' + b"[]," * 5_000_000 + b"[]]]")


class Drips(Hostile):
    def does(self) -> None:
        _write(struct.pack("<I", FOR_EVER_S * 100))
        for _ in range(FOR_EVER_S * 100):
            _write(b" ")
            time.sleep(0.01)


class Deep(Hostile):
    def does(self) -> None:
        _reply(b"[" * 500_000 + b"]" * 500_000)


class NotANumber(Hostile):
    def does(self) -> None:
        _reply(b'["answer",[[2,3],NaN,["why"]]]')


class NoJson(Hostile):
    def does(self) -> None:
        _reply(bytes(range(256)))


class Forked(Hostile):
    """Its child, in a session of its own, keeps the socket open."""

    def does(self) -> None:
        if os.fork():
            os._exit(0)
        os.setsid()
        time.sleep(20)
        os._exit(0)


class Closes(Hostile):
    def does(self) -> None:
        os.close(_socket())
        time.sleep(FOR_EVER_S)


class Stops(Hostile):
    def does(self) -> None:
        os.kill(os.getpid(), signal.SIGSTOP)


class KillsItsGroup(Hostile):
    def does(self) -> None:
        os.kill(0, signal.SIGKILL)


class Allocates(Hostile):
    def does(self) -> None:
        self.kept = bytearray(3 << 30)  # not touched: the machine keeps its memory


class Before(LastHosts):
    """The last host but counted from the end."""

    def place(self, cluster: Cluster, request: Request) -> Decision:
        return Decision((-1, 2), None, ("counted from the end",))


class Beyond(LastHosts):
    def place(self, cluster: Cluster, request: Request) -> Decision:
        return Decision((2, 99), None, ("far away",))


class Verbose(LastHosts):
    """A legal choice, with reasons for a terminal that obeys them, and more than a reply to an operator holds."""

    def place(self, cluster: Cluster, request: Request) -> Decision:
        decision = super().place(cluster, request)
        return Decision(decision.hosts, None, ("\x1b[2J\nmine", "w" * 500_000, *("why",) * 10_000))


class Twice(LastHosts):
    """Answers the first question twice, so that the second is what comes when it is asked again."""

    def place(self, cluster: Cluster, request: Request) -> Decision:
        decision = super().place(cluster, request)
        _reply(json.dumps(["answer", [list(decision.hosts), None, ["again"]]]).encode())
        return decision


class Prints(LastHosts):
    """Talks, and answers well."""

    def place(self, cluster: Cluster, request: Request) -> Decision:
        os.write(1, b"\x00\xff{[" * 10_000)
        return super().place(cluster, request)
