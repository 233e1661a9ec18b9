"""Encodes events and commands as journal entries: frequent ones packed (0.5 µs), others as JSON of their plain form.

An entry with commands holds: a byte with their count, 16 bits of the sum of all event times so far, each command with
its kind and length, then the event. An event without commands is stored alone; its time is part of the next sum.
Commands beyond the byte's range follow in entries without an event.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Final

import orjson

from offpath.dpu_daemon.durability.journal.ring import Entry, JournalCorrupt
from offpath.sched.errors import PlainError
from offpath.sched.gpu.plugin import PluginDecision
from offpath.sched.jobs import commands, events
from offpath.sched.jobs.states import EndReason, JobState
from offpath.sched.plain import from_plain, to_plain

KIND_CHECKPOINT: Final = 0x01
DECIDED: Final = 0x80
"""Added to an event's kind if commands precede it. Alone: an entry without an event."""
MOST_DECIDED: Final = 255
"""Most commands in one entry."""
_REASONS: Final = tuple(EndReason)
_REASON_NUMBER: Final = {reason: number for number, reason in enumerate(_REASONS)}

_SUBMITTED = struct.Struct("<QQQIHB?QQQQ")
_COPY_DONE = struct.Struct("<QI?")
_RESULT = struct.Struct("<QQHQQ")
_JOB = struct.Struct("<Q")
_COMMAND = struct.Struct("<BH")
_HEAD = struct.Struct("<BH")
_HEAD_OF_ONE = struct.Struct("<BHBH")
_TIMES_MASK: Final = 0xFFFF
_COPY = struct.Struct("<QIQI")
_LAUNCH = struct.Struct("<QIQIQIH")
_ANSWER = struct.Struct("<QQHBIQQ6Q")
_STACK = struct.Struct("<IQ")
_SEQUENCE = struct.Struct("<Q??")
_COPY_BATCH = struct.Struct("<QIQIIH")
_MEMBER = struct.Struct("<QI")


def _joined(*parts: struct.Struct) -> struct.Struct:
    return struct.Struct("<" + "".join([part.format[1:] for part in parts]))


# A command and its event in one struct, in the layout of `pack_decided`; these three are nearly all entries.
_SUBMITTED_COPY = _joined(_HEAD_OF_ONE, _COPY, _SUBMITTED)
_COPIED_LAUNCH = _joined(_HEAD_OF_ONE, _LAUNCH, _COPY_DONE)
_RESULT_ANSWER = _joined(_HEAD_OF_ONE, _ANSWER, _RESULT)

# The numbers are part of the journal's format: append, never reorder.
EVENTS: Final[tuple[type, ...]] = (
    events.SessionOpened, events.SessionClosed, events.JobSubmitted, events.CancelRequested, events.SlotLost,
    events.CreditReturned, events.CopyDone, events.LaunchFailed, events.ResultArrived, events.HelperJoined,
    events.HelperLost, events.LaneReady, events.InstanceFailed, events.WorkerLost, events.LaneScrubbed,
    events.InstanceClosed, events.Tick, events.ConfigChanged, events.Drain, events.PluginStarted,
    events.LaneLoading, events.GpuLost, events.KernelsReloaded, events.StackSubmitted, events.BatchResult,
    events.SequenceSubmitted, events.NeverLaunched,
)  # fmt: skip
COMMANDS: Final[tuple[type, ...]] = (
    commands.Copy, commands.Launch, commands.Answer, commands.OpenLease, commands.ScrubLane, commands.CloseLease,
    commands.KillLane, commands.EndSession, commands.TenantGone, PluginDecision,
    commands.RenewLane, commands.CopyBatch, commands.EndSequence,
)  # fmt: skip
FIRST_EVENT: Final = 0x10
FIRST_COMMAND: Final = 0x40
_KIND: Final = {
    **{kind: FIRST_EVENT + n for n, kind in enumerate(EVENTS)},
    **{kind: FIRST_COMMAND + n for n, kind in enumerate(COMMANDS)},
}
_TYPE: Final = {number: kind for kind, number in _KIND.items()}
_IS_EVENT: Final = frozenset(EVENTS)
KIND_PLUGIN_DECISION: Final = _KIND[PluginDecision]
_FREQUENT: Final = (
    events.JobSubmitted, events.CopyDone, events.ResultArrived, events.CreditReturned, commands.Copy, commands.Launch,
    commands.Answer,
)  # fmt: skip
LAYOUT: Final = " ".join(
    [each.format for each in (_HEAD, _COMMAND, _COPY, _SUBMITTED, _LAUNCH, _COPY_DONE, _ANSWER, _RESULT, _JOB)]
    + [str(each) for each in (DECIDED, *[_KIND[kind] for kind in _FREQUENT])]
)
"""See `offpath.dpu_daemon.durability.journal.native`."""


