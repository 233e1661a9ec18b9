"""The kernel `steps`, which takes sequences: what requesters send to it, and what its worker may remember."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from offpath.bindings.wire.codes import Reason, Status
from offpath.host_helper.errors import RequestFailed
from offpath.host_helper.kernels import KernelTable
from offpath.host_helper.sequences import SequenceContext

from .promises import promise

if TYPE_CHECKING:
    from random import Random

    from .judge import Request
    from .wires import SessionMemory
    from .worker import SimWorker
    from .world import World

NAME = "steps"
IDS = (1, 1, 1, 1, 2, 1 << 63)
_LOST = (Reason.SEQUENCE_LOST, Reason.SEQUENCE_UNKNOWN)
Key = tuple["SessionMemory", int]


def offer(table: KernelTable, world: World) -> None:
    """Register the kernel."""
    table.kernel(NAME, demand=14, tensors="pointer", sequences=True)(kernel(world))


def kernel(world: World) -> Callable[..., Any]:
    """The kernel: it remembers which request it saw last."""

    def run(*tensors: Any, sequence: SequenceContext) -> Any:
        seen = b"".join(ctypes.string_at(t.pointer, t.shape[0]) for t in tensors)
        assert world._on_lane is not None
        worker, request = world._on_lane
        try:
            world.judge.kernel_starts(worker, request, NAME, seen)
            world.judge.sequences.step(world, worker, request, sequence)
        except BaseException as fault:  # the worker would report it as the kernel's own
            world.broken = fault
            raise
        return np.frombuffer(seen[::-1], np.uint8)

    return run


class Client:
    """What a requester knows of its sequences: those that it has begun."""

    def __init__(self) -> None:
        self._begun: set[int] = set()

    def options(self, random: Random) -> dict[str, Any]:
        """The next request's; now and then not as the client's sequence goes."""
        number = random.choice(IDS)
        is_start = number not in self._begun or random.random() < 0.04
        if random.random() < 0.03:
            is_start = not is_start
        is_end = random.random() < 0.08
        self._begun -= {number}
        if not is_end:
            self._begun.add(number)
        budget_ms = random.choice((0, 0, 0, 0, 0, 5, 300))
        return {
            "sequence_id": number, "sequence_start": is_start, "sequence_end": is_end, "budget_ms": budget_ms,
        }  # fmt: skip

    def taken(self, request: Request, outcome: object) -> None:
        """An answer: a sequence that seems to have ended, a client begins anew."""
        options = request.options
        if not options.sequence_id or not isinstance(outcome, RequestFailed) or outcome.status is Status.FAILED:
            return
        if options.sequence_start or outcome.reason in _LOST or outcome.status is Status.OUTCOME_UNKNOWN:
            self._begun.discard(options.sequence_id)


@dataclass(slots=True)
class _Line:
    """One client's sequence. ``requests``: all of it, as submitted. ``ran``: the last that a kernel saw, and where."""

    requests: list[Request] = field(default_factory=list)
    ran: Request | None = None
    worker: SimWorker | None = None


class Sequences:
    """The judge of sequences: order, one at a time, the same worker, the right state."""

    def __init__(self) -> None:
        self._lines: dict[Key, _Line] = {}
        self._places: dict[int, SimWorker] = {}
        """The worker of each state, by the daemon's number: a state begins once, and lives in one worker."""
        self.steps = 0

    def filled(self, request: Request) -> None:
        """The requester is about to ring."""
        if request.options.sequence_id:
            self._lines.setdefault(_key(request), _Line()).requests.append(request)

    def step(self, world: World, worker: SimWorker, request: Request, sequence: SequenceContext) -> None:
        """A kernel sees a request, with the state that it gets."""
        options = request.options
        if request.requester.is_hostile:
            sequence.state["last"] = None
            return
        promise(options.sequence_id > 0, f"{request} is of no sequence and runs as one")
        lease = world.daemon.requests.book.ledger.leases.get(worker.order.lease)
        if lease is None or worker.lane in lease.lost:
            return  # it is about to be killed, and what it still had before it was answered long ago
        line, start = self._lines[_key(request)], bool(options.sequence_start)
        told = sequence.id, sequence.is_start, sequence.is_end
        promise(told == (options.sequence_id, start, bool(options.sequence_end)), f"{request} runs as {told}")
        if line.ran is not None:
            promise(line.ran.request_id < request.request_id, f"{request} runs after {line.ran}")
        self._alone(world, worker, request)
        is_first = sequence.number not in self._places
        promise(is_first or not start, f"{request} starts its sequence under a number that had a state")
        place = self._places.setdefault(sequence.number, worker)
        promise(place is worker, f"{request} runs on {worker} with the state of {place}")
        if start:
            promise(not sequence.state, f"{request} starts its sequence and finds a state")
        else:
            self._continues(worker, request, line, sequence)
            self.steps += 1
            world.counts["sequence_steps"] += 1
        sequence.state["last"] = request
        line.ran, line.worker = request, worker

    def _alone(self, world: World, worker: SimWorker, request: Request) -> None:
        """On no other lane that the book counts on; what runs on a lost one is about to be killed."""
        leases = world.daemon.requests.book.ledger.leases
        for helper in world.helpers.values():
            for other in helper.workers():
                running = other.running[0] if other.running is not None and other.is_alive else None
                lease = leases.get(other.order.lease)
                if running is None or lease is None or other.lane in lease.lost or other is worker:
                    continue
                is_same = running.options.sequence_id and _key(running) == _key(request)
                promise(not is_same, f"{request} runs beside {running}")

    @staticmethod
    def _continues(worker: SimWorker, request: Request, line: _Line, sequence: SequenceContext) -> None:
        promise(line.ran is not None, f"{request} runs, and nothing of its sequence ran before it")
        assert line.ran is not None
        promise(worker is line.worker, f"{request} runs on {worker}, and {line.ran} ran on {line.worker}")
        promise(sequence.state.get("last") is line.ran, f"{request} finds the state of {sequence.state.get('last')}")
        promise(not line.ran.options.sequence_end, f"{request} runs after the end, {line.ran}")
        between = [
            each
            for each in line.requests
            if line.ran.request_id < each.request_id < request.request_id
            and (each.options.sequence_start or each.options.sequence_end)
        ]
        skipped = [each for each in between if each.job and not _has_no_part(each)]
        promise(not skipped, f"{request} runs in the place of {[str(each) for each in skipped]}")


def may_end(request: Request, reason: Reason) -> bool:
    """True if a request may be told so because of its sequence."""
    return reason is Reason.SEQUENCE_LOST and request.options.sequence_id > 0 and not request.options.sequence_start


def _has_no_part(request: Request) -> bool:
    """True if it was refused as one that repeats another, or may be of no sequence: it changes none."""
    answer = request.answer
    return answer is not None and answer.reason in (Reason.DUPLICATE_ID, Reason.BAD_SEQUENCE)


def _key(request: Request) -> Key:
    return request.session, request.options.sequence_id
