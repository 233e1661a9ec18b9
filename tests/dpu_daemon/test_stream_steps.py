"""A stream step by step: worker, daemon and requester in any order, copies that are late or fail, cancels, restarts."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from offpath.bindings.ports import NEXT_NUMBER_MASK, CopyCompletion
from offpath.bindings.wire import host
from offpath.bindings.wire.codes import Status
from offpath.bindings.wire.header import (
    DTYPE_CODES,
    FLAG_STREAM,
    HEADER_COPY_BYTES,
    HEADER_PART_BYTES,
    RequestHeader,
    Tensor,
    pack_tensors,
)
from offpath.dpu_daemon.operation.recovery import _has_answer as has_answer
from offpath.dpu_daemon.operation.recovery import restore_stream
from offpath.dpu_daemon.requests import streams
from offpath.dpu_daemon.requests.answers import Answers
from offpath.dpu_daemon.requests.inflight import JobRef, LaneConnection
from offpath.host_helper.errors import RequestFailed
from offpath.host_helper.slots import DEFAULT_OPTIONS, Result, SlotTable
from offpath.sched.jobs import commands, events
from offpath.sched.jobs.states import EndReason, JobState

JOB, GENERATION, ROOM = 1, 7, 8_192
HEADER = RequestHeader(FLAG_STREAM, 1, 1, 14, 0, 0, 0, 0, 0, b"")
SMALL, LARGE, TOO_LARGE = 5, 4_000, ROOM + 1


class Memory:
    """The requester's answers, as both sides and the copy engine see them."""

    slot_count, payload_bytes, result_bytes = 1, 64, ROOM

    def __init__(self) -> None:
        self.bytes = bytearray(HEADER_PART_BYTES + ROOM)
        self.answers = self

    def write_answer(self, slot: int, header: bytes, inline: bytes, nbytes: int) -> None:
        self.bytes[HEADER_PART_BYTES : HEADER_PART_BYTES + len(inline)] = inline
        self.bytes[: len(header)] = header

    def result_offset(self, slot: int) -> int:
        return HEADER_PART_BYTES

    def answer_header(self, slot: int) -> bytes:
        return bytes(self.bytes[:HEADER_COPY_BYTES])

    read_answer = answer_header

    def result_view(self, slot: int, nbytes: int) -> memoryview:
        return memoryview(self.bytes)[HEADER_PART_BYTES : HEADER_PART_BYTES + nbytes]

    def payload_view(self, slot: int) -> memoryview:
        return memoryview(bytearray(64))

    def write_header(self, slot: int, header: bytes, nbytes: int) -> None:
        pass


class Worker:
    """What `host_helper.worker` does with a stream of these sizes."""

    def __init__(self, sizes: list[int]) -> None:
        self.sizes = sizes
        self.lane = bytearray(ROOM)
        self.number = 0
        self.last = b""
        self.is_waiting = self.is_closed = self.has_ended = False

    def message(self) -> bytes:
        """Its next one."""
        if self.number < len(self.sizes) and not self.is_closed:
            nbytes, self.number, self.is_waiting = self.sizes[self.number], self.number + 1, True
            content = bytes((self.number,)) * nbytes
            tensors = pack_tensors([Tensor(DTYPE_CODES["uint8"], (nbytes,), 0, nbytes)])
            is_inline = nbytes <= host.INLINE_RESULT_BYTES
            if not is_inline:
                self.lane[:nbytes] = content[:ROOM]
            fields = host.RESULT_MORE, 1, 2, nbytes, is_inline, tensors, content if is_inline else b"", self.number
        else:
            self.has_ended, status = True, host.RESULT_STOPPED if self.is_closed else host.RESULT_OK
            fields = status, 1, 2, 0, True, b"", b"", self.number
        self.last = host.pack_result(JOB, GENERATION, *fields)
        return self.last


