"""Journal entries, written by C and by Python into two rings, which must hold the same bytes afterwards."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from random import Random
from typing import Any

from offpath.dpu_daemon.durability.journal import codec, native
from offpath.dpu_daemon.durability.journal.log import Journal
from offpath.dpu_daemon.durability.journal.ring import HEADER_PAGE, MIN_RECORDS, RECORD_BYTES, Identity, Ring
from offpath.sched.jobs import commands, events
from offpath.sched.jobs.states import EndReason, JobState

from ...fuzz.mutate import edge

SIZES = {
    "share": 2, "priority": 1, "state": 1, "attempt": 4, "lane": 4, "kernel": 4, "retry_after_ms": 4,
}  # fmt: skip
"""Bytes of a packed field, if not eight."""
FREQUENT_EVENTS = (events.JobSubmitted, events.CopyDone, events.ResultArrived, events.CreditReturned)
FREQUENT_COMMANDS = (commands.Copy, commands.Launch, commands.Answer)
PAIRS = {
    events.JobSubmitted: commands.Copy,
    events.CopyDone: commands.Launch,
    events.ResultArrived: commands.Answer,
}


class Bytes:
    """A ring's storage in memory."""

    def __init__(self) -> None:
        self.bytes = bytearray(HEADER_PAGE + (MIN_RECORDS + 5) * RECORD_BYTES)

    def view(self) -> memoryview:
        return memoryview(self.bytes)

    def clear(self) -> None:
        self.bytes[:] = bytes(len(self.bytes))

    def cool(self) -> None:
        """There is nothing to release."""

    def close(self) -> None:
        """Nor to unmap."""


def field(noise: Random, name: str) -> Any:
    """A value of a packed field: mostly one that fits."""
    if noise.random() < 0.004:
        return noise.choice((-1, 1 << 8 * SIZES.get(name, 8), 1 << 70, None, "x", 2.5, (), (1, 2), b"\1"))
    if name == "stages":
        return tuple(edge(noise, 8) for _ in range(6 if noise.random() < 0.99 else noise.choice((0, 5, 7))))
    if name in ("is_idempotent", "error"):
        return noise.random() < 0.5
    if name == "reason":
        return noise.choice(tuple(EndReason))
    if name == "state":
        return noise.choice(tuple(JobState))
    return edge(noise, SIZES.get(name, 8))


def drawn(noise: Random, kind: type) -> Any:
    return kind(*(field(noise, each.name) for each in fields(kind)))


def entry(noise: Random) -> tuple[Any, tuple[Any, ...]]:
    """An event and its commands: often a frequent pair."""
    kind = noise.choice(FREQUENT_EVENTS)
    shape = noise.random()
    if shape < 0.05:
        event = noise.choice((events.Tick(), events.CancelRequested(edge(noise, 8)), events.LaunchFailed(1, 2), None))
    else:
        event = drawn(noise, kind)
    if shape < 0.6 and kind in PAIRS:
        return event, (drawn(noise, PAIRS[kind]),)
    decided = [drawn(noise, noise.choice(FREQUENT_COMMANDS)) for _ in range(noise.choice((0, 0, 1, 2, 3, 4, 8, 9)))]
    if noise.random() < 0.05:
        decided.insert(noise.randrange(len(decided) + 1), commands.EndSession(3))
    return event, tuple(decided) if noise.random() < 0.98 else decided  # type: ignore[return-value]


class Writer:
    """A journal of its own, whose frequent entries ``record`` writes."""

    def __init__(self, record: Any) -> None:
        self.storage = Bytes()
        self.ring = Ring.fresh(self.storage, Identity("boot", "lineage", bytes(32), "schema"))
        self.journal = Journal(self.ring, 1 << 70)
        self.journal._record = record

    def write(self, event: Any, decided: Any, now_ns: int) -> tuple[Any, ...]:
        """What came of it: the error or none, and what was written."""
        begin, journal = self.ring.next_number, self.journal
        try:
            journal.record(event, decided, now_ns)
            fault: tuple[Any, ...] = ("returned", None, None)
        except Exception as raised:
            fault = "raised", type(raised), str(raised), "", ""
        places = range(begin, self.ring.next_number + 1)  # and the one after it
        written = b"".join(self.at(number) for number in places)
        return *fault, journal.entries, self.ring.next_number, written

    def at(self, number: int) -> bytes:
        at = HEADER_PAGE + number % self.ring.records * RECORD_BYTES
        return bytes(self.storage.bytes[at : at + RECORD_BYTES])


def is_frequent(event: Any, decided: Any) -> bool:
    """C has to write it, if it is valid."""
    kinds = {type(each) for each in decided}
    is_known = type(event) in FREQUENT_EVENTS and kinds <= set(FREQUENT_COMMANDS)
    return is_known and type(decided) is tuple and len(decided) <= 3


def records(module: Any) -> Callable[[Random], tuple[tuple[Any, ...], tuple[Any, ...]]]:
    """See `tests.bindings.path.sweep`. C must write every frequent entry that is valid."""
    assert module.JOURNAL_LAYOUT == native.LAYOUT
    module.configure_journal(codec.CLASSES)
    counts: list[int] = []

    def counted(*args: Any) -> int:
        counts.append(module.record(*args))
        return counts[-1]

    in_c, in_python = Writer(counted), Writer(None)

    def pair(noise: Random) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        event, decided = entry(noise)
        now_ns = noise.choice((0, 1, 10**15, 1 << 63, (1 << 64) - 1, noise.getrandbits(60)))
        if noise.random() < 0.002:
            now_ns = noise.choice((-1, 1 << 64))
        counts.clear()
        ours, theirs = in_c.write(event, decided, now_ns), in_python.write(event, decided, now_ns)
        must = is_frequent(event, decided) and theirs[0] == "returned"
        return (*ours, bool(counts[0]) or not must), (*theirs, True)

    return pair
