"""Times each C function beside its twin: `./scripts/run python -m tests.bindings.path.timing`, in the root.

Prints µs a call, hot, the best of several rounds. A C function that saves less than 0.3 µs is not worth its lines.
Sends
and receives are timed in pairs, of which one side changes.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

from offpath.bindings import native, twins
from offpath.bindings.wire.header import Tensor, pack_answer, pack_request, pack_tensors
from offpath.bindings.wire.host import pack_launch, pack_result
from offpath.sched.jobs import commands, events
from offpath.sched.jobs.states import EndReason, JobState

from . import journalled

ROUNDS, CALLS = 9, 20_000
TENSOR = pack_tensors([Tensor(10, (1, 3, 224, 224), 0, 602_112)])
STAGES = (1_000, 20_000, 30_000, 4_000, 5_000, 60_000)
COPY, LAUNCH = commands.Copy(10**6, 1, 3, 0), commands.Launch(10**6, 1, 3, 0, 7, 3, 14)
ANSWER = commands.Answer(10**6, 5, JobState.COMPLETED, EndReason.NONE, 0, 3, 7, STAGES)
SUBMITTED = events.JobSubmitted(10**6, 5, 77, 3, 14, 0, 0, 602_112, False, 123 << 32)
RESULT = events.ResultArrived(10**6, 7, EndReason.NONE, 10**15, 10**15 + 5000)
ENTRIES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "JobSubmitted": (SUBMITTED, ()),
    "JobSubmitted, Copy": (SUBMITTED, (COPY,)),
    "CopyDone, Launch": (events.CopyDone(10**6, 1), (LAUNCH,)),
    "ResultArrived, Answer": (RESULT, (ANSWER,)),
    "ResultArrived, Answer, Copy": (RESULT, (ANSWER, COPY)),
    "CreditReturned": (events.CreditReturned(10**6), ()),
}


def cost_us(call: Callable[..., object], *args: Any) -> float:
    """µs a call."""
    best = float("inf")
    for _ in range(ROUNDS):
        started = time.perf_counter()
        for _ in range(CALLS):
            call(*args)
        best = min(best, time.perf_counter() - started)
    return best / CALLS * 1e6


def calls() -> Iterator[tuple[str, str, tuple[Any, ...]]]:
    """(what, function, arguments) of those that need no socket and no journal."""
    slot = memoryview(bytearray(pack_request(7, 3, 602_112, TENSOR).ljust(8192, b"\0")))
    answer = pack_answer(7, 1, 0, 0, 1, 0, 5, 602_112, STAGES, TENSOR).ljust(4096, b"\0")
    yield "take_request", "take_request", (slot, 0, 1 << 20)
    yield "pack_request", "pack_request", (7, 3, 602_112, TENSOR, 0, 0, 0, 0, 0)
    yield "pack_answer", "pack_answer", (7, 1, 0, 0, 1, 0, 5, 4, STAGES, b"")
    yield "parse_answer", "parse_answer", (answer, 1 << 20)
    yield "parse_launch", "parse_launch", (pack_launch(1, 2, 3, 14, 0, 0, 602_112, TENSOR),)
    yield "parse_result", "parse_result", (pack_result(1, 2, 0, 10, 20, 1000, True, TENSOR, bytes(1000)),)
    yield "copy, 64 bytes", "copy", (slot, 0, slot, 4096, 64)


def sockets(module: Any, ours: socket.socket, theirs: socket.socket) -> Iterator[tuple[str, float, float]]:
    """(what, µs in Python, µs in C)."""
    message = pack_launch(1, 2, 3, 14, 0, 0, 602_112, TENSOR)
    end, other = ours.fileno(), theirs.fileno()
    in_python = cost_us(lambda: (twins.ring(ours, 5), twins.receive(theirs)))
    yield "ring, with a receive in Python", in_python, cost_us(lambda: (module.ring(end, 5), twins.receive(theirs)))
    yield "receive, with a ring in Python", in_python, cost_us(lambda: (twins.ring(ours, 5), module.receive(other)))
    in_python = cost_us(lambda: (ours.send(message), twins.receive_message(theirs)))
    in_c = cost_us(lambda: (ours.send(message), module.receive_message(other)))
    yield "receive_message, with its send", in_python, in_c
    yield "receive, nothing there", cost_us(twins.receive, theirs), cost_us(module.receive, other)
    ours.send(message)
    yield "wait, something there", cost_us(twins.wait, other, 1, 1.0), cost_us(module.wait, other, 1, 1.0)
    yield "spin, something there", cost_us(twins.spin, other, 1000), cost_us(module.spin, other, 1000)


def lines(module: Any) -> Iterator[tuple[str, float, float]]:
    """As `sockets`, of everything."""
    for what, name, args in calls():
        yield what, cost_us(getattr(twins, name), *args), cost_us(getattr(module, name), *args)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        yield from sockets(module, ours, theirs)
    in_python, in_c = journalled.Writer(None).journal, journalled.Writer(module.record).journal
    for what, (event, decided) in ENTRIES.items():
        args = event, decided, 10**15
        yield f"record: {what}", cost_us(in_python.record, *args), cost_us(in_c.record, *args)


def main() -> None:
    """A table."""
    assert native.module is not None, native.why
    print(f"{'':36} Python      C  saved")
    for what, in_python, in_c in lines(native.module):
        print(f"{what:36} {in_python:6.2f} {in_c:6.2f} {in_python - in_c:6.2f}", flush=True)


if __name__ == "__main__":
    main()