class StreamSteps(RuleBasedStateMachine):
    """One request. ``replies``: on their way to the worker; ``copies``: in flight; ``rung``: doorbells not yet read."""

    @initialize(sizes=st.lists(st.sampled_from((SMALL, SMALL, LARGE, TOO_LARGE)), max_size=5))
    def begin(self, sizes: list[int]) -> None:
        self.memory, self.worker = Memory(), Worker(sizes)
        self.table: SlotTable[str] = SlotTable(self.memory)  # type: ignore[arg-type]
        self.table.fill(1, [], DEFAULT_OPTIONS, "me", is_stream=True)
        self.taken: list[bytes] = []
        self.outcome: Result | RequestFailed | None = None
        self.has_arrived = False
        self.is_ended = self.is_away = False
        self.daemon()

    def daemon(self) -> None:
        """A new process; what was on its way with the former one is lost."""
        self.replies: list[bytes] = []
        self.copies: list[Any] = []
        self.has_arrived = False
        job = SimpleNamespace(accepted_ns=0, placed_ns=0, copied_ns=0, launched_ns=0)
        ledger: Any = SimpleNamespace(
            jobs={JOB: job}, leaving={}, is_still_running=lambda job: not self.worker.has_ended
        )
        loop: Any = SimpleNamespace(
            book=SimpleNamespace(ledger=ledger),
            on=lambda kind, handler: None,
            now_ns=lambda: 0,
            dispatch=self.dispatched,
        )
        self.answers = Answers(loop, self, self, Counter())  # type: ignore[arg-type]
        self.ref = JobRef(JOB, self, 0, HEADER)  # type: ignore[arg-type]
        self.answers.track(self.ref)
        self.link: Any = LaneConnection(1, 0, GENERATION, self, ref=self.ref)  # type: ignore[arg-type]
        self.link.memory, self.link.result_bytes = self.worker.lane, ROOM

    # -- what the daemon's parts reach ----------------------------------------------------------------------------
    number, tenant, is_closed, awaited = 1, "ada", False, ()

    @property
    def fabric(self) -> Memory:
        return self.memory

    def ring(self, slot: int) -> None:
        assert not self.has_arrived, "one doorbell for each answer"
        self.has_arrived = not self.is_away

    def on_wait(self, wait_ms: int) -> None: ...

    def holds(self, link: Any) -> bool:
        return True

    def has_ended(self) -> bool:
        return False

    def death_fileno(self) -> int:
        return 5

    def gpu_index(self, lease: int) -> int:
        return 0

    def copy_failed(self, link: Any, why: str) -> None: ...

    def to_worker(self, link: Any, message: bytes) -> bool:
        self.replies.append(message)
        return True

    def post(
        self, source: Any, at: int, target: Any, to: int, nbytes: int, done: Any, context: Any, lease: int
    ) -> None:
        assert not self.untaken, "a copy over an answer that was not taken"
        self.copies.append((nbytes, done, context))

    def dispatched(self, event: Any) -> None:
        """The book: one result, one end."""
        assert isinstance(event, events.ResultArrived)
        if not self.is_ended:
            state = JobState.COMPLETED if event.reason is EndReason.NONE else JobState.FAILED
            self.end(state, event.reason)

    def end(self, state: JobState, reason: EndReason) -> None:
        self.is_ended = True
        self.command = commands.Answer(JOB, 1, state, reason, 0, 1, GENERATION, (0,) * 6)
        self.answers.write(self.command)

    @property
    def untaken(self) -> bool:
        stream = self.ref.stream
        return stream is not None and not stream.is_taken

    # -- steps ----------------------------------------------------------------------------------------------------
    @precondition(lambda self: not self.worker.is_waiting and not self.worker.has_ended)
    @rule()
    def worker_sends(self) -> None:
        self.answers.arrived(self.link, host.parse_result(self.worker.message()))

    @rule()
    def time_passes(self) -> None:
        """Also when all is over."""

    @precondition(lambda self: self.replies)
    @rule()
    def worker_receives(self) -> None:
        reply = host.parse_proceed(self.replies.pop(0))
        assert (reply.number, self.worker.is_waiting) == (self.worker.number, True), "one reply for each answer"
        self.worker.is_waiting, self.worker.is_closed = False, reply.is_stop

    @precondition(lambda self: self.copies)
    @rule(fails=st.sampled_from((False, False, False, True)))
    def copy_ends(self, fails: bool) -> None:
        nbytes, done, context = self.copies.pop(0)
        if not fails:
            self.memory.bytes[HEADER_PART_BYTES : HEADER_PART_BYTES + nbytes] = self.worker.lane[:nbytes]
        done(context, CopyCompletion(1, "injected" if fails else None))

    @precondition(lambda self: self.has_arrived)
    @rule()
    def requester_takes(self) -> None:
        self.has_arrived = False
        _, outcome = self.table.take(0)
        if not self.table.is_stream(0):
            assert isinstance(outcome, (Result, RequestFailed))
            self.outcome = outcome
            return
        assert isinstance(outcome, Result), outcome
        self.taken.append(outcome.array.tobytes())
        self.answers.streams.took(self.ref, self.table.next_of(0) >> 10 & NEXT_NUMBER_MASK)

    @precondition(lambda self: not self.is_ended)
    @rule()
    def somebody_cancels(self) -> None:
        self.end(JobState.CANCELLED, EndReason.CANCELLED_BY_OPERATOR)

    @precondition(lambda self: self.outcome is None)
    @rule(is_delivered=st.booleans(), is_worker_first=st.booleans(), is_torn=st.booleans())
    def daemon_is_killed(self, is_delivered: bool, is_worker_first: bool, is_torn: bool) -> None:
        """What it had sent to the worker may have arrived, and it may have died while it wrote the last header. Then
        the requester comes back, and the worker, in either order."""
        while is_delivered and self.replies:
            self.worker_receives()
        if is_torn and self.has_arrived and not self.is_ended:
            self.memory.bytes[24:64] = bytes(40)
        self.daemon()
        self.is_away = True
        restore_stream(self, self.ref)  # type: ignore[arg-type]
        if self.is_ended:
            self.decided_before()
        for is_worker in (is_worker_first, not is_worker_first):
            if is_worker and (self.worker.is_waiting or self.worker.has_ended):
                self.answers.arrived(self.link, host.parse_result(self.worker.last))
            elif not is_worker:
                self.is_away = False
                if not self.ref.is_answered:
                    self.answers.streams.resumed(self.ref, self.table.unanswered()[0][1])
                self.has_arrived = self.has_arrived or self.ref.is_in_slot

    def decided_before(self) -> None:
        """As `Recovery`: the book has the end."""
        job: Any = SimpleNamespace(request_id=HEADER.request_id)
        self.ref.is_answered = has_answer(self, 0, job)  # type: ignore[arg-type]
        if self.ref.is_answered:
            del self.answers.refs[JOB]
            self.answers.leaving[JOB] = self.ref
        elif self.command.state is JobState.FAILED:
            self.answers.unwritten[JOB] = self.command
        else:
            self.answers.write(self.command)

    # -- promises -------------------------------------------------------------------------------------------------
    @invariant()
    def answers_are_in_order_and_whole(self) -> None:
        sizes = self.worker.sizes if hasattr(self, "worker") else []
        taken = getattr(self, "taken", [])
        assert taken == [bytes((at + 1,)) * sizes[at] for at in range(len(taken))]

    def teardown(self) -> None:
        """All that waits goes on: the requester gets its end, the worker is closed."""
        if not hasattr(self, "worker"):
            return
        for _ in range(100):
            for can, step in (
                (bool(self.replies), self.worker_receives), (self.has_arrived, self.requester_takes),
                (bool(self.copies), lambda: self.copy_ends(False)),
                (not self.worker.is_waiting and not self.worker.has_ended, self.worker_sends),
            ):  # fmt: skip
                if can:
                    step()
                    break
        assert self.worker.has_ended
        assert self.outcome is not None, "the requester has no end"
        assert (self.answers.held, self.answers.refs) == ({}, {})
        if isinstance(self.outcome, Result):
            assert len(self.taken) == len(self.worker.sizes), "COMPLETED with a gap"
        elif self.outcome.status is Status.FAILED:
            assert self.outcome.reason.name in ("RESULT_TOO_LARGE", "COPY_FAILED", "DAEMON_RESTARTED", "KERNEL_OVERRAN")


