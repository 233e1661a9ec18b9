"""Events and commands as journal entries: the frequent ones packed (0.5 µs), the others as JSON of their plain form."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Final

import orjson

from offpath.dpu_daemon.journal.ring import Entry, JournalCorrupt
from offpath.sched.errors import PlainError
from offpath.sched.jobs import commands, events
from offpath.sched.jobs.states import EndReason, JobState
from offpath.sched.plain import from_plain, to_plain

KIND_CHECKPOINT: Final = 0x01
_REASONS: Final = tuple(EndReason)
_REASON_NUMBER: Final = {reason: number for number, reason in enumerate(_REASONS)}

_SUBMITTED = struct.Struct("<QQQIHBxIQQQ")
_COPY_DONE = struct.Struct("<QI?")
_RESULT = struct.Struct("<QQHQQ")
_JOB = struct.Struct("<Q")
_COPY = struct.Struct("<QIQI")
_LAUNCH = struct.Struct("<QIQIQIH")
_ANSWER = struct.Struct("<QQHBIQQ6Q")

# Numbers are the journal's format: append, never reorder.
EVENTS: Final[tuple[type, ...]] = (
    events.SessionOpened, events.SessionClosed, events.JobSubmitted, events.CancelRequested, events.SlotLost,
    events.CreditReturned, events.CopyDone, events.LaunchFailed, events.ResultArrived, events.HelperJoined,
    events.HelperLost, events.LaneReady, events.InstanceFailed, events.WorkerLost, events.LaneScrubbed,
    events.InstanceClosed, events.Tick, events.Drain,
)  # fmt: skip
COMMANDS: Final[tuple[type, ...]] = (
    commands.Copy, commands.Launch, commands.Answer, commands.OpenLease, commands.ScrubLane, commands.CloseLease,
)  # fmt: skip
FIRST_EVENT: Final = 0x10
FIRST_COMMAND: Final = 0x80
_KIND: Final = {
    **{kind: FIRST_EVENT + n for n, kind in enumerate(EVENTS)},
    **{kind: FIRST_COMMAND + n for n, kind in enumerate(COMMANDS)},
}
_TYPE: Final = {number: kind for kind, number in _KIND.items()}


def _pack_submitted(event: events.JobSubmitted) -> bytes:
    return _SUBMITTED.pack(
        event.job, event.session, event.request_id, event.kernel, event.share, event.priority,
        event.is_idempotent, event.deadline_ns, event.payload_bytes, event.origin,
    )  # fmt: skip


def _unpack_submitted(data: bytes) -> events.JobSubmitted:
    job, session, request, kernel, share, priority, idempotent, deadline, payload, origin = _SUBMITTED.unpack(data)
    return events.JobSubmitted(
        job, session, request, kernel, share, priority, deadline, payload, bool(idempotent), origin
    )


def _unpack_answer(data: bytes) -> commands.Answer:
    job, session, reason, state, wait_ms, lease, generation, *stages = _ANSWER.unpack(data)
    queued, copy, launch, kernel, back, total = stages
    return commands.Answer(
        job, session, JobState(state), _REASONS[reason], wait_ms, lease, generation,
        (queued, copy, launch, kernel, back, total),
    )  # fmt: skip


def _unpack_result(data: bytes) -> events.ResultArrived:
    job, generation, reason, started, finished = _RESULT.unpack(data)
    return events.ResultArrived(job, generation, _REASONS[reason], started, finished)


_PACK: Final[dict[type, Callable[[Any], bytes]]] = {
    events.JobSubmitted: _pack_submitted,
    events.CopyDone: lambda e: _COPY_DONE.pack(e.job, e.attempt, e.error),
    events.ResultArrived: lambda e: _RESULT.pack(
        e.job, e.generation, _REASON_NUMBER[e.reason], e.started_ns, e.finished_ns
    ),
    events.CreditReturned: lambda e: _JOB.pack(e.job),
    events.Tick: lambda e: b"",
    commands.Copy: lambda c: _COPY.pack(c.job, c.attempt, c.lease, c.lane),
    commands.Launch: lambda c: _LAUNCH.pack(c.job, c.attempt, c.lease, c.lane, c.generation, c.kernel, c.share),
    commands.Answer: lambda c: _ANSWER.pack(
        c.job, c.session, _REASON_NUMBER[c.reason], c.state, c.retry_after_ms, c.lease, c.generation, *c.stages
    ),
}
_UNPACK: Final[dict[type, Callable[[bytes], Any]]] = {
    events.JobSubmitted: _unpack_submitted,
    events.CopyDone: lambda data: events.CopyDone(*_COPY_DONE.unpack(data)),
    events.ResultArrived: _unpack_result,
    events.CreditReturned: lambda data: events.CreditReturned(*_JOB.unpack(data)),
    events.Tick: lambda data: events.Tick(),
    commands.Copy: lambda data: commands.Copy(*_COPY.unpack(data)),
    commands.Launch: lambda data: commands.Launch(*_LAUNCH.unpack(data)),
    commands.Answer: _unpack_answer,
}


def pack(value: events.Event | commands.Command) -> tuple[int, bytes]:
    """(kind, data) of an event or a command."""
    kind = type(value)
    packer = _PACK.get(kind)
    return _KIND[kind], packer(value) if packer is not None else orjson.dumps(to_plain(value))


def unpack(entry: Entry) -> events.Event | commands.Command:
    """The event or command of an entry. Raises: JournalCorrupt: its data is not what its kind says."""
    kind: Any = _TYPE.get(entry.kind)
    if kind is None:
        raise JournalCorrupt(f"record {entry.number} is of the unknown kind {entry.kind}")
    try:
        unpacker = _UNPACK.get(kind)
        value: events.Event | commands.Command
        value = unpacker(entry.data) if unpacker is not None else from_plain(kind, orjson.loads(entry.data))
    except (struct.error, ValueError, IndexError, PlainError) as fault:
        raise JournalCorrupt(f"record {entry.number} is no {kind.__name__}: {fault}") from None
    return value


def is_event(kind: int) -> bool:
    """Events below, commands above."""
    return FIRST_EVENT <= kind < FIRST_COMMAND