CLASSES: Final = SimpleNamespace(**{kind.__name__: kind for kind in _FREQUENT}, END_REASONS=_REASONS)
"""What the C module packs, under the names that it asks for."""


def _pack_submitted(event: events.JobSubmitted) -> bytes:
    return _SUBMITTED.pack(
        event.job, event.session, event.request_id, event.kernel, event.share, event.priority,
        event.is_idempotent, event.deadline_ns, event.payload_bytes, event.origin, event.credit,
    )  # fmt: skip


def _unpack_submitted(data: bytes) -> events.JobSubmitted:
    (job, session, request, kernel, share, priority, idempotent, deadline, payload, origin,
     credit) = _SUBMITTED.unpack(data)  # fmt: skip
    return events.JobSubmitted(
        job, session, request, kernel, share, priority, deadline, payload, idempotent, origin, credit
    )


def _unpack_stacked(data: bytes) -> events.StackSubmitted:
    rows, stack = _STACK.unpack_from(data)
    return events.StackSubmitted(_unpack_submitted(data[_STACK.size :]), rows, stack)


def _unpack_followed(data: bytes) -> events.SequenceSubmitted:
    sequence_id, is_start, is_end = _SEQUENCE.unpack_from(data)
    return events.SequenceSubmitted(_unpack_submitted(data[_SEQUENCE.size :]), sequence_id, is_start, is_end)


def _pack_copy_batch(command: commands.CopyBatch) -> bytes:
    head = _COPY_BATCH.pack(
        command.job, command.attempt, command.lease, command.lane, command.rows, len(command.members)
    )
    return head + b"".join([_MEMBER.pack(job, row) for job, row in command.members])


def _unpack_copy_batch(data: bytes) -> commands.CopyBatch:
    job, attempt, lease, lane, rows, count = _COPY_BATCH.unpack_from(data)
    members = tuple((member, row) for member, row in _MEMBER.iter_unpack(data[_COPY_BATCH.size :]))
    if len(members) != count:
        raise ValueError(f"{len(members)} members instead of {count}")
    return commands.CopyBatch(job, attempt, lease, lane, rows, members)


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
    events.StackSubmitted: lambda e: _STACK.pack(e.rows, e.stack) + _pack_submitted(e.submitted),
    events.SequenceSubmitted: lambda e: (
        _SEQUENCE.pack(e.sequence_id, e.is_start, e.is_end) + _pack_submitted(e.submitted)
    ),
    commands.CopyBatch: _pack_copy_batch,
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
    events.StackSubmitted: _unpack_stacked,
    events.SequenceSubmitted: _unpack_followed,
    commands.CopyBatch: _unpack_copy_batch,
    commands.Copy: lambda data: commands.Copy(*_COPY.unpack(data)),
    commands.Launch: lambda data: commands.Launch(*_LAUNCH.unpack(data)),
    commands.Answer: _unpack_answer,
}


def _submitted_copy(event: events.JobSubmitted, copy: commands.Copy, times: int) -> bytes:
    return _SUBMITTED_COPY.pack(
        1, times & _TIMES_MASK, _COPY_KIND, _COPY.size, copy.job, copy.attempt, copy.lease, copy.lane,
        event.job, event.session, event.request_id, event.kernel, event.share, event.priority, event.is_idempotent,
        event.deadline_ns, event.payload_bytes, event.origin, event.credit,
    )  # fmt: skip


def _copied_launch(event: events.CopyDone, launch: commands.Launch, times: int) -> bytes:
    return _COPIED_LAUNCH.pack(
        1, times & _TIMES_MASK, _LAUNCH_KIND, _LAUNCH.size, launch.job, launch.attempt, launch.lease, launch.lane,
        launch.generation, launch.kernel, launch.share, event.job, event.attempt, event.error,
    )  # fmt: skip


def _result_answer(event: events.ResultArrived, answer: commands.Answer, times: int) -> bytes:
    return _RESULT_ANSWER.pack(
        1, times & _TIMES_MASK, _ANSWER_KIND, _ANSWER.size, answer.job, answer.session, _REASON_NUMBER[answer.reason],
        answer.state, answer.retry_after_ms, answer.lease, answer.generation, *answer.stages,
        event.job, event.generation, _REASON_NUMBER[event.reason], event.started_ns, event.finished_ns,
    )  # fmt: skip