TestStreamSteps = StreamSteps.TestCase
TestStreamSteps.settings = settings(max_examples=300, stateful_step_count=40, deadline=None)


@pytest.fixture(autouse=True)
def no_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams.asyncio, "get_running_loop", lambda: SimpleNamespace(call_soon=lambda *call: None))  # type: ignore[attr-defined]


def restarted(sizes: list[int], answers: int) -> StreamSteps:
    """A daemon that restarted after so many answers were taken; neither worker nor requester is back."""
    steps = StreamSteps()
    steps.begin(sizes=sizes)
    for _ in range(answers):
        steps.worker_sends()
        steps.requester_takes()
        steps.worker_receives()
    steps.daemon()
    restore_stream(steps, steps.ref)  # type: ignore[arg-type]
    return steps


def test_a_worker_is_stopped_whose_stream_was_ended_before_a_restart() -> None:
    steps = restarted([SMALL] * 4, 1)
    end = commands.Answer(JOB, 1, JobState.FAILED, EndReason.KERNEL_OVERRAN, 0, 1, GENERATION, (0,) * 6)
    steps.answers.unwritten[JOB] = end
    steps.answers.streams.resumed(steps.ref, 1)
    steps.worker_sends()
    (reply,) = [host.parse_proceed(reply) for reply in steps.replies]
    assert (reply.is_stop, steps.has_arrived) == (True, False), "no answer after the end"
    steps.is_ended = True
    steps.teardown()
    assert isinstance(steps.outcome, RequestFailed)
    assert steps.outcome.reason.name == "KERNEL_OVERRAN"


@pytest.mark.parametrize("lie", [0, 1, 5])
@pytest.mark.parametrize("answers", [2, 3], ids=["an answer follows", "the end follows"])
def test_a_requester_that_lies_about_what_it_took_costs_its_stream_and_not_the_worker(lie: int, answers: int) -> None:
    steps = restarted([SMALL] * 3, answers)
    assert steps.ref.stream is not None
    steps.ref.stream.written = None  # it spoilt the header of the answer in its slot
    steps.answers.streams.resumed(steps.ref, lie)
    steps.worker_sends()
    while steps.replies:
        steps.worker_receives()
    steps.teardown()
    assert isinstance(steps.outcome, RequestFailed)
    assert steps.outcome.reason.name == "DAEMON_RESTARTED"
