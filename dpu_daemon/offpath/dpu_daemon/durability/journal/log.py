"""Writes the journal of the job book and replays it.

Every event is written in one entry, with its time and the book's decisions, before any decision is carried out. The
book handles it first, so an event that crashes the book is not journalled, and replay cannot crash on it. A checkpoint
(the whole book) is written every 64th of the ring, so that a start replays little and the ring may overwrite the rest.
For a large book the interval grows up to a 16th of the ring, so that checkpoints stay a small part of the writes.
"""

from __future__ import annotations

import hashlib
import secrets
import struct
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import orjson

from offpath.bindings import faults
from offpath.dpu_daemon.durability.journal import codec, native
from offpath.dpu_daemon.durability.journal.ring import (
    HEADER_PAGE,
    RECORD_BYTES,
    Entry,
    Identity,
    JournalCorrupt,
    JournalForeign,
    Ring,
    Storage,
)
from offpath.sched.errors import PlainError
from offpath.sched.gpu.plugin import PluginDecision, PluginPolicy, gateway_of
from offpath.sched.jobs import commands, events
from offpath.sched.jobs.book import JobBook
from offpath.sched.jobs.snapshot import restore, schema, snapshot

_PART: Final = 64
_LARGEST_PART: Final = 16
_TIMES: Final = 8
"""The next checkpoint follows after this multiple of the last one's size in records."""
_SUM = struct.Struct("<Q")
_SUM_MASK: Final = (1 << 64) - 1
_Decided = tuple[int, bytes, commands.Command]


class ReplayDiverged(JournalCorrupt):
    """Replay decides differently from the journal."""


def our_schema() -> str:
    """Identifies the meaning of this build's journals; those of another build are not continued."""
    kinds = [kind.__name__ for kind in (*codec.EVENTS, *codec.COMMANDS)]
    return hashlib.sha256(f"{schema()} {kinds}".encode()).hexdigest()[:16]


def journal_bytes(mib: int) -> int:
    """Size of the file for a ring of ``mib`` MiB."""
    return HEADER_PAGE + (mib << 20) // RECORD_BYTES * RECORD_BYTES