_COPY_KIND: Final = _KIND[commands.Copy]
_LAUNCH_KIND: Final = _KIND[commands.Launch]
_ANSWER_KIND: Final = _KIND[commands.Answer]
_PAIRS: Final[dict[type, tuple[type, int, Callable[[Any, Any, int], bytes]]]] = {
    events.JobSubmitted: (commands.Copy, _KIND[events.JobSubmitted] + DECIDED, _submitted_copy),
    events.CopyDone: (commands.Launch, _KIND[events.CopyDone] + DECIDED, _copied_launch),
    events.ResultArrived: (commands.Answer, _KIND[events.ResultArrived] + DECIDED, _result_answer),
}

Packed = tuple[int, bytes]
"""Kind and data of one event or command."""


def pack(value: events.Event | commands.Command) -> Packed:
    """Pack one event or command alone."""
    kind = type(value)
    packer = _PACK.get(kind)
    return _KIND[kind], packer(value) if packer is not None else orjson.dumps(to_plain(value))


def unpack(packed: Packed, number: int) -> Any:
    """The event or command that was packed into record ``number``. Raises: JournalCorrupt: it cannot be decoded."""
    kind: Any = _TYPE.get(packed[0])
    if kind is None:
        raise JournalCorrupt(f"record {number} has the unknown kind {packed[0]}")
    try:
        unpacker = _UNPACK.get(kind)
        return unpacker(packed[1]) if unpacker is not None else from_plain(kind, orjson.loads(packed[1]))
    except (struct.error, ValueError, IndexError, PlainError) as fault:
        raise JournalCorrupt(f"record {number} is not a valid {kind.__name__}: {fault}") from None


def pack_decided(event: events.Event | None, decided: Sequence[commands.Command], times: int) -> Packed:
    """The entry of an event and at most `MOST_DECIDED` commands. ``event`` None: the event is in an earlier entry.
    ``times``: the sum of the times of all events including this one."""
    count = len(decided)
    if count == 1:  # the common case
        pair = _PAIRS.get(type(event))
        if pair is not None and type(decided[0]) is pair[0]:
            return pair[1], pair[2](event, decided[0], times)
    kind, data = pack(event) if event is not None else (0, b"")
    if not count:
        return kind, data
    if count == 1:
        of_command, packed = pack(decided[0])
        return kind + DECIDED, _HEAD_OF_ONE.pack(1, times & _TIMES_MASK, of_command, len(packed)) + packed + data
    parts = [_HEAD.pack(count, times & _TIMES_MASK)]
    for command in decided:
        of_command, packed = pack(command)
        parts += _COMMAND.pack(of_command, len(packed)), packed
    parts.append(data)
    return kind + DECIDED, b"".join(parts)


@dataclass(frozen=True, slots=True)
class Parts:
    """A decoded entry. ``times`` is compared by `same_times`; None without commands."""

    event: Packed | None
    decided: list[Packed]
    times: int | None

    def same_times(self, times: int) -> bool:
        """Whether all event times so far have this sum; always True for an entry without commands."""
        return self.times is None or self.times == times & _TIMES_MASK


def split(entry: Entry) -> Parts:
    """Splits an entry that is not a checkpoint. Raises: JournalCorrupt: the commands and event cannot be separated."""
    if entry.kind < DECIDED:
        return Parts((entry.kind, entry.data), [], None)
    decided: list[Packed] = []
    data, times = entry.data, 0
    try:
        count, times = _HEAD.unpack_from(data)
        at = _HEAD.size
        for _ in range(count):
            kind, nbytes = _COMMAND.unpack_from(data, at)
            at += _COMMAND.size + nbytes
            decided.append((kind, data[at - nbytes : at]))
    except struct.error:
        at = len(data) + 1
    if at > len(data) or (entry.kind == DECIDED and at < len(data)):
        raise JournalCorrupt(f"record {entry.number} has malformed commands")
    return Parts(None if entry.kind == DECIDED else (entry.kind - DECIDED, data[at:]), decided, times)


def values(entry: Entry) -> Iterator[Any]:
    """The event of an entry, if present, then its commands. Raises: JournalCorrupt."""
    parts = split(entry)
    for packed in parts.decided if parts.event is None else [parts.event, *parts.decided]:
        yield unpack(packed, entry.number)


def is_event(value: object) -> bool:
    """True for an event, False for a command."""
    return type(value) in _IS_EVENT