class Journal:
    """Appends entries. ``ring`` is positioned at its end; ``times`` is `Replayed.times` of it."""

    def __init__(self, ring: Ring, times: int = 0) -> None:
        self._ring = ring
        self._times = times
        self._record = native.record
        self._every = ring.records // _PART
        self._due_at = self._next_due()
        self.entries = 0
        self.checkpoints = 0

    @property
    def identity(self) -> Identity:
        """Lineage and secret."""
        return self._ring.identity

    @property
    def restarts(self) -> int:
        """Processes of this lineage before this one."""
        return self._ring.restarts

    @property
    def records(self) -> int:
        """Records written since the lineage began."""
        return self._ring.next_number - 1

    @property
    def fill(self) -> float:
        """Records since the last checkpoint, divided by the ring's capacity: the part that a start would replay."""
        return self._ring.since_checkpoint() / self._ring.records

    def record(self, event: events.Event, decided: Sequence[commands.Command], now_ns: int) -> None:
        """Write an event and its decisions before any is carried out. Raises: OSError: the write failed. JournalError:
        the entry does not fit."""
        if faults.armed:
            faults.hit("daemon.event")
        self._times += now_ns
        ring = self._ring
        if self._record is not None and not faults.armed:
            written = self._record(ring.view, ring.records, ring.next_number, event, decided, self._times, now_ns)
            if written:
                ring.next_number += written
                self.entries += 1
                return
        is_long = len(decided) > codec.MOST_DECIDED
        kind, data = codec.pack_decided(event, decided[: codec.MOST_DECIDED] if is_long else decided, self._times)
        ring.append(kind, now_ns, data)
        self.entries += 1
        if is_long:
            self.decided(decided[codec.MOST_DECIDED :], now_ns)
        if faults.armed:
            faults.hit("daemon.decided")

    def decided(self, decided: Sequence[commands.Command], now_ns: int) -> None:
        """Write further decisions on the last event. Raises: as `record`."""
        for begin in range(0, len(decided), codec.MOST_DECIDED):
            kind, data = codec.pack_decided(None, decided[begin : begin + codec.MOST_DECIDED], self._times)
            self._ring.append(kind, now_ns, data)
            self.entries += 1

    def is_due(self) -> bool:
        """Whether a checkpoint is due. Asked for every event: one comparison."""
        return self._ring.next_number >= self._due_at

    def _next_due(self) -> int:
        """The number of the record at which the next checkpoint is due."""
        return self._ring.next_number - self._ring.since_checkpoint() + self._every

    def checkpoint(self, book: JobBook, now_ns: int) -> None:
        """Write a checkpoint; only between events. Raises: JournalError: the book has outgrown the journal."""
        ring = self._ring
        ring.checkpoint(
            codec.KIND_CHECKPOINT, now_ns, _SUM.pack(self._times & _SUM_MASK) + orjson.dumps(snapshot(book))
        )
        self._every = min(ring.records // _LARGEST_PART, max(ring.records // _PART, _TIMES * ring.since_checkpoint()))
        self._due_at = self._next_due()
        self.checkpoints += 1

    def retire(self) -> None:
        """Prevent continuation: the next start begins a new lineage."""
        self._ring.retire()

    def close(self) -> None:
        """Unmap."""
        self._ring.close()


@dataclass(slots=True)
class Replayed:
    """Result of a replay. ``unwritten``: decisions of the last event that its process did not write in time. ``times``:
    the sum of all event times since the lineage began."""

    book: JobBook
    event_count: int = 0
    command_count: int = 0
    checkpoint_count: int = 0
    time_ns: int = 0
    times: int = 0
    unwritten: list[commands.Command] = field(default_factory=list)
    kinds: Counter[str] = field(default_factory=Counter)


def replay(entries: Iterator[Entry], on_entry: Callable[[Entry], None] | None = None) -> Replayed:
    """Handle every event again, starting from the checkpoint that comes first, and compare the book's decisions with
    the journal byte by byte; each later checkpoint must equal the book.

    Raises: ReplayDiverged: a decision differs. JournalCorrupt: an entry is invalid.
    """
    done: Replayed | None = None
    expected: deque[_Decided] = deque()
    ahead = _Ahead(entries)
    for entry in ahead:
        if on_entry is not None:
            on_entry(entry)
        if done is None:
            done = _restored(entry)
            continue
        if entry.kind != codec.DECIDED and expected:
            raise ReplayDiverged(f"record {entry.number}: the decision {expected[0][2]} is missing before it")
        if entry.kind == codec.KIND_CHECKPOINT:
            _same_book(done, entry)
            done.checkpoint_count += 1
        else:
            _replay_entry(done, entry, expected, ahead)
        done.time_ns = max(done.time_ns, entry.time_ns)
    if done is None:
        raise JournalCorrupt("the checkpoint listed in the journal's header is missing")
    done.unwritten = [command for _, _, command in expected]
    return done


def _restored(entry: Entry) -> Replayed:
    if entry.kind != codec.KIND_CHECKPOINT:
        raise JournalCorrupt(f"record {entry.number} is not a checkpoint")
    try:
        (times,) = _SUM.unpack_from(entry.data)
        return Replayed(restore(orjson.loads(entry.data[_SUM.size :])), times=times)
    except (struct.error, orjson.JSONDecodeError, PlainError) as fault:
        raise JournalCorrupt(f"record {entry.number}: {fault}") from None


class _Ahead:
    """The entries, with lookahead."""

    def __init__(self, entries: Iterator[Entry]) -> None:
        self._entries = entries
        self._seen: deque[Entry] = deque()

    def __iter__(self) -> Iterator[Entry]:
        while True:
            entry = self._seen.popleft() if self._seen else next(self._entries, None)
            if entry is None:
                return
            yield entry

    def continued(self) -> Iterator[Entry]:
        """The entries that continue the decisions of the current one."""
        for entry in self._entries:
            self._seen.append(entry)
            if entry.kind != codec.DECIDED:
                return
            yield entry


def _decision(parts: codec.Parts, number: int, ahead: _Ahead) -> Iterator[PluginDecision]:
    """The plug-in decisions made while the entry's event was handled."""
    decided = [(number, packed) for packed in parts.decided]
    if len(decided) == codec.MOST_DECIDED:
        decided += [(later.number, packed) for later in ahead.continued() for packed in codec.split(later).decided]
    for of, packed in decided:
        if packed[0] == codec.KIND_PLUGIN_DECISION:
            yield codec.unpack(packed, of)


def _replay_entry(done: Replayed, entry: Entry, expected: deque[_Decided], ahead: _Ahead) -> None:
    """Handle the entry's event, if any. Its commands must be the first of those then ``expected``."""
    parts = codec.split(entry)
    if parts.event is not None:
        event = codec.unpack(parts.event, entry.number)
        gateway = gateway_of(done.book.ledger.decisions)
        gateway.recalled.clear()
        if isinstance(done.book.ledger.policy, PluginPolicy):
            gateway.recalled.extend(_decision(parts, entry.number, ahead))
        done.times += entry.time_ns
        done.kinds[type(event).__name__] += 1
        expected.extend(_handled(done, event, entry))
        done.event_count += 1
    elif entry.time_ns != done.time_ns:
        raise ReplayDiverged(f"record {entry.number} has another time than its event")
    for command in parts.decided:
        _same_command(entry, command, expected.popleft() if expected else None)
    if not parts.same_times(done.times):
        raise ReplayDiverged(f"record {entry.number}: its time, or that of an event before it, differs")
    done.command_count += len(parts.decided)


def _handled(done: Replayed, event: events.Event, entry: Entry) -> list[_Decided]:
    if entry.time_ns < done.time_ns:
        raise JournalCorrupt(f"record {entry.number} has an earlier time than the previous one")
    try:
        decided = done.book.handle(event, entry.time_ns)
        return [(*codec.pack(command), command) for command in decided]
    except Exception as fault:  # the book trusts its input, but a journal may come from anywhere
        raise ReplayDiverged(f"record {entry.number}: {type(event).__name__}: {fault!r}") from fault


def _same_command(entry: Entry, packed: codec.Packed, expected: _Decided | None) -> None:
    if expected is None or packed != expected[:2]:
        written = codec.unpack(packed, entry.number)
        raise ReplayDiverged(
            f"record {entry.number} contains {written}; the book now decides {expected[2] if expected else 'nothing'}"
        )


def _same_book(done: Replayed, entry: Entry) -> None:
    if _SUM.pack(done.times & _SUM_MASK) != entry.data[: _SUM.size]:
        raise ReplayDiverged(f"record {entry.number}: the time of an event before it differs")
    if orjson.dumps(snapshot(done.book)) != entry.data[_SUM.size :]:
        raise ReplayDiverged(f"record {entry.number}: the checkpoint differs from the replayed book")


def new_identity(boot: str) -> Identity:
    """A new random lineage."""
    return Identity(boot, secrets.token_hex(8), secrets.token_bytes(32), our_schema())


def open_journal(storage: Storage, boot: str) -> tuple[Ring, Replayed | None, str]:
    """The ring to write to and its replayed book; or a new ring, None, and the reason.

    Raises: JournalCorrupt, ReplayDiverged: the journal belongs to this boot and build but is damaged; an operator must
    decide.
    """
    if not any(bytes(storage.view()[:HEADER_PAGE])):
        return Ring.fresh(storage, new_identity(boot)), None, "none was left"
    try:
        ring = Ring.opened(storage)
        if ring.identity.boot != boot:
            raise JournalForeign("it was written in an earlier boot")
        if ring.identity.schema != our_schema():
            raise JournalForeign("it was written by another build")
        if not ring.checkpoints:
            raise JournalForeign("it has no checkpoint")
    except JournalForeign as fault:
        return Ring.fresh(storage, new_identity(boot)), None, str(fault)
    replayed = replay(ring.entries(ring.checkpoints[-1]))
    ring.restarts += 1
    return ring, replayed, ""
